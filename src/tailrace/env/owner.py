"""Which thread a table belongs to, and an assertion that no other one changes it."""

from __future__ import annotations

import threading
from typing import final

__all__ = ["ThreadOwner"]


@final
class ThreadOwner:
    """The thread that constructs it, for objects that only one thread may use."""

    __slots__ = ("_thread", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._thread = threading.get_ident()

    def check(self) -> None:
        """Raise AssertionError if another thread calls; nothing is checked with ``python -O``."""
        if __debug__ and threading.get_ident() != self._thread:
            raise AssertionError(
                f"{self._what} belongs to another thread, {threading.current_thread().name} must not use it")
