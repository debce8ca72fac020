"""The brokers for Dramatiq and FastStream, against `tailrace serve` that requires TLS and users."""

from __future__ import annotations

import asyncio
import threading

import pytest
from patience import PATIENCE_S

pytest.importorskip("cryptography", reason="certificates of tests are made with it")
from certificates import Ca
from served_process import served_process

from tailrace import TlsOptions
from tailrace.client import Credentials

pytestmark = [pytest.mark.slow, pytest.mark.integration]
PASSWORD = "root-secret-of-sixteen"


@pytest.fixture(scope="module")
def secured(tmp_path_factory):
    """The name server's address, and what a client needs."""
    path = tmp_path_factory.mktemp("served")
    ca = Ca(path)
    cert, key = ca.make("server")
    (path / "root.password").write_text(f"{PASSWORD}\n")
    settings = {"tls.server.mode": "enforcing", "tls.server.certPath": cert, "tls.server.keyPath": key}
    with served_process(path, settings, "--user", "root", "--password-file", path / "root.password") as ours:
        yield {
            "namesrv": ours.namesrv, "timeout_ms": 10_000, "tls": TlsOptions(trust_cert_path=ca.path),
            "credentials": Credentials("root", PASSWORD)}


def test_tasks_of_dramatiq_run(secured):
    import dramatiq

    from tailrace_dramatiq import DramatiqBroker

    broker, ran = DramatiqBroker(**secured, topic_prefix="secured_"), threading.Event()

    @dramatiq.actor(broker=broker)
    def task(text):
        if text == "x":
            ran.set()

    worker = dramatiq.Worker(broker, worker_timeout=50, worker_threads=1)
    broker.emit_after("process_boot")
    worker.start()
    try:
        task.send("x")
        assert ran.wait(PATIENCE_S)
    finally:
        worker.stop(timeout=10_000)
        broker.close()


def test_handlers_of_faststream_run(secured):
    from tailrace_faststream import RocketmqBroker

    async def test():
        broker, ran = RocketmqBroker(**secured), asyncio.Event()

        @broker.subscriber("secured-orders", group="secured")
        async def handle(body: str) -> None:
            if body == "x":
                ran.set()

        async with broker:
            await broker.start()
            await broker.publish("x", "secured-orders")
            await asyncio.wait_for(ran.wait(), PATIENCE_S)
    asyncio.run(test())
