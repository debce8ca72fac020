# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The only way into the CommitLog: `Appender` owns its end, and a `RecordWriter` has the records of one put.

On a slave the bytes of its master's log come instead of records, by `Appender.append_raw`.

The invariants are L1 to L4 of ``store.commit_log``. The module is compiled as kernels are, because a put of one
short message spends most of its time here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import cython

from tailrace.errors import DiskFullError, FatalStorageError, RawAppendError, StoreNotWritableError
from tailrace.kernels.shared import constants as C
from tailrace.kernels.shared import layouts as L
from tailrace.kernels.shared.batch_items import put_item
from tailrace.kernels.shared.big_endian import be32
from tailrace.kernels.shared.copying import clear_bytes
from tailrace.kernels.shared.crc32 import crc32, crc_at, use_crc32
from tailrace.kernels.shared.file_end import advance, numbers_of, wrote
from tailrace.kernels.shared.kinds import kind_in
from tailrace.kernels.shared.machine_clock import MONOTONIC, WALL, nanoseconds
from tailrace.kernels.shared.put_counts import PUT_LIMITS_MS, PutCounts
from tailrace.kernels.shared.put_lock import PutLock
from tailrace.kernels.shared.record_encoding import CRC_31_BITS, RecordFields, put_record, size_of
from tailrace.model import MessageExtBrokerInner, PutMessageResult, PutMessageStatus

if TYPE_CHECKING:
    from tailrace.segments import MappedFile, MappedFileQueue
    from tailrace.store.running_flags import RunningFlags

__all__ = [
    "PUT_LIMITS_MS", "Appender", "BatchWriter", "ItemsWriter", "MadeRecords", "MakeRecords", "MessageWriter",
    "PutCounts", "PutLock", "QueueKey", "RecordWriter", "crc32", "kind_of", "use_crc32",
]
SOURCE_SHA256 = ""

QueueKey = tuple[str, int]
MakeRecords = Callable[[int, Any, int, int, int, Any, int], tuple[int, int]]
"""Function that makes records, see `MadeRecords`."""
_PUT_OK = PutMessageStatus.PUT_OK  # in a variable, because looking up a member takes longer
_NO_NEXT_FILE = (DiskFullError, FatalStorageError, OSError)
"""Errors if the next segment file cannot be created. A failed sync also sets the running flags."""
_INNER_BATCH = cython.declare(cython.longlong, 0x80)
_FOLLOWS = cython.declare(cython.int, 256)  # running_flags.FOLLOWS, as a C number
_PART = cython.declare(cython.int, 2048)
"""Most records that are written at a time, because dispatch also needs the interpreter's lock."""


@cython.cclass
class RecordWriter:
    """Records of one put, and after the put its result.

    ``done`` of ``count`` records are in the log, in [``phy_offset``, ``until``); both are -1 without a
    record. ``queue_id`` and ``queue_offset`` are those of the first record if all records are of one queue.
    """

    count: int = cython.declare(cython.Py_ssize_t, visibility="readonly")
    done: int = cython.declare(cython.Py_ssize_t, visibility="readonly")
    phy_offset: int = cython.declare(cython.longlong, visibility="readonly")
    until: int = cython.declare(cython.longlong, visibility="readonly")
    queue_id: int = cython.declare(cython.longlong, visibility="readonly")
    queue_offset: int = cython.declare(cython.longlong, visibility="readonly")
    store_timestamp: int = cython.declare(cython.longlong, visibility="readonly")
    _key: Any  # QueueKey, None before a message is taken
    _counted: cython.bint
    _born_now: cython.bint
    _whole: cython.bint
    _separate: cython.bint
    _positions: Any  # a list, None if callers do not need them
    _bound: cython.longlong
    _full: cython.bint
    _common: RecordFields

    @cython.cfunc
    def _prepare(self, message: MessageExtBrokerInner | None, topic: bytes, count: cython.Py_ssize_t) -> cython.void:
        """Set the fields that all records share from a message."""
        self._common = RecordFields()
        self._restart(count)
        if message is not None:
            self._share(message, message.topic, topic, message.queue_id, message.flag)

    @cython.cfunc
    def _restart(self, count: cython.Py_ssize_t) -> cython.void:
        """Forget the last put."""
        self.count, self.done, self._bound = count, 0, 0
        self.phy_offset = self.until = self.queue_id = self.queue_offset = -1
        self.store_timestamp = 0
        self._whole, self._separate, self._positions, self._key = False, False, None, None
        self._counted, self._born_now = True, False

    @cython.cfunc
    def _share(
        self, message: MessageExtBrokerInner, name: Any, topic: bytes, queue_id: cython.longlong,
        flag: cython.longlong,
    ) -> cython.void:
        """Take what all records have in common from a message, of which the caller has read three fields."""
        common: RecordFields = self._common
        if topic is None:
            raise TypeError("the topic of a record must not be None")
        self._key = (name, queue_id)
        common.queue_id, common.flag = queue_id, flag
        common.sys_flag = message.sys_flag
        common.born_timestamp = message.born_timestamp
        common.set_born_host(message.born_host)
        common.set_topic(topic)
        common.reconsume_times = common.prepared = 0

    @cython.cfunc
    def _result(self, status: PutMessageStatus, remark: str) -> PutMessageResult:
        """Return the result of the put."""
        positions: Sequence[int] = ()
        if self._positions is not None:
            positions = self._positions[:self.done]
        return PutMessageResult(
            status, self.phy_offset, self.until, self.queue_id, self.queue_offset, self.store_timestamp, self.done,
            positions, remark, self._common.store_host)

    @cython.cfunc
    def _begin(self, queue_offsets: dict[QueueKey, int]) -> cython.void:
        """Look up the next queue offset. Called under the lock, before the first ``_write``."""
        self.queue_id = self._common.queue_id
        self.queue_offset = queue_offsets.get(self._key, 0) if self._counted else 0

    @cython.cfunc
    def _write(
        self, out: cython.uchar[::1], at: cython.Py_ssize_t, limit: cython.Py_ssize_t, phy_offset: cython.longlong,
    ) -> cython.Py_ssize_t:
        """Write the next records that fit into ``out[at:limit]``, or some of them. Return the number of bytes.

        Adds their number to ``done``. Sets ``_full`` if the next record does not fit.
        """
        raise NotImplementedError

    @cython.cfunc
    def _puts(self) -> cython.longlong:
        """Return how many puts the ``done`` records of an `Appender.append_some` are."""
        return self.done

    @cython.cfunc
    def _publish(self, queue_offsets: dict[QueueKey, int]) -> cython.void:
        """Set the next queue offset. Called after the records are in the log."""
        if self._counted:
            queue_offsets[self._key] = self.queue_offset + self.done


@cython.cclass
class MessageWriter(RecordWriter):
    """One message. The caller has checked the lengths.

    ``complete``, if given, returns its properties, and ``advance`` advances further queue offsets after it is in the
    log. Both are called under the lock.
    """

    _body: bytes
    _body_crc: cython.longlong
    _properties: bytes
    _complete: Callable[[], bytes] | None
    _advance: Callable[[], None] | None

    def __init__(
        self, message: MessageExtBrokerInner, topic: bytes, properties: bytes,
        complete: Callable[[], bytes] | None = None, advance: Callable[[], None] | None = None,
    ) -> None:
        body = message.body
        if properties is None:
            raise TypeError("properties are bytes")
        self._prepare(None, topic, 1)
        self._take(message, message.topic, topic, message.queue_id, message.flag)
        self._take_parts(body if type(body) is bytes else bytes(body), properties)
        self._complete, self._advance = complete, advance

    @cython.cfunc
    def _take(
        self, message: MessageExtBrokerInner, name: Any, topic: bytes, queue_id: cython.longlong,
        flag: cython.longlong,
    ) -> cython.void:
        """Take the message of a put without its body and properties."""
        kind: cython.longlong
        self._share(message, name, topic, queue_id, flag)
        self._common.reconsume_times = message.reconsume_times
        self._common.prepared = message.prepared_transaction_offset
        kind = self._common.sys_flag & L.TRANSACTION_MASK
        self._counted = kind not in (L.TRANSACTION_PREPARED, L.TRANSACTION_ROLLBACK)

    @cython.cfunc
    def _take_parts(self, body: bytes, properties: bytes) -> cython.void:
        """Take what the record of a message does not share with others."""
        self._body, self._properties, self._complete, self._advance = body, properties, None, None
        self._body_crc = crc_at(body, len(body)) & CRC_31_BITS

    @cython.cfunc
    def _begin(self, queue_offsets: dict[QueueKey, int]) -> cython.void:
        if self._complete is not None:
            self._properties = self._complete()
        self._bound = size_of(self._common, len(self._body), len(self._properties), 0)
        RecordWriter._begin(self, queue_offsets)

    @cython.cfunc
    def _write(
        self, out: cython.uchar[::1], at: cython.Py_ssize_t, limit: cython.Py_ssize_t, phy_offset: cython.longlong,
    ) -> cython.Py_ssize_t:
        size: cython.Py_ssize_t = put_record(
            out, at, limit, self._common, self._common.flag, self.queue_offset, phy_offset,
            self._body, len(self._body), self._body_crc, self._properties, len(self._properties))
        self._full = size < 0
        self.done = 0 if self._full else 1
        return 0 if self._full else size

    @cython.cfunc
    def _publish(self, queue_offsets: dict[QueueKey, int]) -> cython.void:
        RecordWriter._publish(self, queue_offsets)
        if self._advance is not None:
            self._advance()


@cython.cclass
class ItemsWriter(RecordWriter):
    """Messages of one queue as items (flag, body, properties). ``message`` has the fields that they share."""

    _items: list[tuple[int, bytes, bytes]]

    def __init__(
        self, message: MessageExtBrokerInner, topic: bytes, items: list[tuple[int, bytes, bytes]],
        bound: cython.longlong,
    ) -> None:
        self._prepare(message, topic, len(items))
        self._items, self._bound, self._positions = items, bound, []

    @cython.cfunc
    def _write(
        self, out: cython.uchar[::1], at: cython.Py_ssize_t, limit: cython.Py_ssize_t, phy_offset: cython.longlong,
    ) -> cython.Py_ssize_t:
        p: cython.Py_ssize_t = at
        until: cython.Py_ssize_t = min(self.count, self.done + _PART)
        size: cython.Py_ssize_t
        n: cython.Py_ssize_t
        flag: cython.longlong
        plain: bytes
        stored: bytes
        positions: list[int] = self._positions
        for n in range(self.done, until):
            flag, body, props = self._items[n]
            plain = body if type(body) is bytes else bytes(body)
            if type(props) is not bytes:
                raise TypeError(f"properties of message {n} are {type(props).__name__}, not bytes")
            stored = props
            size = put_record(
                out, p, limit, self._common, flag, self.queue_offset + n, phy_offset + (p - at),
                plain, len(plain), crc_at(plain, len(plain)) & CRC_31_BITS, stored, len(stored))
            if size < 0:
                break
            positions.append(phy_offset + (p - at))
            p += size
        self.done = len(positions)
        self._full = self.done < until
        return p - at


@cython.cclass
class BatchWriter(RecordWriter):
    """The messages of a batch body that ``record.check_batch`` has accepted, all of them in one file."""

    _items: bytes

    def __init__(
        self, message: MessageExtBrokerInner, topic: bytes, items: bytes, count: cython.Py_ssize_t,
        bound: cython.longlong,
    ) -> None:
        self._prepare(message, topic, count)
        self._items, self._bound, self._positions, self._whole = items, bound, [], True

    @cython.cfunc
    def _write(
        self, out: cython.uchar[::1], at: cython.Py_ssize_t, limit: cython.Py_ssize_t, phy_offset: cython.longlong,
    ) -> cython.Py_ssize_t:
        data: cython.const[cython.uchar][::1] = self._items  # type: ignore[valid-type]
        b: cython.Py_ssize_t = 0
        p: cython.Py_ssize_t = at
        size: cython.Py_ssize_t
        positions: list[int] = self._positions
        while b < len(data):
            size = put_item(
                out, p, limit, self._common, data, b, self.queue_offset + len(positions), phy_offset + (p - at))
            if size < 0:
                raise ValueError(f"the records of a batch of {len(data)} bytes do not fit {limit - at} bytes")
            positions.append(phy_offset + (p - at))
            p += size
            b += be32(data, b)
        self.done = self.count
        return p - at


@cython.cclass
class MadeRecords(RecordWriter):
    """Records of several queues that a function makes.

    ``write(done, buffer, at, limit, phy_offset, offsets, now_ms)`` writes as many records as fit into
    ``buffer[at:limit]`` with room for a blank record after them, and returns (records, bytes). ``done`` records
    were written before. ``buffer[at]`` is at ``phy_offset`` of the log. ``offsets`` is an array with the next
    queue offset of each of ``keys`` (topic, queue id); ``write`` must advance it. ``bound`` is the greatest
    number of bytes that all records take. If some records are one put, as those of a batch, ``puts(done)`` returns
    how many puts the first ``done`` records are.
    """

    _keys: Sequence[QueueKey]
    _make: MakeRecords
    _offsets: Any
    _counts: Callable[[int], int] | None

    def __init__(
        self, keys: Sequence[QueueKey], count: cython.Py_ssize_t, bound: cython.longlong, offsets: Any,
        write: MakeRecords, puts: Callable[[int], int] | None = None,
    ) -> None:
        self._prepare(None, b"", count)
        self._keys, self._offsets, self._make, self._bound, self._counts = keys, offsets, write, bound, puts

    @cython.cfunc
    def _begin(self, queue_offsets: dict[QueueKey, int]) -> cython.void:
        for n, key in enumerate(self._keys):
            self._offsets[n] = queue_offsets.get(key, 0)

    @cython.cfunc
    def _write(
        self, out: cython.uchar[::1], at: cython.Py_ssize_t, limit: cython.Py_ssize_t, phy_offset: cython.longlong,
    ) -> cython.Py_ssize_t:
        written: cython.Py_ssize_t
        size: cython.Py_ssize_t
        written, size = self._make(self.done, out, at, limit, phy_offset, self._offsets, self._common.now)
        self.done += written
        self._full = self.done < self.count
        return size

    @cython.cfunc
    def _puts(self) -> cython.longlong:
        return self.done if self._counts is None else max(self._counts(self.done), 1)

    @cython.cfunc
    def _publish(self, queue_offsets: dict[QueueKey, int]) -> cython.void:
        queue_offsets.update(zip(self._keys, self._offsets.tolist(), strict=True))


@cython.ccall
def kind_of(message: MessageExtBrokerInner) -> cython.int:
    """Return the kind of a message: 0 for a plain one, or a sum of the flags that ``kind_in`` finds in its properties.

    What ``message.kind`` says is not looked for again.
    """
    return _kind(message.kind, message.properties)


@cython.cfunc
def _kind(kind: cython.int, stored: bytes) -> cython.int:
    start = cython.declare(cython.p_const_uchar)
    if kind < 0:
        start = stored
        kind = kind_in(start, 0, len(stored))[0]
    return kind


@cython.cclass
class Appender:
    """The end of the log. Under the lock it assigns store time, position and queue offsets and writes records.

    A record is in the log when the wrote position of its file has moved past it. If a writer fails, the bytes
    that it wrote are cleared, so that they are never read as a record.

    A short put stores its records in the mapped file. The records of a long one are made in a buffer and written
    by ``MappedFile.write_after``, because each new page of a mapping costs a page fault and is filled with zeros first.
    A put is long if it may take more than ``long_put`` bytes. The buffer has ``stage_size`` bytes; a batch that is
    longer is stored in the mapping, because all of it is in the log or nothing.

    ``flags`` are the running flags, which say whether puts are refused. ``queue`` has the files. ``roll`` ends a file
    before it is full and creates the next one. Between two puts the last file stays mapped; ``drop`` releases it and
    must be called before the file may be unmapped. ``wake`` is called after a put while ``reader_waits`` or ``copied``,
    which is for slaves, is true, and ``refused`` with the result of a refused put.
    ``topics`` has the bytes of valid topics. A message whose body and properties together have up to
    ``plain_size`` bytes is never too long.
    """

    queue_offsets: dict[QueueKey, int] = cython.declare(dict, visibility="readonly")
    last_store_timestamp: int = cython.declare(cython.longlong, visibility="public")
    store_host: bytes = cython.declare(bytes, visibility="public")
    topics: dict[str, bytes] = cython.declare(dict, visibility="readonly")
    counts: PutCounts = cython.declare(PutCounts, visibility="readonly")
    plain_size: int = cython.declare(cython.Py_ssize_t, visibility="readonly")
    reader_waits: bool = cython.declare(cython.bint, visibility="public")
    copied: bool = cython.declare(cython.bint, visibility="public")
    wake: Callable[[], object] | None = cython.declare(object, visibility="public")
    refused: Callable[[PutMessageResult], object] | None = cython.declare(object, visibility="public")
    _lock: PutLock
    _gettime: cython.size_t
    _now_ms: Callable[[], int]
    _monotonic_ns: Callable[[], int]
    _flags: RunningFlags
    _queue: MappedFileQueue
    _roll: Callable[[MappedFile], None]
    _append_crc: cython.bint
    _file: MappedFile | None
    _buffer: cython.uchar[::1]
    _end: cython.p_longlong  # of _file
    _stage: bytearray | None
    _long_put: cython.longlong
    _stage_size: cython.Py_ssize_t
    _size: cython.Py_ssize_t
    _start: cython.longlong
    _reserved: cython.Py_ssize_t
    _spare: MessageWriter | None

    def __init__(
        self, lock: PutLock, now_ms: Callable[[], int], monotonic_ns: Callable[[], int], flags: RunningFlags,
        queue: MappedFileQueue, roll: Callable[[MappedFile], None], append_prop_crc: cython.bint,
        plain_size: cython.Py_ssize_t, long_put: cython.longlong, stage_size: cython.Py_ssize_t,
        gettime: cython.size_t = 0,
    ) -> None:
        self.counts, self.queue_offsets, self.topics = PutCounts(), {}, {}
        self.plain_size, self._long_put, self._stage_size = plain_size, long_put, stage_size
        self.last_store_timestamp, self.store_host = 0, b"\x7f\x00\x00\x01\x00\x00\x00\x00"
        self._lock, self._gettime = lock, gettime
        self._now_ms, self._monotonic_ns, self._flags = now_ms, monotonic_ns, flags
        self._queue, self._roll = queue, roll
        self._append_crc, self._file, self._stage = append_prop_crc, None, None
        self._spare, self.reader_waits, self.copied, self.wake, self.refused = None, False, False, None, None

    def drop(self) -> None:
        """Release the last file. The caller holds the lock, or no thread puts any more."""
        self._file = None
        self._buffer = None
        self._end = cython.NULL

    @cython.cfunc
    def _time_ns(self) -> cython.longlong:
        """Return the monotonic time."""
        if cython.compiled and self._gettime:
            return nanoseconds(self._gettime, MONOTONIC)
        return self._monotonic_ns()

    @cython.cfunc
    def _wall_ms(self) -> cython.longlong:
        """Return the wall time."""
        if cython.compiled and self._gettime:
            return nanoseconds(self._gettime, WALL) // 1_000_000
        return self._now_ms()

    def plain_writer(self, message: MessageExtBrokerInner, hooked: cython.bint = False) -> MessageWriter | None:
        """Return the writer of a plain message, or None if the message needs the checks of the caller.

        A plain message breaks no rule, names no LMQ queue, is no inner batch, and has no delivery time. With ``hooked``
        it may have one, because the put hook has seen it.
        """
        return self._plain(message, hooked, True)

    def put(self, message: MessageExtBrokerInner) -> PutMessageResult | None:
        """Append a plain message and return the result of the put; None if it needs the checks of the caller."""
        writer = self._plain(message, False, False)
        return None if writer is None else self._put(writer)

    @cython.cfunc
    def _plain(self, message: MessageExtBrokerInner, hooked: cython.bint, keep: cython.bint) -> MessageWriter | None:
        """Return the writer of a plain message, None for another one. The caller may keep it, or pass it to `_put`."""
        name, queue_id, flag = message.topic, message.queue_id, message.flag  # once: a look-up takes time
        topic = self.topics.get(name)
        body, stored = message.body, message.properties
        writer: MessageWriter
        if (
            topic is None or type(body) is not bytes or type(stored) is not bytes
            or type(flag) is not int or type(queue_id) is not int
            or len(body) + len(stored) > self.plain_size
            or _kind(message.kind, stored) & (C.LMQ if hooked else C.LMQ | C.WAITS)
        ):
            return None
        writer = self._taken(keep)
        try:
            writer._take(message, name, topic, queue_id, flag)
        except OverflowError:
            return None
        writer._take_parts(body, stored)
        if (
            not -0x80000000 <= writer._common.flag <= 0x7FFFFFFF or not 0 <= writer._common.queue_id <= 0x7FFFFFFF
            or writer._common.sys_flag & _INNER_BATCH
        ):
            return None
        return writer

    def put_parts(
        self, topic: Any, queue_id: cython.longlong, body: Any, stored: Any, flag: Any,
    ) -> PutMessageResult | None:
        """`put` of a message that a program makes now on this machine. ``stored`` are properties of a plain message.

        ``queue_id`` is a queue of the topic. Return None if the message needs the checks of the caller.
        """
        raw = self.topics.get(topic)
        writer: MessageWriter
        common: RecordFields
        number: cython.longlong
        if (
            raw is None or type(body) is not bytes or type(stored) is not bytes or type(flag) is not int
            or len(body) + len(stored) > self.plain_size or not 0 <= queue_id <= 0x7FFFFFFF
        ):
            return None
        try:
            number = flag
        except OverflowError:
            return None
        if not -0x80000000 <= number <= 0x7FFFFFFF:
            return None
        writer = self._taken(False)
        common = writer._common
        writer._key = (topic, queue_id)
        common.queue_id, common.flag = queue_id, number
        common.sys_flag = common.reconsume_times = common.prepared = 0
        writer._born_now = True
        common.set_born_host(self.store_host)
        common.set_topic(raw)
        writer._take_parts(body, stored)
        return self._put(writer)

    @cython.cfunc
    def _taken(self, keep: cython.bint) -> MessageWriter:
        """Return a writer of one message. Unless the caller keeps it, it is that of the last `_put`.

        Only the interpreter's lock guards the spare one.
        """
        writer: MessageWriter
        if cython.compiled and not keep and self._spare is not None:
            writer = self._spare
            self._spare = None
            writer._restart(1)
        else:
            writer = MessageWriter.__new__(MessageWriter)
            writer._prepare(None, b"", 1)
        return writer

    @cython.cfunc
    def _put(self, writer: MessageWriter) -> PutMessageResult:
        """Append a message whose writer the caller does not keep."""
        result: PutMessageResult = self._appended(writer, False)
        self._spare = writer
        return result

    def append(self, writer: RecordWriter, though_full: cython.bint = False) -> PutMessageResult:
        """Append the records of a writer, and return the result of the put. This is the only way into the log.

        The content of the records was checked when the writer was made. Expected failures are results, not
        exceptions: if the next file cannot be created, ``msg_num`` is the number of records that are in the log.
        ``though_full`` appends also on a disk above its warning level, as long as there is room.
        """
        return self._appended(writer, though_full)

    @cython.cfunc
    def _appended(self, writer: RecordWriter, though_full: cython.bint) -> PutMessageResult:
        flags = self._flags
        result: PutMessageResult
        if flags.bits and not flags.is_writeable(though_full=though_full):
            self.counts.failed_times += 1
            result = PutMessageResult(PutMessageStatus.SERVICE_NOT_AVAILABLE, remark=flags.reason)
        else:
            result = self._try(writer)
        if result.status is not _PUT_OK and self.refused is not None:
            self.refused(result)
        if (self.reader_waits or self.copied) and writer.done and self.wake is not None:
            self.wake()
        return result

    @cython.cfunc
    def _try(self, writer: RecordWriter) -> PutMessageResult:
        """Append the records of a writer, and return the result of the put."""
        try:
            self._append(writer)
        except Exception as error:  # of any kind: the caller must learn how many records are in the log
            if not writer.done and not isinstance(error, _NO_NEXT_FILE):
                raise
            self.counts.failed_times += 1
            if not writer.done:
                return PutMessageResult(PutMessageStatus.CREATE_MAPPED_FILE_FAILED, remark=str(error))
            return writer._result(PutMessageStatus.CREATE_MAPPED_FILE_FAILED, str(error))
        return writer._result(_PUT_OK, "")

    def append_some(self, writer: RecordWriter) -> PutMessageResult:
        """Append the first records of a writer, as many as fit the last file. They count as several puts.

        The result says how many they are. No refusal is counted: the caller puts the next record by itself, and that
        put starts the next file or is refused.
        """
        writer._separate = True
        if not self._flags.bits:
            with contextlib.suppress(Exception):  # of any kind: the next put meets the error again
                self._append(writer)
        if (self.reader_waits or self.copied) and writer.done and self.wake is not None:
            self.wake()
        return writer._result(_PUT_OK, "") if writer.done else PutMessageResult(_PUT_OK)

    def append_raw(self, phy_offset: int, data: memoryview) -> int:
        """Append bytes of the master's log, which start at ``phy_offset`` there. Return the new end of the log.

        The bytes may start and end inside a record; ``data`` is writable memory. They are all in the log, or none
        of them is. The first file of an empty log starts at ``phy_offset``.

        Raises RawAppendError if the log does not end at ``phy_offset``, if the bytes cross the end of a file, or if the
        first file cannot start there; StoreNotWritableError if the log is not that of a slave or takes no bytes;
        DiskFullError or OSError if there is no room.
        """
        size: cython.Py_ssize_t = len(data)
        at: cython.Py_ssize_t
        flags = self._flags
        if not flags.bits & _FOLLOWS or not flags.is_sound():
            raise StoreNotWritableError(flags.reason or "only the log of a slave takes bytes of a master")
        self._lock._enter()
        try:
            files = self._queue.files
            if not files:
                if phy_offset % self._queue.file_size:
                    raise RawAppendError(
                        f"the log is empty, and {phy_offset} does not start a file of {self._queue.file_size} bytes")
                self._queue.last_file(phy_offset)
            elif phy_offset != self._queue.max_offset:
                raise RawAppendError(f"the log ends at {self._queue.max_offset}, the bytes start at {phy_offset}")
            file = self._last_file()
            if file.is_full():
                self.drop()  # a full file may be unmapped
                file = self._last_file()
            at = wrote(self._end)
            if size > self._size - at:
                raise RawAppendError(
                    f"{size} bytes at {phy_offset} cross the end of a file at {self._start + self._size}")
            if not size:
                return phy_offset
            if at + size > self._reserved:
                self._reserved = file.reserve(at + size)
            if size > self._long_put:
                file.write_after(data, at)
            else:
                file.buffer[at : at + size] = data
            advance(self._end, size)
            return phy_offset + size
        finally:
            self._lock._leave()

    @cython.cfunc
    def _append(self, writer: RecordWriter) -> cython.void:
        """Write the records of a writer. If an error is raised, ``writer.done`` of them are in the log."""
        now: cython.longlong
        began: cython.longlong = self._time_ns()
        self._lock._enter()
        try:
            now = self._wall_ms()
            if writer._born_now:
                writer._common.born_timestamp = now
            now = max(now, self.last_store_timestamp)  # of two C numbers
            writer.store_timestamp = writer._common.now = now
            writer._common.set_store_host(self.store_host)
            writer._common.append_crc = self._append_crc
            writer._begin(self.queue_offsets)
            file = self._last_file()
            if writer._whole and wrote(self._end) + writer._bound + L.BLANK_SIZE > self._size:
                file = self._next_file(file)
            while writer.done < writer.count:
                self._append_part(writer, file)
                if writer._full and writer._separate:
                    break
                if writer._full:
                    file = self._next_file(file)
                elif writer.done < writer.count:
                    with cython.nogil:
                        pass  # another thread may run between two parts
        finally:
            if writer.done:
                self.counts._done(
                    writer._puts() if writer._separate else 1, writer.done, writer.until - writer.phy_offset,
                    self._time_ns() - began)
            self._lock._leave()

    @cython.cfunc
    def _last_file(self) -> MappedFile:
        files: tuple[MappedFile, ...] = self._queue.files
        file = self._file
        if file is None or not files or files[len(files) - 1] is not file:  # what ends a file also drops it
            self.drop()
            file = self._queue.last_file(0)
            assert file is not None
            self._size, self._start, self._reserved = file.size, file.file_from_offset, 0
            self._buffer = file.buffer
            self._end = numbers_of(file.numbers())
            self._file = file
        return file

    @cython.cfunc
    def _next_file(self, file: MappedFile) -> MappedFile:
        self.drop()  # a full file may be unmapped
        self._roll(file)
        return self._last_file()

    @cython.cfunc
    def _append_part(self, writer: RecordWriter, file: MappedFile) -> cython.void:
        at: cython.Py_ssize_t = wrote(self._end)
        stop: cython.longlong = at + writer._bound + L.BLANK_SIZE
        limit: cython.Py_ssize_t = min(stop, self._size)
        size: cython.Py_ssize_t
        if limit > self._reserved:
            self._reserved = file.reserve(limit)
        writer._full = False
        size = 0
        if writer._bound > self._long_put and (not writer._whole or limit - at <= self._stage_size):
            size = self._write_long(writer, file, at, limit)
        if not size:
            try:
                size = writer._write(self._buffer, at, limit, self._start + at)
            except BaseException:
                clear_bytes(self._buffer, at, limit)
                raise
        if not size:
            if not at:
                raise ValueError(f"a record is longer than a file of {self._size} bytes")
            return
        advance(self._end, size)  # the commit point: now the records are in the log
        if writer.phy_offset < 0:
            writer.phy_offset = self._start + at
        writer.until = self._start + at + size
        writer._bound -= size
        self.last_store_timestamp = writer.store_timestamp
        writer._publish(self.queue_offsets)

    @cython.cfunc
    def _write_long(
        self, writer: RecordWriter, file: MappedFile, at: cython.Py_ssize_t, limit: cython.Py_ssize_t
    ) -> cython.Py_ssize_t:
        """Write records of a writer by one system call. Return the number of bytes, 0 if none fits the buffer."""
        done: cython.Py_ssize_t = writer.done
        size: cython.Py_ssize_t
        stage = self._stage
        if stage is None:
            stage = self._stage = bytearray(self._stage_size)
        size = writer._write(stage, 0, min(limit - at, self._stage_size), self._start + at)
        if limit - at > self._stage_size:
            writer._full = False  # the buffer is full, not the file
        if size:
            try:
                file.write_after(memoryview(stage)[:size], at)
            except BaseException:
                writer.done = done
                raise
        return size
