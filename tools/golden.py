#!/usr/bin/env python3
"""Write tests/golden: one sample of every format, byte for byte, with what each byte is.

    make golden            # rewrite them
    tools/golden.py --check

A line is: offset, bytes in hexadecimal, field, value. A change of these files is a change of what is
on disk or on the wire, so it is read in review and proven with the reference implementation.
"""

from __future__ import annotations

import argparse
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tailrace.formats import (
    checkpoint,
    commitlog,
    consumequeue,
    ha,
    indexfile,
    remoting,
    timercheckpoint,
    timerlog,
    timerwheel,
)
from tailrace.formats._layout import Layout
from tailrace.kernels import index_entries, record
from tailrace.kernels.properties import encode_properties
from tailrace.kernels.shared import constants as C

GOLDEN = Path(__file__).resolve().parents[1] / "tests" / "golden"
PER_LINE = 16
STORED, BORN = 0x1A1FB699D08, 1_700_000_000_000
Part = tuple[bytes, str, str]


def fields(layout: Layout[Any], data: bytes) -> Iterator[Part]:
    """The fields of one fixed-size record."""
    values = layout.unpack_from(data)
    for (name, at), value in zip(layout.offsets.items(), values, strict=True):
        size = struct.calcsize(">" + layout.fields[name].struct_code)
        told = f"{value:#010x}" if name == "magic" else str(value)
        yield data[at : at + size], name, told


def message(data: bytes) -> Iterator[Part]:
    """The fields of a CommitLog record."""
    yield from fields(commitlog.MESSAGE_HEAD, data)
    head = commitlog.MESSAGE_HEAD.unpack_from(data)
    at = commitlog.MESSAGE_HEAD.size

    def take(size: int, name: str, told: str = "") -> Part:
        nonlocal at
        part = data[at : at + size]
        at += size
        return part, name, told or str(int.from_bytes(part, "big"))

    def host(flag: int, name: str) -> Part:
        size = 20 if head.sys_flag & flag else 8
        ip, port = commitlog.unpack_host(data[at : at + size])
        return take(size, name, f"{ip} port {port}")

    yield host(commitlog.SysFlag.BORNHOST_V6, "born_host")
    yield take(8, "store_timestamp")
    yield host(commitlog.SysFlag.STOREHOST_V6, "store_host")
    yield take(4, "reconsume_times")
    yield take(8, "prepared_transaction_offset")
    length = take(4, "body_length")
    yield length
    body = int.from_bytes(length[0], "big")
    yield take(body, "body", repr(data[at : at + body])[1:])
    length = take(2 if head.magic == commitlog.MESSAGE_MAGIC_V2 else 1, "topic_length")
    yield length
    topic = int.from_bytes(length[0], "big")
    yield take(topic, "topic", data[at : at + topic].decode())
    length = take(2, "properties_length")
    yield length
    properties = int.from_bytes(length[0], "big")
    yield take(properties, "properties", str(commitlog.decode_properties(data[at:])))


def encoded(topic: bytes = b"TopicA", ipv6: bool = False, crc: bool = False) -> bytes:
    """A record, as a broker stores it."""
    out = bytearray(1024)
    born, store = ("fe80::1", "fe80::2") if ipv6 else ("10.1.2.3", "192.168.0.9")
    properties = encode_properties({"TAGS": "TagA", "KEYS": "k1 k2", "UNIQ_KEY": "U1"})
    size = record.encode(
        out, 0, len(out), 4096, 3, 0, 7, 0, BORN, commitlog.pack_host(born, 4660), STORED,
        commitlog.pack_host(store, 10911), 0, 0, b"hello",
        record.crc32(b"hello", 0, 5) & commitlog.CRC_MASK, topic, properties, crc)
    return bytes(out[:size])


def index_file() -> Iterator[Part]:
    """An index file of two slots and four entries, with one record in it."""
    data = bytearray(indexfile.index_file_size(2, 4))
    log = encoded()
    rows = np.zeros((1, C.COLUMNS), dtype=np.int64)
    record.scan(log, 0, len(log), 4096, 0, rows)
    key_hashes, ends = np.empty(16, dtype=np.int32), np.empty(1, dtype=np.int64)
    index_entries.hash_keys(log, rows, 0, key_hashes, 0, ends)
    work = np.empty(index_entries.WORK, dtype=np.int64)
    indexfile.INDEX_HEADER.pack_into(data, 0, indexfile.IndexHeader(0, 0, 0, 0, 0, 1))
    index_entries.put_keys(data, 2, 4, rows, ends, key_hashes, 0, work)
    yield from fields(indexfile.INDEX_HEADER, bytes(data[: indexfile.INDEX_HEADER.size]))
    at = indexfile.INDEX_HEADER.size
    for layout, count in ((indexfile.INDEX_SLOT, 2), (indexfile.INDEX_ENTRY, 4)):
        for number in range(count):
            kind = layout.record.__name__
            for part, name, told in fields(layout, bytes(data[at : at + layout.size])):
                yield part, f"{kind}[{number}].{name}", told
            at += layout.size


def frame(data: bytes) -> Iterator[Part]:
    """A frame of the remoting protocol."""
    length = int.from_bytes(data[:4], "big")
    mark = int.from_bytes(data[4:8], "big")
    kind, size = mark >> 24, mark & 0xFFFFFF
    yield data[:4], "length", f"{length} behind this field"
    yield data[4:8], "header", f"{'ROCKETMQ' if kind else 'JSON'}, {size} bytes"
    yield data[8 : 8 + size], "header bytes", "" if kind else data[8 : 8 + size].decode()
    yield data[8 + size :], "body", repr(data[8 + size :])[1:]


def samples() -> dict[str, list[Part]]:
    """What each file shows."""
    unit = consumequeue.CqUnit(4096, 135, commitlog.tags_code("TagA"))
    requests = [
        remoting.RemotingCommand(
            remoting.RequestCode.GET_MAX_OFFSET, {"topic": "TopicA", "queueId": "3"}, b"x", opaque=1,
            serialize_type=kind)
        for kind in (remoting.SerializeType.JSON, remoting.SerializeType.ROCKETMQ)
    ]
    batch = commitlog.encode_batch([(0, b"yy", encode_properties({"TAGS": "T"}))])
    total, magic, crc, flag, body = struct.unpack_from(">iiiii", batch)
    return {
        "message-v1": list(message(encoded())),
        "message-v1-ipv6": list(message(encoded(ipv6=True))),
        "message-v1-property-crc": list(message(encoded(crc=True))),
        "message-v2": list(message(encoded(topic=b"t" * 128))),
        "blank": list(fields(commitlog.BLANK, commitlog.BLANK.pack(100, commitlog.BLANK_MAGIC))),
        "batch-item": [
            (batch[:4], "total_size", str(total)), (batch[4:8], "magic", str(magic)),
            (batch[8:12], "body_crc", str(crc)), (batch[12:16], "flag", str(flag)),
            (batch[16:20], "body_length", str(body)), (batch[20:22], "body", repr(batch[20:22])[1:]),
            (batch[22:24], "properties_length", str(int.from_bytes(batch[22:24], "big"))),
            (batch[24:], "properties", str(commitlog.decode_properties(batch[24:]))),
        ],
        "queue-unit": list(fields(consumequeue.CQ_UNIT, consumequeue.CQ_UNIT.pack(*unit))),
        "batch-queue-unit": list(fields(consumequeue.BATCH_CQ_UNIT, consumequeue.BATCH_CQ_UNIT.pack(
            *unit, STORED, 7, 3, consumequeue.INVALID_POS, 0))),
        "queue-pre-blank": list(fields(consumequeue.CQ_UNIT, consumequeue.PRE_BLANK)),
        "index-file": list(index_file()),
        "checkpoint": list(fields(
            checkpoint.CHECKPOINT, checkpoint.CHECKPOINT.pack(STORED, STORED - 1, STORED - 2, 1, 2, 3))),
        "timer-wheel-slot": list(fields(timerwheel.SLOT, timerwheel.SLOT.pack(STORED // 1000, 0, 52, 2, 0))),
        "timer-log-unit": list(fields(timerlog.TIMER_UNIT, timerlog.TIMER_UNIT.pack(
            52, -1, timerlog.MAGIC_DEFAULT, STORED, 2000, 4096, 135, commitlog.java_string_hash("Dest"), 0))),
        "timer-log-blank": list(fields(
            timerlog.TIMER_BLANK, timerlog.TIMER_BLANK.pack(16, 0, timerlog.TIMER_BLANK_MAGIC))),
        "timer-checkpoint": list(fields(
            timercheckpoint.TIMER_CHECKPOINT, timercheckpoint.TIMER_CHECKPOINT.pack(*range(1, 8)))),
        "ha-report": list(fields(ha.REPORT, ha.REPORT.pack(11018))),
        "ha-frame-header": list(fields(ha.FRAME_HEADER, ha.FRAME_HEADER.pack(10740, 278))),
        "frame-json": list(frame(remoting.encode(requests[0]))),
        "frame-rocketmq": list(frame(remoting.encode(requests[1]))),
    }


def lines(parts: list[Part]) -> Iterator[str]:
    """The text of one file."""
    at = 0
    for data, name, told in parts:
        for start in range(0, max(len(data), 1), PER_LINE):
            piece = data[start : start + PER_LINE]
            about = f"  {name} {told}".rstrip() if not start else ""
            yield f"{at:6d}  {piece.hex(' '):<{PER_LINE * 3}}{about}".rstrip()
            at += len(piece)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only say what would change")
    check = parser.parse_args().check
    wanted = {f"{name}.txt": "\n".join(lines(parts)) + "\n" for name, parts in samples().items()}
    there = {file.name: file.read_text() for file in GOLDEN.glob("*.txt")}
    for name in sorted(wanted.keys() | there.keys()):
        if wanted.get(name) == there.get(name):
            continue
        print(f"tests/golden/{name} {'differs' if name in there else 'is missing'}", file=sys.stderr)
        if not check and name in wanted:
            (GOLDEN / name).write_text(wanted[name])
        elif not check:
            (GOLDEN / name).unlink()
    return int(check and wanted != there)


if __name__ == "__main__":
    sys.exit(main())
