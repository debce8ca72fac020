"""The pace of long answers over HTTP."""

from __future__ import annotations

import asyncio

from tailrace.broker.http_turns import Pace


def test_answers_wait_so_that_all_together_keep_the_pace():
    async def test():
        pace, loop = Pace(1_000_000), asyncio.get_running_loop()
        started = loop.time()
        waited = await asyncio.gather(*(pace.wait(10_000) for _ in range(20)))
        assert waited[0] == 0
        assert sorted(waited) == list(waited), "in the order in which they came"
        assert 0.18 <= max(waited) <= loop.time() - started

    asyncio.run(asyncio.wait_for(test(), 60))
