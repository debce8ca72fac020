"""Checkpoints, acknowledgements and receipts, byte for byte as RocketMQ 5.5.0 writes them."""

from __future__ import annotations

import re
from functools import partial

import pytest

from tailrace.formats.pop import (
    Ack,
    ExtraInfo,
    PopCheckPoint,
    ack_offsets,
    msg_offset_info,
    normal_topic,
    order_count,
    pop_retry_topic,
    queue_offset_order_count,
    real_topic,
    retry_flag,
    revive_topic,
    start_offset_info,
)

CK = PopCheckPoint(7, 1_700_000_000_123, 60_000, 3, "topic", "group", "broker-a", (0, 2), 2)
# What the reference printed for the same objects.
GOLDEN_CK = (
    b'{"bm":0,"bn":"broker-a","c":"group","d":[0,2],"it":60000,"n":2,"pt":1700000000123,"q":3,'
    b'"reviveTime":1700000060123,"ro":0,"so":7,"sp":false,"t":"topic"}')
GOLDEN_CK_AGAIN = (
    '{"bm":0,"bn":"broker-a","c":"grüppe\\"\\\\","d":[0,2],"it":60000,"n":2,"pt":1700000000123,"q":3,'
    '"reviveTime":1700000060123,"ro":9,"rp":"1","so":7,"sp":true,"t":"topic"}').encode()
GOLDEN_ACK = b'{"ao":9,"bn":"broker-a","c":"group","pt":1700000000123,"q":3,"so":7,"t":"topic"}'
GOLDEN_BATCH = (
    b'{"ao":-1,"aol":[7,9],"bn":"broker-a","c":"group","pt":1700000000123,"q":3,"so":7,"t":"topic"}')


def test_a_checkpoint_is_written_as_the_reference_writes_it():
    assert CK.encode() == GOLDEN_CK
    assert CK.unique_key == "topic@3@7@group@1700000000123@broker-a@ck"
    assert PopCheckPoint.decode(GOLDEN_CK, "other") == CK
    again = PopCheckPoint.decode(GOLDEN_CK_AGAIN, "other")
    assert (again.re_put_times, again.suspend, again.group) == ("1", True, 'grüppe"\\')
    assert again.encode() == GOLDEN_CK_AGAIN.replace(b'"ro":9', b'"ro":0')


def test_acknowledgements_are_written_as_the_reference_writes_them():
    ack = Ack((9,), 7, 1_700_000_000_123, 3, "topic", "group", "broker-a")
    batch = Ack((7, 9), 7, 1_700_000_000_123, 3, "topic", "group", "broker-a", batch=True)
    assert (ack.encode(), batch.encode()) == (GOLDEN_ACK, GOLDEN_BATCH)
    assert (ack.tag, batch.tag) == ("ack", "bAck")
    assert ack.unique_key == "topic@3@9@group@1700000000123@broker-a@ack"
    assert batch.unique_key == "topic@3@[7, 9]@group@1700000000123@bAck"
    assert Ack.decode(GOLDEN_ACK, "x", batch=False) == ack
    assert Ack.decode(GOLDEN_BATCH, "x", batch=True) == batch
    assert ack.merge_key == batch.merge_key == CK.merge_key
    old = b'{"ackOffset":9,"consumerGroup":"group","popTime":1700000000123,"queueId":3,"startOffset":7,"topic":"topic"}'
    assert Ack.decode(old, "broker-a", batch=False) == ack


def test_offsets_of_a_checkpoint_are_found_also_in_those_of_old_brokers():
    assert [CK.index_of(offset) for offset in (6, 7, 8, 9, 10)] == [-1, 0, -1, 1, -1]
    CK_ONE = PopCheckPoint.decode(GOLDEN_CK, "x")
    CK_ONE.bit_map = 0b10
    assert CK_ONE.unacknowledged() == [7]
    old = PopCheckPoint(7, 1, 2, 3, "t", "g", "b", (), 3)
    assert [old.index_of(offset) for offset in (6, 7, 9, 10)] == [-1, 0, 2, -1]
    assert old.unacknowledged() == [7, 8, 9]


@pytest.mark.parametrize("body", [
    b"", b"[]", b'{"t":"t"}', b'{"t":"t","c":"g","n":33}', b'{"t":"t","c":"g","n":"1"}',
    b'{"t":"t","c":"g","n":2,"d":[0]}', b'{"t":"t","c":"g","n":1,"d":["0"]}', b'{"t":7,"c":"g"}',
])
def test_what_is_not_a_checkpoint_is_refused(body):
    with pytest.raises(ValueError, match=r"."):
        PopCheckPoint.decode(body, "b")


def test_names_of_topics_and_their_flags():
    v1, v2 = pop_retry_topic("t", "g"), pop_retry_topic("t", "g", v2=True)
    assert (v1, v2) == ("%RETRY%g_t", "%RETRY%g+t")
    assert [retry_flag(topic) for topic in ("t", v1, v2)] == ["0", "1", "2"]
    assert [real_topic("t", "g", flag) for flag in "012"] == ["t", v1, v2]
    assert [normal_topic(topic, "g") for topic in ("t", v1, v2)] == ["t", "t", "t"]
    assert revive_topic("C") == "rmq_sys_REVIVE_LOG_C"
    with pytest.raises(ValueError, match="retry flag"):
        real_topic("t", "g", "3")


def test_parts_of_an_answer():
    assert start_offset_info("t", 2, 0) == "0 2 0"
    assert msg_offset_info("%RETRY%g_t", 0, [5, 6]) == "1 0 5,6"
    assert order_count("t", 1, 0) == "0 1 0"
    assert queue_offset_order_count("t", 1, 5, 1) == "0 qo1%5 1"


def test_a_receipt_is_read_as_it_was_written():
    text = "0 1795220152529 15000 5 0 tb 2 411"
    info = ExtraInfo.decode(text)
    assert info == (0, 1_795_220_152_529, 15_000, 5, "0", "tb", 2, 411)
    assert info.encode() == text
    assert ExtraInfo.decode("0 1 15000 999 0 tb").is_order


@pytest.mark.parametrize("text", [
    "", "0 1 2 3 0", "x 1 2 3 0 b 0 0", "0 1 2 3 7 b 0 0", f"{1 << 63} 1 2 3 0 b", "0 -1 2 3 0 b",
    f"0 {(1 << 63) - 1} 1 3 0 b", "0 ١ 2 3 0 b", "0 1 2 " + "9" * 5000 + " 0 b",
])
def test_what_is_not_a_receipt_is_refused(text):
    with pytest.raises(ValueError, match="extraInfo"):
        ExtraInfo.decode(text)


def test_a_bit_set_of_java():
    assert ack_offsets(7, "AQI=") == [7, 16]
    assert ack_offsets(7, "") == []
    for bad in ("?", "A" * 20_000, "////////"):
        with pytest.raises(ValueError, match="bit set"):
            ack_offsets(0, bad)


@pytest.mark.parametrize("text", [
    "7 1700000000123 60000 3 0 broker-a 2 9", "7 1700000000123 60000 3 0 broker-a", "-1 1 1 999 2 b 0 0",
    "7 1700000000123 60000 3 0 b 2 9 more", "1 9223372036854775807 1 0 0 b 0 0", "1 1 1 0 3 b 0 0",
    "1 1 1 0 0 b\x01 0 0", "1 1 1 0 0  0 0", "\u0661 1 1 0 0 b 0 0", "1 1 1 0 0 br\u00f6ker 0 0",
    "0001 1 1 0 0 b 0 0", "1 1 1 0 0",
])
def test_a_plain_receipt_is_read_as_every_other_one(text, monkeypatch):
    def read():
        try:
            return ExtraInfo.decode(text)
        except ValueError as error:
            return str(error)

    found = read()
    monkeypatch.setattr("tailrace.formats.pop._PLAIN_RECEIPT", re.compile("(?!)"))
    assert read() == found


@pytest.mark.parametrize("body", [
    GOLDEN_CK, GOLDEN_CK_AGAIN, GOLDEN_ACK, GOLDEN_BATCH, GOLDEN_CK.replace(b"[0,2]", b"[0,1]"),
    GOLDEN_CK.replace(b'"n":2', b'"n":3'), GOLDEN_CK.replace(b'"n":2', b'"n":33'), GOLDEN_CK.replace(b"[0,2]", b"[]"),
    GOLDEN_CK.replace(b"60000", b"true"), GOLDEN_CK.replace(b'"bm":0', b'"bm":-1'),
    GOLDEN_CK.replace(b'"t":"topic"', b'"t":""'),
    GOLDEN_CK.replace(b'"n":2', b'"n":1e0'), GOLDEN_CK.replace(b'"so":7', b'"so":9223372036854775808'),
    GOLDEN_CK.replace(b'"broker-a"', b"null"), GOLDEN_CK.replace(b"topic", b"$ref"),
    GOLDEN_CK.replace(b'"sp":false', b'"sp":1'),
    GOLDEN_BATCH.replace(b"[7,9]", b"[]"), GOLDEN_BATCH.replace(b"[7,9]", b"null"), GOLDEN_ACK.replace(b'"so":7,', b""),
    GOLDEN_ACK.replace(b'"c":"group"', b'"consumerGroup":"group"'), b"[]", b"{", b"\xff",
])
def test_a_plain_body_is_read_as_every_other_one(body, monkeypatch):
    def read():
        found = []
        for decode in (
            PopCheckPoint.decode, partial(Ack.decode, batch=False), partial(Ack.decode, batch=True),
        ):
            try:
                found.append(decode(body, "own"))
            except ValueError as error:
                found.append(str(error))
        return found

    found = read()
    monkeypatch.setattr("tailrace.formats.pop._plain", lambda *_: None)
    assert read() == found
