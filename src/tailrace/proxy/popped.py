"""What becomes of received messages: acknowledgements, another invisible time, dead letters."""

from __future__ import annotations

import asyncio
from typing import final

from tailrace.broker.core.context import BrokerContext
from tailrace.config import whole_number
from tailrace.errors import CorruptionError, RefusalError
from tailrace.formats.commitlog import LMQ_QUEUE_ID
from tailrace.formats.names import INNER_MULTI_QUEUE_OFFSET, LITE_TOPIC
from tailrace.formats.pop import real_topic
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.formats.requests.message_headers import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    ConsumerSendMsgBackRequestHeader,
)
from tailrace.model import MessageExt
from tailrace.proxy.caller import Caller
from tailrace.proxy.clients import Clients
from tailrace.proxy.protocol import Code, GrpcError, of_refusal
from tailrace.proxy.receipts import ReceiptHandle

__all__ = ["PoppedMessages", "check_settled"]

_WRONG_RECEIPT = frozenset({
    ResponseCode.NO_MESSAGE, ResponseCode.INVALID_PARAMETER, ResponseCode.MESSAGE_ILLEGAL})


@final
class PoppedMessages:
    """Requests about one received message, by its receipt handle. All raise GrpcError."""

    def __init__(self, broker: BrokerContext, clients: Clients) -> None:
        self._broker = broker
        self._clients = clients

    def handle(self, text: str) -> ReceiptHandle:
        """Read a receipt handle."""
        return ReceiptHandle.decode(text, self._broker.config.broker_name)

    async def ack(
        self, who: Caller, group: str, topic: str, handle: ReceiptHandle, lite_topic: str = ""
    ) -> None:
        """Acknowledge a message; ``lite_topic`` is that of a message that was received as one of a Lite topic."""
        check_settled(await self.begin_ack(who, group, topic, handle, lite_topic))

    def begin_ack(
        self, who: Caller, group: str, topic: str, handle: ReceiptHandle, lite_topic: str
    ) -> asyncio.Future[RemotingCommand]:
        """Begin to acknowledge a message; return the future of the broker's answer, for `check_settled`."""
        handle.check_time(self._broker.clock.now_ms())
        receipt = handle.receipt
        return self._clients.call(who, RequestCode.ACK_MESSAGE, AckMessageRequestHeader(
            group, real_topic(topic, group, receipt.flag), receipt.queue_id, receipt.encode(), receipt.queue_offset,
            lite_topic or None))

    async def change(
        self, who: Caller, group: str, topic: str, handle: ReceiptHandle, ms: int, lite_topic: str = "", *,
        suspend: bool = False,
    ) -> ReceiptHandle:
        """Have a message delivered again after ``ms``, and return its new handle.

        With ``suspend`` its next delivery is not counted as another attempt.
        """
        handle.check_time(self._broker.clock.now_ms())
        receipt = handle.receipt
        answer = check_settled(await self._clients.call(
            who, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ChangeInvisibleTimeRequestHeader(
                group, real_topic(topic, group, receipt.flag), receipt.queue_id, receipt.encode(),
                receipt.queue_offset, ms, lite_topic or None, suspend=suspend)))
        changed = answer.read(ChangeInvisibleTimeResponseHeader)
        start = receipt.start_offset if receipt.is_order else receipt.queue_offset
        return handle._replace(receipt=receipt._replace(
            start_offset=start, pop_time=changed.pop_time, invisible_time=changed.invisible_time,
            revive_queue_id=changed.revive_qid))

    async def to_dead_letters(self, who: Caller, group: str, topic: str, message_id: str,
                              handle: ReceiptHandle, lite_topic: str = "") -> None:
        """Put a message among the dead letters of its group, and acknowledge it."""
        handle.check_time(self._broker.clock.now_ms())
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
        check_settled(await self._clients.call(
            who, RequestCode.CONSUMER_SEND_MSG_BACK, ConsumerSendMsgBackRequestHeader(
                phy_offset, group, -1, message_id, stored, max_reconsume_times=0)))
        await self.ack(who, group, topic, handle, lite_topic)

    async def _look(self, phy_offset: int) -> MessageExt | None:
        """Return the message at a position of the log, which a thread reads if it is not in memory."""
        store = self._broker.store
        if store.is_in_memory(phy_offset):
            return store.look_message_by_offset(phy_offset)
        return await self._broker.executors.look_ups.run(store.look_message_by_offset, phy_offset)


def check_settled(answer: RemotingCommand) -> RemotingCommand:
    """Return the answer to a request about a received message. Raises GrpcError if the broker has refused it."""
    if answer.code in _WRONG_RECEIPT:
        raise GrpcError(Code.INVALID_RECEIPT_HANDLE, answer.remark or "the receipt handle is not one of a message")
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        raise GrpcError(Code.TOPIC_NOT_FOUND, answer.remark or "the topic does not exist")
    if answer.code != ResponseCode.SUCCESS:
        raise of_refusal(answer)
    return answer


def _place(message: MessageExt, lite_topic: str) -> tuple[int, int]:
    """Return queue and offset of a message, or its place in a Lite topic; -1 if it has none there."""
    if not lite_topic:
        return message.queue_id, message.queue_offset
    if message.properties.get(LITE_TOPIC) != lite_topic:
        return -1, -1
    offset = whole_number(message.properties.get(INNER_MULTI_QUEUE_OFFSET, ""))
    return LMQ_QUEUE_ID, -1 if offset is None else offset
