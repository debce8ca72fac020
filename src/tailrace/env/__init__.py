"""Protocols for files, time, threads and randomness, and their real implementations.

No other room opens files, reads clocks or starts threads, so a test can replace all of it.
"""

from __future__ import annotations

from tailrace.env.clock import Clock, SystemClock
from tailrace.env.entropy import Entropy, SystemEntropy
from tailrace.env.filesystem import File, FileSystem, LockHandle, OsFileSystem
from tailrace.env.scheduler import Scheduler, ThreadScheduler

__all__ = [
    "Clock",
    "Entropy",
    "File",
    "FileSystem",
    "LockHandle",
    "OsFileSystem",
    "Scheduler",
    "SystemClock",
    "SystemEntropy",
    "ThreadScheduler",
]
