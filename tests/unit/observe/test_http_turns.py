"""What many scrapers that read without a pause leave to others."""

from __future__ import annotations

import asyncio
import threading

from patience import until_async

from tailrace.config import BrokerConfig
from tailrace.observe.exposition import Exposition
from tailrace.observe.http_status import SCRAPERS_MAX, HttpStatusServer
from tailrace.observe.http_turns import Pace, SharedTexts


def run(test):
    asyncio.run(asyncio.wait_for(test(), 60))


def test_answers_wait_so_that_all_together_keep_the_pace():
    async def test():
        pace, loop = Pace(1_000_000), asyncio.get_running_loop()
        started = loop.time()
        waited = await asyncio.gather(*(pace.wait(10_000) for _ in range(20)))
        assert waited[0] == 0
        assert sorted(waited) == list(waited), "in the order in which they came"
        assert 0.18 <= max(waited) <= loop.time() - started

    run(test)


def test_a_text_is_dropped_when_it_is_shared_no_more():
    """The texts of both formats stayed in memory, several MiB with many topics."""
    async def test():
        texts = SharedTexts(lambda name: name.encode() * 10, 0.02)
        assert await texts.get("a") == b"a" * 10
        assert texts._texts
        await until_async(lambda: not texts._texts)
        assert await texts.get("a") == b"a" * 10
        texts.executor.stop()

    run(test)


def test_scrapers_leave_connections_to_probes(monkeypatch):
    opened = threading.Event()
    monkeypatch.setattr(Exposition, "text", lambda *_: b"text" if opened.wait(30) else b"")

    async def test():
        server = HttpStatusServer(BrokerConfig(), shared_s=0)
        host, port = await server.start("127.0.0.1", 0)
        server.serving(None)

        async def status(path):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
            answer = (await reader.read()).decode()
            writer.close()
            return int(answer.split()[1]), answer

        scrapers = [asyncio.ensure_future(status("/metrics")) for _ in range(SCRAPERS_MAX)]
        while server._scrapers < SCRAPERS_MAX:
            await asyncio.sleep(0)
        code, text = await status("/metrics?x=1")
        assert (code, "Retry-After: 5" in text) == (503, True)
        assert (await status("/ready"))[0] == 200
        opened.set()
        assert {code for code, _ in await asyncio.gather(*scrapers)} == {200}
        assert (await status("/metrics"))[0] == 200
        await server.stop()

    run(test)
