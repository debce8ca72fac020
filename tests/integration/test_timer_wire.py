"""Timers that clients send and recall, on a real store."""

import asyncio
import base64
import shutil
import time

import pytest

from tailrace.broker import BrokerController
from tailrace.config import BrokerConfig
from tailrace.env.clock import SystemClock
from tailrace.formats.recall_handle import build_handle
from tailrace.formats.remoting import RemotingCommand, decode_frame, encode
from tailrace.node.message_store import MessageStore

SEND = {"a": "pg", "b": "orders", "c": "TBW102", "d": "4", "e": "2", "f": "0", "g": "1", "h": "0"}


async def ask(address, code, ext, body=b"", kind=0):
    host, port = address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(encode(RemotingCommand(code, ext, body, opaque=1, serialize_type=kind)))
    data = b""
    while True:
        data += await asyncio.wait_for(reader.read(65536), 60)
        command, _ = decode_frame(data, 0, len(data))
        if command is not None:
            writer.close()
            return command


async def story(store, kind):
    controller = BrokerController(store, BrokerConfig())
    await controller.start(("127.0.0.1", 0), None)
    try:
        broker = controller.broker_address

        async def send(key, **properties):
            text = "".join(f"{n}\x01{v}\x02" for n, v in {"UNIQ_KEY": key, **properties}.items())
            return await ask(broker, 310, {**SEND, "i": text}, key.encode(), kind)

        kept = await send("KEPT", TIMER_DELAY_MS=700)
        gone = await send("GONE", TIMER_DELAY_SEC=1)
        assert (kept.code, kept.ext["queueId"], kept.ext["transactionId"]) == (0, "2", "KEPT")
        handle = gone.ext["recallHandle"]
        version, topic, name, stamp, key = base64.urlsafe_b64decode(handle).decode().split(" ")
        assert (version, topic, name, key) == ("v1", "orders", "broker-a", "GONE")
        assert int(stamp) % 1000 == 1
        for code, changes in ((17, {"topic": "none"}), (604, {"recallHandle": "x"}), (604, {
            "recallHandle": build_handle("orders", "broker-b", int(stamp) - 1, "GONE")}), (604, {
            "recallHandle": build_handle("orders", "broker-a", 1000, "GONE")})):
            ext = {"producerGroup": "pg", "topic": "orders", "recallHandle": handle, **changes}
            answer = await ask(broker, 370, ext, kind=kind)
            # A client traces a recall only if the answer names the region.
            assert (answer.code, answer.ext) == (code, {"MSG_REGION": "DefaultRegion"})
        ext = {"producerGroup": "pg", "topic": "orders", "recallHandle": handle}
        done = await ask(broker, 370, ext, kind=kind)
        assert done.ext["MSG_REGION"] == "DefaultRegion"
        # The slot of a delay of a second may have come already when the second is young.
        assert (done.code, done.ext.get("msgId")) == (0, "GONE") or done.remark.endswith("timestamp invalid")
        for properties, remark in (
            ({"TIMER_DELAY_SEC": "x"}, "is no number"),
            ({"TIMER_DELAY_SEC": 999_999}, "timerMaxDelaySec"),
            ({"TIMER_DELIVER_MS": 10, "TIMER_DEL_UNIQKEY": "T+U"}, "is due already"),
        ):
            refused = await send("BAD", **properties)
            assert (refused.code, remark in refused.remark) == (13, True)
        await asyncio.sleep(1.5)
        return done.code == 0
    finally:
        await controller.stop()


@pytest.mark.integration
@pytest.mark.parametrize("kind", [0, 1])
def test_a_timer_is_sent_and_another_one_taken_back(tmp_path, kind):
    with MessageStore.open(tmp_path / "s") as store:
        recalled = asyncio.run(asyncio.wait_for(story(store, kind), 60))
        found = [m.unique_key for m in store.read("orders", 2)]
    assert found == (["KEPT"] if recalled else ["KEPT", "GONE"])


async def recall_of_one_topic(store, copy, form):
    """Two topics have a timer with the same key; the one of ``orders`` is taken back over the wire."""
    controller = BrokerController(store, BrokerConfig())
    await controller.start(("127.0.0.1", 0), None)
    try:
        broker = controller.broker_address
        due = SystemClock().now_ms() // 1000 * 1000 + 4500  # one slot for both

        async def send(topic, key, body, **properties):
            text = "".join(f"{n}\x01{v}\x02" for n, v in {"UNIQ_KEY": key, **properties}.items())
            answer = await ask(broker, 310, {**SEND, "b": topic, "i": text}, body)
            assert answer.code == 0, answer.remark
            return answer.ext.get("recallHandle")

        handle = await send("orders", "SAME", b"orders", TIMER_DELIVER_MS=due)
        other = await send("others", "SAME", b"others", TIMER_DELIVER_MS=due)
        for topic, wrong in (("orders", other), ("others", handle)):
            ext = {"producerGroup": "pg", "topic": topic, "recallHandle": wrong}
            assert (await ask(broker, 370, ext)).code == 604
        if form == "handle":
            ext = {"producerGroup": "pg", "topic": "orders", "recallHandle": handle}
            assert (await ask(broker, 370, ext)).code == 0
        elif form == "made up":
            stamp = int(base64.urlsafe_b64decode(handle).decode().split(" ")[3])
            made_up = build_handle("orders", "broker-a", stamp - 1, "others+SAME")
            ext = {"producerGroup": "pg", "topic": "orders", "recallHandle": made_up}
            assert (await ask(broker, 370, ext)).code == 0
        else:  # as a producer or a Java broker of one setting writes it
            await send("orders", "X", b"0", TIMER_DELIVER_MS=due, TIMER_DEL_UNIQKEY=form)
        shutil.copytree(store.path, copy)  # what a kill would leave
        await asyncio.sleep(max(due - SystemClock().now_ms(), 0) / 1000 + 0.5)
    finally:
        await controller.stop()


def came(store):
    assert store.wait_dispatched()
    return sorted(m.body for topic, queue_id, *_ in store.queues() if topic in ("orders", "others")
                  for m in store.read(topic, queue_id))


@pytest.mark.integration
@pytest.mark.parametrize("form", [
    "handle", *(pytest.param(form, marks=pytest.mark.long) for form in ("made up", "SAME", "orders+SAME"))])
def test_a_handle_takes_back_a_timer_of_its_own_topic_only(tmp_path, form):
    wanted = [b"orders", b"others"] if form == "made up" else [b"others"]
    with MessageStore.open(tmp_path / "s") as store:
        asyncio.run(asyncio.wait_for(recall_of_one_topic(store, tmp_path / "killed", form), 60))
        assert came(store) == wanted
    (tmp_path / "killed" / "abort").write_text("1")
    with MessageStore.open(tmp_path / "killed") as again:
        deadline = SystemClock().now_ms() + 20_000
        while came(again) != wanted and SystemClock().now_ms() < deadline:
            time.sleep(0.05)
        assert came(again) == wanted
        assert list(again.timers()) == []
