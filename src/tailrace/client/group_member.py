"""A consumer as a member of its group: heartbeats, rebalance, queue locks, commits, requests of brokers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Final, final

from tailrace import events
from tailrace.client.allocation import Strategy
from tailrace.client.assigned_queues import AssignedQueues
from tailrace.client.broker_calls import BrokerCalls
from tailrace.client.failures import Failures
from tailrace.client.instance import Member, unreached
from tailrace.client.offset_store import OffsetStore
from tailrace.client.pop_queues import PopQueue
from tailrace.client.process_queue import ProcessQueue
from tailrace.client.routes import MessageQueue
from tailrace.client.subscription import Subscription
from tailrace.env.supervision import supervised
from tailrace.errors import RemotingCommandError, RemotingError
from tailrace.formats import fastjson
from tailrace.formats.names import RETRY_GROUP_TOPIC_PREFIX
from tailrace.formats.pop import pop_retry_topic
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.formats.requests.consumer_headers import (
    GetConsumerStatusRequestHeader,
    ResetOffsetRequestHeader,
)
from tailrace.logs import get_logger

__all__ = ["GroupMember", "MemberSettings", "Start"]

_log = get_logger(__name__)

REBALANCE_S: Final = 20.0
"""Between passes when nothing has changed, as in RocketMQ."""
AGAIN_S: Final = 1.0
"""Until the next pass when a queue could not be taken over, or a topic has no route."""
GIVE_UP_S: Final = 0.3
"""For how long a queue that another member gets waits for running listeners, before its last commit."""
TAKE_OVER_S: Final = 0.5
"""After which a new member reads the committed offset: longer than the old one needs for its last commit."""
COMMIT_AGAIN_S: Final = 30.0
"""Between commits of offsets that have not changed: the last commit of the member before may have come late."""
LOCK_S: Final = 30.0
"""For how long a lock counts without renewal; on the broker it is 60 s."""
RENEW_S: Final = 20.0
POPPED_S: Final = 60.0
"""Seconds for which a topic of messages that were popped is looked for when the mode has changed to pulling."""
_REQUESTS: Final = {
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: "group",
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: "group",
    RequestCode.GET_CONSUMER_RUNNING_INFO: "consumerGroup",
    RequestCode.CONSUME_MESSAGE_DIRECTLY: "consumerGroup",
}
"""Requests of brokers, and the field that names the group."""
Served = Callable[[RemotingCommand], Coroutine[Any, Any, RemotingCommand | None]]


@dataclass(frozen=True, slots=True)
class Start:
    """Where a group begins that has no committed offset: "first", "last", or a time in ms since 1970."""

    where: str = "last"
    time_ms: int | None = None

    @property
    def name(self) -> str:
        """As heartbeats name it."""
        if self.time_ms is not None:
            return "CONSUME_FROM_TIMESTAMP"
        return "CONSUME_FROM_FIRST_OFFSET" if self.where == "first" else "CONSUME_FROM_LAST_OFFSET"


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """How a member shares and commits."""

    strategy: Strategy
    start: Start
    in_order: bool = False
    broadcasting: bool = False
    pulls_itself: bool = False
    """Whether the program pulls; the heartbeat says so."""
    auto_commit: bool = True
    commit_interval_s: float = 1.0
    broker_strategy: str = ""
    """The strategy by which the broker allocates queues; empty if the members do so."""


@final
class GroupMember(Member):
    """Keeps the group known to brokers, and ``queues`` what this member has of the subscribed topics."""

    is_consumer = True

    def __init__(
        self, calls: BrokerCalls, queues: AssignedQueues, offsets: OffsetStore, wanted: dict[str, Subscription],
        settings: MemberSettings, served: dict[int, Served], failures: Failures,
    ) -> None:
        self.group = calls.group
        self._failures = failures
        self._calls = calls
        self._queues = queues
        self._offsets = offsets
        self._wanted = wanted
        self._settings = settings
        self._served: dict[int, Served] = {
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._status, **served}
        queues.topic_changed, queues.register = self.members_changed, self.register
        self._changed = asyncio.Event()
        self._first_pass = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._at_first: dict[str, frozenset[MessageQueue]] = {}
        """Queues of a topic when it was subscribed to; those that came later are read from their begin."""
        self._popped: set[MessageQueue] = set()
        """Queues in mode POP, whose offsets the broker keeps."""
        self._popped_until = 0.0
        """Event-loop time until which messages may be redelivered that were popped before their topic was pulled."""
        self._failing: set[str] = set()
        """What was logged already and has not worked since."""
        self.passes = 0
        """Number of rebalance passes."""

    # --- as a member of its instance

    def heartbeat_data(self) -> dict[str, Any]:
        """Return RocketMQ's ConsumerData."""
        settings = self._settings
        return {
            "groupName": self.group, "consumeFromWhere": settings.start.name,
            "consumeType": "CONSUME_ACTIVELY" if settings.pulls_itself else "CONSUME_PASSIVELY",
            "messageModel": "BROADCASTING" if settings.broadcasting else "CLUSTERING",
            "subscriptionDataSet": [one.to_json() for one in self._wanted.values()], "unitMode": False}

    def members_changed(self) -> None:
        """Rebalance soon."""
        self._changed.set()

    def topics(self) -> set[str]:
        """Return the topics whose brokers get heartbeats."""
        return set(self._wanted)

    def wants(self, request: RemotingCommand) -> bool:
        """Return whether a request is for this group."""
        field = _REQUESTS.get(RequestCode(request.code)) if request.code in _REQUESTS else None
        return field is not None and request.ext.get(field) == self.group and request.code in self._served

    async def serve(self, address: str, request: RemotingCommand) -> RemotingCommand | None:
        """Serve a request of a broker."""
        return await self._served[request.code](request)

    def connection_failed(self, error: RemotingError) -> None:
        """Pass the error on."""
        self._failures.report("connect", error)

    # --- life

    async def start(self) -> None:
        """Join the group; queues are assigned on return. Raises RemotingError."""
        await self._calls.instance.join(self)
        self._spawn(supervised("rebalance", self._rebalance_when_due))
        if self._settings.auto_commit:
            self._commit_again_at = asyncio.get_running_loop().time() + COMMIT_AGAIN_S
            self._spawn(supervised("commits", self._commit, self._settings.commit_interval_s))
        if self._settings.in_order and not self._settings.broadcasting:
            self._spawn(supervised("queue locks", self._renew_all, RENEW_S))
        await self._first_pass.wait()

    async def subscriptions_changed(self) -> None:
        """Tell brokers about a change of the subscriptions, and rebalance."""
        await self.register()
        self._changed.set()

    async def register(self) -> None:
        """Send heartbeats to the brokers of all topics. Raises RemotingError."""
        instance = self._calls.instance
        await instance.heartbeat(await instance.brokers_of(self))

    async def stop(self) -> None:
        """Take part in no further rebalance, and commit no more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def leave(self) -> None:
        """Commit, free locks and leave the group, after `stop`."""
        queues = self._queues.all()
        await self._queues.settle_popped()
        if self._settings.auto_commit:
            await self._queues.commit_and_report(queues)
        if self._settings.in_order and not self._settings.broadcasting:
            with contextlib.suppress(RemotingError):
                await self._calls.unlock([one.queue for one in queues])
        await self._calls.instance.leave(self)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(work))

    def _failed(self, what: str) -> bool:
        """Return whether a failure is new, and so is logged."""
        new = what not in self._failing
        self._failing.add(what)
        return new

    # --- rebalance

    async def _rebalance_when_due(self) -> None:
        """Make a pass, and return when the next one is due."""
        self._changed.clear()
        try:
            balanced = await self.rebalance()
            self._failing.discard("rebalance")
        except Exception as error:  # noqa: BLE001 - a strategy is the program's own
            balanced = False
            if not self._is_lost(error) and self._failed("rebalance"):
                events.REBALANCE_FAILED.log(_log, group=self.group, reason=repr(error))
                self._failures.report("rebalance", error)
        self.passes += 1
        self._first_pass.set()
        try:
            async with asyncio.timeout(REBALANCE_S if balanced else AGAIN_S):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def rebalance(self) -> bool:
        """Give up and take over queues; return False if a further pass is needed soon."""
        mine: dict[str, set[MessageQueue]] = {}
        shared = False
        balanced = True
        for topic in sorted(self._wanted):
            try:
                queues, members = await self._share(topic)
            except RemotingError as error:
                # The broker creates the retry topic of a new group with its first heartbeat.
                if topic.startswith(f"{RETRY_GROUP_TOPIC_PREFIX}{self.group}_"):
                    continue  # nothing was redelivered so far
                if not topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
                    await self._note_unknown(topic, error)
                balanced = False
                continue
            if (was := f"topic {topic}") in self._failing:
                self._failing.discard(was)
                events.TOPIC_FOUND.log(_log, group=self.group, topic=topic)
            mine[topic] = queues
            shared = shared or members > 1
        lost = [
            one for one in self._queues.all()
            if isinstance(one, PopQueue) != (one.queue in self._popped)  # the mode has changed
            or one.given_up  # a worker had it when it was given up
            or one.queue.topic not in self._wanted
            or (one.queue.topic in mine and one.queue not in mine[one.queue.topic])]
        have = {one.queue for one in self._queues.all()}
        new = [queue for queues in mine.values() for queue in sorted(queues) if queue not in have]
        # Both end before an error is raised: the rest of one pass must not run beside the next one.
        ended = await asyncio.gather(
            self._give_up(lost), self._take_over(new, shared=shared), return_exceptions=True)
        for one_ended in ended:
            if isinstance(one_ended, BaseException):
                raise one_ended
        back = any(one.queue in mine.get(one.queue.topic, ()) for one in lost)  # taken over by the next pass
        return balanced and all(ended) and not back and not self._may_come_back(mine)

    def _is_lost(self, error: BaseException) -> bool:
        """Return whether a server was not reached, which the instance logs."""
        if isinstance(error, RemotingError) and (address := unreached(error)):
            self._calls.instance.lost(address, error)
            return True
        return False

    async def _note_unknown(self, topic: str, error: RemotingError) -> None:
        """Log that the queues of a topic are not known; the first time only, and with a similar name."""
        if self._is_lost(error) or not self._failed(f"topic {topic}"):
            return
        if isinstance(error, RemotingCommandError) and error.code == ResponseCode.TOPIC_NOT_EXIST:
            error = await self._calls.instance.routes.explained(topic, error)
            was = "; it was there before, so it was deleted or its broker is down" if self._at_first.get(topic) else ""
            events.TOPIC_DOES_NOT_EXIST.log(
                _log, group=self.group, topic=topic, reason=f"{getattr(error, 'says', '') or error}{was}")
        else:
            events.QUEUES_OF_A_TOPIC_ARE_NOT_KNOWN.log(_log, group=self.group, topic=topic, reason=error)
        self._failures.report("topic", error, topic=topic)

    def _may_come_back(self, mine: Iterable[str]) -> bool:
        """Return whether popped messages may soon be redelivered in a topic that does not exist yet."""
        return asyncio.get_running_loop().time() < self._popped_until and not any(
            topic.startswith(f"{RETRY_GROUP_TOPIC_PREFIX}{self.group}_") for topic in mine)

    async def _share(self, topic: str) -> tuple[set[MessageQueue], int]:
        """Return this member's queues of a topic, and the number of members."""
        try:
            if self._settings.broker_strategy:
                return await self._assigned(topic), 2
            queues = await self._calls.queues(topic)
        except RemotingCommandError as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                self._at_first.setdefault(topic, frozenset())
            raise
        self._note_first(topic, queues)
        if self._settings.broadcasting:
            return set(queues), 1
        me = self._calls.instance.client_id
        members = await self._calls.members(topic)
        if me not in members:  # a broker that was started again, or has expired this client
            await self.register()
            members = await self._calls.members(topic)
            if me not in members:
                raise RemotingError(f"the broker does not list this client among the members of {self.group}")
        members.sort(key=lambda name: name.encode("utf-16-be", "surrogatepass"))  # as Java sorts texts
        found = self._settings.strategy(me, sorted(queues), list(dict.fromkeys(members)))
        return set(found), len(members)

    def _note_first(self, topic: str, queues: list[MessageQueue]) -> None:
        """Note the queues that a topic has had without a break. A queue that it loses and gets again is a new one."""
        self._at_first[topic] = self._at_first.get(topic, frozenset(queues)).intersection(queues)

    async def _assigned(self, topic: str) -> set[MessageQueue]:
        """Return the queues that the broker allocates to this member, and note which of them are popped."""
        queues = await self._calls.queues(topic)
        self._note_first(topic, queues)
        found = await self._calls.assignment(topic, self._settings.broker_strategy)
        if found is None:
            raise RemotingError(f"the broker does not know topic {topic} or group {self.group} yet")
        self._popped = {queue for queue in self._popped if queue.topic != topic}
        self._popped |= {queue for queue, is_pop in found.items() if is_pop}
        if not topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
            self._read_what_was_popped(topic, pulled=bool(found) and not any(found.values()))
        return set(found)

    def _read_what_was_popped(self, topic: str, *, pulled: bool) -> None:
        """Subscribe a pulled topic's messages that were popped before and are redelivered, as in RocketMQ."""
        retry = pop_retry_topic(topic, self.group)
        if pulled and retry not in self._wanted:
            self._wanted[retry] = Subscription(retry)
            self._popped_until = asyncio.get_running_loop().time() + POPPED_S
        elif not pulled:
            self._wanted.pop(retry, None)

    async def _give_up(self, lost: list[ProcessQueue]) -> bool:
        for one in lost:
            self._queues.drop(one)
        idle = await asyncio.gather(*(self._queues.idle(one, GIVE_UP_S) for one in lost))
        in_order = self._settings.in_order and not self._settings.broadcasting
        gone = [one for one, ended in zip(lost, idle, strict=True) if ended or not in_order]
        if not gone:
            return not lost
        if self._settings.auto_commit:
            await self._queues.commit_and_report(gone)
        if in_order:
            await self._calls.unlock([one.queue for one in gone])
        for one in gone:
            self._queues.forget(one)
            events.QUEUE_GIVEN_UP.log(
                _log, group=self.group, topic=one.queue.topic, broker=one.queue.broker_name, queue=one.queue.queue_id,
                offset=one.commit_offset)
        return len(gone) == len(lost)

    async def _take_over(self, new: list[MessageQueue], *, shared: bool) -> bool:
        if not new:
            return True
        wanted = set(new)
        locked_until = 0.0
        if self._settings.in_order and not self._settings.broadcasting:
            locked_until = asyncio.get_running_loop().time() + LOCK_S
            wanted = await self._calls.lock(new)  # the member before frees it after its last commit
        elif shared and wanted - self._popped:
            await asyncio.sleep(TAKE_OVER_S)
        found = await asyncio.gather(*(
            self._take(queue, locked_until) for queue in new if queue in wanted), return_exceptions=True)
        for error in found:
            if isinstance(error, RemotingError):
                if not self._is_lost(error) and self._failed("offset"):
                    events.OFFSET_OF_A_QUEUE_IS_NOT_KNOWN.log(_log, group=self.group, reason=error)
                    self._failures.report("rebalance", error)
            elif error is not None:
                raise error
        if all(error is None for error in found):
            self._failing.discard("offset")
            return len(found) == len(new)
        return False

    async def _take(self, queue: MessageQueue, locked_until: float) -> None:
        if queue in self._popped:
            self._queues.add_popped(queue)
            events.QUEUE_ASSIGNED.log(
                _log, group=self.group, topic=queue.topic, broker=queue.broker_name, queue=queue.queue_id, offset=-1)
            return
        written = await self._offsets.read(queue)
        offset = await self._first_offset(queue) if written is None else written
        self._queues.add(queue, offset, written=written, locked_until=locked_until)
        events.QUEUE_ASSIGNED.log(
            _log, group=self.group, topic=queue.topic, broker=queue.broker_name, queue=queue.queue_id, offset=offset)
        one = self._queues.find(queue)
        if written is None and one is not None and self._settings.auto_commit:
            # Or a member that takes over would begin at the end of that time.
            await self._queues.commit_and_report([one])

    async def _first_offset(self, queue: MessageQueue) -> int:
        start = self._settings.start
        late = queue not in self._at_first[queue.topic]
        is_retry = queue.topic.startswith(RETRY_GROUP_TOPIC_PREFIX)
        if late or is_retry or (start.time_ms is None and start.where == "first"):
            return await self._calls.min_offset(queue)
        if start.time_ms is not None:
            return await self._calls.offset_by_time(queue, start.time_ms)
        return await self._calls.max_offset(queue)

    # --- locks and commits

    async def has_lock(self, one: ProcessQueue) -> bool:
        """Return whether a queue may be consumed in order; renews its lock if it has expired."""
        if self._settings.broadcasting or one.locked_until > asyncio.get_running_loop().time():
            return True
        await self._renew([one])
        return one.locked_until > asyncio.get_running_loop().time()

    async def _renew_all(self) -> None:
        await self._renew([one for one in self._queues.all() if not one.dropped])

    async def _renew(self, queues: Iterable[ProcessQueue]) -> None:
        queues = list(queues)
        until = asyncio.get_running_loop().time() + LOCK_S
        try:
            locked = await self._calls.lock([one.queue for one in queues])
        except RemotingError as error:  # the locks expire
            if not self._is_lost(error) and self._failed("lock"):
                events.QUEUE_LOCKS_NOT_RENEWED.log(_log, group=self.group, queues=len(queues), reason=error)
                self._failures.report("lock", error)
            return
        self._failing.discard("lock")
        for one in queues:
            if one.queue in locked:
                one.locked_until = until
            elif one.locked_until:
                one.locked_until = 0.0
                events.QUEUE_LOCK_LOST.log(
                    _log, group=self.group, topic=one.queue.topic, broker=one.queue.broker_name,
                    queue=one.queue.queue_id)

    async def _commit(self) -> None:
        now = asyncio.get_running_loop().time()
        again = not self._settings.broadcasting and now >= self._commit_again_at
        if again:
            self._commit_again_at = now + COMMIT_AGAIN_S
        await self._queues.commit_and_report(again=again)

    # --- requests of brokers

    async def _reset(self, request: RemotingCommand) -> RemotingCommand | None:
        """Begin again at offsets that an administrator has set: request 220."""
        header = request.read(ResetOffsetRequestHeader)
        table = fastjson.loads(request.body).get("offsetTable") or {}
        entries = (
            [(MessageQueue.from_json(one), int(one["offset"])) for one in table] if isinstance(table, list)
            else [(MessageQueue.from_json(fastjson.loads(key)), int(offset)) for key, offset in table.items()])
        for queue, offset in entries:
            one = self._queues.find(queue)
            if queue.topic == header.topic and one is not None and not one.given_up and not isinstance(one, PopQueue):
                events.OFFSET_RESET_BY_THE_BROKER.log(
                    _log, group=self.group, topic=queue.topic, broker=queue.broker_name, queue=queue.queue_id,
                    offset=offset)
                await self._queues.restart(one, offset)
        return None

    async def _status(self, request: RemotingCommand) -> RemotingCommand | None:
        """Return how far this member has consumed the queues of a topic: request 221."""
        topic = request.read(GetConsumerStatusRequestHeader).topic
        table = fastjson.object_keyed(
            (one.queue.to_json(), one.commit_offset) for one in self._queues.all() if one.queue.topic == topic)
        return request.answer(body=b'{"consumerTable":{},"messageQueueTable":%b}' % table)
