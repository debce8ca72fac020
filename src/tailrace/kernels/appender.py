# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Append records to the CommitLog; ``kernels.record`` reads them.

`Appender` owns the end of the log. It appends the records of a `RecordWriter`.
"""

import cython

from tailrace.errors import DiskFullError, FatalStorageError
from tailrace.kernels.shared import layouts as L
from tailrace.kernels.shared.copying import clear_bytes
from tailrace.kernels.shared.crc32 import crc32, use_crc32
from tailrace.kernels.shared.put_counts import PUT_LIMITS_MS, PutCounts
from tailrace.kernels.shared.record_encoding import RecordFields, put_record
from tailrace.kernels.shared.record_writers import (
    BatchWriter,
    ItemsWriter,
    MadeRecords,
    MessageWriter,
    RecordWriter,
    plain_writer,
)
from tailrace.model import PutMessageResult, PutMessageStatus

SOURCE_SHA256 = ""

_PUT_OK = PutMessageStatus.PUT_OK  # in a variable, because looking up a member takes longer
_NO_NEXT_FILE = (DiskFullError, FatalStorageError, OSError)
"""Errors if the next segment file cannot be created. A failed sync also sets the running flags."""

END_OF_FILE = -1


def encode(
    buf: cython.uchar[::1],
    pos: cython.Py_ssize_t,
    limit: cython.Py_ssize_t,
    phy_offset: cython.longlong,
    queue_id: cython.longlong,
    flag: cython.longlong,
    queue_offset: cython.longlong,
    sys_flag: cython.longlong,
    born_timestamp: cython.longlong,
    born_host: bytes,
    store_timestamp: cython.longlong,
    store_host: bytes,
    reconsume_times: cython.longlong,
    prepared: cython.longlong,
    body: bytes,
    body_crc: cython.longlong,
    topic: bytes,
    props: bytes,
    append_prop_crc: cython.bint,
):
    """Write a record at ``buf[pos:]`` and return its size, or END_OF_FILE if it does not fit.

    ``append_prop_crc`` adds the checksum of the record as last property. The caller has checked the lengths.
    """
    common: RecordFields = RecordFields()
    if born_host is None or store_host is None or body is None or topic is None or props is None:
        raise TypeError("a part of a record must not be None")
    common.queue_id, common.sys_flag, common.born_timestamp = queue_id, sys_flag, born_timestamp
    common.born_host, common.now, common.store_host = born_host, store_timestamp, store_host
    common.reconsume_times, common.prepared, common.topic = reconsume_times, prepared, topic
    common.append_crc = append_prop_crc
    if pos < 0:
        return -1
    return put_record(
        buf, pos, min(limit, len(buf)), common, flag, queue_offset, phy_offset, body, body_crc,
        props)


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
    must be called before the file may be unmapped.
    ``topics`` has the bytes of valid topics. A message whose body and properties together have up to
    ``plain_size`` bytes is never too long.
    """

    queue_offsets = cython.declare(dict, visibility="readonly")
    last_store_timestamp = cython.declare(cython.longlong, visibility="public")
    store_host = cython.declare(bytes, visibility="public")
    topics = cython.declare(dict, visibility="readonly")
    counts = cython.declare(PutCounts, visibility="readonly")
    _plain_size: cython.Py_ssize_t
    _acquire: object
    _release: object
    _now_ms: object
    _monotonic_ns: object
    _flags: object
    _queue: object
    _roll: object
    _append_crc: cython.bint
    _file: object
    _buffer: cython.uchar[::1]
    _stage: bytearray
    _long_put: cython.longlong
    _stage_size: cython.Py_ssize_t
    _size: cython.Py_ssize_t
    _start: cython.longlong
    _reserved: cython.Py_ssize_t

    def __init__(
        self, lock, now_ms, monotonic_ns, flags, queue, roll, append_prop_crc: cython.bint,
        plain_size: cython.Py_ssize_t, long_put: cython.longlong, stage_size: cython.Py_ssize_t
    ):
        self.counts, self.queue_offsets, self.topics = PutCounts(), {}, {}
        self._plain_size, self._long_put, self._stage_size = plain_size, long_put, stage_size
        self.last_store_timestamp, self.store_host = 0, b"\x7f\x00\x00\x01\x00\x00\x00\x00"
        self._acquire, self._release = lock.acquire, lock.release
        self._now_ms, self._monotonic_ns, self._flags = now_ms, monotonic_ns, flags
        self._queue, self._roll = queue, roll
        self._append_crc, self._file, self._stage = append_prop_crc, None, None

    def drop(self):
        """Release the last file. The caller holds the lock, or no thread puts any more."""
        self._file = None
        self._buffer = None

    def plain_writer(self, message, hooked: cython.bint = False):
        """Return the writer of a plain message, or None if the message needs the checks of the caller.

        A plain message breaks no rule, names no LMQ queue, is no inner batch, and has no delivery time. With ``hooked``
        it may have one, because the put hook has seen it.
        """
        return plain_writer(message, self.topics, self._plain_size, hooked)

    def append(self, writer: RecordWriter, though_full: cython.bint = False):
        """Append the records of a writer, and return the result of the put. This is the only way into the log.

        The content of the records was checked when the writer was made. Expected failures are results, not
        exceptions: if the next file cannot be created, ``msg_num`` is the number of records that are in the log.
        ``though_full`` appends also on a disk above its warning level, as long as there is room.
        """
        flags = self._flags
        if flags.bits and not flags.is_writeable(though_full=though_full):
            self.counts.failed_times += 1
            return PutMessageResult(PutMessageStatus.SERVICE_NOT_AVAILABLE, remark=flags.reason)
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

    @cython.cfunc
    def _append(self, writer: RecordWriter):
        """Write the records of a writer. If an error is raised, ``writer.done`` of them are in the log."""
        now: cython.longlong
        began: cython.longlong = self._monotonic_ns()
        self._acquire()
        try:
            now = self._now_ms()
            if now < self.last_store_timestamp:
                now = self.last_store_timestamp
            writer.store_timestamp = writer._common.now = now
            writer._common.store_host = self.store_host
            writer._common.append_crc = self._append_crc
            writer._begin(self.queue_offsets)
            self._take()
            if writer.whole and self._file.wrote_position + writer._bound + L.BLANK_SIZE > self._size:
                self._next_file()
            while writer.done < writer.count:
                self._append_part(writer)
                if writer._full:
                    self._next_file()
                elif writer.done < writer.count:
                    with cython.nogil:
                        pass  # another thread may run between two parts
        finally:
            if writer.done:
                self.counts._done(writer.done, writer.until - writer.phy_offset, self._monotonic_ns() - began)
            self._release()

    @cython.cfunc
    def _take(self):
        files: tuple = self._queue.files
        if (
            self._file is None or not files or files[len(files) - 1] is not self._file
            or self._file.wrote_position == self._size
        ):
            self.drop()
            file = self._queue.last_file(0)
            self._size, self._start, self._reserved = file.size, file.file_from_offset, 0
            self._buffer = file.buffer
            self._file = file

    @cython.cfunc
    def _next_file(self):
        file = self._file
        self.drop()  # a full file may be unmapped
        self._roll(file)
        self._take()

    @cython.cfunc
    def _append_part(self, writer: RecordWriter):
        at: cython.Py_ssize_t = self._file.wrote_position
        stop: cython.longlong = at + writer._bound + L.BLANK_SIZE
        limit: cython.Py_ssize_t = min(stop, self._size)
        size: cython.Py_ssize_t
        if limit > self._reserved:
            self._reserved = self._file.reserve(limit)
        writer._full = False
        size = 0
        if writer._bound > self._long_put and (not writer.whole or limit - at <= self._stage_size):
            size = self._write_long(writer, at, limit)
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
        self._file.wrote_position = at + size
        if writer.phy_offset < 0:
            writer.phy_offset = self._start + at
        writer.until = self._start + at + size
        writer._bound -= size
        self.last_store_timestamp = writer.store_timestamp
        writer._publish(self.queue_offsets)

    @cython.cfunc
    def _write_long(
        self, writer: RecordWriter, at: cython.Py_ssize_t, limit: cython.Py_ssize_t
    ) -> cython.Py_ssize_t:
        """Write records of a writer by one system call. Return the number of bytes, 0 if none fits the buffer."""
        done: cython.Py_ssize_t = writer.done
        size: cython.Py_ssize_t
        if self._stage is None:
            self._stage = bytearray(self._stage_size)
        size = writer._write(self._stage, 0, min(limit - at, self._stage_size), self._start + at)
        if limit - at > self._stage_size:
            writer._full = False  # the buffer is full, not the file
        if size:
            try:
                self._file.write_after(memoryview(self._stage)[:size], at)
            except BaseException:
                writer.done = done
                raise
        return size
