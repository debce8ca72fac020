# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The send lane: read plain sends at the start of the bytes of a connection, make their records and their answers.

`PlainSends.read` reads frames in place and stops before the first one that is not plain. A plain send has only known
fields, each once, in the form in which clients write them, no property that means more than its text, and a topic
that the broker has proven. A plain batch has in addition whole messages that may be in a batch, and not too many.
Everything else is not plain, and the ordinary path serves it. So the lane refuses nothing and has no rules of its own
about refusals. Interpreted it takes nothing.

Every index is compared with the end of the frame, of the header, of the properties or of the body before a byte is
read.
"""

import cython

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
    from cython.cimports.libc.string import memcmp

from tailrace.kernels.shared import constants as C
from tailrace.kernels.shared import layouts as L
from tailrace.kernels.shared.batch_items import item_at, put_item
from tailrace.kernels.shared.big_endian import be32, put32
from tailrace.kernels.shared.copying import copy_bytes, copy_object
from tailrace.kernels.shared.crc32 import crc32, crc_of, use_crc32
from tailrace.kernels.shared.field_names import send_field, send_field_v2
from tailrace.kernels.shared.kinds import kind_in
from tailrace.kernels.shared.plain_header import INT_MAX, PlainHeader, number_at
from tailrace.kernels.shared.record_encoding import CRC_31_BITS, RecordFields, put_record, size_of
from tailrace.kernels.shared.texts import ascii_end, is_utf8, put_decimal, put_hexadecimal

SOURCE_SHA256 = ""

_KEY_MAX = cython.declare(cython.longlong, 200)
"""Longest unique key, in bytes, because the answer has it."""
_DIGITS_MAX = cython.declare(cython.Py_ssize_t, 20)
_KEY_DIGITS = cython.declare(cython.Py_ssize_t, 16)
"""Digits of the number of a key that is made, and of the position in an id: hexadecimal ones."""
_LENGTH_SIZE = cython.declare(cython.Py_ssize_t, 4)
"""Bytes of the length of a value in a binary header."""


@cython.cfunc
@cython.exceptval(check=False)
def _is(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, n: cython.Py_ssize_t, text: bytes) -> cython.bint:
    """Return True if ``b[p:p + n]`` is ``text``."""
    if n != len(text):
        return False
    if cython.compiled:
        return memcmp(cython.address(b[p]), cython.cast(cython.p_char, text), n) == 0
    return bytes(b[p : p + n]) == text


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _put_number(
    out: cython.uchar[::1], q: cython.Py_ssize_t, value: cython.longlong, sized: cython.bint
) -> cython.Py_ssize_t:
    """Write a decimal number, after its length if it is ``sized``. Return the index after it."""
    start: cython.Py_ssize_t = q + _LENGTH_SIZE if sized else q
    end: cython.Py_ssize_t = put_decimal(out, start, value)
    if sized:
        put32(out, q, end - start)
    return end


@cython.cclass
class PlainTopic:
    """A topic to which plain sends are stored as they are. ``version`` says which settings have proven it.

    A send may name its queues from 0 to ``queues`` - 1.
    """

    name: bytes = cython.declare(bytes, visibility="readonly")
    text: str = cython.declare(str, visibility="readonly")
    version: object = cython.declare(object, visibility="readonly")
    _queues: cython.longlong

    def __init__(self, topic: str, queues: cython.longlong, version: object) -> None:
        self.text, self.name, self._queues, self.version = topic, topic.encode(), queues, version


@cython.cclass
class PlainSends(PlainHeader):
    """Sends of one call: those of one topic and one kind that follow each other at the start of some bytes.

    ``own`` are the properties that the broker adds to a message that is not in a batch. ``key_property`` is the start
    of the property with the unique key that it makes for one without a key; 16 hexadecimal digits and byte 2 end it.
    With all of them a message has up to ``most`` bytes of body and properties, and up to ``most_properties`` bytes of
    properties. The body of a batch has up to ``most_batch`` bytes. ``topics`` has the proven topics by name.

    ``answers`` are a JSON and a binary one, as parts around their fields: request number, position, queue id, queue
    offset and unique key. ``batch_answers`` are the same for batches, with message ids instead of the position, with
    their length in a binary one, and no key. An id is ``id_prefix`` and the position.

    After `read`, ``topic`` is the topic of the ``count`` sends, which have ``messages`` messages, and ``batches`` says
    whether they are batches. ``oneway`` says whether they are answered, ``ordered`` whether they have an ordering key,
    ``queues`` are the ids of their queues, and ``bound`` is the greatest number of bytes that their records take.
    """

    topic: PlainTopic = cython.declare(PlainTopic, visibility="readonly")
    count: int = cython.declare(cython.Py_ssize_t, visibility="readonly")
    messages: int = cython.declare(cython.Py_ssize_t, visibility="readonly")
    batches: bool = cython.declare(cython.bint, visibility="readonly")
    oneway: bool = cython.declare(cython.bint, visibility="readonly")
    ordered: bool = cython.declare(cython.bint, visibility="readonly")
    queues: list = cython.declare(list, visibility="readonly")
    bound: int = cython.declare(cython.longlong, visibility="readonly")
    _own: bytes
    _key_property: bytes
    _key_prefix: bytes
    _topics: dict
    _most: cython.longlong
    _most_properties: cython.longlong
    _most_batch: cython.longlong
    _answers: tuple
    _batch_answers: tuple
    _id_prefix: bytes
    _answer_size: cython.Py_ssize_t
    _common: RecordFields
    _frames: cython.const[cython.uchar][::1]
    _out: cython.uchar[::1]
    _properties: cython.uchar[::1]
    _rows: cython.longlong[::1]
    _positions: cython.longlong[::1]
    _key_at: cython.Py_ssize_t
    _key_size: cython.Py_ssize_t
    _last_key: cython.longlong
    _is_ordered: cython.bint
    _is_batch: cython.bint

    def __init__(
        self, own: bytes, key_property: bytes, store_host: bytes, most: cython.longlong,
        most_properties: cython.longlong, most_batch: cython.longlong, append_crc: cython.bint, topics: dict,
        answers: tuple, batch_answers: tuple, id_prefix: bytes,
    ) -> None:
        """Raises ValueError unless an answer has six parts, that to a batch five, and ``key_property`` its name."""
        common: RecordFields = RecordFields()
        longest: cython.Py_ssize_t = 0
        sizes: list = [len(parts) for parts in (*answers, *batch_answers)]
        if sizes != [6, 6, 5, 5]:
            raise ValueError(f"answers of {sizes} parts, not of 6, 6, 5 and 5")
        if len(key_property) + _KEY_DIGITS > _KEY_MAX:
            raise ValueError(f"a key property that begins with {len(key_property)} bytes")
        common.set_store_host(store_host)
        common.append_crc, common.prepared = append_crc, 0
        self._common, self._own, self._key_property = common, own, key_property
        self._key_prefix = key_property[key_property.index(1) + 1 :]
        self._answers, self._batch_answers, self._id_prefix = answers, batch_answers, id_prefix
        self._most, self._most_properties, self._most_batch = most, most_properties, most_batch
        self._topics, self.topic, self.queues = topics, None, []
        self.count, self.messages, self.bound = 0, 0, 0
        for parts in (*answers, *batch_answers):
            longest = max(longest, len(b"".join(parts)))
        self._answer_size = longest + 6 * _DIGITS_MAX + _KEY_MAX
        self._frames = None
        self._begin(L.CODE_SEND, L.CODE_SEND_V2, L.CODE_SEND_BATCH, L.SEND_PROPERTIES)
        self._properties = bytearray(max(most_properties, 0) + len(own) + len(key_property) + _KEY_DIGITS + 1)
        self._out = bytearray(self._answer_size * C.SENDS_MAX + self._id_size() * C.BATCHES_MAX)
        self._rows = memoryview(bytearray(8 * C.S_COLUMNS * C.SENDS_MAX)).cast("q")
        self._positions = memoryview(bytearray(8 * C.BATCHES_MAX)).cast("q")

    def read(
        self, frames: bytes, pos: cython.Py_ssize_t, born_host: bytes, most: cython.Py_ssize_t,
        room: cython.Py_ssize_t, version: object, last_key: cython.longlong,
    ) -> int:
        """Read up to ``most`` plain sends from ``frames[pos:]``; return their number.

        Their answers have up to ``room`` bytes and one answer more. ``born_host`` is the address of the client. Only
        topics that ``version`` has proven count. ``last_key`` is the number of the last unique key that was made.
        Until `end` the frames are kept.
        """
        self.count = self.messages = 0
        if not cython.compiled:
            return 0
        self._frames = frames
        self._common.set_born_host(born_host)
        self.queues, self.bound, self._used, self._last_key = [], 0, 0, last_key
        while self.count < min(most, C.SENDS_MAX) and room >= 0:
            if not self._read_frame(self._frames, pos) or not self._accept(self._frames, version):
                break
            pos = self._end
            room -= self._answer_size
            if self.batches:
                room -= self._id_size() * self._rows[self.count * C.S_COLUMNS + C.S_MESSAGES]
            self.count += 1
        if not self.count:
            self._frames = None
        return self.count

    def end(self) -> None:
        """Forget the frames."""
        self.count = 0
        self._frames = None

    @cython.cfunc
    def _number(
        self, b: cython.const[cython.uchar][::1], name: cython.Py_ssize_t, size: cython.Py_ssize_t,
    ) -> cython.int:
        if self._code == L.CODE_SEND:
            return send_field(cython.address(b[0]), name, size)
        return send_field_v2(cython.address(b[0]), name, size)

    @cython.cfunc
    def _id_size(self) -> cython.Py_ssize_t:
        """Return the size of the id of a message of a batch, with the comma between two."""
        return len(self._id_prefix) + _KEY_DIGITS + 1

    # -- what is plain

    @cython.cfunc
    def _accept(self, b: cython.const[cython.uchar][::1], version: object) -> cython.bint:
        """Fill the next row with the frame whose header was read. Return False if it is not plain."""
        r: cython.Py_ssize_t = self.count * C.S_COLUMNS
        rows: cython.longlong[::1] = self._rows
        n: cython.Py_ssize_t = self._size[L.SEND_PROPERTIES] if self._seen >> L.SEND_PROPERTIES & 1 else 0
        stored: cython.Py_ssize_t = n + len(self._own)
        body: cython.Py_ssize_t = self._body
        end: cython.Py_ssize_t = self._end
        queue_id: cython.longlong
        if (
            self._seen & L.SENDS_REQUIRED != L.SENDS_REQUIRED
            or (self._flag != 0 and self._flag != L.FLAG_ONEWAY) or body >= end or stored > self._most_properties
            or not self._are_typed(b, r) or not self._is_proven(b, version)
        ):
            return False
        queue_id = rows[r + C.S_QUEUE_ID]
        if queue_id >= self.topic._queues or rows[r + C.S_SYS_FLAG] & ~L.SENDS_SYS_FLAGS:
            return False
        if not n:
            self._at[L.SEND_PROPERTIES], self._key_at, self._is_ordered = 0, -1, False
        elif self._is_unescaped:
            if not self._are_plain(self._unescaped, self._at[L.SEND_PROPERTIES], n):
                return False
        elif not self._are_plain(b, self._at[L.SEND_PROPERTIES], n):
            return False
        if self._is_batch:
            self._is_ordered, self._key_at = False, 0  # its messages have properties of their own
        elif self._key_at < 0:
            stored += len(self._key_property) + _KEY_DIGITS + 1
        if not self.count:
            self.oneway, self.ordered, self.batches = self._flag == L.FLAG_ONEWAY, self._is_ordered, self._is_batch
            self._common.set_topic(self.topic.name)
        elif (
            self.oneway != (self._flag == L.FLAG_ONEWAY) or self.ordered != self._is_ordered
            or self.batches != self._is_batch
        ):
            return False
        if self._is_batch:
            if not self._has_items(b, r):
                return False
        elif stored > min(self._most - (end - body), self._most_properties):
            return False
        else:
            rows[r + C.S_MESSAGES], rows[r + C.S_BOUND] = 1, size_of(self._common, end - body, stored, 2)
            if self._is_unescaped:
                self._used += n
            if self._key_at < 0:
                self._last_key += 1
                self._key_size = self._last_key
        rows[r + C.S_END], rows[r + C.S_OPAQUE], rows[r + C.S_BINARY] = end, self._opaque, self._is_binary
        rows[r + C.S_BODY], rows[r + C.S_BODY_SIZE] = body, end - body
        rows[r + C.S_UNESCAPED] = self._is_unescaped
        rows[r + C.S_PROPERTIES], rows[r + C.S_PROPERTIES_SIZE] = self._at[L.SEND_PROPERTIES], n
        rows[r + C.S_KEY], rows[r + C.S_KEY_SIZE] = self._key_at, self._key_size
        rows[r + C.S_QUEUE] = self._queue(queue_id)
        rows[r + C.S_POSITIONS] = self.messages
        self.messages += rows[r + C.S_MESSAGES]
        self.bound += rows[r + C.S_BOUND]
        return True

    @cython.cfunc
    def _has_items(self, b: cython.const[cython.uchar][::1], r: cython.Py_ssize_t) -> cython.bint:
        """Fill what a row has of the messages of a batch. Return False if one cannot be in a batch, or is too long."""
        p: cython.Py_ssize_t = self._body
        count: cython.Py_ssize_t = 0
        size: cython.longlong
        body: cython.longlong
        props: cython.longlong
        total: cython.longlong = 0
        if self._end - p > self._most_batch:
            return False
        while p < self._end:
            size, body, props = item_at(b, p, self._end)
            if size < 0 or props > self._most_properties or body + props > self._most:
                return False
            p += cython.cast(cython.Py_ssize_t, size)
            if kind_in(cython.address(b[0]), p - cython.cast(cython.Py_ssize_t, props), p)[0] & C.ALONE:
                return False
            total += body + props
            count += 1
        self._rows[r + C.S_MESSAGES] = count
        self._rows[r + C.S_BOUND] = (size_of(self._common, 0, 1, 1) - 1) * count + total
        return self.messages + count <= C.BATCHES_MAX

    @cython.cfunc
    def _are_typed(self, b: cython.const[cython.uchar][::1], r: cython.Py_ssize_t) -> cython.bint:
        """Fill the numbers of a row. Return False if a field is not of its type, or is a text with odd characters."""
        values = cython.declare(cython.longlong[16])
        end: cython.Py_ssize_t
        field: cython.int
        values[L.SEND_RECONSUME_TIMES] = 0
        self._is_batch = self._code == L.CODE_SEND_BATCH
        for field in range(L.SEND_FIELDS):
            if not self._seen >> field & 1:
                continue
            if (L.SENDS_INT32 | L.SENDS_INT64) >> field & 1:
                values[field] = number_at(b, self._at[field], self._size[field])
                if values[field] < 0 or (L.SENDS_INT32 >> field & 1 and values[field] > INT_MAX):
                    return False
            elif field == L.SEND_BATCH and _is(b, self._at[field], self._size[field], b"true"):
                self._is_batch = True
            elif L.SENDS_BOOL >> field & 1:
                if not _is(b, self._at[field], self._size[field], b"false"):
                    return False
            elif field != L.SEND_PROPERTIES:
                end = self._at[field] + self._size[field]
                if ascii_end(b, self._at[field], end) != end:
                    return False
        self._rows[r + C.S_QUEUE_ID], self._rows[r + C.S_FLAG] = values[L.SEND_QUEUE_ID], values[L.SEND_FLAG]
        self._rows[r + C.S_SYS_FLAG] = values[L.SEND_SYS_FLAG]
        self._rows[r + C.S_BORN_TIMESTAMP] = values[L.SEND_BORN_TIMESTAMP]
        self._rows[r + C.S_RECONSUME_TIMES] = values[L.SEND_RECONSUME_TIMES]
        return True

    @cython.cfunc
    def _is_proven(self, b: cython.const[cython.uchar][::1], version: object) -> cython.bint:
        """Return True if the topic of the frame is proven, and is that of the frames before."""
        start: cython.Py_ssize_t = self._at[L.SEND_TOPIC]
        n: cython.Py_ssize_t = self._size[L.SEND_TOPIC]
        topic: PlainTopic = self.topic
        if topic is not None and topic.version is version and _is(b, start, n, topic.name):
            return True
        if self.count:
            return False
        topic = self._topics.get(bytes(b[start : start + n]))
        if topic is None or topic.version is not version:
            return False
        self.topic = topic
        return True

    @cython.cfunc
    def _are_plain(
        self, b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, n: cython.Py_ssize_t,
    ) -> cython.bint:
        """Return True if the properties ``b[p:p + n]`` are plain, and set the place of the unique key, -1 without one.

        They are plain if their kind is, they are UTF-8, and their unique key needs no escape in a JSON answer.
        An ordering key is plain, because it matters to the producer only.
        """
        kind: cython.int
        end: cython.Py_ssize_t
        kind, self._key_at, end = kind_in(cython.address(b[0]), p, p + n)
        self._key_size = end - self._key_at
        self._is_ordered = kind == C.SHARDED
        return (
            (kind == 0 or kind == C.SHARDED) and is_utf8(b, p, p + n)
            and (self._key_at < 0 or (self._key_size <= _KEY_MAX and ascii_end(b, self._key_at, end) == end)))

    @cython.cfunc
    def _queue(self, queue_id: cython.longlong) -> cython.longlong:
        """Return the number of a queue among those of the rows."""
        r: cython.Py_ssize_t
        for r in range(self.count - 1, -1, -1):
            if self._rows[r * C.S_COLUMNS + C.S_QUEUE_ID] == queue_id:
                return self._rows[r * C.S_COLUMNS + C.S_QUEUE]
        self.queues.append(queue_id)
        return len(self.queues) - 1

    # -- records and answers

    def write(
        self, done: cython.Py_ssize_t, out: cython.uchar[::1], at: cython.Py_ssize_t, limit: cython.Py_ssize_t,
        phy_offset: cython.longlong, offsets: cython.longlong[::1], now: cython.longlong,
    ) -> tuple[int, int]:
        """Write records after the first ``done`` ones, as `MadeRecords` of ``store.append`` has them written.

        Those of a batch are written together or not at all.
        """
        b: cython.const[cython.uchar][::1] = self._frames
        rows: cython.longlong[::1] = self._rows
        common: RecordFields = self._common
        p: cython.Py_ssize_t = at
        q: cython.Py_ssize_t
        k: cython.Py_ssize_t
        r: cython.Py_ssize_t
        body: cython.Py_ssize_t
        count: cython.Py_ssize_t = 0
        stored: cython.uchar[::1] = self._properties
        if len(offsets) != len(self.queues) or not 0 <= at <= limit <= len(out):
            raise ValueError(f"{len(offsets)} of {len(self.queues)} queues; {at} to {limit} of {len(out)}")
        common.now = now
        for k in range(self.puts(done), self.count):
            r = k * C.S_COLUMNS
            body = rows[r + C.S_BODY]
            common.queue_id, common.sys_flag = rows[r + C.S_QUEUE_ID], rows[r + C.S_SYS_FLAG]
            common.born_timestamp = rows[r + C.S_BORN_TIMESTAMP]
            if self.batches:
                q = self._put_items(out, p, limit, r, offsets[rows[r + C.S_QUEUE]], phy_offset + (p - at))
            else:
                common.reconsume_times = rows[r + C.S_RECONSUME_TIMES]
                q = put_record(
                    out, p, limit, common, rows[r + C.S_FLAG], offsets[rows[r + C.S_QUEUE]], phy_offset + (p - at),
                    cython.address(b[body]), rows[r + C.S_BODY_SIZE],
                    crc_of(b, body, body + rows[r + C.S_BODY_SIZE]) & CRC_31_BITS, cython.address(stored[0]),
                    self._put_properties(b, r))
            if q < 0:
                break
            rows[r + C.S_PHY_OFFSET], rows[r + C.S_SIZE] = phy_offset + (p - at), q
            rows[r + C.S_QUEUE_OFFSET] = offsets[rows[r + C.S_QUEUE]]
            offsets[rows[r + C.S_QUEUE]] += rows[r + C.S_MESSAGES]
            p += q
            count += rows[r + C.S_MESSAGES]
        return count, p - at

    @cython.cfunc
    def _put_properties(self, b: cython.const[cython.uchar][::1], r: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Write the properties with which the message of a row is stored to ``_properties``. Return their size."""
        rows: cython.longlong[::1] = self._rows
        stored: cython.uchar[::1] = self._properties
        n: cython.Py_ssize_t = rows[r + C.S_PROPERTIES_SIZE]
        if rows[r + C.S_UNESCAPED]:
            n = copy_bytes(stored, 0, self._unescaped, rows[r + C.S_PROPERTIES], n)
        else:
            n = copy_bytes(stored, 0, b, rows[r + C.S_PROPERTIES], n)
        if rows[r + C.S_KEY] < 0:
            n = put_hexadecimal(stored, copy_object(stored, n, self._key_property), rows[r + C.S_KEY_SIZE])
            stored[n] = 2
            n += 1
        return copy_object(stored, n, self._own)

    @cython.cfunc
    def _put_items(
        self, out: cython.uchar[::1], at: cython.Py_ssize_t, limit: cython.Py_ssize_t, r: cython.Py_ssize_t,
        queue_offset: cython.longlong, phy_offset: cython.longlong,
    ) -> cython.Py_ssize_t:
        """Write the records of the batch of a row, and note their positions. Return their size, -1 if there is no room.

        The greatest size that they may have must fit, because all must be in one file.
        """
        b: cython.const[cython.uchar][::1] = self._frames
        rows: cython.longlong[::1] = self._rows
        item: cython.Py_ssize_t = rows[r + C.S_BODY]
        end: cython.Py_ssize_t = item + cython.cast(cython.Py_ssize_t, rows[r + C.S_BODY_SIZE])
        number: cython.Py_ssize_t = rows[r + C.S_POSITIONS]
        p: cython.Py_ssize_t = at
        size: cython.Py_ssize_t
        if rows[r + C.S_BOUND] + L.BLANK_SIZE > limit - at:
            return -1
        self._common.reconsume_times = 0
        while item < end:
            size = put_item(out, p, limit, self._common, b, item, queue_offset, phy_offset + (p - at))
            if size < 0:
                return -1
            self._positions[number] = phy_offset + (p - at)
            item += cython.cast(cython.Py_ssize_t, be32(b, item))
            number += 1
            queue_offset += 1
            p += size
        return p - at

    def puts(self, done: cython.Py_ssize_t) -> int:
        """Return how many sends have the first ``done`` records."""
        k: cython.Py_ssize_t = 0
        if not self.batches:
            return done
        while k < self.count and done > 0:
            done -= self._rows[k * C.S_COLUMNS + C.S_MESSAGES]
            k += 1
        return k

    def answers(self, done: cython.Py_ssize_t) -> bytes:
        """Return the answers to the first ``done`` sends, which are in the log; none to one-way sends."""
        q: cython.Py_ssize_t = 0
        k: cython.Py_ssize_t
        if not self.oneway:
            for k in range(min(done, self.count)):
                q = self._put_answer(self._out, q, k * C.S_COLUMNS)
        if cython.compiled:
            return PyBytes_FromStringAndSize(cython.cast(cython.p_char, cython.address(self._out[0])), q)
        return bytes(self._out[:q])

    @cython.cfunc
    def _put_answer(self, out: cython.uchar[::1], q: cython.Py_ssize_t, r: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Write the answer to the send of a row. Return the index after it."""
        rows: cython.longlong[::1] = self._rows
        binary: cython.bint = rows[r + C.S_BINARY] != 0
        parts: tuple = (self._batch_answers if self.batches else self._answers)[1 if binary else 0]
        begin: cython.Py_ssize_t = q
        size: cython.Py_ssize_t
        q = copy_object(out, q, parts[0])
        if binary:
            put32(out, q, rows[r + C.S_OPAQUE])
            q += _LENGTH_SIZE
        else:
            q = put_decimal(out, q, rows[r + C.S_OPAQUE])
        q = copy_object(out, q, parts[1])
        if self.batches:
            q = self._put_ids(out, q, r, binary)
        else:
            q = put_hexadecimal(out, q, rows[r + C.S_PHY_OFFSET])
        q = _put_number(out, copy_object(out, q, parts[2]), rows[r + C.S_QUEUE_ID], binary)
        q = _put_number(out, copy_object(out, q, parts[3]), rows[r + C.S_QUEUE_OFFSET], binary)
        q = copy_object(out, q, parts[4])
        if not self.batches:
            q = copy_object(out, self._put_key(out, q, r, binary), parts[5])
        put32(out, begin, q - begin - L.PREFIX_AT_WORD)
        begin += L.PREFIX_SIZE
        size = q - begin
        put32(out, begin - L.PREFIX_AT_WORD, size | L.BINARY_WORD if binary else size)
        if binary:
            put32(out, begin + L.BINARY_HEAD_SIZE, size - L.BINARY_HEAD_SIZE - _LENGTH_SIZE)
        return q

    @cython.cfunc
    def _put_key(
        self, out: cython.uchar[::1], q: cython.Py_ssize_t, r: cython.Py_ssize_t, sized: cython.bint,
    ) -> cython.Py_ssize_t:
        """Write the unique key of a row, after its length if it is ``sized``. Return the index after it."""
        rows: cython.longlong[::1] = self._rows
        size: cython.Py_ssize_t = rows[r + C.S_KEY_SIZE]
        made: cython.bint = rows[r + C.S_KEY] < 0
        if made:
            size = len(self._key_prefix) + _KEY_DIGITS
        if sized:
            put32(out, q, size)
            q += _LENGTH_SIZE
        if made:
            return put_hexadecimal(out, copy_object(out, q, self._key_prefix), rows[r + C.S_KEY_SIZE])
        if rows[r + C.S_UNESCAPED]:
            return copy_bytes(out, q, self._unescaped, rows[r + C.S_KEY], size)
        return copy_bytes(out, q, self._frames, rows[r + C.S_KEY], size)

    @cython.cfunc
    def _put_ids(
        self, out: cython.uchar[::1], q: cython.Py_ssize_t, r: cython.Py_ssize_t, sized: cython.bint,
    ) -> cython.Py_ssize_t:
        """Write the ids of the messages of a batch, after their length if ``sized``. Return the index after them."""
        n: cython.Py_ssize_t
        count: cython.Py_ssize_t = self._rows[r + C.S_MESSAGES]
        first: cython.Py_ssize_t = self._rows[r + C.S_POSITIONS]
        if sized:
            put32(out, q, count * self._id_size() - 1)
            q += _LENGTH_SIZE
        for n in range(count):
            if n:
                out[q] = 44  # a comma
                q += 1
            q = put_hexadecimal(out, copy_object(out, q, self._id_prefix), self._positions[first + n])
        return q

    # -- what callers count

    def until(self, done: cython.Py_ssize_t) -> int:
        """Return the index after the frames of the first ``done`` sends, at least one."""
        return self._rows[(min(max(done, 1), C.SENDS_MAX) - 1) * C.S_COLUMNS + C.S_END]

    def sizes(self, done: cython.Py_ssize_t) -> list[int]:
        """Return how many bytes the records of each of the first ``done`` sends have, which are in the log."""
        return self._column(done, C.S_SIZE)

    def lengths(self, done: cython.Py_ssize_t) -> list[int]:
        """Return how many messages each of the first ``done`` sends has."""
        return self._column(done, C.S_MESSAGES)

    @cython.cfunc
    def _column(self, done: cython.Py_ssize_t, column: cython.Py_ssize_t):
        """Return a column of the rows of the first ``done`` sends."""
        found: list = []
        k: cython.Py_ssize_t
        for k in range(min(done, self.count)):
            found.append(self._rows[k * C.S_COLUMNS + column])
        return found

    def last_key(self, done: cython.Py_ssize_t) -> int:
        """Return the number of the last unique key that was made, if the first ``done`` sends are in the log."""
        made: cython.longlong = 0
        k: cython.Py_ssize_t
        for k in range(done, self.count):
            made += self._rows[k * C.S_COLUMNS + C.S_KEY] < 0
        return self._last_key - made

    def counts(self, done: cython.Py_ssize_t) -> list[int]:
        """Return for each of ``queues`` how many of the first ``done`` sends are for it."""
        found: list = [0] * len(self.queues)
        k: cython.Py_ssize_t
        for k in range(min(done, self.count)):
            found[self._rows[k * C.S_COLUMNS + C.S_QUEUE]] += 1
        return found
