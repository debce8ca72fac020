"""Requests of consumers about themselves: heartbeats, offsets, locks."""
