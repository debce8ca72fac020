"""Look-ups by key, by the broker."""

from __future__ import annotations

import pytest
from broker_kit import wired

from tailrace.broker.messages.query import DISPATCH_MS, QueryProcessor
from tailrace.errors import RefusalError
from tailrace.formats.remoting import RemotingCommand, RequestCode
from tailrace.kernels.properties import encode_properties
from tailrace.model import MessageExtBrokerInner

ASKED = {"topic": "T", "key": "order-1", "maxNum": "32", "beginTimestamp": "0", "endTimestamp": str(1 << 62)}


def put_undispatched(store):
    message = MessageExtBrokerInner(
        "T", 0, b"body", encode_properties({"KEYS": "order-1"}), 0, 0, 1, b"\x01\2\3\4\0\0\0\5")
    assert store.real.put_inner(message).status.appended
    assert store.real.inner.reput.behind_bytes() > 0


def test_a_message_is_found_as_soon_as_it_is_acknowledged(broker, channel, store):
    put_undispatched(store)
    answer = wired(QueryProcessor, broker).query_message(channel, RemotingCommand(RequestCode.QUERY_MESSAGE, ASKED))
    assert b"order-1" in answer.body


def test_a_look_up_waits_for_dispatch_for_a_limited_time(broker, channel, store, monkeypatch):
    put_undispatched(store)
    waits = []
    monkeypatch.setattr(store.real.inner, "wait_dispatched", lambda timeout_ms: waits.append(timeout_ms))
    with pytest.raises(RefusalError, match="can not find message"):
        wired(QueryProcessor, broker).query_message(channel, RemotingCommand(RequestCode.QUERY_MESSAGE, ASKED))
    assert waits == [DISPATCH_MS]
