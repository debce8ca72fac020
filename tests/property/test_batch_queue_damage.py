"""Bits of a batch queue flip: each message is read once, or an error names its place."""

from __future__ import annotations

import logging
import os
import random
import re
import shutil

import pytest

from tailrace import Message, MessageStore, StoreConfig
from tailrace.doctor.verify import verify
from tailrace.formats.commitlog import encode_batch
from tailrace.formats.consumequeue import BATCH_CQ_UNIT
from tailrace.kernels.properties import encode_properties
from tailrace.model import MessageExtBrokerInner
from tailrace.node.store_opening import StoreParts
from tailrace.node.topic_config import TopicConfig

UNIT = BATCH_CQ_UNIT.size
CONFIG = StoreConfig(
    mapped_file_size_commit_log=1 << 16, mapped_file_size_consume_queue=4000, max_hash_slot_num=50,
    max_index_num=400, mapper_file_size_batch_consume_queue=UNIT * 50, timer_wheel_enable=False)
RECORDS = 240
FIELDS = {"queue offset": range(28 * 8, 36 * 8), "number of messages": range(36 * 8, 38 * 8),
          "position": range(64), "size": range(64, 96), "other": range(38 * 8, 46 * 8), "any": range(UNIT * 8)}
TOLD = re.compile(r"topic=B queue_id=0 queue_offset=(\d+)")


def opened(path) -> MessageStore:
    return MessageStore.open(path, config=CONFIG, parts=StoreParts(services=False))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A store, and the number of messages of each record of its queue."""
    path, rng, counts = tmp_path_factory.mktemp("batches") / "s", random.Random(7), []
    with opened(path) as store:
        store.topics.update(TopicConfig(topic_name="B", attributes={"queue.type": "BatchCQ"}))
        for number in range(RECORDS):
            counts.append(count := rng.choice([1, 1, 2, 3, 8, 40]))
            body = encode_batch([(0, f"{number}-{at}".encode(), b"") for at in range(count)])
            names = encode_properties({"UNIQ_KEY": f"u{number}", "INNER_NUM": str(count)})
            if count > 1:
                assert store.put_inner(MessageExtBrokerInner("B", 0, body, names, 0, 0xC0, 1)).ok
            else:
                store.put(Message(topic="B", body=f"{number}-0".encode()), queue_id=0)
            if not number % 5:
                store.put(Message(topic="Other", body=b"between"))
        store.wait_dispatched()
    return path, counts


def flip(path, rng: random.Random, field: str) -> set[int]:
    """Flip bits of a field in some units, as a disk does: nothing else of the files changes."""
    damaged, count = set(), rng.choice([1, 1, 2, 5, 20])
    files = sorted((path / "batchconsumequeue" / "B" / "0").iterdir())
    at = rng.randrange(RECORDS)
    for _ in range(count):
        at = (at + 1 if rng.random() < 0.3 else rng.randrange(RECORDS)) % RECORDS
        file, bit = files[at // 50], rng.choice(FIELDS[field])
        stamp, data = file.stat(), bytearray(file.read_bytes())
        data[at % 50 * UNIT + bit // 8] ^= 1 << bit % 8
        file.write_bytes(data)
        os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
        damaged.add(at)
    return damaged


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("field", FIELDS)
def test_each_message_is_read_once_or_named(made, tmp_path, caplog, field, seed):
    source, counts = made
    path, rng = tmp_path / "s", random.Random(f"{field}-{seed}")
    shutil.copytree(source, path)
    damaged = flip(path, rng, field)
    starts = [sum(counts[:number]) for number in range(RECORDS)]
    wrong = [line["finding"] for line in verify(str(path), config=CONFIG) if "finding" in line]
    assert len(wrong) >= len(damaged), "verify names each unit"
    with caplog.at_level(logging.ERROR), opened(path) as store:
        caplog.clear()
        found = [(one.queue_offset, one.body) for one in store.read("B")]
        # Also from the middle, where consumers are, and with small reads.
        offset, pulled = 0, []
        while offset < store.max_offset_in_queue("B", 0):
            read = store.get_message("B", 0, offset, rng.choice([1, 8, 64]))
            pulled += read.queue_offsets
            assert read.next_begin_offset > offset
            offset = read.next_begin_offset
        named = {int(offset) for offset in TOLD.findall(caplog.text)}
    assert len(set(found)) == len(found)
    assert [body for _, body in found] == sorted({body for _, body in found}, key=key)
    assert pulled == sorted(set(pulled))
    whole = {body for _, body in found}
    for number, count in enumerate(counts):
        lost = [at for at in range(count) if f"{number}-{at}".encode() not in whole]
        assert not lost or (number in damaged and len(lost) == count), "a damaged unit hides its own messages at most"
        if lost:
            low, high = starts[max(number - len(damaged), 0)], starts[min(number + len(damaged), RECORDS - 1)]
            assert any(low <= offset <= high + counts[-1] for offset in named), (number, starts[number], named)
    with MessageStore.open(path, config=CONFIG, parts=StoreParts(services=False, rebuild=True)) as store:
        assert len(list(store.read("B"))) == sum(counts), "a rebuild brings all of them back"


def key(body: bytes) -> list[int]:
    return [int(part) for part in body.split(b"-")]
