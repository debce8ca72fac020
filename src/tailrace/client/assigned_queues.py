"""The queues that a consumer has at a time: one long poll for each, messages to take, offsets to commit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeGuard, final

from tailrace import events
from tailrace.client.broker_calls import BrokerCalls, PullResult
from tailrace.client.failures import Failures
from tailrace.client.instance import unreached
from tailrace.client.offset_store import OffsetStore
from tailrace.client.pop_queues import Popping, PopQueue
from tailrace.client.process_queue import ProcessQueue
from tailrace.client.routes import MessageQueue
from tailrace.client.subscription import Subscription
from tailrace.env.clock import Clock
from tailrace.errors import RemotingCommandError, RemotingError
from tailrace.formats.names import RETRY_TOPIC
from tailrace.formats.pop import normal_topic
from tailrace.formats.remoting import ResponseCode
from tailrace.logs import get_logger
from tailrace.model import MessageExt

__all__ = ["AssignedQueues", "Limits"]

_log = get_logger(__name__)

POLL_MS: Final = 15_000
"""For how long a broker holds a pull without a message, as RocketMQ's clients ask for."""
AGAIN_S: Final = 1.0
AGAIN_MAX_S: Final = 5.0
"""Between pulls that fail, doubled each time."""
SPAN_MAX: Final = 2_000
"""Offsets between the first unfinished message of a queue and the last, when messages are consumed at a time."""
POPPED_MAX: Final = 96
"""Messages of one queue that are popped and not finished, as in RocketMQ: their time runs."""
REGISTRATIONS_MOST: Final = 3
"""Pulls in sequence that a broker may refuse although the subscriptions were registered, before it is logged."""
_NOT_REGISTERED: Final = frozenset({
    ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST})

_FINAL: Final = frozenset({
    ResponseCode.SUBSCRIPTION_PARSE_FAILED, ResponseCode.NO_PERMISSION, ResponseCode.INVALID_PARAMETER,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST})


def _why_moved(offset: int, found: PullResult) -> str:
    if offset < found.min_offset:
        return "the queue begins later: its topic was made again, or its messages have expired"
    if offset > found.max_offset:
        return "the queue ends before it: its last messages were lost"
    return "an administrator has reset it"


def _text(error: Exception) -> str:
    """Return the text of a failed request, and of another error also its class."""
    return str(error) if isinstance(error, RemotingError) else repr(error)


def _pause_s(failures: int, error: Exception) -> float:
    if _is_gone(error):
        return AGAIN_S  # the topic of a queue was deleted; the first messages of a new one are not left waiting
    return min(AGAIN_S * 2 ** min(failures - 1, 10), AGAIN_MAX_S)


def _is_gone(error: Exception) -> bool:
    return isinstance(error, RemotingCommandError) and error.code == ResponseCode.TOPIC_NOT_EXIST


@dataclass(frozen=True, slots=True)
class Limits:
    """Flow control: a queue over a limit is not pulled."""

    messages: int = 1_000
    """Of one queue."""
    bytes: int = 64 << 20
    """Of all queues; a queue without a message may still be pulled once."""
    pull: int = 32
    """Messages of one pull."""


@final
class AssignedQueues:
    """Pulls queues and hands their messages out.

    With ``in_order`` a queue hands out one message at a time.
    """

    def __init__(
        self, calls: BrokerCalls, offsets: OffsetStore, wanted: dict[str, Subscription], limits: Limits,
        clock: Clock, *, in_order: bool = False, auto_commit: bool = True, retry_topic: str = "",
        commit_in_pulls: bool = False, raise_refusals: bool = False, failures: Failures,
        popping: Popping | None = None,
    ) -> None:
        self._calls = calls
        self._offsets = offsets
        self._wanted = wanted
        self._limits = limits
        self._clock = clock
        self._in_order = in_order
        self._auto_commit = auto_commit
        self._retry_topic = retry_topic
        self._commit_in_pulls = commit_in_pulls and auto_commit
        self._raise_refusals = raise_refusals
        self._error: RemotingCommandError | None = None
        self._failures = failures
        self._failing: dict[tuple[str, object], set[MessageQueue]] = {}
        """Queues that cannot be pulled, by topic and cause; the first one of a topic and cause was logged."""
        self._commit_fails = False
        self._popping = popping
        self._given_back: set[asyncio.Task[None]] = set()
        self._queues: dict[MessageQueue, ProcessQueue] = {}
        self._offered: asyncio.Queue[ProcessQueue | None] = asyncio.Queue()
        self._stopped = False
        self._bytes = 0
        self._waiting: set[ProcessQueue] = set()
        """Queues whose pull waits for the limit of bytes."""
        self._paused: set[MessageQueue] = set()
        self._all_paused = False
        self.topic_changed: Callable[[], None] = lambda: None
        """Called when a topic seems to have been made again, so that it may have other queues."""
        self.register: Callable[[], Awaitable[None]] | None = None
        """Called when a broker does not know the subscriptions of the group; without it each pull carries its own."""

    def all(self) -> list[ProcessQueue]:
        """Return the queues that are assigned."""
        return list(self._queues.values())

    def find(self, queue: MessageQueue) -> ProcessQueue | None:
        """Return a queue if it is assigned."""
        return self._queues.get(queue)

    def assigned(self, queue: MessageQueue) -> ProcessQueue:
        """Return a queue that is assigned and was not given up. Raises ValueError."""
        one = self._queues.get(queue)
        if one is None or one.given_up:
            raise ValueError(f"{queue} is not assigned to this member; see assignment()")
        return one

    # --- queues come and go

    def add(self, queue: MessageQueue, offset: int, *, written: int | None, locked_until: float = 0.0) -> None:
        """Consume a queue from ``offset``; ``written`` is its committed offset."""
        made = ProcessQueue(queue, offset)
        made.written = written
        made.locked_until = locked_until
        self._begin(made)

    def add_popped(self, queue: MessageQueue) -> None:
        """Pop a queue, or with the queue id -1 all queues of a broker."""
        self._begin(PopQueue(queue))

    def _begin(self, one: ProcessQueue) -> None:
        one.paused = self._all_paused or one.queue in self._paused
        self._queues[one.queue] = one
        if not self._stopped:
            one.pulling = asyncio.create_task(self._fill(one))

    def drop(self, one: ProcessQueue) -> None:
        """Hand out no further message of a queue; those that workers have run on. A restart that waits is undone."""
        one.restart_at = None
        self._fails_no_more(one.queue)
        if not one.dropped:
            self._bytes -= one.bytes
            self._give_back(one)
        one.drop()
        if one.pulling is not None and one.pulling is not asyncio.current_task():
            one.pulling.cancel()
        self._wake_waiting()

    async def idle(self, one: ProcessQueue, timeout_s: float) -> bool:
        """Wait until no worker has a message of a dropped queue; return whether that is so."""
        try:
            async with asyncio.timeout(timeout_s):
                while one.running:
                    one.changed.clear()
                    await one.changed.wait()
        except TimeoutError:
            return False
        return True

    def forget(self, one: ProcessQueue) -> None:
        """Take a dropped queue out."""
        if self._queues.get(one.queue) is one:
            del self._queues[one.queue]

    async def restart(self, one: ProcessQueue, offset: int) -> None:
        """Consume a queue from another offset, and commit that offset; messages at hand are dropped.

        In order, a queue is consumed from there once its running listener has ended, and committed with the next
        commit. Raises ValueError for a queue in mode POP.
        """
        if isinstance(one, PopQueue):
            raise ValueError(f"{one.queue} is popped: the broker has its offset, reset it there")  # noqa: TRY004
        self.drop(one)
        one.restart_at = offset
        made = self._restarted(one)
        if made is not None and self._auto_commit:
            await self.commit([made])

    def _restarted(self, one: ProcessQueue) -> ProcessQueue | None:
        """Add a queue again that waits to be restarted, if it may be consumed now."""
        if one.restart_at is None or (self._in_order and one.running) or self._queues.get(one.queue) is not one:
            return None
        self.add(one.queue, one.restart_at, written=None, locked_until=one.locked_until)
        return self._queues[one.queue]

    def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Hand out no messages of queues, None for all, including queues that are assigned later."""
        self._all_paused |= queues is None
        self._paused.update(queues or ())
        self._apply_pauses()

    def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Undo `pause` for queues; None undoes all of it. After a pause of all, name none."""
        if queues is None:
            self._all_paused = False
            self._paused.clear()
        else:
            self._paused.difference_update(queues)
        self._apply_pauses()

    def _apply_pauses(self) -> None:
        for one in self._queues.values():
            one.paused = self._all_paused or one.queue in self._paused
            if not one.paused:
                one.changed.set()
                self._offer(one)

    # --- messages

    async def take(self) -> tuple[ProcessQueue, MessageExt] | None:
        """Wait for a message; queues take turns. None after `stop`.

        The caller calls `done` or `put_back` for it. With ``raise_refusals`` a pull that a broker refuses for good
        raises RemotingCommandError here; otherwise all pulls are tried again.
        """
        while not self._stopped:
            one = await self._offered.get()
            if one is None or self._stopped:
                break
            found = self._of(one)
            if found is not None:
                return one, found
        self._offered.put_nowait(None)  # for the next caller
        if self._error is not None:
            raise self._error
        return None

    def take_more(self, one: ProcessQueue, most: int) -> list[MessageExt]:
        """Return up to ``most`` further messages of a queue of which the caller has one."""
        found: list[MessageExt] = []
        while len(found) < most and one.ready and not (one.dropped or one.paused or one.held):
            found.append(one.ready.popleft())
        one.running += len(found)
        return found

    def take_now(self) -> tuple[ProcessQueue, MessageExt] | None:
        """Return a message if one is there."""
        while not self._stopped and not self._offered.empty():
            one = self._offered.get_nowait()
            if one is not None and (found := self._of(one)) is not None:
                return one, found
        return None

    def _of(self, one: ProcessQueue) -> MessageExt | None:
        one.offered = False
        if one.dropped or one.paused or one.held or not one.ready or (self._in_order and one.running):
            return None
        message = one.ready.popleft()
        one.running += 1
        if not self._in_order:
            self._offer(one)
        return message

    def done(self, one: ProcessQueue, message: MessageExt, *, consumed: bool = True) -> None:
        """Note that a worker has ended with a message; one that is not ``consumed`` stays unfinished."""
        one.running -= 1
        one.last_consume_ms = self._clock.now_ms()
        if isinstance(one, PopQueue):
            if consumed and self._popping is not None:
                self._popping.acknowledge(one.queue, message)
            consumed = True  # without an acknowledgement it is redelivered by itself
        if consumed:  # also of a dropped queue, whose offset is committed once its workers have ended
            size = one.finish(message)
            self._bytes -= 0 if one.dropped else size
            self._wake_waiting()
        one.changed.set()
        self._offer(one)
        self._restarted(one)

    def put_back(self, one: ProcessQueue, messages: list[MessageExt], after_s: float) -> None:
        """Hand messages out again after a while; in order, their queue hands out no other one until then."""
        one.running -= len(messages)
        one.changed.set()
        one.held = self._in_order
        self._restarted(one)
        asyncio.get_running_loop().call_later(after_s, self._again, one, list(messages))

    def _again(self, one: ProcessQueue, messages: list[MessageExt]) -> None:
        one.held = False
        if not one.dropped:
            one.ready.extendleft(reversed(messages))
            self._offer(one)

    def _offer(self, one: ProcessQueue) -> None:
        if one.ready and not (one.offered or one.dropped or one.paused or one.held):
            one.offered = True
            self._offered.put_nowait(one)

    def stop(self) -> None:
        """End the pulls, and `take` for all callers; offsets can still be committed."""
        self._stopped = True
        for one in self._queues.values():
            if one.pulling is not None and one.pulling is not asyncio.current_task():
                one.pulling.cancel()
        self._offered.put_nowait(None)

    async def settle_popped(self) -> None:
        """Send acknowledgements that are under way, and give back popped messages that no worker has taken."""
        for one in self._queues.values():
            self._give_back(one)
        if self._popping is not None:
            await asyncio.gather(self._popping.flush(), *self._given_back)

    def _give_back(self, one: ProcessQueue) -> None:
        if isinstance(one, PopQueue) and one.ready and self._popping is not None:
            task = asyncio.create_task(self._popping.give_back(one.queue, list(one.ready)))
            self._given_back.add(task)
            task.add_done_callback(self._given_back.discard)
            one.ready.clear()

    # --- offsets

    async def commit(
        self, queues: Iterable[ProcessQueue] | None = None, *, again: bool = False
    ) -> dict[MessageQueue, Exception]:
        """Commit what is consumed; return the queues for which that failed.

        With ``again`` unchanged offsets are also committed, except those of queues that were dropped.
        """
        offsets = {}
        chosen = list(self._queues.values() if queues is None else queues)
        for one in chosen:
            if one.commit_offset != one.written or (again and not one.dropped and not isinstance(one, PopQueue)):
                offsets[one.queue] = one.commit_offset
        if not offsets:
            return {}
        failed = await self._offsets.write(offsets)
        for one in chosen:
            if one.queue in offsets and one.queue not in failed:
                one.written = offsets[one.queue]
        return failed

    async def commit_or_raise(self) -> None:
        """Commit what is consumed. Raises RemotingError that names a queue for which that failed."""
        if failed := await self.commit():
            queue, error = next(iter(failed.items()))
            raise RemotingError(f"offsets of {len(failed)} queues are not committed, {queue}: {error}")

    async def commit_and_report(
        self, queues: Iterable[ProcessQueue] | None = None, *, again: bool = False
    ) -> None:
        """Commit as `commit`; a failure is logged, once until a commit works. A later commit retries."""
        failed = await self.commit(queues, again=again)
        if not failed:
            self._commit_fails = False
            return
        queue, error = next(iter(failed.items()))
        if not self._is_lost(error) and not self._commit_fails:
            self._commit_fails = True
            events.OFFSETS_NOT_COMMITTED.log(
                _log, group=self._calls.group, queues=len(failed), topic=queue.topic, queue=queue.queue_id,
                reason=error)
            self._failures.report("commit", error, topic=queue.topic)

    # --- pulls

    def _is_lost(self, error: BaseException) -> str:
        """Return the address of a server that was not reached, which the instance logs; "" for another failure."""
        address = unreached(error)
        if address and isinstance(error, RemotingError):
            self._calls.instance.lost(address, error)
        return address

    def _is_new(self, queue: MessageQueue, error: Exception) -> bool:
        """Note that a queue cannot be pulled; return whether it is the first one of its topic with this cause."""
        cause = error.code if isinstance(error, RemotingCommandError) else type(error)
        failing = self._failing.setdefault((queue.topic, cause), set())
        is_first = not failing
        failing.add(queue)
        return is_first

    def _fails_no_more(self, queue: MessageQueue) -> bool:
        """Forget the failures of a queue; return whether it was the last one of a topic and cause."""
        having = [key for key, failing in self._failing.items() if queue in failing]
        for key in having:
            self._failing[key].discard(queue)
        ended = [key for key in having if not self._failing[key]]
        for key in ended:
            del self._failing[key]
        return bool(ended)

    def _works(self, queue: MessageQueue, lost: str) -> None:
        """Note that a queue is pulled again, after failures; ``lost`` is the server that was not reached, or ""."""
        if lost:
            self._calls.instance.reached(lost)
        if self._fails_no_more(queue):
            events.PULL_WORKS_AGAIN.log(_log, topic=queue.topic, broker=queue.broker_name, queue=queue.queue_id)

    def _full(self, one: ProcessQueue) -> bool:
        if one.paused or one.count >= (
            min(POPPED_MAX, self._limits.messages) if isinstance(one, PopQueue) else self._limits.messages
        ):
            return True
        if not self._in_order and one.span > SPAN_MAX:
            return True
        if self._bytes >= self._limits.bytes and one.count:
            self._waiting.add(one)
            return True
        return False

    def _wake_waiting(self) -> None:
        if self._waiting and self._bytes < self._limits.bytes:
            for one in self._waiting:
                one.changed.set()
            self._waiting.clear()

    async def _has_room(self, one: ProcessQueue) -> bool:
        """Return once the queue may get more messages: True, or False if it was dropped."""
        while not one.dropped:
            if not self._full(one):
                return True
            one.changed.clear()
            await one.changed.wait()
        return False

    async def _fill(self, one: ProcessQueue) -> None:
        """Pull or pop a queue until it is dropped; after a failure again, after a pause."""
        failures, registrations, lost = 0, 0, ""
        while await self._has_room(one):
            try:
                moved = await (self._pop_once(one) if isinstance(one, PopQueue) else self._pull_once(one))
                if failures:
                    self._works(one.queue, lost)
                failures, registrations, lost = 0, 0, ""
                if moved is not None:
                    self._look_at(one.queue.topic)
                    await self.restart(one, moved)
                    return
            except Exception as error:  # noqa: BLE001 - or the queue would stand still without a word
                if self._stopped:  # the connection was closed by the client itself
                    return
                failures += 1
                if self._raise_refusals and self._is_final(error):
                    self._error = error
                    self.stop()
                    return
                if not isinstance(one, PopQueue) and await self._register_again(error):
                    registrations += 1  # failures before it may be those of a broker that was down
                    if registrations > 1:
                        await asyncio.sleep(AGAIN_S)
                    if registrations < REGISTRATIONS_MOST:
                        continue
                elif address := self._is_lost(error):
                    lost = address
                self._note_failure(one, error)
                if _is_gone(error):
                    self._look_at(one.queue.topic)
                await asyncio.sleep(_pause_s(failures, error))

    def _note_failure(self, one: ProcessQueue, error: Exception) -> None:
        """Log that a queue cannot be pulled or popped, if it is the first one of its topic with this cause."""
        if unreached(error) or not self._is_new(one.queue, error):
            return
        if isinstance(one, PopQueue):
            events.POP_FAILED.log(
                _log, topic=one.queue.topic, broker=one.queue.broker_name, queue=one.queue.queue_id,
                reason=_text(error))
        else:
            events.PULL_FAILED.log(
                _log, topic=one.queue.topic, broker=one.queue.broker_name, queue=one.queue.queue_id,
                offset=one.next_offset, reason=_text(error))
        self._failures.report("pull", error, topic=one.queue.topic)

    def _look_at(self, topic: str) -> None:
        """Fetch the route of a topic again: it was deleted, or made again, perhaps with other queues."""
        self._calls.instance.routes.forget(topic)
        self.topic_changed()

    async def _pop_once(self, one: PopQueue) -> None:
        assert self._popping is not None
        poll = asyncio.create_task(self._popping.pop(one.queue))
        try:
            messages = await asyncio.shield(poll)
        except asyncio.CancelledError:
            self._popping.abandon(one.queue, poll)
            raise
        one.last_pull_ms = self._clock.now_ms()
        self._add_messages(one, messages, -1)

    def _add_messages(self, one: ProcessQueue, messages: list[MessageExt], next_offset: int) -> None:
        one.add(messages, next_offset)
        if one.dropped:  # in the time of a pop
            self._give_back(one)
            return
        self._bytes += sum(message.store_size for message in messages)
        self._offer(one)

    def _is_final(self, error: Exception) -> TypeGuard[RemotingCommandError]:
        """Return whether a broker has refused a pull for good.

        A topic that does not exist is not refused for good: it was there when its queues were assigned, and may be
        made again. A name server does not list the topics of brokers that are down, and they return.
        """
        return (isinstance(error, RemotingCommandError) and error.code in _FINAL
                and bool(error.address) and not self._calls.instance.routes.is_name_server(error.address))

    async def _register_again(self, error: Exception) -> bool:
        if self.register is None or not (
            isinstance(error, RemotingCommandError) and error.code in _NOT_REGISTERED
        ):
            return False
        try:
            await self.register()
        except RemotingError:
            return False
        return True

    async def _pull_once(self, one: ProcessQueue) -> int | None:
        """Pull, and add what was found; return the next offset to pull if the broker names another one."""
        commit = one.commit_offset if self._commit_in_pulls and one.commit_offset != one.written else None
        wanted = self._wanted.get(one.queue.topic) or Subscription(one.queue.topic)
        found = await self._calls.pull(
            wanted, one.queue, one.next_offset, max_count=self._limits.pull, wait_ms=POLL_MS, commit=commit,
            registered=self.register is not None)
        one.last_pull_ms = self._clock.now_ms()
        if one.dropped:
            return None
        if commit is not None and not found.from_slave:
            one.written = max(commit, one.written or 0)
        if found.status == "OFFSET_ILLEGAL":
            events.OFFSET_OF_A_QUEUE_IS_CORRECTED.log(
                _log, topic=one.queue.topic, broker=one.queue.broker_name, queue=one.queue.queue_id,
                offset=one.next_offset, to=found.next_begin_offset,
                reason=_why_moved(one.next_offset, found))
            return found.next_begin_offset
        for message in found.messages:
            if message.topic == self._retry_topic:  # consumers know it by the topic it was sent to
                message.topic = message.properties.get(RETRY_TOPIC, message.topic)
            elif self._retry_topic and message.topic.startswith(f"{self._retry_topic}_"):
                message.topic = normal_topic(message.topic, self._calls.group)  # popped before
        if found.from_slave and found.status == "NO_MATCHED_MSG" and found.next_begin_offset <= one.next_offset:
            await asyncio.sleep(AGAIN_S)  # a slave that refers to its master does not hold the pull
        self._add_messages(one, found.messages, found.next_begin_offset)
        return None
