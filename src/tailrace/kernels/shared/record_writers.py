# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Writers of records: one message, many messages of a queue, the body of a batch request, or what a function makes."""

import cython

from tailrace.formats.names import DELAY, INNER_MULTI, TIMER_DELIVERY_PREFIX
from tailrace.kernels.shared import layouts as L
from tailrace.kernels.shared.big_endian import be32
from tailrace.kernels.shared.copying import copy_bytes
from tailrace.kernels.shared.crc32 import crc_of, crc_of_object
from tailrace.kernels.shared.record_encoding import (
    CRC_31_BITS,
    RecordFields,
    begin_record,
    crc_room,
    end_record,
    put_record,
    put_topic,
    size_of,
)
from tailrace.model import PutMessageResult

_INNER_BATCH = cython.declare(cython.longlong, 0x80)
_CHUNK = cython.declare(cython.int, 2048)
# Stored properties with one of these names are checked outside of the kernel: store.multi_dispatch.MARK and the
# names that timer.put_hook.may_wait searches for. A test compares them.
_LMQ: bytes = INNER_MULTI.encode()
_TIMER: bytes = TIMER_DELIVERY_PREFIX.encode()
_DELAY: bytes = DELAY.encode() + b"\x01"


@cython.cclass
class RecordWriter:
    """Records of one put, and after the put its result.

    ``done`` of ``count`` records are in the log, in [``phy_offset``, ``until``); both are -1 without a
    record. ``queue_id`` and ``queue_offset`` are those of the first record if all records are of one queue.
    ``whole`` keeps the records in one file.
    """

    count = cython.declare(cython.Py_ssize_t, visibility="readonly")
    done = cython.declare(cython.Py_ssize_t, visibility="readonly")
    phy_offset = cython.declare(cython.longlong, visibility="readonly")
    until = cython.declare(cython.longlong, visibility="readonly")
    queue_id = cython.declare(cython.longlong, visibility="readonly")
    queue_offset = cython.declare(cython.longlong, visibility="readonly")
    store_timestamp = cython.declare(cython.longlong, visibility="readonly")
    whole: cython.bint
    _bound: cython.longlong
    _full: cython.bint
    _common: RecordFields

    @cython.cfunc
    def _prepare(self, count: cython.Py_ssize_t, bound: cython.longlong, whole: cython.bint):
        self.count, self.done, self._bound, self.whole = count, 0, bound, whole
        self.phy_offset = self.until = self.queue_id = self.queue_offset = -1
        self.store_timestamp = 0

    @cython.cfunc
    def _share(self, message, topic: bytes):
        """Set the fields that all records share from a message."""
        common: RecordFields = RecordFields()
        common.queue_id = message.queue_id
        common.flag = message.flag
        common.sys_flag = message.sys_flag
        common.born_timestamp = message.born_timestamp
        common.born_host = message.born_host
        common.reconsume_times = message.reconsume_times
        common.prepared = message.prepared_transaction_offset
        if topic is None:
            raise TypeError("the topic of a record must not be None")
        common.topic = topic
        self._common = common

    @cython.cfunc
    def _result(self, status, remark: str):
        """Return the result of the put."""
        return PutMessageResult(
            status, self.phy_offset, self.until, self.queue_id, self.queue_offset, self.store_timestamp, self.done,
            self._places(), remark, self._common.store_host)

    @cython.cfunc
    def _places(self):
        """Return the position of each record in the log; () for kinds of writers whose callers do not need it."""
        return ()

    @cython.cfunc
    def _begin(self, queue_offsets: dict):
        """Look up the next queue offsets. Called under the lock, before the first ``_write``."""

    @cython.cfunc
    def _write(
        self, out: cython.uchar[::1], at: cython.Py_ssize_t, limit: cython.Py_ssize_t,
        phy_offset: cython.longlong,
    ) -> cython.Py_ssize_t:
        """Write the next records that fit into ``out[at:limit]``, or some of them. Return the number of bytes.

        Adds their number to ``done``. Sets ``_full`` if the next record does not fit.
        """
        raise NotImplementedError

    @cython.cfunc
    def _publish(self, queue_offsets: dict):
        """Set the next queue offsets. Called after the records are in the log."""


@cython.cclass
class MessageWriter(RecordWriter):
    """One message. ``lmq``, if not None, makes its properties and counts queue offsets, under the lock.

    The caller has checked the lengths.
    """

    _body: bytes
    _body_crc: cython.longlong
    _properties: bytes
    _key: tuple
    _counted: cython.bint
    _lmq: object

    def __init__(self, message, topic: bytes, properties: bytes, lmq=None):
        body = message.body
        if properties is None:
            raise TypeError("properties are bytes")
        self._take(message, topic, body if type(body) is bytes else bytes(body), properties)
        self._lmq = lmq

    @cython.cfunc
    def _take(self, message, topic: bytes, body: bytes, properties: bytes):
        kind: cython.longlong
        self._share(message, topic)
        self._body, self._properties, self._lmq = body, properties, None
        self._body_crc = crc_of_object(body) & CRC_31_BITS
        kind = self._common.sys_flag & L.TRANSACTION_MASK
        self._counted = kind != L.TRANSACTION_PREPARED and kind != L.TRANSACTION_ROLLBACK
        self._key = (message.topic, message.queue_id)
        self._prepare(1, 0, False)

    @cython.cfunc
    def _begin(self, queue_offsets: dict):
        if self._lmq is not None:
            self._properties = self._lmq.properties()
        self._bound = size_of(self._common, len(self._body), len(self._properties), 0)
        self.queue_id = self._common.queue_id
        self.queue_offset = queue_offsets.get(self._key, 0) if self._counted else 0

    @cython.cfunc
    def _write(
        self, out: cython.uchar[::1], at: cython.Py_ssize_t, limit: cython.Py_ssize_t,
        phy_offset: cython.longlong,
    ) -> cython.Py_ssize_t:
        size: cython.Py_ssize_t = put_record(
            out, at, limit, self._common, self._common.flag, self.queue_offset, phy_offset, self._body,
            self._body_crc, self._properties)
        if size < 0:
            self._full = True
            return 0
        self.done = 1
        return size

    @cython.cfunc
    def _publish(self, queue_offsets: dict):
        if self._counted:
            queue_offsets[self._key] = self.queue_offset + 1
        if self._lmq is not None:
            self._lmq.advance()


@cython.cfunc
def _is_plain(stored: bytes, hooked: cython.bint) -> cython.bint:
    """Return True if no property name starts with INNER_MULTI_ and, unless ``hooked``, with TIMER_D or is DELAY."""
    p: cython.Py_ssize_t = 0
    n: cython.Py_ssize_t = len(stored)
    first: cython.uchar
    while p < n:
        first = stored[p]
        if (
            (first == 84 and not hooked and stored.startswith(_TIMER, p))
            or (first == 68 and not hooked and stored.startswith(_DELAY, p))
            or (first == 73 and stored.startswith(_LMQ, p))
        ):
            return False
        while p < n and stored[p] != 2:
            p += 1
        p += 1
    return True


@cython.cfunc
def plain_writer(message, topics: dict, limit: cython.Py_ssize_t, hooked: cython.bint):
    """Return the writer of a plain message, or None, see ``Appender.plain_writer``."""
    topic = topics.get(message.topic)
    body = message.body
    stored = message.properties
    common: RecordFields
    writer: MessageWriter
    if topic is None or type(body) is not bytes or type(stored) is not bytes:
        return None
    if type(message.flag) is not int or type(message.queue_id) is not int:
        return None
    if len(body) + len(stored) > limit or not _is_plain(stored, hooked):
        return None
    writer = MessageWriter.__new__(MessageWriter)
    try:
        writer._take(message, topic, body, stored)
    except OverflowError:
        return None
    common = writer._common
    if not -0x80000000 <= common.flag <= 0x7FFFFFFF or not 0 <= common.queue_id <= 0x7FFFFFFF:
        return None
    if common.sys_flag & _INNER_BATCH:
        return None
    return writer


@cython.cclass
class _QueueWriter(RecordWriter):
    """Many messages of one queue. ``message`` has the fields that they share."""

    _key: tuple
    _positions: list
    _at: cython.Py_ssize_t

    @cython.cfunc
    def _prepare_queue(
        self, message, topic: bytes, count: cython.Py_ssize_t, bound: cython.longlong, whole: cython.bint
    ):
        self._share(message, topic)
        self._common.reconsume_times = self._common.prepared = 0
        self._key = (message.topic, message.queue_id)
        self._positions = []
        self._at = 0
        self._prepare(count, bound, whole)

    @cython.cfunc
    def _places(self):
        return self._positions[:self.done] if len(self._positions) > self.done else self._positions

    @cython.cfunc
    def _begin(self, queue_offsets: dict):
        self.queue_id = self._common.queue_id
        self.queue_offset = queue_offsets.get(self._key, 0)

    @cython.cfunc
    def _publish(self, queue_offsets: dict):
        queue_offsets[self._key] = self.queue_offset + self.done


@cython.cclass
class ItemsWriter(_QueueWriter):
    """Messages as items (flag, body, properties).

    They are written in parts, because writing holds the interpreter's lock, and dispatch also needs it.
    """

    _items: list

    def __init__(
        self, message, topic: bytes, items: list, bound: cython.longlong, whole: cython.bint = False
    ):
        self._items = items
        self._prepare_queue(message, topic, len(items), bound, whole)

    @cython.cfunc
    def _write(
        self, out: cython.uchar[::1], at: cython.Py_ssize_t, limit: cython.Py_ssize_t,
        phy_offset: cython.longlong,
    ) -> cython.Py_ssize_t:
        p: cython.Py_ssize_t = at
        size: cython.Py_ssize_t
        n: cython.Py_ssize_t = self.done
        until: cython.Py_ssize_t = min(self.count, n + _CHUNK)
        flag: cython.longlong
        plain: bytes
        positions: list = []
        while n < until:
            flag, body, props = self._items[n]
            plain = body if type(body) is bytes else bytes(body)
            if type(props) is not bytes:
                raise TypeError(f"properties of message {n} are {type(props).__name__}, not bytes")
            size = put_record(
                out, p, limit, self._common, flag, self.queue_offset + n, phy_offset + (p - at),
                plain, crc_of_object(plain) & CRC_31_BITS, props)
            if size < 0:
                self._full = True
                break
            positions.append(phy_offset + (p - at))
            p += size
            n += 1
        self.done = n
        self._positions += positions
        return p - at


@cython.cclass
class BatchWriter(_QueueWriter):
    """The messages of a batch body that ``record.check_batch`` has accepted."""

    _data: bytes

    def __init__(self, message, topic: bytes, data: bytes, count: cython.Py_ssize_t, bound: cython.longlong):
        self._data = data
        self._prepare_queue(message, topic, count, bound, True)

    @cython.cfunc
    def _write(
        self, out: cython.uchar[::1], at: cython.Py_ssize_t, limit: cython.Py_ssize_t,
        phy_offset: cython.longlong,
    ) -> cython.Py_ssize_t:
        data: cython.const[cython.uchar][::1] = self._data
        b: cython.Py_ssize_t = self._at
        p: cython.Py_ssize_t = at
        q: cython.Py_ssize_t
        n: cython.Py_ssize_t = self.done
        body: cython.Py_ssize_t
        props: cython.Py_ssize_t
        room: cython.Py_ssize_t
        last: cython.uchar
        positions: list = []
        while n < self.count:
            body = be32(data, b + L.ITEM_AT_BODY_LENGTH)
            q = b + L.ITEM_SIZE + body
            props = data[q] * 256 + data[q + 1]
            last = data[q + 1 + props] if props else 0
            room = crc_room(self._common.append_crc, props, last)
            if size_of(self._common, body, props, last) + L.BLANK_SIZE > limit - p:
                self._full = True
                break
            positions.append(phy_offset + (p - at))
            q = begin_record(
                out, p, self._common, be32(data, b + L.ITEM_AT_FLAG), self.queue_offset + n, phy_offset + (p - at),
                crc_of(data, b + L.ITEM_SIZE, b + L.ITEM_SIZE + body) & CRC_31_BITS, body)
            q = copy_bytes(out, q, data, b + L.ITEM_SIZE, body)
            q = put_topic(out, q, self._common, props + room)
            q = copy_bytes(out, q, data, b + L.ITEM_SIZE + body + 2, props)
            p += end_record(out, p, q, room)
            b += L.ITEM_SIZE + body + 2 + props
            n += 1
        self.done, self._at = n, b
        self._positions += positions
        return p - at


@cython.cclass
class MadeRecords(RecordWriter):
    """Records of several queues that a function makes.

    ``write(done, buffer, at, limit, phy_offset, offsets, now_ms)`` writes as many records as fit into
    ``buffer[at:limit]`` with room for a blank record after them, and returns (records, bytes). ``done`` records
    were written before. ``buffer[at]`` is at ``phy_offset`` of the log. ``offsets`` is an array with the next
    queue offset of each of ``keys`` (topic, queue id); ``write`` must advance it. ``bound`` is the greatest
    number of bytes that all records take.
    """

    _keys: list
    _make: object
    _offsets: object

    def __init__(self, keys: list, count: cython.Py_ssize_t, bound: cython.longlong, offsets, write):
        self._keys, self._offsets, self._make = keys, offsets, write
        self._common = RecordFields()
        self._prepare(count, bound, False)

    @cython.cfunc
    def _begin(self, queue_offsets: dict):
        for n, key in enumerate(self._keys):
            self._offsets[n] = queue_offsets.get(key, 0)

    @cython.cfunc
    def _write(
        self, out: cython.uchar[::1], at: cython.Py_ssize_t, limit: cython.Py_ssize_t,
        phy_offset: cython.longlong,
    ) -> cython.Py_ssize_t:
        written: cython.Py_ssize_t
        size: cython.Py_ssize_t
        written, size = self._make(
            self.done, out, at, limit, phy_offset, self._offsets, self._common.now)
        self.done += written
        self._full = self.done < self.count
        return size

    @cython.cfunc
    def _publish(self, queue_offsets: dict):
        queue_offsets.update(zip(self._keys, self._offsets.tolist(), strict=True))
