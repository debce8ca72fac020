"""Counters of a running broker, which requests write and `tailrace.observe` reads."""
