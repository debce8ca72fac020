# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The pull lane: read a plain pull at the start of the bytes of a connection.

A plain pull has only known fields, each once, in the form in which clients write them, and is of a group and topic
that the broker has proven. Everything else is not plain, and the ordinary path serves it, as in ``send_lane``.
Interpreted the lane takes nothing. `UnitReader.fill` of ``unit_records`` reads the messages.

Every index is compared with the end of the frame or of the header before a byte is read.
"""

from typing import Any

import cython

from tailrace.kernels.shared import layouts as L
from tailrace.kernels.shared.field_names import pull_field
from tailrace.kernels.shared.plain_header import INT_MAX, PlainHeader, number_at
from tailrace.kernels.shared.texts import ascii_end

SOURCE_SHA256 = ""


@cython.cclass
class PlainSubscription:
    """What a group reads of a topic; ``version`` says which settings have proven it.

    A pull may name queues from 0 to ``queues`` - 1, and a version of its subscription up to ``sub_version``. ``codes``
    are tags codes (array of q), None selects every message. ``json`` and ``binary`` are the parts of an answer, as
    ``shared.pull_head`` has them.
    """

    group: str = cython.declare(str, visibility="readonly")
    topic: str = cython.declare(str, visibility="readonly")
    version: object = cython.declare(object, visibility="readonly")
    codes: Any = cython.declare(object, visibility="readonly")
    json: tuple = cython.declare(tuple, visibility="readonly")
    binary: tuple = cython.declare(tuple, visibility="readonly")
    _queues: cython.longlong
    _sub_version: cython.longlong

    def __init__(
        self, group: str, topic: str, version: object, queues: cython.longlong, sub_version: cython.longlong,
        codes: object, json: tuple, binary: tuple,
    ) -> None:
        self.group, self.topic, self.version, self.codes = group, topic, version, codes
        self.json, self.binary, self._queues, self._sub_version = json, binary, queues, sub_version


@cython.cclass
class PlainPulls(PlainHeader):
    """The pull that was read last.

    ``subscriptions`` has what is proven, by group, topic and the text of the pull's own subscription (bytes), None if
    that of the heartbeats counts. ``end`` is the index after the frame, ``parts`` are those of its answer, ``commit``
    is -1 if it commits no offset, ``max_bytes`` is 0 if it names no limit.
    """

    subscription: PlainSubscription = cython.declare(PlainSubscription, visibility="readonly")
    end: int = cython.declare(cython.Py_ssize_t, visibility="readonly")
    queue_id: int = cython.declare(cython.longlong, visibility="readonly")
    offset: int = cython.declare(cython.longlong, visibility="readonly")
    most: int = cython.declare(cython.longlong, visibility="readonly")
    max_bytes: int = cython.declare(cython.longlong, visibility="readonly")
    commit: int = cython.declare(cython.longlong, visibility="readonly")
    opaque: int = cython.declare(cython.longlong, visibility="readonly")
    is_binary: bool = cython.declare(cython.bint, visibility="readonly")
    parts: tuple = cython.declare(tuple, visibility="readonly")
    _subscriptions: dict

    def __init__(self, subscriptions: dict) -> None:
        self._subscriptions, self.subscription, self.parts = subscriptions, None, ()
        self._begin(L.CODE_PULL, L.CODE_LITE_PULL, -1, -1)

    @cython.cfunc
    def _number(
        self, b: cython.const[cython.uchar][::1], name: cython.Py_ssize_t, size: cython.Py_ssize_t,
    ) -> cython.int:
        return pull_field(cython.address(b[0]), name, size)

    def read(self, frames: bytes, pos: cython.Py_ssize_t, version: object) -> bool:
        """Read the pull at ``frames[pos:]``. Return False if it is not plain, or not proven by ``version``."""
        b: cython.const[cython.uchar][::1] = frames
        values = cython.declare(cython.longlong[16])
        own: bytes = None
        field: cython.int
        at: cython.Py_ssize_t
        n: cython.Py_ssize_t
        if not cython.compiled or not self._read_frame(b, pos) or self._flag or self._body != self._end:
            return False
        if self._seen & L.PULLS_REQUIRED != L.PULLS_REQUIRED or self._seen & L.PULLS_ODD:
            return False
        values[L.PULL_MAX_MSG_BYTES] = 0
        for field in range(L.PULL_FIELDS):
            if not self._seen >> field & 1:
                continue
            at, n = self._at[field], self._size[field]
            if (L.PULLS_INT32 | L.PULLS_INT64) >> field & 1:
                values[field] = number_at(b, at, n)
                if values[field] > INT_MAX and L.PULLS_INT32 >> field & 1:
                    return False
                if values[field] < 0 and not (
                    field == L.PULL_COMMIT_OFFSET and n == 2 and b[at] == 45 and b[at + 1] == 49  # -1
                ):
                    return False
            elif ascii_end(b, at, at + n) != at + n:
                return False
        if values[L.PULL_SYS_FLAG] & ~L.PULLS_SYS_FLAGS:
            return False
        if values[L.PULL_SYS_FLAG] & L.PULLS_SUBSCRIPTION:
            if not self._seen >> L.PULL_SUBSCRIPTION & 1 or not self._is_of_tags(b):
                return False
            own = self._text(frames, L.PULL_SUBSCRIPTION)
        found: PlainSubscription = self._subscriptions.get(
            (self._text(frames, L.PULL_CONSUMER_GROUP), self._text(frames, L.PULL_TOPIC), own))
        if (
            found is None or found.version is not version or values[L.PULL_QUEUE_ID] >= found._queues
            or (own is None and values[L.PULL_SUB_VERSION] > found._sub_version)
        ):
            return False
        self.subscription, self.parts = found, found.binary if self._is_binary else found.json
        self.end, self.opaque, self.is_binary = self._end, self._opaque, self._is_binary
        self.queue_id, self.offset = values[L.PULL_QUEUE_ID], values[L.PULL_QUEUE_OFFSET]
        self.most, self.max_bytes = values[L.PULL_MAX_MSG_NUMS], values[L.PULL_MAX_MSG_BYTES]
        self.commit = values[L.PULL_COMMIT_OFFSET] if values[L.PULL_SYS_FLAG] & L.PULLS_COMMIT_OFFSET else -1
        return True

    @cython.cfunc
    def _is_of_tags(self, b: cython.const[cython.uchar][::1]) -> cython.bint:
        """Return True if the pull names no type of its subscription but TAG."""
        at: cython.Py_ssize_t = self._at[L.PULL_EXPRESSION_TYPE]
        if not self._seen >> L.PULL_EXPRESSION_TYPE & 1:
            return True
        return self._size[L.PULL_EXPRESSION_TYPE] == 3 and b[at] == 84 and b[at + 1] == 65 and b[at + 2] == 71

    @cython.cfunc
    def _text(self, frames: bytes, field: cython.int):
        """Return the bytes of a field."""
        return frames[self._at[field] : self._at[field] + self._size[field]]
