"""Small stores for the crash tests: made, changed by hand, opened and looked at."""

from __future__ import annotations

import shutil
import struct

from flat_open import flat_open
from read_there import query_there, read_there

from tailrace import Message, StoreConfig
from tailrace.env.entropy import SeededEntropy
from tailrace.formats.checkpoint import CHECKPOINT, CHECKPOINT_FILE_SIZE
from tailrace.formats.commitlog import BLANK_MAGIC, decode_message
from tailrace.formats.consumequeue import CQ_UNIT

SEGMENT = 16384
QUEUE_FILE = 400
CONFIG = StoreConfig(
    mapped_file_size_commit_log=SEGMENT, mapped_file_size_consume_queue=QUEUE_FILE,
    max_hash_slot_num=32, max_index_num=128, commit_log_allocate_step=4096)


def opened(path, config=CONFIG, **given):
    return flat_open(path, config=config, services=False, entropy=SeededEntropy(7), **given)


def message(number, topic="T", size=0):
    body = b"%06d" % number
    return Message(topic=topic, body=body.ljust(size, b"."), tags=f"tag{number % 3}",
                   keys=[f"k{number}"])


def fill(store, numbers, topic="T", queue_id=0, size=0):
    for number in numbers:
        store.put(message(number, topic, size), queue_id=queue_id)


def make(path, count, **given):
    """A store that was stopped in order, with ``count`` messages in queue 0 of T."""
    with opened(path) as store:
        fill(store, range(count), **given)


def as_the_reference_left_it(path, *, killed, fields=None):
    """Nothing of our own; an abort file after a kill; a checkpoint of ``fields``, or the one there."""
    shutil.rmtree(path / "tailrace", ignore_errors=True)
    if killed:
        (path / "abort").write_text("1")
    if fields is not None:
        (path / "checkpoint").write_bytes(CHECKPOINT.pack(*fields).ljust(CHECKPOINT_FILE_SIZE, b"\0"))


def checkpoint(path):
    return CHECKPOINT.unpack_from((path / "checkpoint").read_bytes())


def segments(path):
    return sorted((path / "commitlog").iterdir())


def records(path):
    """(position, size, segment, place in it) of every record, by the lengths alone."""
    found = []
    for file in segments(path):
        data, base, at = file.read_bytes(), int(file.name), 0
        while at + 8 <= len(data):
            size, magic = struct.unpack_from(">iI", data, at)
            if magic == BLANK_MAGIC or size <= 0:
                break
            found.append((base + at, size, file, at))
            at += size
    return found


def patch(file, at, data):
    with file.open("r+b") as opened_file:
        opened_file.seek(at)
        opened_file.write(data)


def flip(file, at, bit=0):
    data = file.read_bytes()
    patch(file, at, bytes([data[at] ^ 1 << bit]))


def cut(path, phy_offset):
    """End the log at a position, as the reference does: later files and later bytes are removed."""
    for file in segments(path):
        at = phy_offset - int(file.name)
        if at <= 0:
            file.unlink()
        elif at < file.stat().st_size:
            size = file.stat().st_size
            patch(file, at, bytes(size - at))


def queue_file(path, topic="T", queue_id=0, number=0):
    return sorted((path / "consumequeue" / topic / str(queue_id)).iterdir())[number]


def units(*rows):
    return b"".join(CQ_UNIT.pack(*row) for row in rows)


def bodies(store, topic="T", queue_id=0):
    return [m.body for m in read_there(store, topic, queue_id)]


def numbers(store, topic="T", queue_id=0):
    return [int(m.body[:6]) for m in read_there(store, topic, queue_id)]


def pulled(store, topic, queue_id):
    """What a consumer gets: (queue offset, message), following nextBeginOffset."""
    at, found = store.queue_of(topic, queue_id).min, []
    while at < store.queue_of(topic, queue_id).max:
        result = store.get_message(topic, queue_id, at, 32)
        found += [(offset, decode_message(data))
                  for offset, data in zip(result.queue_offsets, result.records, strict=True)]
        assert result.next_begin_offset > at
        at = result.next_begin_offset
    return found


def has_keys(store, wanted, topic="T"):
    return all(
        [int(m.body[:6]) for m in query_there(store, topic, f"k{number}")] == [number]
        for number in wanted)


def tree(path, *, but=()):
    """Every file's bytes by its name, and every directory."""
    return {
        name: p.read_bytes() if p.is_file() else None
        for p in sorted(path.rglob("*")) if (name := str(p.relative_to(path))) not in but}
