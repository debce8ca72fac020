"""The table of requests, and how their headers are read and written."""

import pytest

from tailrace.errors import RefusalError
from tailrace.formats.remoting import RemotingCommand, RequestCode
from tailrace.formats.requests.consumer_headers import UnregisterClientRequestHeader
from tailrace.formats.requests.custom_header import CustomHeader, Int32, Int64
from tailrace.formats.requests.message_headers import (
    PullMessageRequestHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
)
from tailrace.formats.requests.table import REQUESTS

PULL = {
    "consumerGroup": "g", "topic": "t", "queueId": "3", "queueOffset": "-1", "maxMsgNums": "32",
    "sysFlag": "2", "commitOffset": "0", "suspendTimeoutMillis": "15000", "subVersion": "0",
}


def test_typed_fields_and_defaults():
    header = RemotingCommand(RequestCode.PULL_MESSAGE, {**PULL, "unknown": "x"}).read(PullMessageRequestHeader)
    assert (header.topic, header.queue_id, header.queue_offset) == ("t", 3, -1)
    assert header.max_msg_bytes is None
    assert header.to_ext() == PULL


@pytest.mark.parametrize(("field", "value", "part"), [
    ("queueId", None, "<queueId> is null"),
    ("queueId", "", "<queueId> is null"),
    ("queueId", "three", "<queueId> is not a whole number in its range: 'three'"),
    ("queueId", str(1 << 31), "<queueId> is not a whole number"),
    ("queueOffset", str(1 << 63), "<queueOffset> is not a whole number"),
    ("queueOffset", "9" * 5000, "<queueOffset> is not a whole number in its range: '99"),
    ("maxMsgBytes", "many", "<maxMsgBytes> is not a whole number"),
])
def test_a_wrong_field_is_named(field, value, part):
    ext = {**PULL, field: value}
    if value is None:
        del ext[field]
    with pytest.raises(RefusalError) as refusal:
        RemotingCommand(RequestCode.PULL_MESSAGE, ext).read(PullMessageRequestHeader)
    assert refusal.value.code == 1
    assert part in refusal.value.remark
    assert len(refusal.value.remark) < 200


def test_numbers_and_empty_fields_as_java_takes_them():
    ext = {**PULL, "queueId": "+007", "queueOffset": "-0012", "maxMsgBytes": "", "subscription": ""}
    header = RemotingCommand(RequestCode.PULL_MESSAGE, ext).read(PullMessageRequestHeader)
    assert (header.queue_id, header.queue_offset, header.max_msg_bytes) == (7, -12, None)


def test_short_names_are_those_of_the_reference():
    ext = dict(zip("abcdefghijklm", (
        "group", "topic", "TBW102", "4", "1", "0", "1700000000000", "7", "K\x01v\x02", "2", "true", "16",
        "false"), strict=True))
    header = RemotingCommand(RequestCode.SEND_MESSAGE_V2, ext).read(SendMessageRequestHeaderV2)
    assert isinstance(header, SendMessageRequestHeader)
    assert (header.flag, header.properties, header.reconsume_times) == (7, "K\x01v\x02", 2)
    assert (header.unit_mode, header.max_reconsume_times, header.batch) == (True, 16, False)
    assert header.to_ext() == ext


def test_a_name_that_is_not_camel_case():
    header = RemotingCommand(35, {"clientID": "me"}).read(UnregisterClientRequestHeader)
    assert header.client_id == "me"


def test_every_header_is_read_as_it_is_written():
    samples = {str: "text", int: 5, bool: True}
    for request in REQUESTS.values():
        for header in filter(None, (request.header, request.answer)):
            values = [
                samples[bool if f in {"bool", "bool | None"} else str if f.startswith("str") else int]
                for f in map(str, header.__annotations__.values())
            ] if header is not SendMessageRequestHeaderV2 else ["g", "t", "d", 4, 1, 0, 9, 0, "p", 1, True, True, 3]
            made = header(*values)
            assert RemotingCommand(request.code, made.to_ext()).read(header) == made


def test_int_ranges():
    class Two(CustomHeader):
        small: Int32
        large: Int64

    both = RemotingCommand(0, {"small": str(-(1 << 31)), "large": str((1 << 63) - 1)}).read(Two)
    assert (both.small, both.large) == (-(1 << 31), (1 << 63) - 1)
