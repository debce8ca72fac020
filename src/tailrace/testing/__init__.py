"""Shipped for tests: a file system that can lose power or fail, and a clock that is set by hand."""

from __future__ import annotations

from tailrace.testing.crash_filesystem import CrashFileSystem, SimulatedCrash
from tailrace.testing.sim_clock import SimClock

__all__ = ["CrashFileSystem", "SimClock", "SimulatedCrash"]
