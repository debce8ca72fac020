"""Checks of pending half messages: the producer is asked, and after too many checks a half message is given up.

A pass examines the half messages in the order of their queue (TransactionalMessageServiceImpl.check). A thread
reads a few records at a time. The event loop acts on them, if the half message is still pending by then.
"""

from __future__ import annotations

import asyncio
import enum
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, final

from tailrace import events
from tailrace.auth.accesses import topic_access
from tailrace.auth.check import AccessControl
from tailrace.broker.clients.client_manager import ConnectedClients
from tailrace.broker.transactions.half_messages import (
    QUEUE_ID,
    check_times,
    given_up_message,
    immunity_ms,
    is_half,
    record_for_producer,
)
from tailrace.broker.transactions.half_queue import COMMITTED, PASSED
from tailrace.broker.transactions.service import TransactionService
from tailrace.config import BrokerConfig
from tailrace.env.clock import Clock
from tailrace.env.supervision import failed
from tailrace.errors import CorruptionError, StoreError
from tailrace.formats import names as N
from tailrace.formats.commitlog import decode_message
from tailrace.formats.remoting import MQ_VERSION, RemotingCommand, RequestCode
from tailrace.formats.requests.message_headers import CheckTransactionStateRequestHeader
from tailrace.formats.requests.table import Action
from tailrace.logs import get_logger
from tailrace.model import MessageExt, create_message_id
from tailrace.node.message_store import MessageStore
from tailrace.requests.executors import Executors
from tailrace.timer.parking import NEVER

if TYPE_CHECKING:
    from tailrace.broker.clients.client_manager import ClientInfo

__all__ = ["TransactionChecks"]

_log = get_logger(__name__)

BATCH: Final = 32
"""Number of half messages that one call in the thread reads."""
BATCH_BYTES: Final = 1 << 20
PASS_MS: Final = 60_000
"""Longest duration of a pass; the next pass begins at the progress."""


class Verdict(enum.Enum):
    """Result of the check of a half message."""

    YOUNG = "the producer has time left for this half message and those after it"
    IMMUNE = "the producer has asked for more time"
    COMMITTED = "it is committed, and its operation is missing"
    ASK = "the producer is asked"
    GIVE_UP = "it was checked too often, or is too old"
    GONE = "it cannot be read"
    ENDED = "its topic was deleted"


class Checked(NamedTuple):
    """A half message that was read, with its verdict."""

    offset: int
    verdict: Verdict
    half: MessageExt | None = None


@final
class TransactionChecks:
    """Makes the passes of a broker, one at a time."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Clock, store: MessageStore, config: BrokerConfig,
        executors: Executors, clients: ConnectedClients, transactions: TransactionService,
        control: AccessControl | None,
    ) -> None:
        self._loop, self._clock, self._store, self._config = loop, clock, store, config
        self._executors, self._clients, self._control = executors, clients, control
        self._topics = store.topics
        self._service: TransactionService = transactions
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    def start_pass(self) -> None:
        """Begin a pass, unless one is under way or the store takes no writes."""
        store = self._store
        if self._task is None and not self._stopped and store.is_writeable and not store.lost_lock:
            self._task = self._loop.create_task(self._run())

    async def stop(self) -> None:
        """End the pass that is under way."""
        self._stopped = True
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        try:
            await self.run_pass()
        except (StoreError, OSError) as error:
            events.CHECK_OF_HALF_MESSAGES_FAILED.log(_log, reason=error)
        except Exception:  # noqa: BLE001 - the next pass is made
            failed("TransactionChecks")
        finally:
            self._task = None

    async def run_pass(self) -> None:
        """Check every half message that may be due, then advance the progress."""
        service, threads, clock = self._service, self._executors.transactions, self._clock
        if not service.is_loaded and not await threads.run(service.load):
            return
        started_ms = clock.now_ms()
        at, until = service.queue.base, service.queue.until
        while not self._stopped and at < until and 0 <= clock.now_ms() - started_ms < PASS_MS:
            pending = self._next(at, until)
            if not pending:
                break
            looked = await threads.run(self._look, pending)
            if any(one.verdict is Verdict.GIVE_UP for one in looked):
                await threads.run(self._topics.create_if_missing, N.CHECK_MAX_TIME_TOPIC, 1)
            if not all(self._act(one) for one in looked):
                break
            at = looked[-1].offset + 1
        await self._move_on()

    def _next(self, at: int, until: int) -> list[int]:
        """Return the next pending half messages."""
        found: list[int] = []
        while len(found) < BATCH and (at := self._service.queue.next_pending(at)) < until:
            found.append(at)
            at += 1
        return found

    async def _move_on(self) -> None:
        """Move the progress past the settled half messages, after a sync of what settled them."""
        service = self._service
        base = service.queue.next_pending(service.queue.base)
        if base != service.queue.base:
            await self._executors.transactions.run(self._store.flush)
        service.commit_progress(base)

    # -- in a thread

    def _look(self, offsets: list[int]) -> list[Checked]:
        """Return the verdicts of half messages; fewer than given if they are long or young."""
        looked: list[Checked] = []
        size, since = 0, None
        for offset in offsets:
            one = self._read(offset)
            if one.half is not None and one.verdict in {Verdict.ASK, Verdict.GIVE_UP}:
                since = self._service.begin_search() if since is None else since
                if self._service.look(one.half, since).is_committed:
                    one = one._replace(verdict=Verdict.COMMITTED)
            looked.append(one)
            size += one.half.store_size if one.half is not None else 0
            if one.verdict is Verdict.YOUNG or size >= BATCH_BYTES:
                break
        return looked

    def _read(self, offset: int) -> Checked:
        """Return a half message with its verdict by age and number of checks."""
        result = self._store.get_message(N.HALF_TOPIC, QUEUE_ID, offset, 1)
        if result.queue_offsets != [offset]:
            if offset >= result.max_offset:  # it has just been put and is not dispatched yet
                return Checked(offset, Verdict.YOUNG)
            return Checked(offset, Verdict.GONE)
        try:
            half = decode_message(result.data)
        except CorruptionError:
            return Checked(offset, Verdict.GONE)
        if not is_half(half):
            return Checked(offset, Verdict.GONE, half)
        if self._service.is_ended(half.properties[N.REAL_TOPIC], half.phy_offset):
            return Checked(offset, Verdict.ENDED, half)
        return Checked(offset, self._verdict(half), half)

    def _verdict(self, half: MessageExt) -> Verdict:
        """Return the verdict by age and number of checks.

        The age counts from the time at which the broker stored the message. A producer's clock may be wrong.
        """
        config = self._config
        age_ms = max(0, self._clock.now_ms() - self._store.wall_time_of(half))
        if (
            check_times(half) >= config.transaction_check_max
            or age_ms > self._store.config.file_reserved_time * 3_600_000
        ):
            return Verdict.GIVE_UP
        if check_times(half):  # a copy, which is younger than its message: that one was old enough
            return Verdict.ASK
        timeout_ms = config.transaction_time_out
        immunity = immunity_ms(half.properties.get(N.CHECK_IMMUNITY_TIME_IN_SECONDS), timeout_ms)
        if immunity is not None:
            return Verdict.IMMUNE if age_ms <= immunity else Verdict.ASK
        return Verdict.YOUNG if age_ms <= timeout_ms else Verdict.ASK

    # -- on the event loop

    def _act(self, one: Checked) -> bool:
        """Act on a verdict; return False if the pass must end."""
        queue = self._service.queue
        if not queue.is_pending(one.offset) or self._service.ending[one.offset]:
            return True  # it is settled, or the producer has answered and the answer waits for its turn
        match one.verdict:
            case Verdict.YOUNG:
                return False
            case Verdict.IMMUNE:
                return True
            case Verdict.GONE:
                events.HALF_MESSAGE_CANNOT_BE_READ.log(_log, queue_offset=one.offset)
                queue.put(one.offset, PASSED)
                return True
        assert one.half is not None, "only the verdict GONE comes without a message"
        if one.verdict is Verdict.ENDED:
            self._service.drop(one.offset, one.half.properties[N.REAL_TOPIC])
            return True
        if one.verdict is Verdict.COMMITTED:
            self._service.events["duplicate"] += 1
            self._service.settle(one.offset, COMMITTED)
            self._service.metrics.add(one.half.properties[N.REAL_TOPIC], -1)
            return True
        return self._give_up(one.half) if one.verdict is Verdict.GIVE_UP else self._ask(one.half)

    def _give_up(self, half: MessageExt) -> bool:
        result = self._store.put_inner(given_up_message(half))
        if not result.status.appended:
            return self._not_put(half, result.remark or result.status.name, never=result.status in NEVER)
        self._service.queue.put(half.queue_offset, PASSED)
        self._service.metrics.add(half.properties[N.REAL_TOPIC], -1)
        self._service.events["given_up"] += 1
        events.HALF_MESSAGE_GIVEN_UP.log(
            _log, topic=half.properties[N.REAL_TOPIC], group=half.properties[N.PGROUP],
            unique_key=half.properties.get(N.UNIQ_KEY, ""), checks=check_times(half), kept_in=N.CHECK_MAX_TIME_TOPIC)
        return True

    def _ask(self, half: MessageExt) -> bool:
        """Put a copy with the number of checks increased, and ask a producer about the copy."""
        half.properties = {**half.properties, N.TRANSACTION_CHECK_TIMES: str(check_times(half) + 1)}
        result = self._service.renew(half)
        if not result.status.appended:
            return self._not_put(half, result.remark or result.status.name, never=result.status in NEVER)
        half.queue_offset, half.phy_offset = result.queue_offset, result.phy_offset
        half.store_timestamp = result.store_timestamp
        channel = self._clients.producers.available_channel(
            half.properties[N.PGROUP], partial(self._may_get, half.properties[N.REAL_TOPIC]))
        if channel is None:
            return True  # no producer is connected; a later pass checks the copy
        store_host = self._store.inner.store_host
        header = CheckTransactionStateRequestHeader(
            tran_state_table_offset=half.queue_offset, commit_log_offset=half.phy_offset,
            topic=half.topic, msg_id=half.properties.get(N.UNIQ_KEY),
            transaction_id=half.properties.get(N.UNIQ_KEY),
            offset_msg_id=create_message_id(store_host, half.phy_offset))
        ext = {**header.to_ext(), "bname": self._config.broker_name}
        channel.request_oneway(RemotingCommand(
            RequestCode.CHECK_TRANSACTION_STATE, ext, record_for_producer(half, store_host),
            version=MQ_VERSION))
        self._service.events["asked"] += 1
        return True

    def _may_get(self, topic: str, producer: ClientInfo) -> bool:
        """Return whether a producer gets half messages of a topic: its user may send to the topic now.

        Any client can name any producer group in its heartbeat.
        """
        control = self._control
        return control is None or control.permits(
            self._clients.ids.user_of(producer.client_id) or "", producer.channel.peer_ip,
            topic_access(topic, Action.PUB))

    def _not_put(self, half: MessageExt, reason: str, *, never: bool) -> bool:
        """Log a copy that the store refused; return whether the pass continues with the next half message."""
        events.HALF_MESSAGE_CANNOT_BE_PUT_AGAIN.log(_log, queue_offset=half.queue_offset, reason=reason)
        return never
