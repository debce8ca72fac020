"""The remoting frame of RocketMQ: codes, flags, and the two header encodings.

A frame is ``length`` (number of bytes after it), a header word (top byte: 0 JSON, 1 ROCKETMQ; low 24 bits:
length of the header), the header and the body. This module has the whole format in Python. The server decodes
binary headers with `tailrace.kernels.header`, which is faster and has the same results.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Mapping
from typing import Annotated, Any, Final, NamedTuple

import orjson

from tailrace.errors import RefusalError, RemotingFrameError
from tailrace.formats._layout import Layout
from tailrace.formats.requests.custom_header import CustomHeader, H, read_header
from tailrace.response_codes import ResponseCode

__all__ = [
    "FRAME_MAX",
    "JSON_MEMBERS",
    "LANGUAGES",
    "LANGUAGE_CODES",
    "LANGUAGE_JAVA",
    "LANGUAGE_PYTHON",
    "MQ_VERSION",
    "ONEWAY_FLAG",
    "RESPONSE_FLAG",
    "RemotingCommand",
    "RequestCode",
    "ResponseCode",
    "SerializeType",
    "decode_binary_header",
    "decode_frame",
    "decode_json_header",
    "encode",
    "encode_binary_header",
    "encode_json_header",
    "sender_of",
]

FRAME_MAX: Final = 16 * 1024 * 1024
"""Longest frame, its length field included."""
PREFIX: Final = struct.Struct(">iI")


class BinaryHead(NamedTuple):
    """Start of a header of the serialize type ROCKETMQ. The remark, a length of four bytes and ext fields follow."""

    code: Annotated[int, "h", "i2", "code of the request or response"]
    language: Annotated[int, "B", "u1", "code of the language of the sender"]
    version: Annotated[int, "h", "i2", "number of the version of the sender"]
    opaque: Annotated[int, "i", "i4", "number of the request"]
    flag: Annotated[int, "i", "i4", "1: response, 2: one-way"]
    remark_length: Annotated[int, "i", "i4", "bytes of the remark"]


BINARY_HEAD: Final = Layout(BinaryHead, size=17)
JSON_MEMBERS: Final[Mapping[str, type]] = {
    "code": int, "extFields": dict, "flag": int, "opaque": int, "version": int, "language": str,
    "serializeTypeCurrentRPC": str, "remark": str,
}
"""Members of a header of the serialize type JSON, with the types that clients give them."""
INT32: Final = struct.Struct(">i")
INT16: Final = struct.Struct(">h")
RESPONSE_FLAG: Final = 1
ONEWAY_FLAG: Final = 2
MQ_VERSION: Final = 479
"""Ordinal of V5_3_3, the version that Tailrace reports."""
VERSION_V3_4_9: Final = 121
VERSION_V5_3_1: Final = 475
LANGUAGES: Final = (
    "JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP",
    "OMS", "RUST", "NODE_JS",
)
LANGUAGE_CODES: Final[Mapping[str, int]] = {name: code for code, name in enumerate(LANGUAGES)}
LANGUAGE_JAVA: Final = 0
LANGUAGE_PYTHON: Final = 3
LANGUAGE_OTHER: Final = 7


class SerializeType(enum.IntEnum):
    """Encoding of the header of a frame."""

    JSON = 0
    ROCKETMQ = 1


UNENCODED: Final = -1
"""Serialize type of a request that has no frame, and of its answers: see `tailrace.remoting.in_process`."""


class RequestCode(enum.IntEnum):
    """Kind of a request (RocketMQ's RequestCode)."""

    SEND_MESSAGE = 10
    PULL_MESSAGE = 11
    QUERY_MESSAGE = 12
    QUERY_CONSUMER_OFFSET = 14
    UPDATE_CONSUMER_OFFSET = 15
    UPDATE_AND_CREATE_TOPIC = 17
    UPDATE_AND_CREATE_TOPIC_LIST = 18
    GET_ALL_TOPIC_CONFIG = 21
    UPDATE_BROKER_CONFIG = 25
    GET_BROKER_CONFIG = 26
    GET_BROKER_RUNTIME_INFO = 28
    SEARCH_OFFSET_BY_TIMESTAMP = 29
    GET_MAX_OFFSET = 30
    GET_MIN_OFFSET = 31
    GET_EARLIEST_MSG_STORETIME = 32
    VIEW_MESSAGE_BY_ID = 33
    HEART_BEAT = 34
    UNREGISTER_CLIENT = 35
    CONSUMER_SEND_MSG_BACK = 36
    END_TRANSACTION = 37
    GET_CONSUMER_LIST_BY_GROUP = 38
    CHECK_TRANSACTION_STATE = 39
    NOTIFY_CONSUMER_IDS_CHANGED = 40
    LOCK_BATCH_MQ = 41
    UNLOCK_BATCH_MQ = 42
    GET_ALL_CONSUMER_OFFSET = 43
    GET_ALL_DELAY_OFFSET = 45
    CHECK_CLIENT_CONFIG = 46
    GET_TIMER_CHECK_POINT = 60
    GET_TIMER_METRICS = 61
    PUT_KV_CONFIG = 100
    GET_KV_CONFIG = 101
    DELETE_KV_CONFIG = 102
    REGISTER_BROKER = 103
    UNREGISTER_BROKER = 104
    GET_ROUTEINFO_BY_TOPIC = 105
    GET_BROKER_CLUSTER_INFO = 106
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG = 201
    GET_TOPIC_STATS_INFO = 202
    GET_CONSUMER_CONNECTION_LIST = 203
    GET_PRODUCER_CONNECTION_LIST = 204
    WIPE_WRITE_PERM_OF_BROKER = 205
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER = 206
    DELETE_SUBSCRIPTIONGROUP = 207
    GET_CONSUME_STATS = 208
    DELETE_TOPIC_IN_BROKER = 215
    DELETE_TOPIC_IN_NAMESRV = 216
    REGISTER_TOPIC_IN_NAMESRV = 217
    GET_KVLIST_BY_NAMESPACE = 219
    RESET_CONSUMER_CLIENT_OFFSET = 220
    GET_CONSUMER_STATUS_FROM_CLIENT = 221
    INVOKE_BROKER_TO_RESET_OFFSET = 222
    INVOKE_BROKER_TO_GET_CONSUMER_STATUS = 223
    GET_TOPICS_BY_CLUSTER = 224
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST = 225
    QUERY_TOPIC_CONSUME_BY_WHO = 300
    QUERY_CONSUME_TIME_SPAN = 303
    GET_SYSTEM_TOPIC_LIST_FROM_NS = 304
    GET_SYSTEM_TOPIC_LIST_FROM_BROKER = 305
    CLEAN_EXPIRED_CONSUMEQUEUE = 306
    GET_CONSUMER_RUNNING_INFO = 307
    QUERY_CORRECTION_OFFSET = 308
    CONSUME_MESSAGE_DIRECTLY = 309
    SEND_MESSAGE_V2 = 310
    GET_UNIT_TOPIC_LIST = 311
    GET_HAS_UNIT_SUB_TOPIC_LIST = 312
    GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST = 313
    CLONE_GROUP_OFFSET = 314
    VIEW_BROKER_STATS_DATA = 315
    CLEAN_UNUSED_TOPIC = 316
    GET_BROKER_CONSUME_STATS = 317
    UPDATE_NAMESRV_CONFIG = 318
    GET_NAMESRV_CONFIG = 319
    SEND_BATCH_MESSAGE = 320
    QUERY_CONSUME_QUEUE = 321
    QUERY_DATA_VERSION = 322
    RESUME_CHECK_HALF_MESSAGE = 323
    SEND_REPLY_MESSAGE = 324
    SEND_REPLY_MESSAGE_V2 = 325
    PUSH_REPLY_MESSAGE_TO_CLIENT = 326
    ADD_WRITE_PERM_OF_BROKER = 327
    GET_ALL_PRODUCER_INFO = 328
    DELETE_EXPIRED_COMMITLOG = 329
    QUERY_TOPICS_BY_CONSUMER = 343
    QUERY_SUBSCRIPTION_BY_CONSUMER = 345
    GET_TOPIC_CONFIG = 351
    GET_SUBSCRIPTIONGROUP_CONFIG = 352
    UPDATE_AND_GET_GROUP_FORBIDDEN = 353
    CHECK_ROCKSDB_CQ_WRITE_PROGRESS = 354
    EXPORT_ROCKSDB_CONFIG_TO_JSON = 355
    LITE_PULL_MESSAGE = 361
    RECALL_MESSAGE = 370
    QUERY_ASSIGNMENT = 400
    SET_MESSAGE_REQUEST_MODE = 401
    GET_ALL_MESSAGE_REQUEST_MODE = 402
    UPDATE_AND_CREATE_STATIC_TOPIC = 513
    GET_BROKER_MEMBER_GROUP = 901
    BROKER_HEARTBEAT = 904
    EXCHANGE_BROKER_HA_INFO = 906
    GET_BROKER_HA_STATUS = 907
    RESET_MASTER_FLUSH_OFFSET = 908
    GET_BROKER_EPOCH_CACHE = 1007
    UPDATE_COLD_DATA_FLOW_CTR_CONFIG = 2001
    REMOVE_COLD_DATA_FLOW_CTR_CONFIG = 2002
    GET_COLD_DATA_FLOW_CTR_INFO = 2003
    SET_COMMITLOG_READ_MODE = 2004
    AUTH_CREATE_USER = 3001
    AUTH_UPDATE_USER = 3002
    AUTH_DELETE_USER = 3003
    AUTH_GET_USER = 3004
    AUTH_LIST_USER = 3005
    AUTH_CREATE_ACL = 3006
    AUTH_UPDATE_ACL = 3007
    AUTH_DELETE_ACL = 3008
    AUTH_GET_ACL = 3009
    AUTH_LIST_ACL = 3010
    SWITCH_TIMER_ENGINE = 5001
    DELETE_TOPIC_IN_BROKER_LIST = 5002
    DELETE_SUBSCRIPTION_GROUP_LIST = 5003
    POP_MESSAGE = 200_050
    ACK_MESSAGE = 200_051
    PEEK_MESSAGE = 200_052
    CHANGE_MESSAGE_INVISIBLETIME = 200_053
    NOTIFICATION = 200_054
    POLLING_INFO = 200_055
    POP_ROLLBACK = 200_056
    POP_LITE_MESSAGE = 200_070
    LITE_SUBSCRIPTION_CTL = 200_071
    NOTIFY_UNSUBSCRIBE_LITE = 200_073
    GET_BROKER_LITE_INFO = 200_074
    GET_PARENT_TOPIC_INFO = 200_075
    GET_LITE_TOPIC_INFO = 200_076
    GET_LITE_CLIENT_INFO = 200_077
    GET_LITE_GROUP_INFO = 200_078
    TRIGGER_LITE_DISPATCH = 200_079
    BATCH_ACK_MESSAGE = 200_151
    PURGE_TOPIC = 329_001
    """A request that only Tailrace has: release messages of ``topic``; optional ``queueId`` and ``beforeMs``."""
    FREE_BYTES = 329_002
    """A request that only Tailrace has: delete the oldest CommitLog files until ``freeBytes`` are freed."""
    SYNC_STORE = 329_003
    """A request that only Tailrace has: sync the log, so that readers of the directory see every message."""
    GET_SLAVE_STATE = 329_004
    """A request that only Tailrace has, of a slave: topics that were deleted, and pops in order."""
    GET_SLAVE_USERS = 329_005
    """A request that only Tailrace has, of a slave: users with passwords, and permissions; only over TLS."""


class RemotingCommand:
    """A request or a response. ``ext`` values are text; ``language`` is a number."""

    __slots__ = (
        "body", "code", "ext", "flag", "language", "opaque", "remark", "sender", "serialize_type", "version",
    )

    sender: str
    """Name of the user that sent a request, as access control has proven it; not set without users. See `sender_of`."""

    def __init__(
        self,
        code: int,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
        *,
        opaque: int = 0,
        flag: int = 0,
        remark: str | None = None,
        language: int = LANGUAGE_JAVA,
        version: int = MQ_VERSION,
        serialize_type: int = SerializeType.JSON,
    ) -> None:
        self.code = code
        self.ext: dict[str, str] = {} if ext is None else ext
        self.body = body
        self.opaque = opaque
        self.flag = flag
        self.remark = remark
        self.language = language
        self.version = version
        self.serialize_type = serialize_type

    @property
    def is_response(self) -> bool:
        """True if the command is a response."""
        return self.flag & RESPONSE_FLAG != 0

    @property
    def is_oneway(self) -> bool:
        """Return True if the sender expects no answer."""
        return self.flag & ONEWAY_FLAG != 0

    def read(self, header: type[H]) -> H:
        """Return the fields as ``header`` declares them.

        Raises RefusalError for a field that is missing or not of its type.
        """
        return read_header(self.ext, header)

    def answer(
        self,
        code: int = 0,
        remark: str | None = None,
        ext: dict[str, str] | CustomHeader | None = None,
        body: bytes = b"",
    ) -> RemotingCommand:
        """Return the response to this request, in the encoding of its header."""
        return RemotingCommand(
            code, ext.to_ext() if isinstance(ext, CustomHeader) else ext, body, opaque=self.opaque, flag=RESPONSE_FLAG,
            remark=remark, serialize_type=self.serialize_type,
        )

    def refused(self, refusal: RefusalError) -> RemotingCommand:
        """Return the response that says why this request is not served."""
        return self.answer(refusal.code, refusal.remark, dict(refusal.ext))

    def failed(self, error: Exception) -> RemotingCommand:
        """Return the response SYSTEM_ERROR for an error."""
        return self.answer(ResponseCode.SYSTEM_ERROR, failure_text(error))

    def __repr__(self) -> str:
        return (
            f"RemotingCommand(code={self.code}, opaque={self.opaque}, flag={self.flag}, "
            f"remark={self.remark!r}, ext={self.ext!r}, body={len(self.body)} bytes)"
        )


def failure_text(error: Exception) -> str:
    """Return the remark of SYSTEM_ERROR for an error: its type and its text."""
    return f"{type(error).__name__}: {error}"


def sender_of(request: RemotingCommand) -> str:
    """Return the name of the user that sent a request; empty without users, or if the request needed none."""
    return getattr(request, "sender", "")


def decode_frame(
    buf: bytes | bytearray | memoryview, pos: int, until: int
) -> tuple[RemotingCommand | None, int]:
    """Return the command whose frame starts at ``pos``, and the position of the next frame.

    Return ``(None, pos)`` if the frame is not complete before ``until``. Raises RemotingFrameError for bytes that
    are not a frame, also before the frame is complete.
    """
    if until - pos < 8:
        if until - pos >= 4:
            check_length(INT32.unpack_from(buf, pos)[0])
        return None, pos
    length, word = PREFIX.unpack_from(buf, pos)
    header_length = word & 0xFFFFFF
    check_length(length)
    if header_length > length - 4:
        raise RemotingFrameError(f"header of {header_length} bytes in a frame of {length}")
    end = pos + 4 + length
    if end > until:
        return None, pos
    header_end = pos + 8 + header_length
    kind = word >> 24
    if kind == SerializeType.ROCKETMQ:
        code, language, version, opaque, flag, remark, ext = decode_binary_header(
            buf, pos + 8, header_end
        )
    elif kind == SerializeType.JSON:
        code, language, version, opaque, flag, remark, ext = decode_json_header(
            bytes(buf[pos + 8 : header_end])
        )
    else:
        raise RemotingFrameError(f"unknown header encoding {kind}")
    command = RemotingCommand(
        code, ext, bytes(buf[header_end:end]), opaque=opaque, flag=flag, remark=remark,
        language=language, version=version, serialize_type=kind,
    )
    return command, end


def check_length(length: int) -> None:
    """Raise RemotingFrameError for a frame length outside the limits of the protocol."""
    if length < 4:
        raise RemotingFrameError(f"frame length {length} is too short, a frame has at least 4 bytes")
    if length > FRAME_MAX - 4:
        raise RemotingFrameError(f"frame length {length} is over the limit of {FRAME_MAX}")


Header = tuple[int, int, int, int, int, str | None, dict[str, str]]
"""Code, language, version, opaque, flag, remark, ext."""


def decode_binary_header(buf: bytes | bytearray | memoryview, pos: int, until: int) -> Header:
    """Return the fields of a ROCKETMQ header. Raises RemotingFrameError if its lengths do not add up."""
    if until - pos < 21:
        raise RemotingFrameError(f"binary header of {until - pos} bytes is too short")
    code, language, version, opaque, flag, n = BINARY_HEAD.unpack_from(buf, pos)
    pos += 17
    if n < 0 or n > until - pos - 4:
        raise RemotingFrameError(f"remark of {n} bytes leaves the header")
    try:
        remark = str(buf[pos : pos + n], "utf-8") if n else None
        pos += n
        n = INT32.unpack_from(buf, pos)[0]
        pos += 4
        if n < 0 or n > until - pos:
            raise RemotingFrameError(f"ext fields of {n} bytes leave the header")
        ext = _decode_binary_ext(buf, pos, pos + n)
    except UnicodeDecodeError as error:
        raise RemotingFrameError(f"text in the header is not UTF-8: {error.reason}") from error
    return code, language, version, opaque, flag, remark, ext


def _decode_binary_ext(buf: bytes | bytearray | memoryview, pos: int, until: int) -> dict[str, str]:
    ext: dict[str, str] = {}
    while pos < until:
        if until - pos < 6:
            raise RemotingFrameError("an ext field leaves the header")
        n = INT16.unpack_from(buf, pos)[0]
        pos += 2
        if n < 0 or n > until - pos - 4:
            raise RemotingFrameError(f"name of {n} bytes leaves the ext fields")
        name = str(buf[pos : pos + n], "utf-8")
        pos += n
        n = INT32.unpack_from(buf, pos)[0]
        pos += 4
        if n < 0 or n > until - pos:
            raise RemotingFrameError(f"value of {n} bytes leaves the ext fields")
        if n:  # an empty value means null
            ext[name] = str(buf[pos : pos + n], "utf-8")
        pos += n
    return ext


def encode_binary_header(
    code: int, language: int, version: int, opaque: int, flag: int, remark: str | None,
    ext: Mapping[str, str],
) -> bytes:
    """Return a ROCKETMQ header. Raises struct.error for a code above 32767."""
    text = remark.encode() if remark else b""
    fields = b"".join(
        [
            b"".join((INT16.pack(len(k)), k, INT32.pack(len(v)), v))
            for k, v in ((name.encode(), value.encode()) for name, value in ext.items())
        ]
    )
    head = BINARY_HEAD.pack(code, language, version, opaque, flag, len(text))
    return b"".join((head, text, INT32.pack(len(fields)), fields))


def decode_json_header(data: bytes) -> Header:
    """Return the fields of a JSON header. Raises RemotingFrameError if ``data`` is not one."""
    try:
        header = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise RemotingFrameError(f"header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise RemotingFrameError("header is not a JSON object")
    ext = header.get("extFields")
    if ext is None:
        ext = {}
    code, opaque = header.get("code"), header.get("opaque", 0)
    flag, version = header.get("flag", 0), header.get("version", 0)
    if not (
        isinstance(code, int) and isinstance(opaque, int) and isinstance(flag, int)
        and isinstance(version, int) and isinstance(ext, dict)
    ):
        raise RemotingFrameError("header has a field of a wrong type")
    if not -0x80000000 <= opaque <= 0x7FFFFFFF:
        raise RemotingFrameError(f"opaque {opaque} is no 32-bit number")
    for value in ext.values():
        if type(value) is not str:
            ext = {k: _text(v) for k, v in ext.items() if v is not None}
            break
    language = header.get("language")
    if not isinstance(language, int):
        language = LANGUAGE_CODES.get(str(language), LANGUAGE_OTHER)
    remark = header.get("remark")
    return code, language, version, opaque, flag, None if remark is None else str(remark), ext


def _text(value: Any) -> str:
    """Return a value as the text that Java sends. Some clients send numbers and booleans."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    return orjson.dumps(value).decode()


def encode_json_header(
    code: int, language: int, version: int, opaque: int, flag: int, remark: str | None,
    ext: Mapping[str, str],
) -> bytes:
    """Return a JSON header. It always has ``extFields``, because Java clients require it."""
    header: dict[str, Any] = {
        "code": code,
        "extFields": ext,
        "flag": flag,
        "language": LANGUAGES[language] if 0 <= language < len(LANGUAGES) else "OTHER",
        "opaque": opaque,
        "serializeTypeCurrentRPC": "JSON",
        "version": version,
    }
    if remark is not None:
        header["remark"] = remark
    return orjson.dumps(header)


_PLAIN: Final = 0, LANGUAGE_JAVA, MQ_VERSION, RESPONSE_FLAG, None
_PLAIN_ANSWER: Final = encode_json_header(*_PLAIN[:3], 7_000_007, *_PLAIN[3:], {}).replace(b"7000007", b"%d")
"""The header of a successful answer without fields, such as most acknowledgements get."""


def encode(command: RemotingCommand) -> bytes:
    """Return a whole frame. A code that does not fit the binary header is sent with a JSON header."""
    c = command
    if c.serialize_type == SerializeType.ROCKETMQ and c.code <= 0x7FFF:
        header = encode_binary_header(
            c.code, c.language, c.version, c.opaque, c.flag, c.remark, c.ext
        )
        word = SerializeType.ROCKETMQ << 24 | len(header)
    elif not (c.ext or c.body) and (c.code, c.language, c.version, c.flag, c.remark) == _PLAIN:
        header = _PLAIN_ANSWER % c.opaque
        return PREFIX.pack(4 + len(header), len(header)) + header
    else:
        header = encode_json_header(
            c.code, c.language, c.version, c.opaque, c.flag, c.remark, c.ext
        )
        word = len(header)
    length = 4 + len(header) + len(c.body)
    if length > FRAME_MAX - 4:
        raise RemotingFrameError(f"a frame of {length} bytes is over the limit of {FRAME_MAX}")
    return b"".join((PREFIX.pack(length, word), header, c.body))
