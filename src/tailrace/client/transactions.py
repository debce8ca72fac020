"""The producer's side of transactions: ending them, and answering the broker's check-backs.

A half message is stored first and no consumer sees it. Then the producer commits it or rolls it back with
request 37. If no request 37 comes, the broker sends a check-back (request 39) on a connection of the
producer's group. The heartbeats of its instance keep the group registered for that.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar, final

from tailrace import events
from tailrace.client.instance import InstanceShare
from tailrace.client.producer_member import ProducerMember
from tailrace.client.send_result import SendResult
from tailrace.client.trace import MessageTrace
from tailrace.errors import CorruptionError, RefusalError, RemotingCommandError, RemotingError
from tailrace.formats.commitlog import SysFlag, decode_message
from tailrace.formats.names import PGROUP
from tailrace.formats.remoting import RemotingCommand, RequestCode
from tailrace.formats.requests.message_headers import (
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
)
from tailrace.logs import get_logger
from tailrace.model import Message, MessageExt, decode_message_id

__all__ = [
    "CheckTransaction", "Decision", "TransactionSendResult", "Transactions", "called_in_thread", "checked_decision",
]

_log = get_logger(__name__)

_M = TypeVar("_M")
Decision = bool | None
"""True commits, False rolls back, None means that it is not known yet: the broker asks later."""
CheckTransaction = Callable[[MessageExt], Decision | Awaitable[Decision]]


@dataclass(slots=True)
class TransactionSendResult(SendResult):
    """The place of the half message, and the decision. ``queue_offset`` is its offset among half messages."""

    decision: Decision = None


@final
class Transactions(ProducerMember):
    """Ends the transactions of one producer, and answers check-backs with ``check``.

    ``check`` may be a coroutine function; a plain one is called in a thread, several at a time.
    """

    def __init__(
        self, share: InstanceShare, group: str, check: CheckTransaction, timeout_ms: int,
        trace: MessageTrace | None = None,
    ) -> None:
        super().__init__(share, group)
        self._check = check
        self._trace = trace
        self._timeout_ms = timeout_ms

    def wants(self, request: RemotingCommand) -> bool:
        """Return whether a request is a check-back of this group, or one that cannot be read."""
        if request.code != RequestCode.CHECK_TRANSACTION_STATE:
            return False
        try:
            return decode_message(request.body).properties.get(PGROUP, self.group) == self.group
        except CorruptionError:
            return True

    async def end(self, address: str, message: Message, sent: SendResult, decision: Decision) -> None:
        """Commit or roll back at the broker; None does nothing.

        Raises RemotingCommandError if the broker refuses. If the broker cannot be reached or ``address`` is empty,
        this is logged, and the broker sends a check-back later.
        """
        if decision is None:
            return
        if not address:
            events.TRANSACTION_NOT_ENDED.log(
                _log, message=sent.msg_id, reason=f"the address of {sent.broker_name} is not known")
            return
        header = EndTransactionRequestHeader(
            producer_group=self.group, tran_state_table_offset=sent.queue_offset,
            commit_log_offset=decode_message_id(sent.offset_msg_id)[1], commit_or_rollback=_flag(decision),
            msg_id=sent.msg_id, transaction_id=sent.msg_id)
        try:
            await self._share.instance.remoting.ask(
                address, RequestCode.END_TRANSACTION, header, timeout_ms=self._timeout_ms)
        except RemotingCommandError:
            raise
        except RemotingError as error:
            events.TRANSACTION_NOT_ENDED.log(_log, message=sent.msg_id, reason=error)
            return
        if self._trace is not None:
            self._trace.transaction_ended(message, sent.msg_id, address, commit=decision, checked=False)

    # --- check-backs

    async def serve(self, address: str, request: RemotingCommand) -> RemotingCommand | None:
        """Answer a check-back."""
        await self._answer_check(address, request)
        return None

    async def _answer_check(self, address: str, request: RemotingCommand) -> None:
        try:
            asked = request.read(CheckTransactionStateRequestHeader)
            message = decode_message(request.body)
        except (RefusalError, CorruptionError) as error:
            events.CHECK_OF_A_TRANSACTION_CANNOT_BE_READ.log(_log, broker=address, reason=error)
            return
        try:
            decision = await called_in_thread(self._check, message)
        except BaseException as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            events.CHECK_OF_A_TRANSACTION_FAILED.log(
                _log, message=message.unique_key, reason=repr(error), exc_info=error)
            return
        if decision is None:
            return
        header = EndTransactionRequestHeader(
            topic=message.topic, producer_group=self.group,
            tran_state_table_offset=asked.tran_state_table_offset,
            commit_log_offset=asked.commit_log_offset, commit_or_rollback=_flag(decision),
            from_transaction_check=True, msg_id=message.unique_key or asked.msg_id or "",
            transaction_id=asked.transaction_id)
        try:
            await self._share.instance.remoting.invoke_oneway(address, RequestCode.END_TRANSACTION, header.to_ext())
        except RemotingError as error:
            events.TRANSACTION_NOT_ENDED.log(_log, message=message.unique_key, reason=error)
            return
        if self._trace is not None:
            self._trace.transaction_ended(
                message, message.unique_key or message.msg_id, address, commit=decision, checked=True)


async def called_in_thread(function: Callable[[_M], Decision | Awaitable[Decision]], message: _M) -> Decision:
    """Return the decision of a function of the program; a plain function is called in a thread."""
    if inspect.iscoroutinefunction(function):
        return checked_decision(await function(message))
    return checked_decision(await asyncio.to_thread(function, message))


def checked_decision(decision: object) -> Decision:
    """Return a decision of the program. Raises TypeError for anything but True, False and None."""
    if decision is None or isinstance(decision, bool):
        return decision
    raise TypeError(f"a transaction is decided by True, False or None, not by {decision!r}")


def _flag(decision: bool) -> int:
    return int(SysFlag.TRANSACTION_COMMIT if decision else SysFlag.TRANSACTION_ROLLBACK)
