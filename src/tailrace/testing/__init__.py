"""Shipped for tests: files that lose power or fail, a clock and a scheduler that are told.

``contracts`` holds what every file system and every store must do, as test classes to subclass;
``simulation`` runs a whole store on all of this, from a seed.
"""

from __future__ import annotations

from tailrace.testing.crash_filesystem import CrashFileSystem, SimulatedCrash
from tailrace.testing.faulty_filesystem import Fault, FaultyFileSystem
from tailrace.testing.manual_scheduler import IdleService, ManualScheduler
from tailrace.testing.sim_clock import SimClock
from tailrace.testing.sim_scheduler import SimScheduler

__all__ = [
    "CrashFileSystem", "Fault", "FaultyFileSystem", "IdleService", "ManualScheduler", "SimClock",
    "SimScheduler", "SimulatedCrash",
]
