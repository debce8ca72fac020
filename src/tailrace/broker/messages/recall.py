"""Recall of a timer message before it is delivered: request 370 (RecallMessageProcessor)."""

from __future__ import annotations

from typing import final

from tailrace.config import BrokerConfig
from tailrace.env.clock import Clock
from tailrace.errors import MessageIllegalError, RefusalError
from tailrace.formats.names import MSG_REGION
from tailrace.formats.recall_handle import parse_handle
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.formats.requests.message_headers import (
    RecallMessageRequestHeader,
    RecallMessageResponseHeader,
)
from tailrace.node.message_store import MessageStore
from tailrace.remoting import Channel
from tailrace.requests.durable_answers import DurableAnswers, when_durable
from tailrace.requests.processor import RequestProcessor, serves
from tailrace.timer.recall import RECALLED, recall_messages, was_recalled

__all__ = ["RecallMessageProcessor"]


@final
class RecallMessageProcessor(RequestProcessor):
    """Puts the messages that delete timers."""

    def __init__(
        self, clock: Clock, store: MessageStore, config: BrokerConfig, durable: DurableAnswers | None = None,
    ) -> None:
        self._clock, self._store, self._config = clock, store, config
        self._topics = store.topics
        self._durable = durable
        # A client traces a recall only if the answer has the region.
        self._common_ext = {MSG_REGION: config.region_id}

    @serves(RequestCode.RECALL_MESSAGE)
    def recall(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        """Put a message that deletes the timer, and answer success. The timer may become due before it is deleted.

        A second recall is refused, if the index has the first one.
        """
        header = request.read(RecallMessageRequestHeader)
        topic = header.topic
        if self._topics.select(topic) is None:
            raise self._refusal(
                ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{topic}] not exist")
        try:
            handle = parse_handle(header.recall_handle)
        except MessageIllegalError:
            raise self._refusal(ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid") from None
        if handle.topic != topic:
            raise self._refusal(ResponseCode.ILLEGAL_OPERATION, "recall failed, topic not match")
        if handle.broker_name != self._config.broker_name:
            raise self._refusal(
                ResponseCode.ILLEGAL_OPERATION, "recall failed, broker service not available")
        now = self._clock.now_ms()
        left = handle.timestamp_ms - now
        if not 0 < left < self._store.config.timer_max_delay_sec * 1000:
            why = "timestamp invalid" + ("" if left > 0 else ", the message was due and is delivered")
            raise self._refusal(ResponseCode.ILLEGAL_OPERATION, f"recall failed, {why}")
        if was_recalled(handle, self._store.query_records):
            raise self._refusal(ResponseCode.ILLEGAL_OPERATION, f"recall failed, {RECALLED}")
        until = 0
        for message in recall_messages(
            handle, now, channel.born_host, header.producer_group or "",
            append_topic=self._store.config.append_topic_for_timer_delete_key,
        ):
            result = self._store.put_inner(message)
            if not result.status.appended:
                raise self._refusal(ResponseCode.SYSTEM_ERROR, "recall failed, execute error")
            until = max(until, result.until)
        answer = request.answer(ext={**self._common_ext, **RecallMessageResponseHeader(handle.unique_key).to_ext()})
        return when_durable(self._durable, channel, request, answer, until)

    def _refusal(self, code: int, remark: str) -> RefusalError:
        return RefusalError(code, remark, self._common_ext)
