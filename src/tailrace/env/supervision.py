"""Loops and callbacks of asyncio that continue after an unexpected error, as services in threads do.

An exception that leaves a task or a callback ends it without a word: a loop that no other task awaits runs no more,
and the rest of a queue of callbacks waits. So every loop of an event loop is `supervised`, and a function that calls
several others one after the other catches what each of them raises (`caught`, or ``except Exception`` with `failed`).
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from tailrace import events
from tailrace.env.shortage import is_disk_full, is_shortage
from tailrace.logs import LogRateLimiter, get_logger

__all__ = ["FAILURES", "caught", "failed", "supervised"]

_log = get_logger(__name__)
FAILURES: Final[Counter[str]] = Counter()
"""Number of unexpected errors by the name of a loop since the process started; the names are those in the code."""
AGAIN_S: Final = 1.0
"""Pause of a loop without a period after a step that failed."""
_lines: Final = LogRateLimiter()


def failed(name: str) -> None:
    """Count the error that is being handled, and log it; call it in an ``except`` clause.

    A full disk and a lack of descriptors or memory are no defects, so they have no traceback.
    """
    FAILURES[name] += 1
    if not _lines.due(name, time.monotonic()):
        return
    error = sys.exc_info()[1]
    if is_disk_full(error):
        events.SERVICE_WAITS_FOR_ROOM_ON_THE_DISK.log(_log, name=name, cause=error)
    elif is_shortage(error):
        events.SERVICE_WAITS_FOR_DESCRIPTORS_OR_MEMORY.log(_log, name=name, cause=error)
    else:
        events.SERVICE_STEP_FAILED.log(_log, name=name, failures=FAILURES[name], exc_info=True)


@contextlib.contextmanager
def caught(name: str) -> Iterator[None]:
    """Count and log what a block raises, and continue after it. A cancellation is not caught."""
    try:
        yield
    except Exception:  # noqa: BLE001 - the outermost step of a loop
        failed(name)


async def supervised(
    name: str, step: Callable[[], Awaitable[object]], period_s: float = 0.0, *,
    until: Callable[[], bool] = lambda: False,
) -> None:
    """Run ``step`` each time ``period_s`` seconds are over, until cancelled or until ``until`` returns True.

    Without a period the step waits itself. An error of a step is counted and logged, and the loop continues.
    """
    while not until():
        if period_s:
            await asyncio.sleep(period_s)
        try:
            await step()
        except Exception:  # noqa: BLE001 - the outermost step of a loop
            failed(name)
            if not period_s:
                await asyncio.sleep(AGAIN_S)
