"""What the kernels write is the record that ``formats.commitlog.RECORD`` declares."""

from __future__ import annotations

import itertools

import pytest

from tailrace.formats import commitlog
from tailrace.formats.commitlog import BODY_HEAD, MESSAGE_HEAD, RECORD, SysFlag
from tailrace.kernels.properties import encode_properties
from tailrace.kernels.record import encode

HOSTS = (b"\x01" * 8, b"\x02" * 20)


def parts_of(record):
    """The parts of a record by name, read by the declaration alone."""
    head = MESSAGE_HEAD.unpack_from(record)
    is_v2 = head.magic == commitlog.MESSAGE_MAGIC_V2
    lengths = {
        "born_host": 20 if head.sys_flag & SysFlag.BORNHOST_V6 else 8,
        "store_host": 20 if head.sys_flag & SysFlag.STOREHOST_V6 else 8, "topic_length": 1 + is_v2}
    found, at = {}, 0
    for part in RECORD:
        length = lengths.get(part.name, part.sizes[0] if part.sizes else None)
        assert not part.sizes or length in part.sizes
        found[part.name] = record[at : at + length]
        at += length
        if part.name == "body_head":
            lengths["body"] = BODY_HEAD.unpack_from(record, at - length).body_length
        elif part.name.endswith("_length"):
            lengths[part.name.removesuffix("_length")] = int.from_bytes(found[part.name], "big")
    assert at == len(record) == head.total_size
    return head, found


@pytest.mark.parametrize(
    ("born", "store", "topic", "crc"), list(itertools.product(HOSTS, HOSTS, (b"T", b"t" * 200), (False, True))))
def test_a_record_has_the_parts_that_are_declared(born, store, topic, crc):
    buffer = bytearray(1000)
    stored = encode_properties({"TAGS": "a", "KEYS": "k"})
    size = encode(
        buffer, 0, len(buffer), 77, 3, 4, 5, 0, 6, born, 7, store, 8, 9, b"body", 10, topic, stored, crc)
    record = bytes(buffer[:size])
    head, found = parts_of(record)
    assert head[2:] == (10, 3, 4, 5, 77, (0x10 if len(born) == 20 else 0) | (0x20 if len(store) == 20 else 0), 6)
    assert (found["born_host"], found["store_host"]) == (born, store)
    assert int.from_bytes(found["store_timestamp"], "big") == 7
    assert BODY_HEAD.unpack_from(found["body_head"]) == (8, 9, 4)
    assert (found["body"], found["topic"]) == (b"body", topic)
    assert found["properties"].startswith(stored)
    assert len(found["properties"]) - len(stored) == (commitlog.CRC_PROPERTY_LENGTH if crc else 0)
    assert size == commitlog.record_size(len(born) + len(store), 4, len(topic), len(found["properties"]))
