"""Copy of the topics, groups, offsets and users of a master to its slave (SlaveSynchronize).

All but the last of these are requests that every broker answers.

Rules of the copy:
  SM1  Offsets and pops in order name messages. They are applied when this log has everything that the master had when
       it sent them, and none past the end of its queue here. The next copy brings what was left out.
  SM2  A table is replaced as a whole, and only if its pages add up to the total that the master names.
  SM3  Consumer offsets are the master's. If a consumer has committed here since the last copy, the larger one stays
       until the master's has passed it.
  SM7  Topics that the master has deleted are deleted here, with the messages from before its deletion, when this log
       has all of these. A Tailrace master sends where the lives of topics have ended. Of a RocketMQ master, a topic
       that is missing in its table has no message before the end that its log had before it sent the table.
       A queue without a message on the master begins here where it ends there (``ha.queue_ends``).
  SM8  Nothing is copied before the comparison with the master has succeeded, nor after one that has not: of another
       cluster, or of a log that differs, positions mean other messages.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, final

from tailrace import events
from tailrace.env.supervision import supervised
from tailrace.errors import RemotingError, StoreError
from tailrace.formats import fastjson
from tailrace.formats.commitlog import LMQ_QUEUE_ID
from tailrace.formats.remoting import RequestCode
from tailrace.ha.faults import Fault
from tailrace.ha.offset_caps import WAITS
from tailrace.ha.queue_ends import QueueEnds
from tailrace.ha.slave import Slave
from tailrace.ha.slave_comparison import MasterLog, Run
from tailrace.ha.slave_topics import SlaveTopics
from tailrace.ha.user_copy import COPIED, AccessTables, copy_users
from tailrace.logs import get_logger
from tailrace.node.config_manager import ConfigManager
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.consumer_order_info import ConsumerOrderInfoManager
from tailrace.node.deletion import Deletion
from tailrace.node.message_request_mode import MessageRequestModeManager
from tailrace.node.subscription_group import SubscriptionGroupManager
from tailrace.node.timers import Timers
from tailrace.node.topic_config import TopicConfigManager
from tailrace.remoting.client import RemotingClient
from tailrace.store.default_message_store import DefaultMessageStore
from tailrace.store.lives import Ended, undone
from tailrace.store.multi_dispatch import is_lmq
from tailrace.store.retention.min_offsets import decode_ended

__all__ = ["MetadataCopy", "Tables", "merged_offsets"]

_log = get_logger(__name__)
PERIOD_S: Final = 60.0
"""Time between two copies, as in RocketMQ."""
_TICK_S: Final = 3.0
_TIMEOUT_MS: Final = 30_000
_ENTRIES: Final = 2000
"""Entries of a page (splitMetadataSize)."""
_SLICE: Final = 200
"""Topics and groups whose offsets are merged before the event loop does something else."""
_DELETED: Final = "deleted topics"
Offsets = dict[str, dict[int, int]]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """The tables of the slave."""

    topics: TopicConfigManager
    groups: SubscriptionGroupManager
    offsets: ConsumerOffsetManager
    modes: MessageRequestModeManager
    timers: Timers
    deletion: Deletion
    orders: Callable[[], ConsumerOrderInfoManager | None]
    """Returns the pops in order, once there are any."""
    access: AccessTables | None = None
    """Users and permissions; None if clients need no user here."""


class _Positions(NamedTuple):
    """Offsets of the master, and the end of its log after it has sent them."""

    until: int
    consumers: Offsets
    delays: dict[str, Any]
    orders: dict[str, Any]
    """Pops in order; none of a master of RocketMQ."""


def merged_offsets(own: Offsets, before: Offsets | None, theirs: Offsets) -> Offsets:
    """Return the consumer offsets by SM3: of the slave, those of the last copy, and those of the master now.

    ``before`` is None if no copy is known. An offset that the last copy did not have was committed here.
    """
    made: Offsets = {}
    for key, queues in theirs.items():
        mine, copied = own.get(key, {}), (before or {}).get(key, {})
        made[key] = {
            queue_id: max(offset, mine[queue_id])
            if before is not None and queue_id in mine and mine[queue_id] != copied.get(queue_id, -1) else offset
            for queue_id, offset in queues.items()}
    return made


@final
class MetadataCopy:
    """Copies each minute, between ``start`` and ``stop``. Tables are written in threads."""

    def __init__(
        self, store: DefaultMessageStore, tables: Tables, slave: Slave, client: RemotingClient, run: Run,
        dispatch: SlaveTopics | None = None,
    ) -> None:
        """``dispatch`` is notified of copied topics."""
        self._dispatch = dispatch
        self._store, self._tables, self._slave, self._client, self._run = store, tables, slave, client, run
        self._pending: list[_Positions] = []
        """Offsets that wait for the log: the oldest and the newest ones."""
        self._applied: Offsets | None = None
        self._orders: dict[str, Any] = {}
        self._ended: dict[str, Ended] = {}
        """Ends of lives that wait for the log."""
        self._ends = QueueEnds(store, tables.topics, tables.deletion, client, run)
        self._said: dict[str, str] = {}
        self._due_s = 0.0
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.copies = 0
        """Number of copies without an error."""
        slave.found_master.add(self._now)

    def start(self) -> None:
        """Copy as soon as the master is known and fits, then each minute."""
        self._task = asyncio.get_running_loop().create_task(supervised("SlaveSynchronize", self._step))

    async def stop(self) -> None:
        """Copy no more."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        await self._client.close()

    def _now(self) -> None:
        self._due_s = 0.0
        self._woken.set()

    async def _step(self) -> None:
        loop = asyncio.get_running_loop()
        if not self._slave.fits:  # SM8
            self._pending.clear()
            self._ended.clear()
            self._ends.forget()
            self._due_s = 0.0
        elif loop.time() >= self._due_s:
            self._due_s = loop.time() + PERIOD_S
            await self.copy_all()
        elif self._slave.master_address:
            with contextlib.suppress(RemotingError, OSError, ValueError, KeyError, TypeError):  # the slave reports it
                self._slave.note_master(await self._ask_end())
        await self._slave.keep_master(later=True)
        await self.apply_positions()
        await self.end_lives()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TICK_S):
                await self._woken.wait()
        self._woken.clear()

    async def copy_all(self) -> None:
        """Copy every table once. A part that fails stays as it is, and the next ones are copied."""
        parts: tuple[tuple[str, Callable[[], Any]], ...] = (
            ("topics", self._copy_topics), ("ends of queues", self._copy_ends), ("groups", self._copy_groups),
            ("modes", self._copy_modes), ("offsets", self._copy_positions), ("users", self._copy_users))
        good = True
        for kind, copy in parts:
            try:
                await copy()
                self._worked(kind)
            except (RemotingError, StoreError, OSError, ValueError, KeyError, TypeError) as error:
                good = False
                self._failed(kind, error)
        if good:
            self.copies += 1
            if self.copies == 1:
                events.METADATA_IS_COPIED.log(
                    _log, address=self._slave.master_address, topics=len(self._tables.topics.table),
                    groups=len(self._tables.groups.table))

    def _failed(self, kind: str, error: Exception) -> None:
        self._slave.metadata_failures += 1
        is_new = self._said.get(kind) != str(error)
        self._said[kind] = str(error)
        self._name_fault()
        if is_new:
            events.METADATA_CANNOT_BE_COPIED.log(_log, address=self._slave.master_address, kind=kind, cause=error)

    def _worked(self, kind: str) -> None:
        self._said.pop(kind, None)
        self._name_fault()

    def _name_fault(self) -> None:
        if self._said:
            self._slave.faults.begin(Fault.METADATA, "; ".join(f"{kind}: {why}" for kind, why in self._said.items()))
        else:
            self._slave.faults.end(Fault.METADATA)

    # -- requests

    async def _ask(
        self, code: RequestCode, ext: Mapping[str, str] | None = None,
    ) -> tuple[dict[str, Any], dict[str, str]]:
        answer = await self._client.ask(self._slave.master_address, code, ext, timeout_ms=_TIMEOUT_MS)
        found = fastjson.loads(answer.body)
        if not isinstance(found, dict):
            raise TypeError(f"the answer to request {code.value} is not an object")
        return found, answer.ext

    async def _paged(self, code: RequestCode, table: str, seq: str, most: str, total: str) -> dict[str, Any]:
        """Return a table that comes in pages, with the other members of the last page.

        Raises ValueError if the pages do not add up.
        """
        entries: dict[str, Any] = {}
        page: dict[str, Any] = {}
        version, left = "", True
        while left:
            page, ext = await self._ask(code, {
                seq: str(len(entries)), most: str(_ENTRIES), "dataVersion": version})
            found = fastjson.dumps(page.get("dataVersion")).decode()
            if version and found != version:  # it was changed in the meantime, and the master has begun again
                entries.clear()
                version = ""
                continue
            version, before = found, len(entries)
            entries.update(page.get(table) or {})
            left = total in ext and len(entries) < int(ext[total])
            if left and len(entries) == before:
                raise ValueError(f"{table}: {len(entries)} of {ext[total]} entries came")
        return {**page, table: entries}

    # -- parts

    async def _copy_topics(self) -> None:
        end = await self._ask_end()
        found = await self._paged(
            RequestCode.GET_ALL_TOPIC_CONFIG, "topicConfigTable", "topicSeq", "maxTopicNum", "totalTopicNum")
        topics = self._tables.topics
        await self._take(topics, found, "topicConfigTable")
        mappings = {
            "topicQueueMappingInfoMap": found.get("topicQueueMappingDetailMap") or {},
            "dataVersion": found.get("mappingDataVersion")}
        await self._take(topics.mappings, mappings, "topicQueueMappingInfoMap")
        if self._dispatch is not None:
            self._dispatch.copied()
        self._ended.update(await self._deleted(found["topicConfigTable"], end))

    async def _deleted(self, table: Mapping[str, Any], end: int) -> dict[str, Ended]:
        """Return the topics that the master has deleted (SM7); its log ended at ``end`` before it sent ``table``."""
        master = MasterLog(self._client, self._slave.master_address)
        if (found := await master.state()) is not None:
            self._orders = found.pop("consumerOrderInfo", {})
            ended = decode_ended(found)
            await self._check_undone(master, ended)
            return ended
        return {
            topic: Ended(end, {}) for topic, _ in list(self._store.queues.table)
            if topic not in table and not is_lmq(topic) and not self._tables.topics.is_system_topic(topic)}

    async def _check_undone(self, master: MasterLog, ended: Mapping[str, Ended]) -> None:
        """Name the deletions of this slave that its master does not have, which hide messages here."""
        own = self._store.lives.table
        if undone(own, ended, 0) and (topics := undone(own, ended, (await master.bounds())[0])):
            self._failed(_DELETED, ValueError(
                f"messages of {', '.join(topics[:3])} are at the master, and a deletion that a promotion has undone "
                f"hides them here; stop this broker, and run: tailrace repair {self._store.root} --follow-master "
                f"{master.address}"))
        else:
            self._worked(_DELETED)

    async def _copy_ends(self) -> None:
        await self._ends.copy(self._slave.master_address)

    async def end_lives(self) -> None:
        """Delete the topics that the master has deleted, as far as this log has their messages (SM7)."""
        end, known = self._store.commit_log.max_offset, self._store.lives
        ready = {topic: one for topic, one in self._ended.items() if one.position <= end}
        if not ready:
            return
        for topic in ready:
            del self._ended[topic]
        new = {topic: one for topic, one in ready.items() if known.deleted_up_to(topic) < one.position}
        if new:
            try:
                await self._run(lambda: self._tables.deletion.end_lives(new))
                self._worked(_DELETED)
            except (StoreError, OSError) as error:
                self._failed(_DELETED, error)

    async def _copy_groups(self) -> None:
        found = await self._paged(
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, "subscriptionGroupTable", "groupSeq", "maxGroupNum",
            "totalGroupNum")
        await self._take(self._tables.groups, found, "subscriptionGroupTable")

    async def _copy_modes(self) -> None:
        found, _ = await self._ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
        await self._take(self._tables.modes, found, "messageRequestModeMap")

    async def _take(self, table: ConfigManager[Any, Any], found: dict[str, Any], member: str) -> None:
        if not isinstance(found.get(member), dict):
            raise TypeError(f"the answer of the master has no {member}")
        await self._run(lambda: table.copy_from(found))

    async def _copy_users(self) -> None:
        if (access := self._tables.access) is None:
            return
        slave = self._slave
        found = await copy_users(self._client, slave.master_address, access, self._run)
        if found not in {COPIED, slave.users}:
            events.USERS_ARE_NOT_COPIED.log(_log, address=slave.master_address, cause=found)
        slave.users, access.are_copied = found, found == COPIED
        if found == COPIED:
            slave.faults.end(Fault.USERS)
        else:
            slave.faults.begin(Fault.USERS, found)

    # -- positions

    async def _copy_positions(self) -> None:
        consumers, _ = await self._ask(RequestCode.GET_ALL_CONSUMER_OFFSET, {WAITS: "true"})
        delays, _ = await self._ask(RequestCode.GET_ALL_DELAY_OFFSET, {WAITS: "true"})
        until = await self._ask_end()
        offsets = {
            str(key): {int(queue_id): int(offset) for queue_id, offset in queues.items()}
            for key, queues in (consumers.get("offsetTable") or {}).items() if "@" in key}
        for key, offset in (consumers.get("lmqOffsetTable") or {}).items():  # with enableLmq
            offsets[str(key)] = {LMQ_QUEUE_ID: int(offset)}
        self._slave.note_master(until)
        self._pending = [*self._pending[:1], _Positions(until, offsets, delays, self._orders)]

    async def _ask_end(self) -> int:
        """Return the end of the master's log. Raises ValueError if the other broker is a slave now."""
        status, _ = await self._ask(RequestCode.GET_BROKER_HA_STATUS)
        if not status.get("master", True):  # it was the master before a promotion, and names no end to wait for
            raise ValueError("it is a slave, and its offsets are older than those of its master")
        return int(status["masterCommitLogMaxOffset"])

    async def apply_positions(self) -> None:
        """Apply the newest offsets whose messages this log has (SM1)."""
        ready = [one for one in self._pending if self._store.reput.has_dispatched(one.until)]
        if not ready:
            return
        newest = ready[-1]
        self._pending = [one for one in self._pending if one not in ready]
        try:
            await self._take_offsets(newest.consumers)
            if newest.orders and (orders := self._tables.orders()) is not None:
                orders.take(newest.orders, self._end_of)
            await self._run(partial(self._tables.timers.take_delay_offsets, newest.delays))
        except (StoreError, OSError, ValueError, TypeError) as error:
            self._failed("offsets", error)

    async def _take_offsets(self, theirs: Offsets) -> None:
        """Commit the offsets of the master by SM3, in the thread in which consumers commit, then write the file.

        Between the look at an offset and its commit nothing else runs, so a commit of a consumer is never overwritten.
        """
        offsets, before, applied = self._tables.offsets, self._applied, Offsets()
        keys = list(theirs)
        for start in range(0, len(keys), _SLICE):
            part = {
                key: {queue_id: min(offset, self._end_of(key.partition("@")[0], queue_id))
                      for queue_id, offset in theirs[key].items()}
                for key in keys[start : start + _SLICE]}
            merged = merged_offsets({key: offsets.table.get(key, {}) for key in part}, before, part)
            for key, queues in merged.items():
                topic, _, group = key.partition("@")
                for queue_id, offset in queues.items():
                    offsets.commit(group, topic, queue_id, offset)
                applied[key] = {
                    queue_id: offset if queues[queue_id] == offset else -1  # -1: one of this slave stays
                    for queue_id, offset in part[key].items()}
            await asyncio.sleep(0)
        self._applied = applied
        await self._run(offsets.persist_if_changed)

    def _end_of(self, topic: str, queue_id: int) -> int:
        return self._store.queue_of(topic, queue_id).max
