"""The outside world as Protocols, and the real one: the only room with files, time and threads."""

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
