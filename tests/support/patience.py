"""Wait for other threads, tasks and processes; a busy machine may be ten times slower than an idle one."""

import asyncio
import time

PATIENCE_S = 90
"""What passes waits for less; only a fault takes this time."""


def until(condition, seconds=PATIENCE_S):
    """Wait until ``condition()`` is true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"it did not come true in {seconds} s"
        time.sleep(0.02)


async def until_async(condition, seconds=PATIENCE_S):
    """Let the loop of the caller run until ``condition()`` is true; ``seconds`` are those of its clock."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)
