"""Comparison of a slave's log with its master's before a transfer, through requests that every broker answers.

The HA port compares nothing. A record has its position, store time, queue offset and checksum, so two logs with the
same record at a position are the same up to its end.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, final

import numpy as np

from tailrace.config import BrokerRole, StoreConfig
from tailrace.errors import RemotingConnectError, ReplicationError, StoreError
from tailrace.formats import fastjson
from tailrace.formats.commitlog import PLAUSIBLE_LENGTH, plausible_size
from tailrace.formats.remoting import RequestCode, ResponseCode
from tailrace.ha.comparison import ask_record, last_record_before
from tailrace.kernels.shared import constants as C
from tailrace.properties import parse_properties
from tailrace.remoting.client import RemotingClient
from tailrace.store.default_message_store import DefaultMessageStore
from tailrace.store.walk.scan import LogEnd, scan_files

__all__ = ["MasterLog", "Run", "SlaveComparison"]

_TIMEOUT_MS: Final = 30_000
"""How long an answer is waited for, which may be slow: without it nothing is copied."""
Run = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a function that reads files in a thread."""


@final
class MasterLog:
    """What a master says about its settings and its log, at the address of its broker."""

    def __init__(self, client: RemotingClient, address: str) -> None:
        self._client = client
        self.address = address

    async def _ask(self, code: RequestCode) -> bytes:
        return bytes((await self._client.ask(self.address, code, timeout_ms=_TIMEOUT_MS)).body)

    async def settings(self) -> dict[str, str]:
        """Return the settings of the master: request 26."""
        return parse_properties((await self._ask(RequestCode.GET_BROKER_CONFIG)).decode())

    async def bounds(self) -> tuple[int, int]:
        """Return the first and the last position of the master's log: request 28."""
        table = json.loads(await self._ask(RequestCode.GET_BROKER_RUNTIME_INFO))["table"]
        return max(int(table["commitLogMinOffset"]), 0), int(table["commitLogMaxOffset"])

    async def gaps(self) -> list[int]:
        """Return where the master says that its log has or had damage: request 907. One of RocketMQ says nothing."""
        status = json.loads(await self._ask(RequestCode.GET_BROKER_HA_STATUS))
        found = (at for name in ("gapOffsets", "steppedOver") for at in status.get(name) or ())
        return sorted({at for at in found if isinstance(at, int)})

    async def state(self) -> dict[str, Any] | None:
        """Return what only Tailrace has for a slave: request 329004. None of a master of RocketMQ.

        Raises TypeError if the answer has another form.
        """
        answer = await self._client.ask(
            self.address, RequestCode.GET_SLAVE_STATE, timeout_ms=_TIMEOUT_MS,
            ok=(ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED))
        if answer.code != ResponseCode.SUCCESS:
            return None
        found = fastjson.loads(answer.body)
        if not isinstance(found, dict) or not isinstance(found.get("consumerOrderInfo", {}), dict):
            raise TypeError("the state for slaves is not an object")
        return found

    async def record(self, phy_offset: int) -> bytes:
        """Return the bytes of the record at a position, none if no record starts there: request 33.

        Raises RemotingError if the master does not say whether there is one.
        """
        return await ask_record(self._client, self.address, phy_offset, _TIMEOUT_MS)


@final
class SlaveComparison:
    """One comparison. Every method but ``begin`` and ``common_end`` is a step of it."""

    def __init__(
        self, store: DefaultMessageStore, master: MasterLog, run: Run, cluster: str, broker_name: str,
    ) -> None:
        self._store, self._master, self._run = store, master, run
        self._names = cluster, broker_name
        self.master_low = self.master_end = 0
        """Begin and end of the master's log."""
        self.master_role = ""
        """The brokerRole of the master."""

    async def begin(self) -> int:
        """Return the position to report, where the master must begin.

        The first record of a master's log is fetched here if the own log is empty, because a Java master that gets the
        report 0 sends only its last file. Raises ReplicationError if the two brokers do not fit or their logs differ,
        and RemotingError.
        """
        self._check_settings(await self._master.settings())
        log = self._store.commit_log
        end = log.max_offset
        low, high = await self._master.bounds()
        self.master_end = high
        if log.min_offset < 0:
            return await self._begin_copy(low, high)
        if end < low or log.min_offset < end == low:
            raise ReplicationError(
                "too_old", f"the log of this slave ends at {end}, and its master has deleted everything before {low}")
        found = await self._run(lambda: last_record_before(log.queue, end))
        last, own = found or (log.min_offset, b"")
        if end > high or (own and await self._master.record(last) != own):
            await self._differ(low, high, end)
        await self._check_tail(last + len(own), end, high)
        await self._check_gaps(end)
        return end

    async def common_end(self) -> int:
        """Return the end of the last record that both logs have; without one, where the later of them begins.

        Raises ReplicationError if the two brokers do not fit, and RemotingError.
        """
        self._check_settings(await self._master.settings())
        low, self.master_end = await self._master.bounds()
        self.master_low = low
        end = await self.first_difference(low, self.master_end)
        return min([end, *(await self._differences_in_gaps(end))])

    def _check_settings(self, theirs: dict[str, str]) -> None:
        self.master_role = theirs.get("brokerRole", "")
        if self.master_role == BrokerRole.SLAVE.value:  # an old one that a name server still names
            raise RemotingConnectError(self._master.address, "the broker there is a slave, not a master")
        config: StoreConfig = self._store.config
        size = theirs.get("mappedFileSizeCommitLog", "")
        if size != str(config.mapped_file_size_commit_log):
            raise ReplicationError(
                "file_size", f"mappedFileSizeCommitLog is {config.mapped_file_size_commit_log} here and {size} at the "
                "master")
        for kind, name, own in (
            ("other_cluster", "brokerClusterName", self._names[0]), ("other_name", "brokerName", self._names[1]),
        ):
            if theirs.get(name) != own:
                raise ReplicationError(kind, f"{name} is {own} here and {theirs.get(name)} at the master")

    async def _begin_copy(self, low: int, high: int) -> int:
        """Start an empty log; return the position after what it has."""
        if low or not high:
            return low
        record = await self._master.record(0)
        if not record or plausible_size(record[:PLAUSIBLE_LENGTH], 0) != len(record):
            raise ReplicationError(
                "too_old", "the log of the master starts at 0, and its first record cannot be read from there")
        return self._store.append_raw(0, memoryview(bytearray(record)))

    def _records_of(self, start: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return position and length of each record of the file that starts at ``start``."""
        log = self._store.commit_log
        file = log.queue.find(start)
        if file is None:
            return np.empty((0, 2), np.int64)
        until = min(log.max_offset, start + file.size)
        found = [
            chunk.rows[:, [C.PHY, C.SIZE]] for chunk in scan_files([file], start, until, C.CHECK_PHY_OFFSET, LogEnd())]
        return np.concatenate(found) if found else np.empty((0, 2), np.int64)

    async def _is_same(self, phy_offset: int, size: int) -> bool:
        return await self._master.record(phy_offset) == self._store.commit_log.read(phy_offset, size)

    async def _differ(self, low: int, high: int, end: int) -> None:
        """Raise ReplicationError with the position of the first different record."""
        first = await self.first_difference(low, high)
        kind = "longer" if end > high and first >= high else "different"
        what = (
            f"it has {end - high} bytes that its master does not have" if kind == "longer"
            else "the records that follow are others than those of its master")
        raise ReplicationError(kind, f"the log of this slave differs from its master's at {first}: {what}", first)

    async def first_difference(self, low: int, high: int) -> int:
        """Return the end of the last record that is the same in both logs; ``low`` or the own start without one."""
        log = self._store.commit_log
        starts = [file.file_from_offset for file in log.queue.files if low <= file.file_from_offset < high]
        good = await self._last_good(
            starts, lambda start: self._run(lambda: self._records_of(start)[:1]))
        if good < 0:
            return max(low, log.min_offset)
        records = await self._run(lambda: self._records_of(starts[good]))
        place = await self._last_good(range(len(records)), lambda row: _done(records[row : row + 1]))
        if place < 0:
            raise StoreError(f"the file at {starts[good]} was deleted while the logs were compared")
        return int(records[place].sum())

    async def _last_good(self, items: Any, record_of: Callable[[Any], Awaitable[Any]]) -> int:
        """Return the last place of ``items`` whose record is the same in both logs, -1 without one."""
        low, high = 0, len(items)
        while low < high:
            middle = (low + high) // 2
            record = await record_of(items[middle])
            if len(record) and await self._is_same(*record[0].tolist()):
                low = middle + 1
            else:
                high = middle
        return low - 1

    async def _check_gaps(self, end: int) -> None:
        """Raise ReplicationError if the logs differ where the master had damage, after which both may be the same."""
        if found := await self._differences_in_gaps(end):
            raise ReplicationError(
                "different", f"the log of this slave differs from its master's at {found[0]}: the master had damage "
                "there, and the slave has other bytes", found[0])

    async def _differences_in_gaps(self, end: int) -> list[int]:
        """Return the positions below ``end`` where the master's log has or had damage and this one another record."""
        log, found = self._store.commit_log, []
        for at in await self._master.gaps():
            if at < end and (await self._run(partial(log.record_at, at)) or b"") != await self._master.record(at):
                found.append(at)
        return found

    async def _check_tail(self, start: int, end: int, high: int) -> None:
        """Compare what follows the last whole record: the first bytes of the next one, or the end of a full file."""
        file_size = self._store.config.mapped_file_size_commit_log
        if start >= end:
            return
        if end % file_size:
            theirs = await self._master.record(start)
            own = self._store.commit_log.read(start, end - start)
            differs = len(own) > 8 and theirs[: len(own)] != own
        else:
            theirs = await self._master.record(end) if high > end else b""
            differs = high > end and plausible_size(theirs[:PLAUSIBLE_LENGTH], end) != len(theirs)
        if differs:
            raise ReplicationError(
                "different", f"the log of this slave differs from its master's at {start}, after the last record that "
                "both have", start)


async def _done(value: Any) -> Any:
    return value
