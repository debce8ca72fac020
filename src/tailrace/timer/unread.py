"""Reads that fail: when a record is read again, and when it is left out.

A read may fail although the message is whole. Descriptors or memory are short (EMFILE, ENFILE, ENOMEM), or the disk
returns an error (EIO) that may end. Rules of every service that reads messages that wait:

  UR1  A message stays in its place (queue offset, slot, table) until it was read, and the place never claims more.
  UR2  A read that fails delays its own message only. It is repeated after 50 ms, then after twice the time before,
       up to every 5 s.
  UR3  A message is left out like a damaged one if the disk returned an error at least 10 times, the first failure
       was at least 60 s ago, and other bytes of its segment can be read. Then it is counted, logged, and listed in
       quarantine, with the bytes that can be read. A shortage, or a segment of which nothing can be read, uses up no
       tries, because the message is whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, final

from tailrace import events
from tailrace.env.clock import Clock
from tailrace.env.shortage import is_shortage
from tailrace.errors import CorruptionError
from tailrace.formats.commitlog import decode_message
from tailrace.logs import get_logger
from tailrace.model import MessageExt
from tailrace.store.default_message_store import DefaultMessageStore

__all__ = ["NO_TRIES", "FailedReads", "Tries"]

_log = get_logger(__name__)
_FIRST_MS: Final = 50
_LONGEST_MS: Final = 5000
_DOUBLINGS: Final = 7
_MOST_ERRORS: Final = 10
PATIENCE_MS: Final = 60_000
_LOG_NS: Final = 10_000_000_000
_MS: Final = 1_000_000


class Tries(NamedTuple):
    """Reads of one record that have failed."""

    failed: int = 0
    errors: int = 0
    """Failures that were errors of the disk, not a shortage."""
    first_ms: int = 0
    """Time of the first one, by the monotonic clock."""
    again_ms: int = 0
    """Time of the next try, by the monotonic clock."""


NO_TRIES: Final = Tries()


@final
class FailedReads:
    """Counts failed reads of one service and decides what follows; the caller holds the lock of the service."""

    def __init__(
        self, clock: Clock, store: DefaultMessageStore, topic: str, counters: dict[str, int], unreadable: str,
        on_damaged: Callable[[int, int, CorruptionError], None],
    ) -> None:
        self.failed = 0
        """Number of reads that failed."""
        self._topic = topic
        self._counters = counters
        self._unreadable = unreadable
        """Name of the counter of messages that are damaged or were left out."""
        self._on_damaged = on_damaged
        self._clock = clock
        self._store = store
        self._logged_ns = -_LOG_NS
        self._logged = 0

    def message(self, phy_offset: int, size: int, data: bytes = b"") -> MessageExt | None:
        """Return a message that waits. If it is deleted or damaged, count that and return None. Raises OSError.

        ``data`` is its record if that was read already.
        """
        try:
            message = decode_message(data) if data else self._store.message(phy_offset, size)
            if message.phy_offset != phy_offset or message.topic != self._topic:
                raise CorruptionError("another record is there", phy_offset=phy_offset)
        except CorruptionError as error:
            self._counters[self._unreadable] += 1
            self._on_damaged(phy_offset, size, error)
            return None
        return message

    def now_ms(self) -> int:
        """Return the time of the monotonic clock, which ``again_ms`` is compared with."""
        return self._clock.monotonic_ns() // _MS

    def may_try(self, tries: Tries) -> bool:
        """Return True if it is time to read a record again."""
        return tries.again_ms <= self.now_ms()

    def wait_ms(self, tries: Tries) -> int:
        """Return the ms until the next try."""
        return max(tries.again_ms - self.now_ms(), 0)

    def are_recent(self, tries: Tries) -> bool:
        """Return True if the first try is not longer ago than a record is waited for at least."""
        return self.now_ms() - tries.first_ms < PATIENCE_MS

    def after(self, tries: Tries, error: OSError, phy_offset: int, size: int) -> Tries:
        """Count a read of a message that has failed, and log it, at most one line in 10 s. Return when to try again."""
        now_ns = self._clock.monotonic_ns()
        made = self.counted(tries, error)
        if now_ns - self._logged_ns >= _LOG_NS:
            events.READ_OF_A_WAITING_MESSAGE_FAILED.log(
                _log, phy_offset=phy_offset, size=size, reads=self.failed - self._logged, cause=error)
            self._logged_ns, self._logged = now_ns, self.failed
        return made

    def counted(self, tries: Tries, error: OSError) -> Tries:
        """Count a read that has failed. Return when to try again."""
        self.failed += 1
        now_ms = self.now_ms()
        wait = min(_FIRST_MS << min(tries.failed, _DOUBLINGS), _LONGEST_MS)
        return Tries(
            tries.failed + 1, tries.errors + (not is_shortage(error)),
            tries.first_ms if tries.failed else now_ms, now_ms + wait)

    def are_over(self, tries: Tries) -> bool:
        """Return True if the disk has returned errors often and long enough for a record to be left out."""
        return tries.errors >= _MOST_ERRORS and not self.are_recent(tries)

    def leave_out(self, phy_offset: int, size: int, error: OSError) -> bool:
        """List a record in quarantine, count and log that. Return False if it must be tried further.

        It must be if nothing of its segment can be read, or if quarantine cannot be written.
        """
        try:
            if not self._store.list_unreadable(phy_offset, size, f"cannot be read: {error}"):
                return False
        except OSError:
            return False
        self._counters[self._unreadable] += 1
        events.WAITING_MESSAGE_IS_LEFT_OUT.log(_log, phy_offset=phy_offset, size=size, cause=error)
        return True
