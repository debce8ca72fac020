"""The producer's side of transactions: ending them, and answering the broker's check-backs.

A half message is stored first and no consumer sees it. Then the producer commits it or rolls it back with
request 37. If no request 37 comes, the broker sends a check-back (request 39) on a connection of the
producer's group. Heartbeats keep the group registered for that.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, final

from tailrace.client.send_result import SendResult
from tailrace.errors import CorruptionError, RefusalError, RemotingCommandError, RemotingError
from tailrace.formats import fastjson
from tailrace.formats.commitlog import SysFlag, decode_message, decode_message_id
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.formats.requests.message_headers import (
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
)
from tailrace.logs import get_logger
from tailrace.model import MessageExt
from tailrace.remoting.client import RemotingClient

__all__ = ["CheckTransaction", "Decision", "TransactionSendResult", "Transactions", "checked_decision"]

_log = get_logger(__name__)

HEARTBEAT_S: Final = 30.0
"""As the reference's heartbeatBrokerInterval; a broker forgets a client after two minutes."""
CHECKS_MAX: Final = 1_000
"""Check-backs under way; a broker asks again for those beyond."""

Decision = bool | None
"""True commits, False rolls back, None means that it is not known yet: the broker asks later."""
CheckTransaction = Callable[[MessageExt], Decision | Awaitable[Decision]]


@dataclass(slots=True)
class TransactionSendResult(SendResult):
    """Where the half message is, and what was decided. ``queue_offset`` is its offset among half messages."""

    decision: Decision = None


@final
class Transactions:
    """Ends the transactions of one producer, and answers check-backs with ``check``.

    ``check`` may be a coroutine function; a plain one is called in a thread, several at a time.
    """

    def __init__(
        self, remoting: RemotingClient, group: str, client_id: str, check: CheckTransaction, timeout_ms: int
    ) -> None:
        self._remoting = remoting
        self._group = group
        self._client_id = client_id
        self._check = check
        self._timeout_ms = timeout_ms
        self._brokers: set[str] = set()
        self._heartbeats: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        remoting.on_request = self._on_request

    async def close(self) -> None:
        """Stop heartbeats and check-backs."""
        tasks = [*self._tasks, *([self._heartbeats] if self._heartbeats else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def join(self, address: str) -> None:
        """Make the group known at a broker, and keep it known. Raises RemotingError."""
        if address not in self._brokers:
            await self._heartbeat(address)
            self._brokers.add(address)
        if self._heartbeats is None:
            self._heartbeats = asyncio.create_task(self._beat())

    async def end(self, address: str, sent: SendResult, decision: Decision) -> None:
        """Commit or roll back at the broker; None does nothing.

        Raises RemotingCommandError if the broker refuses. If the broker cannot be reached, this is logged,
        and the broker sends a check-back later.
        """
        if decision is None:
            return
        header = EndTransactionRequestHeader(
            producer_group=self._group, tran_state_table_offset=sent.queue_offset,
            commit_log_offset=decode_message_id(sent.offset_msg_id)[1], commit_or_rollback=_flag(decision),
            msg_id=sent.msg_id, transaction_id=sent.msg_id)
        try:
            answer = await self._remoting.invoke(
                address, RequestCode.END_TRANSACTION, header.to_ext(), timeout_ms=self._timeout_ms)
        except RemotingError as error:
            _log.warning("transaction not ended, the broker will ask message=%s reason=%s", sent.msg_id, error)
            return
        if answer.code != ResponseCode.SUCCESS:
            raise RemotingCommandError(answer.code, answer.remark or "", address)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            for address in list(self._brokers):
                try:
                    await self._heartbeat(address)
                except RemotingError as error:
                    _log.warning("heartbeat failed group=%s broker=%s reason=%s", self._group, address, error)

    async def _heartbeat(self, address: str) -> None:
        body = fastjson.dumps({
            "clientID": self._client_id, "consumerDataSet": [],
            "producerDataSet": [{"groupName": self._group}]})
        answer = await self._remoting.invoke(
            address, RequestCode.HEART_BEAT, {}, body, timeout_ms=self._timeout_ms)
        if answer.code != ResponseCode.SUCCESS:
            raise RemotingCommandError(answer.code, answer.remark or "", address)

    # --- check-backs

    def _on_request(self, address: str, request: RemotingCommand) -> None:
        if request.code != RequestCode.CHECK_TRANSACTION_STATE:
            return
        if len(self._tasks) >= CHECKS_MAX:
            _log.warning("check of a transaction left for later group=%s under_way=%d", self._group, CHECKS_MAX)
            return
        task = asyncio.create_task(self._answer_check(address, request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer_check(self, address: str, request: RemotingCommand) -> None:
        try:
            asked = request.read(CheckTransactionStateRequestHeader)
            message = decode_message(request.body)
        except (RefusalError, CorruptionError) as error:
            _log.warning("check of a transaction cannot be read broker=%s reason=%s", address, error)
            return
        try:
            decision = await self._decide(message)
        except Exception as error:  # noqa: BLE001 - the program's own function: the broker asks again
            _log.error("check of a transaction failed message=%s reason=%r", message.unique_key, error)
            return
        if decision is None:
            return
        header = EndTransactionRequestHeader(
            topic=message.topic, producer_group=self._group,
            tran_state_table_offset=asked.tran_state_table_offset,
            commit_log_offset=asked.commit_log_offset, commit_or_rollback=_flag(decision),
            from_transaction_check=True, msg_id=message.unique_key or asked.msg_id or "",
            transaction_id=asked.transaction_id)
        try:
            await self._remoting.invoke_oneway(address, RequestCode.END_TRANSACTION, header.to_ext())
        except RemotingError as error:
            _log.warning(
                "transaction not ended, the broker will ask message=%s reason=%s", message.unique_key, error)

    async def _decide(self, message: MessageExt) -> Decision:
        if inspect.iscoroutinefunction(self._check):
            found = await self._check(message)
        else:
            found = await asyncio.to_thread(self._check, message)
        return checked_decision(found)


def checked_decision(decision: object) -> Decision:
    """Return a decision of the program. Raises TypeError for anything but True, False and None."""
    if decision is None or isinstance(decision, bool):
        return decision
    raise TypeError(f"a transaction is decided by True, False or None, not by {decision!r}")


def _flag(decision: bool) -> int:
    return int(SysFlag.TRANSACTION_COMMIT if decision else SysFlag.TRANSACTION_ROLLBACK)
