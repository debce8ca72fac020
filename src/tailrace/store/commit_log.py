"""The CommitLog: every message of every queue in the order of arrival.

Owns ``commitlog/``. Invariants:
  L1  A record is at the position its PHYSICALOFFSET says; QUEUEOFFSETs of a queue are dense.
  L2  Every full file ends in a blank record; a record never spans files.
  L4  Store timestamps never step back, whatever the clock does: look-ups by time search on that,
      and recovery tells a stale record by it.
  L3  Positions only grow; ``max_offset`` moves after the bytes below it are in place.
Commit point: the wrote position of the last file. Concurrency: puts from any thread, one at a time
under ``_lock``. Durable on return of a put: nothing; see store.flush.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, final

import numpy as np
from isal import isal_zlib

from tailrace.config import StoreConfig
from tailrace.env.clock import Clock
from tailrace.env.filesystem import FileSystem
from tailrace.errors import DiskFullError, FatalStorageError, MessageIllegalError
from tailrace.formats.commitlog import (
    BLANK,
    BLANK_MAGIC,
    CRC_MASK,
    CRC_PROPERTY_LENGTH,
    END_FILE_MIN_BLANK_LENGTH,
    MAX_PROPERTIES_LENGTH,
    MAX_TOPIC_LENGTH,
    MAX_TOPIC_LENGTH_V1,
    SysFlag,
    decode_batch,
)
from tailrace.kernels import record_encoder
from tailrace.model import MessageExtBrokerInner, PutMessageResult, PutMessageStatus
from tailrace.segments import AllocateMappedFileService, MappedFile, MappedFileQueue, OpenFiles
from tailrace.store.log_paths import LogPaths
from tailrace.store.multi_dispatch import MARK, UNCOUNTED, MultiDispatch
from tailrace.store.running_flags import RunningFlags

__all__ = ["CommitLog", "RecordWriter"]

QueueKey = tuple[str, int]
_TOPIC: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
_MAX_QUEUE_ID: Final = 0x7FFFFFFF
_CHUNK: Final = 2048
_RECORD_MARGIN: Final = 64 * 1024
_FLAG_LIMIT: Final = 1 << 31
_NO_NEXT_FILE: Final = (DiskFullError, FatalStorageError, OSError)
"""Why no segment file could be made; a failed sync is told by the flags as well."""
_crc32 = isal_zlib.crc32


RecordWriter = Callable[[int, Any, int, int, int, Any, int], tuple[int, int]]
"""Writes records: (done, buffer, at, limit, phy_offset, offsets, now_ms) -> (records, bytes).

As many as fit ``buffer[at:limit]`` with a blank behind them, which is at ``phy_offset``. ``done`` of them
were written before; ``offsets`` has the next queue offset of each queue, and is counted on.
"""


@final
class CommitLog:
    """Puts records, reads records."""

    def __init__(
        self,
        clock: Clock,
        file_system: FileSystem,
        config: StoreConfig,
        paths: LogPaths,
        flags: RunningFlags,
        open_files: OpenFiles,
    ) -> None:
        self._clock = clock
        self._config = config
        self._flags = flags
        self._lock = threading.Lock()
        self.allocate_service = AllocateMappedFileService(
            file_system, config.mapped_file_size_commit_log, config.commit_log_allocate_step,
            open_files)
        self.queue = MappedFileQueue(
            file_system, paths.all, config.mapped_file_size_commit_log, mapped=True,
            allocate_step=config.commit_log_allocate_step, open_files=open_files,
            allocate_service=self.allocate_service)
        self.queue.read_only = paths.read_only
        self.queue_offsets: dict[QueueKey, int] = {}
        self.store_host = b"\x7f\x00\x00\x01\x00\x00\x00\x00"
        self.last_store_timestamp = 0
        self._topics: dict[str, bytes] = {}
        self._multi = MultiDispatch(config, self.queue_offsets)

    # -- positions

    @property
    def min_offset(self) -> int:
        """Position of the first byte, -1 when the log is empty."""
        return self.queue.min_offset

    @property
    def max_offset(self) -> int:
        """Position behind the last record."""
        return self.queue.max_offset

    # -- reading

    def read(self, phy_offset: int, size: int) -> bytes:
        """``size`` bytes from one file, fewer when they are not there."""
        return self.queue.read(phy_offset, size)

    def record_at(self, phy_offset: int) -> bytes | None:
        """The whole record at a position, or None when no record can be there."""
        head = self.queue.read(phy_offset, record_head := 8)
        if len(head) < record_head:
            return None
        blank = BLANK.unpack_from(head)
        limit = self._config.mapped_file_size_commit_log
        if blank.magic == BLANK_MAGIC or not 91 <= blank.total_size <= limit:
            return None
        data = self.queue.read(phy_offset, blank.total_size)
        return data if len(data) == blank.total_size else None

    def store_timestamp_at(self, phy_offset: int) -> int:
        """Store time of the record at a position in ms, 0 when none can be there."""
        head = self.queue.read(phy_offset, 76)
        if len(head) < 76:
            return 0
        at = 68 if int.from_bytes(head[36:40], "big") & SysFlag.BORNHOST_V6 else 56
        return max(int.from_bytes(head[at : at + 8], "big", signed=True), 0)

    # -- checks

    def check_topic(self, topic: str) -> None:
        """Raises MessageIllegalError for a name that no record may have."""
        self._topic_bytes(topic)

    def _topic_bytes(self, topic: str) -> bytes:
        known = self._topics.get(topic)
        if known is not None:
            return known
        if not _TOPIC.fullmatch(topic):
            raise MessageIllegalError(
                "topic", f"{topic[:300]!r} must be one or more of letters, digits, %, |, - and _")
        raw = topic.encode()
        limit = MAX_TOPIC_LENGTH_V1
        if topic.startswith(("%RETRY%", "%DLQ%")) and self._config.auto_message_version_on_topic_len:
            limit = MAX_TOPIC_LENGTH
        if len(raw) > limit:
            raise MessageIllegalError("topic", f"{len(raw)} bytes, {limit} are the most")
        if len(self._topics) > 100_000:
            self._topics.clear()
        self._topics[topic] = raw
        return raw

    def _check_sizes(self, body: bytes, properties: bytes, topic: bytes, hosts: int) -> None:
        config = self._config
        if len(body) > config.max_message_size:
            raise MessageIllegalError(
                "body", f"{len(body)} bytes, maxMessageSize allows {config.max_message_size}")
        reserved = CRC_PROPERTY_LENGTH + (properties[-1:] != b"\x02") if config.enabled_append_prop_crc else 0
        if len(properties) + reserved > MAX_PROPERTIES_LENGTH:
            raise MessageIllegalError(
                "properties", f"{len(properties)} bytes, {MAX_PROPERTIES_LENGTH - reserved} are the most")
        size = record_encoder.record_size(hosts, 0, len(body), len(topic), len(properties) + reserved)
        if size + END_FILE_MIN_BLANK_LENGTH > config.mapped_file_size_commit_log:
            raise MessageIllegalError(
                "record", f"{size} bytes do not fit a CommitLog file of "
                f"{config.mapped_file_size_commit_log} (mappedFileSizeCommitLog)")

    def _refusal(
        self, message: MessageExtBrokerInner, *, though_full: bool = False
    ) -> PutMessageResult | None:
        if not self._flags.is_writeable(though_full=though_full):
            return PutMessageResult(
                PutMessageStatus.SERVICE_NOT_AVAILABLE, remark=self._flags.reason)
        if not 0 <= message.queue_id <= _MAX_QUEUE_ID:
            return PutMessageResult(
                PutMessageStatus.MESSAGE_ILLEGAL,
                remark=f"queueId: {message.queue_id} is outside 0 to {_MAX_QUEUE_ID}")
        return None

    @staticmethod
    def _illegal(error: MessageIllegalError) -> PutMessageResult:
        status = (
            PutMessageStatus.PROPERTIES_SIZE_EXCEEDED
            if error.field == "properties"
            else PutMessageStatus.MESSAGE_ILLEGAL
        )
        return PutMessageResult(status, remark=str(error))

    # -- writing

    def put(
        self, message: MessageExtBrokerInner, *, though_full: bool = False
    ) -> PutMessageResult:
        """Append one message; never raises for an expected outcome.

        ``though_full`` also on a disk above its warning level, as long as there is room.
        """
        refused = self._refusal(message, though_full=though_full)
        if refused is not None:
            return refused
        body, properties = message.body, message.properties
        try:
            if body.__class__ is not bytes or not -_FLAG_LIMIT <= message.flag < _FLAG_LIMIT:
                _check_kinds({body.__class__}, {message.flag})
            topic = self._topic_bytes(message.topic)
            if len(body) + len(properties) + 1024 > self._config.mapped_file_size_commit_log or (
                len(body) > self._config.max_message_size or len(properties) > 32000
            ):
                self._check_sizes(
                    body, properties, topic, len(message.born_host) + len(self.store_host))
            names: list[str] = []
            if MARK in properties:
                names, properties = self._multi.names(message)
        except MessageIllegalError as error:
            return self._illegal(error)
        crc = _crc32(body) & CRC_MASK
        key = (message.topic, message.queue_id)
        counted = message.sys_flag & SysFlag.TRANSACTION_MASK not in UNCOUNTED
        bound = len(body) + len(properties) + len(topic) + 256
        with self._lock:
            queue_offset = self.queue_offsets.get(key, 0) if counted else 0
            now = max(self._clock.now_ms(), self.last_store_timestamp)
            try:
                if names:
                    bound -= len(properties)
                    properties = self._with_lmq_offsets(message, topic, properties, names)
                    bound += len(properties)
                file = self._tail()
                while True:
                    at = file.wrote_position
                    file.reserve(min(at + bound, file.size))
                    phy_offset = file.file_from_offset + at
                    size = record_encoder.encode(
                        file.buffer, at, file.size, phy_offset, message.queue_id, message.flag,
                        queue_offset, message.sys_flag, message.born_timestamp, message.born_host,
                        now, self.store_host, message.reconsume_times,
                        message.prepared_transaction_offset, body, crc, topic, properties,
                        self._config.enabled_append_prop_crc)
                    if size >= 0:
                        break
                    file = self._roll(file)
            except MessageIllegalError as error:
                return self._illegal(error)
            except _NO_NEXT_FILE as error:
                return PutMessageResult(
                    PutMessageStatus.CREATE_MAPPED_FILE_FAILED, remark=str(error))
            file.wrote_position = at + size
            if counted:
                self.queue_offsets[key] = queue_offset + 1
            if names:
                self._multi.advance(names)
            self.last_store_timestamp = now
        return PutMessageResult(
            PutMessageStatus.PUT_OK, phy_offset, phy_offset + size, message.queue_id, queue_offset,
            now, 1)

    def lmq_refusal(self, message: MessageExtBrokerInner) -> PutMessageResult | None:
        """Why a message must not ask for the LMQ queues that it names; None when it may, or does not.

        Asked before a message is stored for a later moment, too: its producer is told in time.
        """
        try:
            why = self._multi.over_quota(message) if MARK in message.properties else ""
        except MessageIllegalError as error:
            return self._illegal(error)
        return PutMessageResult(
            PutMessageStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED, remark=why) if why else None

    def _with_lmq_offsets(
        self, message: MessageExtBrokerInner, topic: bytes, properties: bytes, names: list[str]
    ) -> bytes:
        """Properties with the next queue offset in each LMQ queue; the caller holds the lock.

        Raises MessageIllegalError if they, or the record, become too long: the whole record counts
        here, as in the reference.
        """
        made = self._multi.with_offsets(properties, names)
        hosts = len(message.born_host) + len(self.store_host)
        self._check_sizes(message.body, made, topic, hosts)
        size = record_encoder.record_size(hosts, 0, len(message.body), len(topic), len(made))
        if size > self._config.max_message_size:
            raise MessageIllegalError(
                "record", f"{size} bytes with its places in LMQ queues, maxMessageSize allows "
                f"{self._config.max_message_size}")
        return made

    def put_batch(self, message: MessageExtBrokerInner, encoded: bytes) -> PutMessageResult:
        """Append the messages of a batch body; all in one file, or none."""
        try:
            if message.sys_flag & SysFlag.TRANSACTION_MASK:
                raise MessageIllegalError("sysFlag", "a batch cannot be part of a transaction")
            items = decode_batch(encoded)
            if not items:
                raise MessageIllegalError("batch", "has no message")
            if len(encoded) > self._config.max_message_size:
                raise MessageIllegalError(
                    "batch", f"{len(encoded)} bytes, maxMessageSize allows {self._config.max_message_size}")
            if MARK in encoded:
                items = self._multi.checked_batch(message.topic, items)
            return self.put_items(message, items, whole=True)
        except MessageIllegalError as error:
            return self._illegal(error)

    def check_items(
        self, name: str, items: list[tuple[int, bytes, bytes]], hosts: int
    ) -> tuple[bytes, int]:
        """The topic's bytes and a bound of what the items take; raises MessageIllegalError.

        ``hosts`` is the length of the two hosts of a record.
        """
        topic = self._topic_bytes(name)
        config = self._config
        _check_kinds({body.__class__ for _, body, _ in items}, {flag for flag, _, _ in items})
        bodies = [len(body) for _, body, _ in items]
        properties = [len(stored) for _, _, stored in items]
        extra = CRC_PROPERTY_LENGTH + 1 if config.enabled_append_prop_crc else 0
        longest, most = max(bodies, default=0), max(properties, default=0)
        head = record_encoder.record_size(hosts, 0, 0, len(topic), extra)
        if (
            longest > config.max_message_size or most + extra > MAX_PROPERTIES_LENGTH
            or head + longest + most + END_FILE_MIN_BLANK_LENGTH > config.mapped_file_size_commit_log
        ):  # perhaps: the longest body and the longest properties may be of different messages
            for _, body, stored in items:
                self._check_sizes(body, stored, topic, hosts)
        return topic, head * len(items) + sum(bodies) + sum(properties)

    def put_items(
        self, message: MessageExtBrokerInner, items: list[tuple[int, bytes, bytes]], *, whole: bool
    ) -> PutMessageResult:
        """Append (flag, body, stored properties) of messages that share everything else.

        ``whole`` keeps them in one file; otherwise they go on in the next one. Raises
        MessageIllegalError before anything is written.
        """
        refused = self._refusal(message)
        if refused is not None:
            return refused
        topic, total = self.check_items(
            message.topic, items, len(message.born_host) + len(self.store_host))
        if whole and total + END_FILE_MIN_BLANK_LENGTH > self._config.mapped_file_size_commit_log:
            raise MessageIllegalError(
                "batch", f"{total} bytes do not fit a CommitLog file of "
                f"{self._config.mapped_file_size_commit_log} (mappedFileSizeCommitLog)")
        key = (message.topic, message.queue_id)
        positions = np.empty(len(items), dtype=np.int64)
        with self._lock:
            first_offset = self.queue_offsets.get(key, 0)
            now = max(self._clock.now_ms(), self.last_store_timestamp)
            done = 0
            until = -1
            try:
                file = self._tail()
                if whole and file.wrote_position + total + END_FILE_MIN_BLANK_LENGTH > file.size:
                    file = self._roll(file)
                while done < len(items):
                    at = file.wrote_position
                    file.reserve(min(at + total + 8, file.size))
                    # In parts: the kernel holds the interpreter, and dispatch has work to do.
                    part = items if len(items) <= _CHUNK else items[done : done + _CHUNK]
                    try:
                        count, size = record_encoder.encode_many(
                            file.buffer, at, file.size, file.file_from_offset + at, topic,
                            message.queue_id, first_offset + done, message.sys_flag,
                            message.born_timestamp, message.born_host, now, self.store_host, part,
                            done if part is items else 0,
                            positions if part is items else positions[done : done + len(part)],
                            self._config.enabled_append_prop_crc)
                    except BaseException:
                        # Records that were written and are not published must not come to life.
                        stop = min(at + total + 8, file.size)
                        file.buffer[at:stop] = bytes(stop - at)
                        raise
                    file.wrote_position = at + size
                    until = file.file_from_offset + at + size
                    done += count
                    self.queue_offsets[key] = first_offset + done
                    if done < len(items) and (part is items or count < len(part)):
                        file = self._roll(file)
            except _NO_NEXT_FILE as error:
                if not done:
                    return PutMessageResult(
                        PutMessageStatus.CREATE_MAPPED_FILE_FAILED, remark=str(error))
                # What is in the log stays there: the caller is told how many messages that is.
                return PutMessageResult(
                    PutMessageStatus.CREATE_MAPPED_FILE_FAILED, int(positions[0]), until,
                    message.queue_id, first_offset, now, done, positions[:done].tolist(),
                    remark=f"{done} of {len(items)} messages were put: {error}")
            self.last_store_timestamp = now
        return PutMessageResult(
            PutMessageStatus.PUT_OK, int(positions[0]), until, message.queue_id, first_offset, now,
            len(items), positions.tolist())

    def put_records(
        self, keys: Sequence[QueueKey], count: int, bound: int, write: RecordWriter
    ) -> PutMessageResult:
        """Append ``count`` records that ``write`` makes, of the queues ``keys``; ``msg_num`` are in the log.

        ``bound`` is the most that they take; each fits a file. Whoever calls has checked what the
        records hold. Raises MessageIllegalError for a topic that no record may have.
        """
        for topic, _ in keys:
            self._topic_bytes(topic)
        if not self._flags.is_writeable():
            return PutMessageResult(PutMessageStatus.SERVICE_NOT_AVAILABLE, remark=self._flags.reason)
        done, first, until = 0, -1, -1
        with self._lock:
            offsets = np.array([self.queue_offsets.get(key, 0) for key in keys], np.int64)
            now = max(self._clock.now_ms(), self.last_store_timestamp)
            try:
                file = self._tail()
                while done < count:
                    at, start = file.wrote_position, file.file_from_offset
                    stop = min(at + bound + END_FILE_MIN_BLANK_LENGTH, file.size)
                    file.reserve(stop)
                    try:
                        written, size = write(
                            done, file.buffer, at, stop, start + at, offsets, now)
                    except BaseException:
                        # Records that were written and are not published must not come to life.
                        file.buffer[at:stop] = bytes(stop - at)
                        raise
                    file.wrote_position = at + size
                    first = start + at if not done else first
                    done, until = done + written, start + at + size
                    self.queue_offsets.update(zip(keys, offsets.tolist(), strict=True))
                    self.last_store_timestamp = now
                    if done < count:
                        file = self._roll(file)
            except Exception as error:  # whatever it is, the caller must hear what is in the log
                if not done and not isinstance(error, _NO_NEXT_FILE):
                    raise
                return PutMessageResult(
                    PutMessageStatus.CREATE_MAPPED_FILE_FAILED, first, until, store_timestamp=now,
                    msg_num=done, remark=f"{done} of {count} messages were put: {error}")
        return PutMessageResult(
            PutMessageStatus.PUT_OK, first, until, store_timestamp=now, msg_num=done)

    def roll(self, file: MappedFile) -> bool:
        """End the last file before it is full, and begin the next one; its unused blocks go back.

        False when it is not the last any more, or holds nothing. Raises DiskFullError or OSError.
        """
        with self._lock:
            at = file.wrote_position
            if not at or self.queue.files[-1] is not file:
                return False
            if file.is_full():
                self._tail()
                return True
            self._roll(file)
        file.give_back(at + END_FILE_MIN_BLANK_LENGTH)
        return True

    def _tail(self) -> MappedFile:
        file = self.queue.last_file(0)
        assert file is not None
        return file

    def _roll(self, file: MappedFile) -> MappedFile:
        """End ``file`` with a blank record and go on in the next one (L2)."""
        at = file.wrote_position
        # The next file first: when there is no room for it, the old one stays as it is.
        rest = file.size - at
        file.reserve(at + END_FILE_MIN_BLANK_LENGTH)
        BLANK.struct.pack_into(file.buffer, at, rest, BLANK_MAGIC)
        file.advance(rest)
        return self._tail()


def _check_kinds(kinds: set[type], flags: set[object]) -> None:
    """Raises MessageIllegalError for bodies that are no bytes and flags beyond 32 bits."""
    for kind in kinds - {bytes, bytearray}:
        raise MessageIllegalError("body", f"must be bytes, not {kind.__name__}")
    for flag in flags:
        if not isinstance(flag, int) or not -_FLAG_LIMIT <= flag < _FLAG_LIMIT:
            raise MessageIllegalError("flag", f"{flag!r} is no number of 32 bits")
