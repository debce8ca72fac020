"""The remoting frame: both header encodings, and bytes that are no frame."""

from __future__ import annotations

import struct

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import RemotingFrameError
from tailrace.formats.remoting import (
    FRAME_MAX,
    LANGUAGE_PYTHON,
    MQ_VERSION,
    RESPONSE_FLAG,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    SerializeType,
    decode_binary_header,
    decode_frame,
    encode,
    encode_binary_header,
    encode_json_header,
)

text = st.text(st.characters(codec="utf-8"), max_size=20)
commands = st.builds(
    RemotingCommand,
    st.integers(0, 32767),
    st.dictionaries(text, text.filter(bool), max_size=6),
    st.binary(max_size=50),
    opaque=st.integers(-(2**31), 2**31 - 1),
    flag=st.integers(0, 3),
    remark=st.none() | text.filter(bool),
    language=st.integers(0, 13),
    version=st.integers(0, 612),
    serialize_type=st.sampled_from([SerializeType.JSON, SerializeType.ROCKETMQ]),
)


def frame(header: bytes, body: bytes = b"", kind: int = 0) -> bytes:
    return struct.pack(">iI", 4 + len(header) + len(body), kind << 24 | len(header)) + header + body


def fields(c: RemotingCommand) -> tuple[object, ...]:
    return (
        c.code, c.ext, c.body, c.opaque, c.flag, c.remark, c.language, c.version, c.serialize_type,
    )


@given(commands)
def test_a_command_comes_back_as_it_was_sent(command):
    data = b"before" + encode(command) + b"after"
    found, end = decode_frame(data, 6, len(data))
    assert found is not None
    assert fields(found) == fields(command)
    assert data[end:] == b"after"


@given(commands, st.data())
def test_an_incomplete_frame_is_waited_for(command, data):
    whole = encode(command)
    cut = data.draw(st.integers(0, len(whole) - 1))
    assert decode_frame(whole[:cut], 0, cut) == (None, 0)


@given(st.binary(max_size=80), st.sampled_from([0, 1, 2]))
def test_any_header_bytes_decode_or_raise_the_frame_error(header, kind):
    data = frame(header, kind=kind)
    try:
        decode_frame(data, 0, len(data))
    except RemotingFrameError:
        pass


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">i", 0),
        struct.pack(">i", -1),
        struct.pack(">i", 3),
        struct.pack(">i", FRAME_MAX - 3),
        b"GET / HTTP/1.1\r\n",
        b"\x16\x03\x01\x00\xff\x01\x00",
        struct.pack(">iI", 10, 7) + b"x" * 6,
        struct.pack(">iI", 0x10000, 0xFFFFFF),
        frame(b"not json"),
        frame(b""),
        frame(b"[1]"),
        frame(b'{"opaque":1}'),
        frame(b'{"code":"310"}'),
        frame(b'{"code":1,"extFields":[]}'),
        frame(b'{"code":1,"opaque":4294967296}'),
        frame(b"{}", kind=2),
        frame(b"\0" * 20, kind=1),
    ],
)
def test_bytes_that_are_no_frame_raise_as_soon_as_that_is_known(data):
    with pytest.raises(RemotingFrameError):
        decode_frame(data, 0, len(data))


def test_the_longest_frame_is_taken():
    command = RemotingCommand(1, body=b"")
    room = FRAME_MAX - len(encode(command))
    command.body = bytes(room)
    data = encode(command)
    assert len(data) == FRAME_MAX
    assert decode_frame(data, 0, len(data))[1] == FRAME_MAX
    command.body = bytes(room + 1)
    with pytest.raises(RemotingFrameError, match="over the limit"):
        encode(command)


def test_raw_numbers_and_booleans_of_other_clients_become_text():
    header = orjson.dumps({
        "code": 310, "language": "NODE_JS", "opaque": 1, "flag": 0, "version": 121, "unknown": [1],
        "extFields": {"e": 3, "k": False, "m": True, "x": None, "o": -1, "f": 1.5, "y": {"a": 1}},
    })
    found, _ = decode_frame(frame(header), 0, 8 + len(header))
    assert found is not None
    assert found.ext == {"e": "3", "k": "false", "m": "true", "o": "-1", "f": "1.5", "y": '{"a":1}'}
    assert found.language == 13


def test_an_unknown_language_is_other():
    header = b'{"code":1,"language":"COBOL"}'
    found, _ = decode_frame(frame(header), 0, 8 + len(header))
    assert found is not None
    assert found.language == 7


def test_of_repeated_binary_fields_the_last_wins_and_empty_means_absent():
    def field(name: bytes, value: bytes) -> bytes:
        return struct.pack(">h", len(name)) + name + struct.pack(">i", len(value)) + value

    ext = field(b"a", b"1") + field(b"b", b"") + field(b"a", b"2")
    header = struct.pack(">hBhiii", 10, 0, 479, 5, 0, 0) + struct.pack(">i", len(ext)) + ext
    assert decode_binary_header(header, 0, len(header)) == (10, 0, 479, 5, 0, None, {"a": "2"})


def test_a_json_answer_always_has_its_ext_fields_and_a_zero_type_byte():
    data = encode(RemotingCommand(0, flag=1))
    assert data[4] == 0
    header = orjson.loads(data[8:])
    assert header["extFields"] == {}
    assert header["version"] == MQ_VERSION
    assert header["language"] == "JAVA"
    assert "remark" not in header


def test_an_answer_has_opaque_and_encoding_of_its_request():
    request = RemotingCommand(310, opaque=77, serialize_type=SerializeType.ROCKETMQ)
    answer = request.answer(ResponseCode.TOPIC_NOT_EXIST, "no", {"a": "b"}, b"x")
    assert answer.is_response
    assert not answer.is_oneway
    assert (answer.code, answer.opaque, answer.serialize_type) == (17, 77, 1)


def test_a_code_that_int16_cannot_hold_is_sent_with_a_json_header():
    data = encode(RemotingCommand(200_050, serialize_type=SerializeType.ROCKETMQ))
    assert data[4] == 0
    with pytest.raises(struct.error):
        encode_binary_header(200_050, 0, 479, 1, 0, None, {})


def test_codes_have_their_numbers():
    assert RequestCode.SEND_MESSAGE_V2 == 310
    assert RequestCode.LITE_PULL_MESSAGE == 361
    assert ResponseCode.GO_AWAY == 1500


def test_golden_bytes_of_a_binary_request():
    command = RemotingCommand(
        105, {"topic": "T"}, opaque=2, language=0, version=479,
        serialize_type=SerializeType.ROCKETMQ,
    )
    assert encode(command).hex() == (
        "000000250100002100690001df000000020000000000000000"
        "0000000c0005746f7069630000000154"
    )


@pytest.mark.parametrize("kind", list(SerializeType))
@pytest.mark.parametrize("opaque", [0, 7, -1, 0x7FFFFFFF, -0x80000000])
def test_a_success_without_fields_is_the_frame_of_any_answer(kind, opaque):
    answer = RemotingCommand(10, opaque=opaque, serialize_type=kind).answer()
    header = (encode_json_header, encode_binary_header)[kind](0, 0, MQ_VERSION, opaque, RESPONSE_FLAG, None, {})
    assert encode(answer) == struct.pack(">iI", 4 + len(header), kind << 24 | len(header)) + header
    for name, value in {
        "code": 1, "language": LANGUAGE_PYTHON, "version": 1, "flag": 0, "remark": "", "ext": {"a": "b"}, "body": b"c",
    }.items():
        other = RemotingCommand(10, opaque=opaque, serialize_type=kind).answer()
        setattr(other, name, value)
        decoded, _ = decode_frame(encode(other), 0, 1_000)
        assert getattr(decoded, name) == value or not value
