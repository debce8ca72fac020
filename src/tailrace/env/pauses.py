"""Pauses of a thread that computes for long, so that the event loop of its process can work."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

__all__ = ["in_steps", "no_pause", "pause"]

_Item = TypeVar("_Item")
PAUSE_S: Final = 0.000_5
_never: Final = threading.Event()


def pause() -> None:
    """Let the event loop work; a thread that computes for long calls it after each half a millisecond.

    Without a pause the event loop waits for the switch interval of the interpreter each time that it needs its lock:
    1 ms in a server, 5 ms elsewhere.
    """
    _never.wait(PAUSE_S)


def no_pause() -> None:
    """Do nothing: the pause of work for which nothing waits."""


def in_steps(items: Iterable[_Item], size: int, pause: Callable[[], None]) -> Iterator[_Item]:
    """Yield items, and call ``pause`` each time that the caller has handled ``size`` of them."""
    for number, item in enumerate(items, 1):
        yield item
        if not number % size:
            pause()
