"""Crashes and failing operations at each step of a store with batch queues; a seeded part, as of the sweep."""

from __future__ import annotations

import errno

import pytest
from long_runs import some
from read_there import read_there

from tailrace import Message, MessageStore, StoreConfig
from tailrace.config import FlushDiskType
from tailrace.env.entropy import SeededEntropy
from tailrace.errors import StoreError
from tailrace.formats.commitlog import encode_batch
from tailrace.kernels.properties import encode_properties
from tailrace.model import MessageExtBrokerInner
from tailrace.node.store_opening import StoreParts
from tailrace.node.topic_config import TopicConfig
from tailrace.testing import CrashFileSystem, SimClock, SimulatedCrash

CONFIG = StoreConfig(
    mapped_file_size_commit_log=8192, mapped_file_size_consume_queue=400, max_hash_slot_num=16, max_index_num=64,
    commit_log_allocate_step=4096, flush_disk_type=FlushDiskType.SYNC_FLUSH, timer_wheel_enable=False,
    mapper_file_size_batch_consume_queue=46 * 5, max_open_files=6)
Messages = list[tuple[int, bytes]]


def open_store(files, clock):
    return MessageStore.open(
        "/store", config=CONFIG,
        parts=StoreParts(services=False, clock=clock, file_system=files, entropy=SeededEntropy(1)))


def workload(files, clock, sent: Messages, acknowledged: Messages) -> None:
    entropy, number = SeededEntropy(1), 0
    for _ in range(2):
        store = open_store(files, clock)
        store.topics.update(TopicConfig(topic_name="B", attributes={"queue.type": "BatchCQ"}))
        for _ in range(24):
            clock.advance(7)
            queue_id, count = number % 2, number % 4 + 1
            parts = [b"%d-%d-" % (number, at) + bytes(entropy.randrange(200)) for at in range(count)]
            sent += [(queue_id, part) for part in parts]
            if count == 1:
                store.put(Message(topic="B", body=parts[0], keys=[f"k{number}"]), queue_id=queue_id)
            else:
                properties = {"UNIQ_KEY": f"u{number}", "INNER_NUM": str(count)}
                put = store.put_inner(MessageExtBrokerInner(
                    "B", queue_id, encode_batch([(0, part, b"") for part in parts]), encode_properties(properties),
                    0, 0xC0, 1))
                if not put.ok:
                    raise StoreError(put.remark)
                store.flush()
            acknowledged += [(queue_id, part) for part in parts]
            number += 1
        store.wait_dispatched()
        store.close()


def contents(files, clock) -> dict[int, list[bytes]]:
    with open_store(files, clock) as store:
        found = {queue_id: list(read_there(store, "B", queue_id)) for _, queue_id, _, _ in store.queues()}
        for queue_id, messages in found.items():
            assert [one.queue_offset for one in messages] == list(range(len(messages)))
            assert store.queue_of("B", queue_id).max == len(messages)
        return {queue_id: [one.body for one in messages] for queue_id, messages in found.items()}


def check(found: dict[int, list[bytes]], sent: Messages, acknowledged: Messages) -> None:
    for queue_id in (0, 1):
        want = [body for number, body in sent if number == queue_id]
        sure = [body for number, body in acknowledged if number == queue_id]
        have = found.get(queue_id, [])
        assert have == want[: len(have)], f"queue {queue_id}: out of order, or never sent"
        assert len(have) >= len(sure), f"queue {queue_id}: acknowledged and lost"


def operations() -> int:
    files = CrashFileSystem()
    workload(files, SimClock(), [], [])
    return files.operations


PLACES = range(0, operations(), 5)
KEEP = [None, 0, 50, 100]
"""Per cent of what was not synced that is on the disk after a power loss; None: a kill."""


@pytest.mark.crash
@pytest.mark.parametrize("lose_topics", [False, True], ids=["topics", "no-topics"])
@pytest.mark.parametrize("keep", KEEP)
def test_a_crash_anywhere_loses_nothing_acknowledged(keep, lose_topics):
    for place in some(PLACES[::2] if lose_topics else PLACES, 2, KEEP.index(keep) % 2):
        clock, sent, acknowledged = SimClock(), [], []

        def before(number, _name, _path, place=place):
            if number == place:
                raise SimulatedCrash

        files = CrashFileSystem(before)
        with pytest.raises(SimulatedCrash):
            workload(files, clock, sent, acknowledged)
        after = files.killed() if keep is None else files.power_lost(SeededEntropy(1_000_003 + place), keep)
        if lose_topics and any(
            after.list(f"/store/batchconsumequeue/B/{queue_id}") for queue_id in (0, 1)
        ):
            for name in ("topics.json", "topics.json.bak"):
                if after.exists(f"/store/config/{name}"):
                    after.remove(f"/store/config/{name}")
        try:
            first = contents(after, clock)
            check(first, sent, acknowledged)
            assert contents(after, clock) == first, "opening twice changed something"
        except Exception as error:
            raise AssertionError(f"place={place} keep={keep}: {error}") from error


@pytest.mark.crash
@pytest.mark.parametrize("sticky", [False, True])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_failing_operation_loses_nothing_acknowledged(number, sticky):
    for place in some(PLACES, 2, int(sticky)):
        clock, sent, acknowledged = SimClock(), [], []

        def before(at, _name, path, place=place):
            if at == place or (sticky and at > place):
                raise OSError(number, "injected", path)

        files = CrashFileSystem(before)
        try:
            workload(files, clock, sent, acknowledged)
        except (StoreError, OSError):
            pass
        files.before = None
        try:
            check(contents(files.killed(), clock), sent, acknowledged)
        except Exception as error:
            raise AssertionError(f"place={place} errno={number} sticky={sticky}: {error}") from error
