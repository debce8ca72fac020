"""Offline tools for store directories: they read, and change nothing."""
