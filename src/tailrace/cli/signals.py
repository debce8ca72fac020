"""The signals that end a command: SIGINT, SIGTERM and SIGHUP.

After `stop_at_signals` the first signal raises `Stopped` in the main thread, so that every ``with`` block closes
what it opened: a store is closed cleanly, not left as after a crash. Later signals are ignored, so they cannot
interrupt the close. A request that was made and has not begun by then prints nothing. A signal that is already
ignored when the command starts, such as SIGHUP under ``nohup``, stays ignored.
"""

from __future__ import annotations

import signal
import warnings
from collections.abc import Iterable
from types import FrameType
from typing import Final

__all__ = ["Stopped", "ending_signals", "stop_at_signals"]

_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(SystemExit):
    """A signal ends the command; the exit code is 128 plus the number of the signal."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)


def ending_signals(always: Iterable[int] = ()) -> list[signal.Signals]:
    """Return the signals that end the command: those of ``always``, and those that are not ignored."""
    return [n for n in _ENDING if n in always or signal.getsignal(n) is not signal.SIG_IGN]


def stop_at_signals() -> None:
    """Make the first of these signals raise `Stopped`, and later ones have no effect."""
    numbers = ending_signals()

    def stop(number: int, frame: FrameType | None) -> None:
        for one in numbers:
            signal.signal(one, signal.SIG_IGN)
        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
        raise Stopped(number)

    for one in numbers:
        signal.signal(one, stop)
