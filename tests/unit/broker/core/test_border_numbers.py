"""Numbers at the borders in every numeric field of every request: each gets a clear answer and damages nothing."""

from __future__ import annotations

import asyncio
import json
import time

import msgspec
import pytest

from tailrace.broker.controller import BrokerController
from tailrace.errors import StoreError
from tailrace.formats.remoting import RequestCode, ResponseCode, decode_frame, encode
from tailrace.formats.requests.table import REQUESTS, Role
from tailrace.model import Message
from tailrace.node.message_store import MessageStore

LONG_MAX, LONG_MIN = (1 << 63) - 1, -(1 << 63)
BORDERS = (
    str(LONG_MIN), str(-(1 << 31) - 1), str(-(1 << 31)), "-2", "-1", "0", "1", str((1 << 31) - 1), str(1 << 31),
    str(LONG_MAX - 1), str(LONG_MAX), str(LONG_MAX + 1), "", " 1", "1.5", "1e3", "NaN", "x", "0x10", "9" * 400)
MAX_MS = 2_000
"""Longest time for an answer; a loop over a huge count takes much longer."""
_TEXTS = {"consumerGroup": "g", "group": "g", "producerGroup": "p", "groupName": "g", "a": "p", "b": "orders",
          "c": "TBW102", "clientId": "c", "clientID": "c", "key": "k", "defaultTopic": "TBW102", "i": "",
          "properties": "", "subscription": "*", "expressionType": "TAG", "topicFilterType": "SINGLE_TAG",
          "extraInfo": "0 0 60000 0 0 broker-a 0 0"}
_ENDING = {RequestCode.DELETE_TOPIC_IN_BROKER, RequestCode.DELETE_SUBSCRIPTIONGROUP}


def numeric_requests():
    """(code, header, names of the numeric fields) of each request that a broker or a name server answers."""
    for request in REQUESTS.values():
        if request.header is None or request.role is Role.CLIENT or request.code in _ENDING:
            continue
        names = [f.encode_name for f in msgspec.structs.fields(request.header) if "int" in str(f.type)]
        if names:
            yield pytest.param(request.code, request.header, names, id=request.code.name)


def plausible(header):
    """Fields of a request that a broker can answer."""
    found = {}
    for field in msgspec.structs.fields(header):
        name, kind = field.encode_name, str(field.type)
        if name in _TEXTS:
            found[name] = _TEXTS[name]
        elif "int" in kind:
            found[name] = "1" if "nums" in name.lower() or "num" in name.lower() or name == "d" else "0"
        elif "bool" in kind:
            found[name] = "false"
        else:
            found[name] = "orders" if "topic" in name.lower() else "x"
    if "perm" in found:
        found["perm"] = "6"
    if "suspendTimeoutMillis" in found:  # a pull at the end that commits an offset, has a subscription and may be held
        found.update(sysFlag="7", queueOffset="3", suspendTimeoutMillis="1")
    if "invisibleTime" in found:
        found["invisibleTime"] = "60000"
    return found


def answer_of(server, channel, request):
    """The answer of a processor; None if it waits. Only errors of ours become answers."""
    processor = server.processors.get(request.code)
    if processor is None:
        return None
    try:
        answer = processor(channel, request)
    except (StoreError, ValueError) as error:
        return str(error) or repr(error)
    if answer is None:
        return None
    data = answer if isinstance(answer, bytes) else encode(answer)
    found, end = decode_frame(data, 0, len(data))
    assert end == len(data)
    assert found.opaque == request.opaque
    return found


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A loop, a broker with its store, and the servers of the broker and the name server."""
    loop = asyncio.new_event_loop()
    store = MessageStore.open(tmp_path_factory.mktemp("borders") / "store")

    async def started():
        made = BrokerController(store)
        await made.start(("127.0.0.1", 0), ("127.0.0.1", 0))
        return made

    controller = loop.run_until_complete(started())
    for _ in range(3):
        store.put(Message(topic="orders", body=b"good", keys=["k"]))
    store.wait_dispatched()
    yield loop, controller, store
    loop.run_until_complete(controller.stop())
    store.close()
    loop.close()


@pytest.mark.parametrize(("code", "header", "names"), list(numeric_requests()))
def test_a_number_at_a_border_gets_a_clear_answer(served, kit, caplog, code, header, names):
    loop, controller, store = served
    channel = kit.FakeChannel()
    channel.request = None
    queues = {key[:2]: store.queue_of(*key[:2]).max for key in store.queues() if key[0] == "orders"}

    async def ask():
        for name in names:
            for value in BORDERS:
                for server in controller.servers:
                    request = kit.request(code, {**plausible(header), name: value}, b"{}", opaque=7)
                    began = time.monotonic()
                    answer = answer_of(server, channel, request)
                    await asyncio.sleep(0)
                    place = f"{code.name} {name}={value[:30]}"
                    assert (time.monotonic() - began) * 1000 < MAX_MS, place
                    if answer is None or isinstance(answer, str):
                        continue
                    assert answer.code in set(map(int, ResponseCode)), place
                    assert answer.code == 0 or answer.remark, f"{place}: {answer.code} without a remark"
                    for field, text in answer.ext.items():
                        if text.lstrip("-").isdecimal() and len(text) < 30:
                            assert LONG_MIN <= int(text) <= LONG_MAX, f"{place}: {field}={text}"

    loop.run_until_complete(ask())
    assert "Traceback" not in caplog.text
    for key, end in queues.items():  # sends add messages; nothing takes some away or moves an end back
        assert store.queue_of(*key).max >= end
        assert 0 <= store.queue_of(*key).min <= store.queue_of(*key).max
    assert store.is_writeable
    for _, _, queue_id, offset in controller.broker.offsets.entries():
        assert LONG_MIN <= offset <= LONG_MAX
        assert -(1 << 31) <= queue_id < 1 << 31
    lags(loop, controller, kit, channel)


def lags(loop, controller, kit, channel):
    """No lag that the broker tells is negative."""
    broker = controller.servers[0]
    for group in ("g", "CID_X"):
        answer = answer_of(broker, channel, kit.request(208, {"consumerGroup": group, "topic": "orders"}, opaque=7))
        if answer is None or isinstance(answer, str) or answer.code:
            continue
        text = answer.body.decode()
        for part in text.split('"brokerOffset":')[1:]:
            numbers = json.loads('{"brokerOffset":' + part[:part.index("}") + 1])
            assert numbers["brokerOffset"] >= numbers["consumerOffset"] >= 0, text
            assert numbers["brokerOffset"] >= numbers["pullOffset"] >= numbers["consumerOffset"], text


@pytest.mark.parametrize("offset", [LONG_MAX, 1 << 40, 4])
def test_an_offset_after_the_end_makes_no_lag_negative(served, kit, offset):
    loop, controller, store = served
    controller.broker.offsets.commit("g", "orders", 0, offset)
    channel = kit.FakeChannel()
    lags(loop, controller, kit, channel)
    answer = answer_of(controller.servers[0], channel, kit.request(317, {"isOrder": "false"}, opaque=7))
    assert json.loads(answer.body.decode().split('"totalDiff":')[1].split(",")[0]) >= 0
