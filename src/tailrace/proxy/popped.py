"""What becomes of received messages: acknowledgements, another invisible time, dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar, final

from tailrace.broker.pop.ack import AckService
from tailrace.config import BrokerConfig, whole_number
from tailrace.env.clock import Clock
from tailrace.errors import CorruptionError, RefusalError
from tailrace.formats.commitlog import LMQ_QUEUE_ID
from tailrace.formats.names import INNER_MULTI_QUEUE_OFFSET, LITE_TOPIC
from tailrace.formats.pop import real_topic
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.formats.requests.custom_header import H
from tailrace.formats.requests.message_headers import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ConsumerSendMsgBackRequestHeader,
)
from tailrace.model import MessageExt, PutMessageStatus
from tailrace.node.message_store import MessageStore
from tailrace.proxy.caller import Caller
from tailrace.proxy.clients import Clients
from tailrace.proxy.protocol import Code, GrpcError, of_refusal
from tailrace.proxy.receipts import ReceiptHandle
from tailrace.requests.durable_answers import Then, not_durable
from tailrace.requests.executors import Executors

__all__ = ["PoppedMessages", "Sync", "settled"]

_Result = TypeVar("_Result")
Sync = asyncio.Future[PutMessageStatus]
"""The result of a wait for the disk."""
_WRONG_RECEIPT = frozenset({
    ResponseCode.NO_MESSAGE, ResponseCode.INVALID_PARAMETER, ResponseCode.MESSAGE_ILLEGAL})


@final
class PoppedMessages:
    """Requests about one received message, by its receipt handle. All raise GrpcError."""

    def __init__(
        self, clock: Clock, store: MessageStore, config: BrokerConfig, executors: Executors, acks: AckService,
        clients: Clients,
    ) -> None:
        self._clock, self._store, self._config, self._executors = clock, store, config, executors
        self._acks, self._clients = acks, clients

    def handle(self, text: str) -> ReceiptHandle:
        """Read a receipt handle."""
        return ReceiptHandle.decode(text, self._config.broker_name)

    async def ack(self, group: str, topic: str, handle: ReceiptHandle, lite_topic: str = "") -> None:
        """Acknowledge a message; ``lite_topic`` is that of a message that was received as one of a Lite topic."""
        await settled(self.begin_ack(group, topic, handle, lite_topic))

    def begin_ack(self, group: str, topic: str, handle: ReceiptHandle, lite_topic: str) -> Sync | None:
        """Acknowledge a message; return its sync, for `settled`."""
        handle.check_time(self._clock.now_ms())
        receipt = handle.receipt
        return self.sync(_served(self._acks.ack, AckMessageRequestHeader(
            group, real_topic(topic, group, receipt.flag), receipt.queue_id, receipt.encode(), receipt.queue_offset,
            lite_topic or None)))

    async def change(
        self, group: str, topic: str, handle: ReceiptHandle, ms: int, lite_topic: str = "", *, suspend: bool = False,
    ) -> ReceiptHandle:
        """Have a message delivered again after ``ms``, and return its new handle.

        With ``suspend`` its next delivery is not counted as another attempt.
        """
        handle.check_time(self._clock.now_ms())
        receipt = handle.receipt
        changed, until, then = _served(self._acks.change, ChangeInvisibleTimeRequestHeader(
            group, real_topic(topic, group, receipt.flag), receipt.queue_id, receipt.encode(), receipt.queue_offset,
            ms, lite_topic or None, suspend=suspend))
        await settled(self.sync(until, then))
        start = receipt.start_offset if receipt.is_order else receipt.queue_offset
        return handle._replace(receipt=receipt._replace(
            start_offset=start, pop_time=changed.pop_time, invisible_time=changed.invisible_time,
            revive_queue_id=changed.revive_qid))

    async def to_dead_letters(self, who: Caller, group: str, topic: str, message_id: str,
                              handle: ReceiptHandle, lite_topic: str = "") -> None:
        """Put a message among the dead letters of its group, and acknowledge it."""
        handle.check_time(self._clock.now_ms())
        receipt, phy_offset = handle
        if phy_offset < 0:
            raise GrpcError(Code.INVALID_RECEIPT_HANDLE, "commit log offset is empty")
        stored = real_topic(topic, group, receipt.flag)
        try:
            message = await self._look(phy_offset)
        except CorruptionError:
            message = None
        except RefusalError as error:
            raise of_refusal(error) from None
        if message is None or (message.topic, *_place(message, lite_topic)) != (
            stored, receipt.queue_id, receipt.queue_offset
        ):
            raise GrpcError(
                Code.INVALID_RECEIPT_HANDLE, f"receipt_handle names position {phy_offset}, where its message is not")
        answer = await self._clients.call(who, RequestCode.CONSUMER_SEND_MSG_BACK, ConsumerSendMsgBackRequestHeader(
            phy_offset, group, -1, message_id, stored, max_reconsume_times=0))
        if answer.code != ResponseCode.SUCCESS:
            raise _unsettled(answer)
        await self.ack(group, topic, handle, lite_topic)

    def sync(self, until: int, then: Then | None = None) -> Sync | None:
        """Return the wait until the log is durable up to a position; None if nothing waits."""
        durable = self._acks.durable
        return durable.status(until, then) if durable is not None and until else None

    async def _look(self, phy_offset: int) -> MessageExt | None:
        """Return the message at a position of the log, which a thread reads if it is not in memory."""
        store = self._store
        if store.is_in_memory(phy_offset):
            return store.look_message_by_offset(phy_offset)
        return await self._executors.look_ups.run(store.look_message_by_offset, phy_offset)


async def settled(sync: Sync | None) -> None:
    """Wait until an acknowledgement or a change is durable; without a sync it is. Raises GrpcError."""
    if sync is not None and (status := await sync) is not PutMessageStatus.PUT_OK:
        raise of_refusal(not_durable(status))


def _served(serve: Callable[[H], _Result], header: H) -> _Result:
    try:
        return serve(header)
    except RefusalError as error:
        raise _unsettled(error) from None


def _unsettled(refusal: RemotingCommand | RefusalError) -> GrpcError:
    """Return the error for a request about a received message that the broker has refused."""
    if refusal.code in _WRONG_RECEIPT:
        return GrpcError(Code.INVALID_RECEIPT_HANDLE, refusal.remark or "the receipt handle is not one of a message")
    return of_refusal(refusal)


def _place(message: MessageExt, lite_topic: str) -> tuple[int, int]:
    """Return queue and offset of a message, or its place in a Lite topic; -1 if it has none there."""
    if not lite_topic:
        return message.queue_id, message.queue_offset
    if message.properties.get(LITE_TOPIC) != lite_topic:
        return -1, -1
    offset = whole_number(message.properties.get(INNER_MULTI_QUEUE_OFFSET, ""))
    return LMQ_QUEUE_ID, -1 if offset is None else offset
