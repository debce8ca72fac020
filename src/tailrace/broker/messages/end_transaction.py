"""Ends of transactions: requests 37 (EndTransactionProcessor) and 323, which has a given-up message checked again.

The edges of the broker call `TransactionEnds` with headers. The end of a half message that this process has just put is
served immediately. Every other one waits for a thread that searches the log: see
`tailrace.broker.transactions.service`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, final

from tailrace import events
from tailrace.auth.accesses import TOPIC, topic_access
from tailrace.auth.check import AccessControl
from tailrace.broker.messages.records import Records
from tailrace.broker.messages.service import BUSY, CODES, REMARKS
from tailrace.broker.transactions.half_messages import (
    FreshHalf,
    immunity_ms,
    real_queue_id,
    renewed_message,
)
from tailrace.broker.transactions.half_queue import FRESH, UNKNOWN
from tailrace.broker.transactions.service import Found, TransactionService
from tailrace.config import BrokerConfig
from tailrace.env.clock import Clock
from tailrace.errors import MessageIllegalError, RefusalError
from tailrace.formats import names as N
from tailrace.formats.commitlog import SysFlag
from tailrace.formats.remoting import (
    RemotingCommand,
    RequestCode,
    ResponseCode,
    sender_of,
)
from tailrace.formats.requests.message_headers import (
    EndTransactionRequestHeader,
    ResumeCheckHalfMessageRequestHeader,
)
from tailrace.formats.requests.table import Action
from tailrace.ha.slave import Slave
from tailrace.logs import get_logger
from tailrace.model import PutMessageResult, decode_message_id
from tailrace.node.message_store import MessageStore
from tailrace.remoting import Channel
from tailrace.requests.caller import Caller, RemotingCaller
from tailrace.requests.durable_answers import DurableAnswers, when_durable
from tailrace.requests.executors import Executors
from tailrace.requests.processor import RequestProcessor, serves
from tailrace.requests.reply import Answer, Reply, WaitingRequests
from tailrace.requests.worker import RequestWorker
from tailrace.store.refused_puts import FLOW_CONTROL

__all__ = ["EndTransactionProcessor", "TransactionEnds"]

_log = get_logger(__name__)

WAITING_MAX: Final = 10_000
"""Number of requests that may wait for the thread."""
WAITING_BYTES_MAX: Final = 16 << 20
LOOKS: Final = 64
"""Number of requests that one call in the thread searches for."""


class _WaitingEnd(NamedTuple):
    reply: Reply
    header: EndTransactionRequestHeader
    caller: Caller


@final
class TransactionEnds:
    """Commits and rolls back half messages. Used on the event loop only."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Clock, store: MessageStore, config: BrokerConfig,
        executors: Executors, slave: Slave | None, transactions: TransactionService, control: AccessControl | None,
        records: Records, durable: DurableAnswers | None = None,
    ) -> None:
        self._loop, self._clock, self._store, self._config = loop, clock, store, config
        self._executors, self._slave, self._control, self._records = executors, slave, control, records
        self._service = transactions
        self.durable = durable
        """Has the answers to commits, which wait until the committed message is durable; None if none waits.

        A rollback does not wait: if a power loss removes it, the producer is asked again.
        """
        self._waiting: deque[_WaitingEnd] = deque()
        self._bounds = WaitingRequests("ends of transactions", WAITING_MAX, WAITING_MAX, WAITING_BYTES_MAX)
        self._task: asyncio.Task[None] | None = None

    @property
    def pending(self) -> int:
        """Number of requests that wait."""
        return len(self._waiting) + (self._task is not None)

    async def stop(self) -> None:
        """Wait for the requests that are under way."""
        self._taken(len(self._waiting))
        if self._task is not None:
            await self._task

    def end(self, header: EndTransactionRequestHeader, caller: Caller) -> int | None:
        """Commit or roll back; return the position up to which the log has to be durable, 0 for none.

        Returns None if the caller's reply gets it later. For the state "unknown" nothing comes, as RocketMQ does not
        answer such a request. Raises RefusalError.
        """
        if self._slave is not None:
            raise RefusalError(
                ResponseCode.SLAVE_NOT_AVAILABLE, "a slave does not end transactions, send it to the master")
        control = self._control
        if control is not None and not control.permits_some(
            sender_of(caller.request), caller.channel.peer_ip, TOPIC, Action.PUB
        ):
            control.require_record(caller.channel, caller.request)  # nothing waits for a user that may send nothing
        if header.commit_or_rollback == 0:
            return None
        if header.commit_or_rollback not in {SysFlag.TRANSACTION_COMMIT, SysFlag.TRANSACTION_ROLLBACK}:
            raise RefusalError(
                ResponseCode.SYSTEM_ERROR,
                f"commitOrRollback is {header.commit_or_rollback}, not 0, 8 (commit) or 12 (roll back)")
        if not self._service.is_loaded:
            raise RefusalError(
                ResponseCode.SYSTEM_BUSY, "the broker is still reading its half messages; try again later")
        if self.durable is not None and self.durable.full:
            self._store.refused_puts.count(FLOW_CONTROL, BUSY)
            raise RefusalError(ResponseCode.SYSTEM_BUSY, BUSY)
        half = self._service.in_memory(header.tran_state_table_offset, header.commit_log_offset)
        if half is not None:
            return self._end(caller, header, half)
        if (
            self._service.queue.state(header.tran_state_table_offset) == FRESH
            and self._service.is_recent(header.commit_log_offset)
        ):
            try:
                found = self._service.fresh(header.commit_log_offset)
            except RefusalError as error:
                raise self._missing(caller, error) from None
            return self._end(caller, header, found)
        self._wait(_WaitingEnd(caller.reply(), header, caller))
        return None

    def _wait(self, one: _WaitingEnd) -> None:
        one.reply.park(self._bounds, held=False)
        self._waiting.append(one)
        self._service.ending[one.header.tran_state_table_offset] += 1
        if self._task is None:
            self._task = self._loop.create_task(self._work())

    async def _work(self) -> None:
        try:
            while self._waiting:
                part = self._taken(min(LOOKS, len(self._waiting)))
                looked: list[Found | Exception]
                try:
                    looked = await self._executors.transactions.run(self._look, part)
                except Exception as error:  # noqa: BLE001 - no thread can be started: each one gets an answer
                    looked = [error] * len(part)
                for one, found in zip(part, looked, strict=True):
                    self._finish(one, found)
        finally:
            self._task = None

    def _taken(self, n: int) -> list[_WaitingEnd]:
        """Remove and return the first ``n`` requests that wait."""
        part = [self._waiting.popleft() for _ in range(n)]
        for one in part:
            one.reply.unpark()
        return part

    def _look(self, part: list[_WaitingEnd]) -> list[Found | Exception]:
        looked: list[Found | Exception] = []
        try:
            since = self._service.begin_search()
        except Exception as error:  # noqa: BLE001 - as below
            return [error] * len(part)
        for one in part:
            try:
                half = self._service.half_at(one.header.commit_log_offset)
                looked.append(self._service.look(half, since, with_copies=True))
            except Exception as error:  # noqa: BLE001 - it is answered on the event loop
                looked.append(error)
        return looked

    def _finish(self, one: _WaitingEnd, found: Found | Exception) -> None:
        offset = one.header.tran_state_table_offset
        self._service.ending[offset] -= 1
        if not self._service.ending[offset]:
            del self._service.ending[offset]
        if isinstance(found, Exception):
            one.reply.fail(self._missing(one.caller, found))
        else:
            one.reply.finish(partial(self._end, one.caller, one.header, found))

    def _missing(self, caller: Caller, error: Exception) -> Exception:
        """Return the error of a search. A user gets the same answer for a missing half message as for a forbidden one.
        """
        if isinstance(error, RefusalError) and error.code == ResponseCode.SYSTEM_ERROR:
            try:
                self._records.require_record(caller.channel, caller.request, None, Action.PUB)
            except RefusalError as refusal:
                return refusal
        return error

    def _end(
        self, caller: Caller, header: EndTransactionRequestHeader, found: Found | FreshHalf,
    ) -> int:
        """End a half message that was found in the log, or one in memory, whose record need not be read."""
        offset, commit = header.tran_state_table_offset, header.commit_or_rollback == SysFlag.TRANSACTION_COMMIT
        end: Callable[[], PutMessageResult | None]
        reason = ""
        if isinstance(found, FreshHalf):
            topic, group, immunity, stored_ms = found.committed.topic, found.group, found.immunity, found.stored_ms
            unique_key = found.unique_key
            end = partial(self._service.end_in_memory, offset, found, commit=commit)
        else:
            end = partial(self._service.end, found, commit=commit)
            half, properties = found.half, found.half.properties
            topic, group, unique_key = properties[N.REAL_TOPIC], properties[N.PGROUP], properties.get(N.UNIQ_KEY)
            immunity = properties.get(N.CHECK_IMMUNITY_TIME_IN_SECONDS)
            stored_ms = self._store.wall_time_of(half)
            if half.queue_offset != offset:
                reason = "The transaction state table offset wrong"
            elif half.phy_offset != header.commit_log_offset:
                reason = "The commit log offset wrong"
        if (control := self._control) is not None:
            control.require_record(caller.channel, caller.request, topic_access(topic, Action.PUB))
        if unique_key and header.transaction_id not in {None, "", unique_key}:
            # The one that the producer means was lost with the end of a log, and another one has got its place.
            reason = "The half message is of another transaction"
        self._check(header, group, immunity, stored_ms, reason)
        result = end()
        if result is None:  # an earlier request may have committed, and its message may not be durable yet
            return self._store.max_phy_offset if commit else 0
        if not result.status.appended:
            remark = result.remark or REMARKS.get(result.status, result.status.name)
            events.HALF_MESSAGE_NOT_COMMITTED.log(_log, topic=topic, queue_offset=offset, reason=remark)
            raise RefusalError(CODES.get(result.status, ResponseCode.SYSTEM_ERROR), remark)
        return result.until

    def _check(
        self, header: EndTransactionRequestHeader, group: str, immunity_text: str | None, stored_ms: int,
        reason: str = "",
    ) -> None:
        """Raise RefusalError unless a request matches its half message and comes in time.

        ``reason`` is an error that was found before, or empty.
        """
        if group != header.producer_group:
            reason = "The producer group wrong"
        if reason:
            raise RefusalError(ResponseCode.SYSTEM_ERROR, reason)
        if immunity_text is None or header.from_transaction_check:
            return
        immunity = immunity_ms(immunity_text, self._config.transaction_time_out)
        age_ms = self._clock.now_ms() - stored_ms
        if immunity is not None and age_ms > immunity:
            raise RefusalError(
                ResponseCode.ILLEGAL_OPERATION,
                f"the half message is {age_ms} ms old, and after {immunity} ms only a check settles it")


@final
class EndTransactionProcessor(RequestProcessor):
    """The remoting edge of `TransactionEnds`, and the request to check a message again."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, store: MessageStore, worker: RequestWorker,
        transactions: TransactionService, records: Records, ends: TransactionEnds
    ) -> None:
        self._loop, self._store, self._worker, self._transactions = loop, store, worker, transactions
        self._records = records
        self.service = ends

    @serves(RequestCode.END_TRANSACTION)
    def end_transaction(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Commit or roll back: request 37."""
        caller = RemotingCaller(channel, request, self._answer)
        return caller.answer(self.service.end(request.read(EndTransactionRequestHeader), caller))

    def _answer(self, channel: Channel, request: RemotingCommand, until: int) -> Answer:
        return when_durable(self.service.durable, channel, request, request.answer(), until)

    @serves(RequestCode.RESUME_CHECK_HALF_MESSAGE, in_thread=True)
    def resume_check(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Put a copy of a given-up message or a half message, which is then checked again; runs in a thread."""
        header = request.read(ResumeCheckHalfMessageRequestHeader)
        try:
            _, phy_offset = decode_message_id(header.msg_id or "")
        except MessageIllegalError as error:
            raise RefusalError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        message = self._store.look_message_by_offset(phy_offset) if phy_offset >= 0 else None
        self._records.require_record(channel, request, message, Action.UPDATE)
        if message is None:
            raise RefusalError(ResponseCode.SYSTEM_ERROR, f"there is no message {header.msg_id}")
        if (
            message.topic not in {N.HALF_TOPIC, N.CHECK_MAX_TIME_TOPIC} or real_queue_id(message) is None
            or not message.properties.get(N.REAL_TOPIC) or not message.properties.get(N.PGROUP)
        ):
            raise RefusalError(
                ResponseCode.SYSTEM_ERROR,
                f"the message {header.msg_id} of topic {message.topic} is not a half message")
        message.properties = {**message.properties, N.TRANSACTION_CHECK_TIMES: "0"}
        result = self._store.put_inner(renewed_message(message))
        if not result.status.appended:
            raise RefusalError(
                CODES.get(result.status, ResponseCode.SYSTEM_ERROR),
                "Put message back to RMQ_SYS_TRANS_HALF_TOPIC failed. "
                + (result.remark or result.status.name))
        self._loop.call_soon_threadsafe(self._resumed, message.properties[N.REAL_TOPIC], result.queue_offset)
        return request.answer()

    def _resumed(self, topic: str, offset: int) -> None:
        self._transactions.queue.put(offset, UNKNOWN)
        self._transactions.metrics.add(topic, 1)
