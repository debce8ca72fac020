"""The CommitLog: every message of every queue in the order of arrival.

Owns ``commitlog/``. Invariants:
  L1  A record is at the position that its PHYSICALOFFSET says. The QUEUEOFFSETs of a queue have no gap.
  L2  A full file ends in a blank record. A record never spans two files.
  L3  Positions only grow. ``max_offset`` moves after the bytes below it are in place.
  L4  Store timestamps never step back, whatever the wall clock does. Checkpoints, recovery and timers rely on
      it. While they are ahead of the wall clock, ``store.wall_times`` knows which records were stored when.
Commit point: the wrote position of the last file moves, in ``store.append``. Concurrency: any thread may put; puts
run one at a time under ``put_lock``. When a put returns, nothing is durable yet: ``store.group_commit`` syncs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, final

import numpy as np

from tailrace.config import StoreConfig
from tailrace.env.clock import Clock, machine_clock
from tailrace.env.filesystem import FileSystem
from tailrace.errors import MessageIllegalError
from tailrace.formats import names as N
from tailrace.formats.commitlog import (
    BLANK,
    BLANK_MAGIC,
    END_FILE_MIN_BLANK_LENGTH,
    MIN_RECORD_LENGTH,
    STORE_TIME_HEAD,
    SysFlag,
    decode_batch,
    decode_properties,
    encode_batch,
    record_size,
    store_timestamp_of,
)
from tailrace.formats.inner_batch import INNER_BASE_LENGTH, INNER_BATCH_BITS, INNER_NUM_MAX
from tailrace.kernels import record
from tailrace.kernels.properties import encode_properties
from tailrace.kernels.shared import constants as C
from tailrace.model import MessageExtBrokerInner, PutMessageResult, PutMessageStatus
from tailrace.segments import MappedFile, MappedFileQueue, OpenFiles
from tailrace.segments.mapped_file_queue import PAGE_SIZE
from tailrace.store.append import (
    Appender,
    BatchWriter,
    ItemsWriter,
    MadeRecords,
    MakeRecords,
    MessageWriter,
    PutLock,
    QueueKey,
    RecordWriter,
    kind_of,
)
from tailrace.store.lives import EndedLives
from tailrace.store.log_paths import LogPaths
from tailrace.store.multi_dispatch import MultiDispatch
from tailrace.store.record_rules import RecordRules, refuse_in_batch
from tailrace.store.running_flags import RunningFlags
from tailrace.store.unreadable import UnreadableRecords
from tailrace.store.wall_times import WallTimes

__all__ = ["CommitLog"]

_MAX_QUEUE_ID: Final = 0x7FFFFFFF
_FLAG_LIMIT: Final = 1 << 31
_NOT_IN_BATCHES: Final = frozenset({
    N.INNER_MULTI_DISPATCH, N.DELAY, N.TIMER_DELIVER_MS, N.TIMER_DELAY_SEC, N.TIMER_DELAY_MS})
_PREPARE_MS: Final = 20
_PREPARE_IDLE_MS: Final = 100
_AHEAD: Final = 16 << 20
"""Bytes after the last record that are reserved and brought into memory ahead of a writer."""


def long_put_limits(file_size: int) -> tuple[int, int]:
    """Return the bytes of a put above which records are written by system calls, and the bytes of such a call.

    A call for fewer bytes takes longer than page faults. More bytes in one call do not fit the processor's cache.
    """
    return min(16 << 10, file_size // 4), min(512 << 10, file_size // 2)


@final
class CommitLog:
    """Appends records and reads them by position."""

    def __init__(
        self,
        clock: Clock,
        file_system: FileSystem,
        config: StoreConfig,
        paths: LogPaths,
        flags: RunningFlags,
        open_files: OpenFiles,
        lives: EndedLives,
    ) -> None:
        self._config = config
        self.put_lock = PutLock()
        self.queue = MappedFileQueue(
            file_system, paths.all, config.mapped_file_size_commit_log, mapped=True,
            allocate_step=config.commit_log_allocate_step, open_files=open_files, read_only=paths.read_only,
            full_directories=lambda: flags.full_directories, ahead=True)
        self.tail = Appender(
            self.put_lock, clock.now_ms, clock.monotonic_ns, flags, self.queue, self._roll,
            config.enabled_append_prop_crc,
            min(config.mapped_file_size_commit_log - 1024, config.max_message_size, 32000),
            *long_put_limits(config.mapped_file_size_commit_log), machine_clock(clock))
        self.queue_offsets: Final = self.tail.queue_offsets
        """The next queue offset of each queue."""
        self.rules = RecordRules(config, self.tail.topics)
        self.wall_times = WallTimes()
        """What the wall clock said while store times are ahead of it."""
        self.multi_dispatch = MultiDispatch(config, self.queue_offsets, lives)
        self._prepared_at = -1
        self.unreadable = UnreadableRecords(clock)

    # -- positions

    @property
    def min_offset(self) -> int:
        """Position of the first byte, -1 when the log is empty."""
        return self.queue.min_offset

    @property
    def max_offset(self) -> int:
        """Position after the last record."""
        return self.queue.max_offset

    @property
    def last_store_timestamp(self) -> int:
        """Store time of the last record in ms; later records are not older (L4)."""
        return self.tail.last_store_timestamp

    @last_store_timestamp.setter
    def last_store_timestamp(self, value: int) -> None:
        self.tail.last_store_timestamp = value

    def close(self) -> None:
        """Close the files."""
        with self.put_lock:
            self.tail.drop()
            self.queue.close()

    # -- reading

    def read(self, phy_offset: int, size: int) -> bytes:
        """Return up to ``size`` bytes of one segment; fewer at its end, or if it was deleted. Raises OSError."""
        return self.queue.read(phy_offset, size)

    def read_record(self, phy_offset: int, size: int) -> bytes:
        """``read`` of one record, or of its start. If the record cannot be read for good, no bytes.

        Raises OSError if it may be possible to read the record later, see `UnreadableRecords`.
        """
        try:
            return self.queue.read(phy_offset, size)
        except OSError as error:
            if not self.unreadable.gives_up(phy_offset, error):
                raise
            return b""

    def record_at(self, phy_offset: int) -> bytes | None:
        """Return the bytes of the record at a position by its length field, or None without a plausible length.

        Return None as well for a record that can never be read. Raises OSError if a later read may succeed.
        """
        try:  # bytes up to the end of the page cost no more than the length, and are all of most records
            head = self.queue.read(phy_offset, max(PAGE_SIZE - phy_offset % PAGE_SIZE, BLANK.size))
        except OSError:  # perhaps of the next record
            head = self.read_record(phy_offset, BLANK.size)
        if len(head) < BLANK.size:
            return None
        blank = BLANK.unpack_from(head)
        limit = self._config.mapped_file_size_commit_log
        if blank.magic == BLANK_MAGIC or not MIN_RECORD_LENGTH <= blank.total_size <= limit:
            return None
        if blank.total_size <= len(head):
            return head[: blank.total_size]
        data = self.read_record(phy_offset, blank.total_size)
        return data if len(data) == blank.total_size else None

    def is_in_memory(self, phy_offset: int) -> bool:
        """Return True if `record_at` does not wait for the disk. It does not if there is no record."""
        try:
            head = self.queue.read_cached(phy_offset, max(PAGE_SIZE - phy_offset % PAGE_SIZE, BLANK.size))
            if head is None or len(head) < BLANK.size:
                return head is not None
            size = BLANK.unpack_from(head).total_size
            if size <= len(head) or size > self._config.mapped_file_size_commit_log:
                return True
            return self.queue.read_cached(phy_offset, size) is not None
        except OSError:
            return False  # the read that is made in a thread says what is wrong

    def store_timestamp_at(self, phy_offset: int) -> int:
        """Return the store time of the record at a position in ms, 0 without a record."""
        return max(store_timestamp_of(self.read_record(phy_offset, STORE_TIME_HEAD)) or 0, 0)

    @staticmethod
    def illegal(error: MessageIllegalError) -> PutMessageResult:
        """Return the result of a put that breaks a rule."""
        status = (
            PutMessageStatus.PROPERTIES_SIZE_EXCEEDED
            if error.field == "properties"
            else PutMessageStatus.MESSAGE_ILLEGAL
        )
        return PutMessageResult(status, remark=str(error))

    # -- writing

    def _check(self, message: MessageExtBrokerInner, stored: bytes) -> bytes:
        """Check a message that will have these stored properties; return its topic. Raises MessageIllegalError."""
        topic = self.rules.topic_bytes(message.topic)
        _check_kinds({message.body.__class__}, {message.flag})
        if not 0 <= message.queue_id <= _MAX_QUEUE_ID:
            raise MessageIllegalError("queueId", f"{message.queue_id} is outside 0 to {_MAX_QUEUE_ID}")
        self.rules.check_sizes(
            message.body, stored, topic, len(message.born_host) + len(self.tail.store_host), is_copy=message.is_copy)
        return topic

    def message_writer(self, message: MessageExtBrokerInner) -> RecordWriter:
        """Check a message and return its writer. Raises MessageIllegalError."""
        stored = message.properties
        topic = self._check(message, stored)
        if kind_of(message) & C.LMQ:
            names, stored = self.multi_dispatch.names(message)
            if names:
                return MessageWriter(
                    message, topic, b"", partial(self._with_lmq_offsets, message, topic, stored, names),
                    partial(self.multi_dispatch.advance, names))
        return MessageWriter(message, topic, stored)

    def inner_batch_writer(self, message: MessageExtBrokerInner) -> tuple[RecordWriter, int]:
        """Check an inner batch. Return its writer and the number of its messages.

        The caller has checked that the topic may have inner batches. Raises MessageIllegalError, including for an
        inner batch in a transaction, with a delivery time or with LMQ queues, because one record cannot store that.
        """
        if message.sys_flag & SysFlag.TRANSACTION_MASK:
            raise MessageIllegalError("sysFlag", "an inner batch cannot be part of a transaction")
        if message.sys_flag & INNER_BATCH_BITS != INNER_BATCH_BITS:
            raise MessageIllegalError("sysFlag", "INNER_BATCH and NEED_UNWRAP go together")
        properties = decode_properties(message.properties)
        properties.pop(N.INNER_BASE, None)
        if wrong := _NOT_IN_BATCHES & properties.keys():
            raise MessageIllegalError("innerBatch", f"an inner batch cannot have {', '.join(sorted(wrong))}")
        count, _, _, _, kind = record.check_batch(bytes(message.body))
        if count < 0:
            decode_batch(message.body)  # raises an error that says what is wrong
        if not 0 < count <= INNER_NUM_MAX:
            raise MessageIllegalError("batch", f"has {count} messages, it may have 1 to {INNER_NUM_MAX}")
        refuse_in_batch(properties, "the inner batch")
        for number, (_, _, inside) in enumerate(decode_batch(message.body) if kind & C.ALONE else ()):
            refuse_in_batch(decode_properties(inside), f"message {number} of the inner batch")
        if properties.get(N.INNER_NUM) != str(count):
            raise MessageIllegalError(
                "innerBatch",
                f"{N.INNER_NUM} is {properties.get(N.INNER_NUM, 'missing')}, the body has {count} messages")
        stored, key = encode_properties(properties), (message.topic, message.queue_id)

        def with_base() -> bytes:
            return stored + f"{N.INNER_BASE}\x01{self.queue_offsets.get(key, 0)}\x02".encode()

        def advance() -> None:
            self.queue_offsets[key] += count - 1

        topic = self._check(message, stored + bytes(INNER_BASE_LENGTH))
        return MessageWriter(message, topic, b"", with_base, advance), count

    def lmq_refusal(self, message: MessageExtBrokerInner) -> PutMessageResult | None:
        """Return the refusal of a message that may not use the LMQ queues that it names, else None.

        Its kind has C.LMQ. Called also before a message is stored for later delivery, so that
        its producer gets the refusal.
        """
        try:
            why = self.multi_dispatch.over_quota(message)
        except MessageIllegalError as error:
            return self.illegal(error)
        return PutMessageResult(
            PutMessageStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED, remark=why) if why else None

    def _with_lmq_offsets(
        self, message: MessageExtBrokerInner, topic: bytes, properties: bytes, names: list[str]
    ) -> bytes:
        """Return properties with the next queue offset in each LMQ queue. The caller holds the lock.

        Raises MessageIllegalError if the properties or the record become too long. maxMessageSize applies
        to the whole record here, as in RocketMQ.
        """
        made = self.multi_dispatch.with_offsets(properties, names)
        hosts = len(message.born_host) + len(self.tail.store_host)
        self.rules.check_sizes(message.body, made, topic, hosts)
        size = record_size(hosts, len(message.body), len(topic), len(made))
        if size > self._config.max_message_size:
            raise MessageIllegalError(
                "record", f"{size} bytes with its places in LMQ queues, maxMessageSize allows "
                f"{self._config.max_message_size}")
        return made

    def batch_writer(self, message: MessageExtBrokerInner, encoded: bytes) -> RecordWriter:
        """Check a batch body, which must fit one segment, and return its writer. Raises MessageIllegalError."""
        if message.sys_flag & SysFlag.TRANSACTION_MASK:
            raise MessageIllegalError("sysFlag", "a batch cannot be part of a transaction")
        count, longest, most, total, kind = record.check_batch(encoded)
        if count < 0:
            decode_batch(encoded)  # raises an error that says what is wrong
        if not count:
            raise MessageIllegalError("batch", "has no message")
        if len(encoded) > self._config.max_message_size:
            raise MessageIllegalError(
                "batch", f"{len(encoded)} bytes, maxMessageSize allows {self._config.max_message_size}")
        if kind & C.ALONE:
            items = decode_batch(encoded)
            for number, (_, _, properties) in enumerate(items):
                refuse_in_batch(decode_properties(properties), f"message {number} of the batch")
            if kind & C.LMQ:
                encoded = encode_batch(self.multi_dispatch.checked_batch(message.topic, items))
                count, longest, most, total, _ = record.check_batch(encoded)
        topic = self.rules.topic_bytes(message.topic)
        bound = self._bound(message, topic, count, longest, most, total, lambda: decode_batch(encoded))
        self.rules.check_whole(bound)
        return BatchWriter(message, topic, encoded, count, bound)

    def items_writer(
        self, message: MessageExtBrokerInner, items: list[tuple[int, bytes, bytes]]
    ) -> RecordWriter:
        """Check items (flag, body, stored properties) of messages that share everything else; return their writer.

        Raises MessageIllegalError.
        """
        topic = self.rules.topic_bytes(message.topic)
        _check_kinds({body.__class__ for _, body, _ in items}, {flag for flag, _, _ in items})
        bodies = [len(body) for _, body, _ in items]
        properties = [len(stored) for _, _, stored in items]
        return ItemsWriter(message, topic, items, self._bound(
            message, topic, len(items), max(bodies, default=0), max(properties, default=0),
            sum(bodies) + sum(properties), lambda: items))

    def _bound(
        self, message: MessageExtBrokerInner, topic: bytes, count: int, longest: int, most: int, total: int,
        items: Callable[[], list[tuple[int, bytes, bytes]]],
    ) -> int:
        """Return the greatest length of the records of ``items``. Raises MessageIllegalError if one is too long.

        ``longest`` is the length of the longest body, ``most`` of the longest properties, ``total`` of all of them.
        """
        hosts = len(message.born_host) + len(self.tail.store_host)
        if not self.rules.are_short(len(topic), hosts, longest, most):
            for _, body, stored in items():
                self.rules.check_sizes(body, stored, topic, hosts)
        return self.rules.bound(len(topic), hosts, count, total)

    def records_writer(
        self, keys: list[QueueKey], count: int, bound: int, write: MakeRecords,
        puts: Callable[[int], int] | None = None,
    ) -> RecordWriter:
        """Return the writer of ``count`` records of the queues ``keys``, which ``write`` makes.

        ``bound`` is the greatest number of bytes that they may take; each record must fit a segment. ``puts`` is as
        for `MadeRecords`. The caller has checked the content. Raises MessageIllegalError for an invalid topic.
        """
        for topic, _ in keys:
            self.rules.topic_bytes(topic)
        return MadeRecords(keys, count, bound, np.zeros(len(keys), np.int64), write, puts)

    def prepare_ahead(self) -> None:
        """Make the next file, reserve blocks and bring pages into memory, before a writer needs them."""
        self._prepared_at = self.max_offset
        self.queue.prepare_ahead()
        if files := self.queue.files:
            files[-1].reserve_ahead(_AHEAD)
            files[-1].populate(_AHEAD)

    def make_room(self) -> None:
        """Make the file or reserve the blocks that a put needs if none are left. Raises DiskFullError or OSError."""
        with self.put_lock:
            file = self.queue.last_file(0)
            assert file is not None
            file.reserve(min(file.reserve(0) + 1, file.size))  # reserve(0) is the end of its blocks

    def prepare_wait_ms(self) -> int:
        """Return the ms until the next ``prepare_ahead``: 20 while the log grows, else 100."""
        return _PREPARE_IDLE_MS if self.max_offset == self._prepared_at else _PREPARE_MS

    def roll(self, file: MappedFile) -> bool:
        """End the last file before it is full and start the next one. Unused blocks of the file are freed.

        Return False if ``file`` is not the last one any more, or is empty. Raises DiskFullError or OSError; the
        file may then be ended, and the next call starts the next one.
        """
        unused = file.size
        try:
            with self.put_lock:
                at = file.wrote_position
                if not at or self.queue.files[-1] is not file:
                    return False
                self.tail.drop()
                if not file.is_full():
                    self._end(file)
                    unused = at + END_FILE_MIN_BLANK_LENGTH
                self.queue.last_file(0)
        finally:  # even if there is no room for the next file, because these blocks are room
            file.give_back(unused)
        return True

    def _roll(self, file: MappedFile) -> None:
        """End ``file`` with a blank record and create the next one (L2)."""
        self._end(file)
        self.queue.last_file(0)

    @staticmethod
    def _end(file: MappedFile) -> None:
        """End a file with a blank record."""
        at = file.wrote_position
        rest = file.size - at
        file.reserve(at + END_FILE_MIN_BLANK_LENGTH)
        BLANK.struct.pack_into(file.buffer, at, rest, BLANK_MAGIC)
        file.advance(rest)


def _check_kinds(kinds: set[type], flags: set[object]) -> None:
    """Raise MessageIllegalError for bodies that are not bytes and flags of more than 32 bits."""
    for kind in kinds - {bytes, bytearray}:
        raise MessageIllegalError("body", f"must be bytes, not {kind.__name__}")
    for flag in flags:
        if not isinstance(flag, int) or not -_FLAG_LIMIT <= flag < _FLAG_LIMIT:
            raise MessageIllegalError("flag", f"{flag!r} is not a number of 32 bits")
