"""Requests to the brokers that have other parts of logical queues."""

from __future__ import annotations

from types import SimpleNamespace

from tailrace.broker.static_topics.forwarder import Forwarder
from tailrace.config import BrokerConfig
from tailrace.formats.remoting import RemotingCommand


def test_another_broker_does_not_get_the_proof_of_a_user(loop, clock, monkeypatch):
    """It could send other requests with the same values as that user."""
    sent = []

    async def invoke(address, code, ext, **_):
        sent.append((address, code, ext))
        return RemotingCommand(0)

    others = Forwarder(
        loop, clock, BrokerConfig(), SimpleNamespace(addresses="10.0.0.1:9876"), lambda: SimpleNamespace(invoke=invoke))

    async def address(*_):
        return "10.0.0.2:10911"

    monkeypatch.setattr(Forwarder, "_address", address)
    loop.run_until_complete(others.ask("b", "orders", 30, {
        "topic": "orders", "AccessKey": "ann", "Signature": "of ann", "SecurityToken": "t", "TailraceBinding": "b"}))
    assert sent == [("10.0.0.2:10911", 30, {"topic": "orders", "bname": "b"})]
