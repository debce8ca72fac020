"""Tools for tests: file systems that lose power or fail, and a clock and a scheduler that the test controls.

``contracts`` has the behaviour that every file system and every store must have, as test classes to subclass.
``simulation`` runs a whole store in a simulated environment, from a seed.
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
