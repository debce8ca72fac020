"""The signals that end a command: SIGINT, SIGTERM and SIGHUP.

`stop_at_signals` has the first one raise `Stopped` in the main thread, so that every ``with`` block
closes what it opened: a store is closed cleanly, not left as after a crash. Later ones are ignored until
the process has ended, so they cannot interrupt that. A SIGHUP or SIGINT that is ignored when the command
starts, as under ``nohup``, stays ignored.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from types import FrameType
from typing import Final

__all__ = ["Stopped", "ending_signals", "stop_at_signals"]

_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(SystemExit):
    """A signal asked the command to end; the exit code is 128 and the number of the signal."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)


def ending_signals(always: Iterable[int] = ()) -> list[signal.Signals]:
    """Return the signals that end the command: those of ``always``, and those that are not ignored."""
    return [n for n in _ENDING if n in always or signal.getsignal(n) is not signal.SIG_IGN]


def stop_at_signals() -> None:
    """Have the first of these signals raise `Stopped`, and ignore later ones."""
    numbers = ending_signals()

    def stop(number: int, frame: FrameType | None) -> None:
        for one in numbers:
            signal.signal(one, signal.SIG_IGN)
        raise Stopped(number)

    for one in numbers:
        signal.signal(one, stop)
