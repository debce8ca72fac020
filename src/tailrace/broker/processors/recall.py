"""Recall: request 370 takes a timer message back (RecallMessageProcessor)."""

from __future__ import annotations

from typing import final

from tailrace.broker.context import BrokerContext
from tailrace.broker.durable_answers import DurableAnswers, when_durable
from tailrace.errors import MessageIllegalError
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.remoting import Channel, RemotingServer
from tailrace.timer.recall import parse_handle, recall_messages

__all__ = ["RecallMessageProcessor"]


@final
class RecallMessageProcessor:
    """Puts the messages that delete a timer."""

    def __init__(self, broker: BrokerContext, durable: DurableAnswers | None = None) -> None:
        self._broker = broker
        self._durable = durable

    def register(self, server: RemotingServer) -> None:
        """Take over the codes of this processor."""
        server.register(self.recall, RequestCode.RECALL_MESSAGE)

    def recall(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        """Answer success once the request to delete is in the log; the timer may be due before."""
        topic = request.ext.get("topic", "")
        if self._broker.topics.select(topic) is None:
            return request.answer(
                ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{topic}] not exist")
        try:
            handle = parse_handle(request.ext.get("recallHandle", ""))
        except MessageIllegalError:
            return request.answer(ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid")
        if handle.topic != topic:
            return request.answer(ResponseCode.ILLEGAL_OPERATION, "recall failed, topic not match")
        if handle.broker_name != self._broker.config.broker_name:
            return request.answer(
                ResponseCode.ILLEGAL_OPERATION, "recall failed, broker service not available")
        now = self._broker.clock.now_ms()
        left = handle.timestamp_ms - now
        if not 0 < left < self._broker.store.config.timer_max_delay_sec * 1000:
            return request.answer(
                ResponseCode.ILLEGAL_OPERATION, "recall failed, timestamp invalid")
        until = 0
        for message in recall_messages(
            handle, now, channel.born_host, request.ext.get("producerGroup", "")
        ):
            result = self._broker.store.put_inner(message)
            if not result.status.appended:
                return request.answer(ResponseCode.SYSTEM_ERROR, "recall failed, execute error")
            until = max(until, result.until)
        answer = request.answer(ext={"msgId": handle.unique_key})
        return when_durable(self._durable, channel, request, answer, until)
