"""Tools for store directories that are not opened: they read a directory and do not change it."""
