"""Directories that released RocketMQ brokers wrote, as they are and damaged."""

from __future__ import annotations

import asyncio
import hashlib
import json
import lzma
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from releases import CLEAN, CRASHED

from tailrace import MessageStore
from tailrace.broker import BrokerController
from tailrace.config import StoreConfig
from tailrace.formats.commitlog import decode_message

pytestmark = pytest.mark.integration
INTEROP = Path(__file__).parents[1] / "interop"
KEPT_BACK = StoreConfig(timer_stop_dequeue=True)
"""The pending timers of the directories are long due: delivered, they would be further messages."""
ALL = 4630
DAMAGE = {
    # name: messages that are left, records whose bytes must be in quarantine
    "as-is": (ALL, 0), "cq-garbage-tail": (ALL, 0), "cq-short": (ALL, 0),
    "empty-next-file": (ALL, 0), "garbage-after-tail": (ALL, 1), "no-checkpoint": (ALL, 0),
    "no-consumequeue": (ALL, 0), "no-derived": (ALL, 0), "no-index": (ALL, 0),
    "zero-length-files": (ALL, 0), "flip-mid-last-file": (ALL - 1, 1),
    "flip-last-body": (ALL - 1, 1), "torn-header": (ALL - 1, 1), "torn-tail": (ALL - 1, 1),
    "normal-but-torn": (ALL - 1, 1), "lost-first-files": (2257, 0),
}


def unpack(name, where):
    with tarfile.open(INTEROP / "fixtures" / f"{name}.tar.xz") as archive:
        archive.extractall(where, filter="data")
    return where / name


def reference(name):
    with lzma.open(INTEROP / "fixtures" / f"{name}.jsonl.xz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    messages = {
        (m["topic"], m["queueId"], m["queueOffset"]): m for r in rows if (m := r.get("message"))}
    queues = {
        (q["topic"], q["queueId"]): (q["min"], q["max"])
        for r in rows if (q := r.get("queue")) and q["max"] > 0
    }
    return messages, queues, [r["query"] for r in rows if "query" in r]


def seen(store):
    found = {}
    for topic, queue_id, low, high in store.queues():
        at = low
        while at < high:
            result = store.get_message(topic, queue_id, at, 32)
            for offset, data in zip(result.queue_offsets, result.records, strict=True):
                assert (topic, queue_id, offset) not in found, "shown twice"
                found[topic, queue_id, offset] = decode_message(data)
            assert result.next_begin_offset > at
            at = result.next_begin_offset
    return found


def compare(found, want):
    for place, message in found.items():
        told = want[place]
        assert (
            message.phy_offset, message.store_size, message.properties, message.store_timestamp,
            hashlib.sha256(message.body).hexdigest(), message.msg_id,
        ) == (
            told["physicalOffset"], told["size"], told["properties"], told["storeTimestamp"],
            told["bodySha256"], told["msgId"],
        ), place


@pytest.mark.parametrize("name", [CLEAN, CRASHED])
def test_a_directory_of_a_java_broker_shows_what_the_reference_shows(name, tmp_path):
    path = unpack(name, tmp_path)
    want, queues, queries = reference(name)
    for expected in ("normal" if name.startswith("clean") else "abnormal", "normal"):
        with MessageStore.open(path, config=KEPT_BACK) as store:
            assert store.recovery_report["mode"] == expected
            found = seen(store)
            assert found.keys() == want.keys()
            compare(found, want)
            assert {(t, q): (low, high) for t, q, low, high in store.queues() if high} == queues
            for (topic, queue_id, offset), told in list(want.items())[::97]:
                unit = store.inner.queues.get(topic, queue_id).unit(offset)
                assert unit == (told["physicalOffset"], told["size"], told["tagsCode"])
            for query in queries:
                # The reference names a message twice when two of its keys are the same.
                assert [m.phy_offset for m in store.query_message(query["topic"], query["key"])] == (
                    sorted(set(query["physicalOffsets"])))
        assert not (path / "abort").exists()


@pytest.mark.parametrize(("name", "pending"), [
    (CLEAN, 0),  # its broker has given up after 15 checks of each
    (CRASHED, 46),
])
def test_transactions_that_a_java_broker_left_pending_go_on(name, pending, tmp_path, caplog):
    async def count(store):
        controller = BrokerController(store)
        await controller.start(("127.0.0.1", 0), None)
        try:
            return controller.broker.transactions.queue.pending
        finally:
            await controller.stop()

    with MessageStore.open(unpack(name, tmp_path), config=KEPT_BACK) as store:
        assert asyncio.run(count(store)) == pending
    assert not [m for m in caplog.messages if m.startswith("a Java broker left")]


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    where = tmp_path_factory.mktemp("damage")
    source = unpack(CRASHED, where)
    subprocess.run(
        [sys.executable, INTEROP / "reference" / "damage.py", source, where / "out", "1"],
        check=True)
    return where / "out"


@pytest.mark.slow
@pytest.mark.parametrize("name", DAMAGE)
def test_damage_costs_what_is_damaged_and_nothing_else(name, damaged):
    path = damaged / name
    left, quarantined = DAMAGE[name]
    want, queues, _ = reference(CRASHED)
    with MessageStore.open(path, config=KEPT_BACK) as store:
        found = seen(store)
        assert len(found) == left
        compare(found, want)
        report = store.recovery_report
        ends = {(t, q): high for t, q, _, high in store.queues()}
    manifest = path / "tailrace" / "quarantine" / "manifest.jsonl"
    kept = [json.loads(line) for line in manifest.read_text().splitlines()] if manifest.exists() else []
    assert len(kept) == quarantined == len(report["cut"]) + len(report["steppedOver"])
    for line in kept:
        assert (path / "tailrace" / "quarantine" / line["kept"]).stat().st_size == line["length"]
    if left == ALL:
        assert ends == {key: high for key, (_, high) in queues.items()}
    with MessageStore.open(path, config=KEPT_BACK) as store:
        assert store.recovery_report["mode"] == "normal"
        assert seen(store).keys() == found.keys(), "opening again changes nothing"
