"""Bytes that a RocketMQ 5 broker wrote: decoded, and written again."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace import model
from tailrace.errors import (
    BadMagicError,
    CorruptionError,
    ImpossibleLengthError,
    MessageIllegalError,
)
from tailrace.formats import commitlog, consumequeue, filenames, remoting
from tailrace.kernels import hashes, record
from tailrace.kernels.properties import encode_properties
from tailrace.store.walk.scan import is_record

RECORD = bytes.fromhex(
    "00000087daa320a73610a68600000003000000000000000000000000000000000000000000000000"
    "0000018bcfe568000a01020300001234000001a1fb699d08c0a8000900002a9f00000000000000000000"
    "00000000000568656c6c6f06546f706963410021544147530154616741024b455953016b31206b3202"
    "554e49515f4b455901553102"
)
PROPERTIES = {"TAGS": "TagA", "KEYS": "k1 k2", "UNIQ_KEY": "U1"}


def encoded(**changes):
    values = {
        "phy_offset": 0, "queue_id": 3, "flag": 0, "queue_offset": 0, "sys_flag": 0,
        "born_timestamp": 1700000000000, "born_host": commitlog.pack_host("10.1.2.3", 4660),
        "store_timestamp": 0x1A1FB699D08, "store_host": commitlog.pack_host("192.168.0.9", 10911),
        "reconsume_times": 0, "prepared": 0, "body": b"hello", "body_crc": 907060870,
        "topic": b"TopicA", "props": encode_properties(PROPERTIES),
        "append_prop_crc": False, **changes,
    }
    out = bytearray(4096)
    size = record.encode(out, 0, len(out), *values.values())
    return bytes(out[:size])


ROOT = Path(__file__).resolve().parents[3]


def golden(name):
    """The bytes of a file in tests/golden."""
    lines = (ROOT / "tests" / "golden" / f"{name}.txt").read_text().splitlines()
    return bytes.fromhex("".join(re.match(r" *\d+  ((?:[0-9a-f]{2} ?)*)", line)[1] for line in lines))


def test_golden_files_are_what_is_written():
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "golden.py", "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_golden_files_are_read_as_they_were_meant():
    """The first one differs from the reference's bytes above in the two numbers of its place."""
    assert golden("message-v1") == RECORD[:27] + b"\x07" + RECORD[28:34] + b"\x10\x00" + RECORD[36:]
    for name in ("message-v1", "message-v1-ipv6", "message-v1-property-crc", "message-v2"):
        data = golden(name)
        message = commitlog.decode_message(data)
        assert (message.phy_offset, message.queue_offset, message.body) == (4096, 7, b"hello")
        assert message.properties.items() >= PROPERTIES.items()
        assert is_record(data, 4096)
    assert commitlog.decode_batch(golden("batch-item")) == [(0, b"yy", b"TAGS\x01T\x02")]
    for name in ("frame-json", "frame-rocketmq"):
        data = golden(name)
        request, end = remoting.decode_frame(data, 0, len(data))
        assert (request.ext, request.body, end) == ({"topic": "TopicA", "queueId": "3"}, b"x", len(data))


def test_a_record_is_written_byte_for_byte():
    assert encoded() == RECORD


def test_a_record_is_decoded():
    message = commitlog.decode_message(RECORD)
    assert (message.topic, message.queue_id, message.body) == ("TopicA", 3, b"hello")
    assert message.properties == PROPERTIES
    assert message.born_host == ("10.1.2.3", 4660)
    assert message.msg_id == "C0A8000900002A9F0000000000000000"


def test_a_queue_unit_is_written_byte_for_byte():
    unit = consumequeue.CqUnit(0, len(RECORD), commitlog.tags_code("TagA"))
    assert consumequeue.CQ_UNIT.pack(*unit).hex() == "000000000000000000000087000000000027a807"
    assert consumequeue.PRE_BLANK.hex() == "00000000000000007fffffff0000000000000000"


def test_an_ipv6_message_id():
    raw = commitlog.pack_host("fe80::2", 2)
    assert model.create_message_id(raw, 359) == (
        "FE800000000000000000000000000002000000020000000000000167")
    assert model.decode_message_id(model.create_message_id(raw, 359)) == (raw, 359)


def test_a_batch_body_is_written_byte_for_byte():
    items = [
        (0, b"x", encode_properties({"WAIT": "true"})),
        (0, b"yy", encode_properties({"WAIT": "true", "TAGS": "T"})),
    ]
    body = commitlog.encode_batch(items)
    assert body.hex() == (
        "000000210000000000000000000000000000000178000a574149540174727565020000002900000000"
        "000000000000000000000002797900115741495401747275650254414753015402")
    assert commitlog.decode_batch(body) == items


def test_the_record_checksum_property():
    data = encoded(
        props=encode_properties({"TAGS": "TagA"}), append_prop_crc=True)
    crc = record.crc32(data, 0, len(data) - 20) & 0x7FFFFFFF
    assert data.endswith(b"__CRC32#\x01%b\x02" % f"{crc:010d}"[::-1].encode())


def test_index_hashes():
    assert hashes.index_hash(b"TopicA", b"U1") == 0x71712873
    assert hashes.index_hash(b"TopicA", b"k1") == 0x717125C9


def test_a_topic_of_128_bytes_makes_version_2():
    data = encoded(topic=b"t" * 128)
    assert commitlog.MESSAGE_HEAD.unpack_from(data).magic == commitlog.MESSAGE_MAGIC_V2
    assert commitlog.decode_message(data).topic == "t" * 128


def test_ipv6_hosts_set_their_flags():
    data = encoded(born_host=commitlog.pack_host("fe80::1", 1), store_host=commitlog.pack_host("::1", 2))
    message = commitlog.decode_message(data)
    assert message.sys_flag & 0x30 == 0x30
    assert (message.born_host, message.store_host) == (("fe80::1", 1), ("::1", 2))


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", ImpossibleLengthError),
        (RECORD[:90], ImpossibleLengthError),
        (RECORD[:-1], CorruptionError),
        (RECORD[:4] + b"\0\0\0\0" + RECORD[8:], BadMagicError),
    ],
)
def test_bytes_that_are_no_record_are_refused(data, error):
    with pytest.raises(error):
        commitlog.decode_message(data)


@pytest.mark.parametrize("cut", [1, 19, 20, 30])
def test_a_batch_that_is_cut_off_is_refused(cut):
    body = commitlog.encode_batch([(0, b"0123456789", b"a\x01b\x02")])
    with pytest.raises(MessageIllegalError):
        commitlog.decode_batch(body[:cut])


def test_odd_properties_are_passed_over():
    assert commitlog.decode_properties(b"a\x01b\x02c\x01\x02\x01d\x02efg\x02a\x01z") == {"a": "z"}


def test_decompression_stops_at_the_limit():
    import zlib

    bomb = zlib.compress(bytes(10_000_000))
    with pytest.raises(CorruptionError, match="limit"):
        commitlog.decompress_body(bomb, 0x1, 1_000_000)
    assert commitlog.decompress_body(zlib.compress(b"abc"), 0x301, 100) == b"abc"


def test_file_names():
    assert filenames.offset_to_file_name(1073741824) == "00000000001073741824"
    assert filenames.file_name_to_offset("00000000001073741824") == 1073741824
    assert filenames.file_name_to_offset("abort") is None
