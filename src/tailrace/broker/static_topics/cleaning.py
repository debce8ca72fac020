"""Removal of parts of logical queues that are not needed any more (TopicQueueMappingCleanService).

In the hours of ``deleteWhen`` two things are removed from the mappings of this broker:

- the oldest part of a queue that this broker leads, if retention has deleted all its messages;
- the list of parts of a queue whose last known leader is another broker, if a third broker leads it now. The
  present leader has a newer list.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, final

from tailrace import events
from tailrace.broker.static_topics.forwarder import Forwarder
from tailrace.broker.static_topics.logical_queues import PHYSICAL
from tailrace.env.clock import Clock
from tailrace.env.supervision import caught
from tailrace.errors import RefusalError, StoreError
from tailrace.formats import fastjson
from tailrace.formats.remoting import RequestCode, ResponseCode
from tailrace.formats.requests.broker_headers import GetMaxOffsetResponseHeader
from tailrace.logs import get_logger
from tailrace.node.topic_queue_mapping import (
    LogicQueueMappingItem,
    TopicQueueMappingDetail,
    checked_info,
)
from tailrace.requests.executors import BoundedExecutor
from tailrace.store.retention.rules import is_time_to_delete

if TYPE_CHECKING:
    from tailrace.node.message_store import MessageStore

__all__ = ["PERIOD_S", "MappingCleaner"]

_log = get_logger(__name__)

PERIOD_S: Final = 300.0


@final
class MappingCleaner:
    """Cleans all mappings, one pass at a time, on the event loop."""

    def __init__(
        self, store: MessageStore, forwarder: Forwarder, own_name: str, clock: Clock, files: BoundedExecutor
    ) -> None:
        """``own_name`` is that of this broker; ``files`` writes the mappings."""
        self._store, self._forwarder, self._name, self._clock, self._files = store, forwarder, own_name, clock, files
        self._mappings = store.topics.mappings
        self._task: asyncio.Task[None] | None = None

    def start_pass(self) -> None:
        """Begin a pass if there are mappings, the hour is one of ``deleteWhen``, and no pass is under way."""
        store = self._store
        hour = datetime.fromtimestamp(self._clock.now_ms() / 1000).hour  # noqa: DTZ006 - local hours
        if (
            self._mappings.table and self._task is None and store.is_writeable and not store.lost_lock
            and is_time_to_delete(store.config.delete_when, hour)
        ):
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """End the pass that is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            with caught("MappingCleaner"):
                await self.run_pass()
        finally:
            self._task = None

    async def run_pass(self) -> None:
        """Clean every mapping. A failure is logged, and the next pass tries again."""
        for topic, detail in list(self._mappings.table.items()):
            try:
                changes = await self._changes(detail)
                if changes:
                    edit = self._mappings.keeping(detail, changes)
                    await self._files.run(self._mappings.change, edit)
                    events.STATIC_TOPIC_CLEANED.log(_log, topic=topic, queues=sorted(changes))
            except (RefusalError, StoreError, OSError, ValueError) as error:
                events.STATIC_TOPIC_NOT_CLEANED.log(_log, topic=topic, reason=error)

    async def _changes(self, detail: TopicQueueMappingDetail) -> dict[int, tuple[LogicQueueMappingItem, ...]]:
        """Return the new items of the queues that change; no items for a queue whose list is not needed."""
        changes: dict[int, tuple[LogicQueueMappingItem, ...]] = {}
        elsewhere: list[int] = []
        for queue_id, items in detail.hosted_queues.items():
            if not detail.leads(queue_id):
                elsewhere.append(queue_id)
            elif len(items) > 1 and await self._is_empty(detail.topic, items[0]):
                changes[queue_id] = items[1:]
        leaders = await self._leaders(detail) if elsewhere else {}
        for queue_id in elsewhere:
            items = detail.hosted_queues[queue_id]
            leader = leaders.get(queue_id)
            if leader and items and leader != items[-1].bname and await self._agrees(leader, detail, queue_id):
                changes[queue_id] = ()
        return changes

    async def _is_empty(self, topic: str, item: LogicQueueMappingItem) -> bool:
        """Return whether the physical queue of an item has no message."""
        if item.bname == self._name:
            first, until = self._store.queue_of(topic, item.queue_id).bounds
            return first == until
        found = []
        for code in (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET):
            answer = await self._forwarder.ask(
                item.bname, topic, code, {"topic": topic, "queueId": str(item.queue_id), **PHYSICAL})
            if answer.code != ResponseCode.SUCCESS:
                raise RefusalError(answer.code, answer.remark or "")
            found.append(answer.read(GetMaxOffsetResponseHeader).offset)
        return found[1] == 0 or found[0] == found[1]

    async def _leaders(self, detail: TopicQueueMappingDetail) -> dict[int, str]:
        """Return the leader of each logical queue, from the name servers."""
        route: dict[str, Any] = await self._forwarder.route(detail.topic)
        infos = [checked_info(info, detail.topic) for info in (route.get("topicQueueMappingByBroker") or {}).values()]
        return {
            int(queue_id): info["bname"] for info in sorted(infos, key=lambda info: int(info["epoch"]))
            if info["scope"] == detail.scope for queue_id in info["currIdMap"]}

    async def _agrees(self, leader: str, detail: TopicQueueMappingDetail, queue_id: int) -> bool:
        """Return whether the leader's mapping has the same epoch and says that it leads the queue."""
        answer = await self._forwarder.ask(
            leader, detail.topic, RequestCode.GET_TOPIC_CONFIG, {"topic": detail.topic, "lo": "true"})
        if answer.code != ResponseCode.SUCCESS:
            return False
        value = fastjson.loads(answer.body).get("mappingDetail")
        if value is None:
            return False
        found = TopicQueueMappingDetail.from_json(value, detail.topic)
        return (
            (found.bname, found.total_queues, found.epoch) == (leader, detail.total_queues, detail.epoch)
            and found.leads(queue_id))
