"""Acknowledgements of popped messages (requests 200051 and 200151), and changes of their invisible time (200053).

An acknowledgement is put into the log as a record for the revive topic. Memory has no state of single messages:
the revive service matches acknowledgements with checkpoints when the checkpoints are due. An acknowledgement
that is too late, or a second one, is answered with success and has no effect, as in RocketMQ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol, final

from tailrace.broker.pop.polling import PopLongPollingService
from tailrace.broker.pop.requests import PopProgress, PopRequests, receipt_of
from tailrace.broker.pop.revive import ReviveLog
from tailrace.broker.statistics.traffic import Traffic
from tailrace.config import BrokerConfig
from tailrace.env.clock import Clock
from tailrace.errors import RefusalError
from tailrace.formats.pop import (
    ORDER_REVIVE_QUEUE,
    Ack,
    ExtraInfo,
    PopCheckPoint,
    ack_offsets,
    normal_topic,
    real_topic,
)
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.formats.requests.message_headers import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
)
from tailrace.model import PutMessageResult, PutMessageStatus
from tailrace.node.consumer_order_info import NOT_POPPED
from tailrace.node.message_store import MessageStore
from tailrace.remoting import Channel
from tailrace.requests.bodies import json_object, number_in, objects_in, text_in
from tailrace.requests.durable_answers import DurableAnswers, Then, when_durable
from tailrace.requests.processor import RequestProcessor, serves
from tailrace.requests.reply import Answer

__all__ = ["AckService"]

LONG_MAX: Final = (1 << 63) - 1
ACKS_MAX: Final = 1_000
"""Number of entries of a batch acknowledgement."""


class LiteAcks(Protocol):
    """Serves requests about messages of Lite topics."""

    def ack(self, header: AckMessageRequestHeader) -> None:
        """Acknowledge one message."""
        ...

    def change(self, header: ChangeInvisibleTimeRequestHeader) -> ChangeInvisibleTimeResponseHeader:
        """Set when a message is visible again."""
        ...


class Changed(NamedTuple):
    """A message whose invisible time was changed."""

    header: ChangeInvisibleTimeResponseHeader
    until: int = 0
    """The answer waits until the log is durable up to this position; 0 if it waits for nothing."""
    then: Then | None = None
    """Is called after that sync, and may return a later position to wait for."""


@final
class AckService(RequestProcessor):
    """Acknowledges messages, and changes the time at which they are visible again.

    The gRPC endpoint calls `ack`, `ack_batch` and `change` with headers, waits for the disk if the result says so, and
    makes the answer. All methods raise RefusalError. Used on the event loop only.
    """

    def __init__(
        self, clock: Clock, store: MessageStore, config: BrokerConfig, traffic: Traffic, revive_log: ReviveLog,
        progress: PopProgress, pop_requests: PopRequests, polling: PopLongPollingService[Any],
        durable: DurableAnswers | None = None, lite: LiteAcks | None = None,
    ) -> None:
        self._clock, self._config, self._traffic = clock, config, traffic
        self._revive_log, self._progress, self._requests = revive_log, progress, pop_requests
        self._store, self._polling = store, polling
        self.durable = durable
        """Has the answers that wait for the disk; None if none does."""
        self._of_lite = lite

    # -- acknowledgements

    def ack(self, header: AckMessageRequestHeader) -> int:
        """Acknowledge one message; return the position up to which the log has to be durable, 0 for none."""
        group, topic, queue_id, offset = self._named(header)
        if header.lite_topic:
            self._lite().ack(header)
            return 0
        low, high = self._store.queue_of(topic, queue_id).bounds
        if not low <= offset <= high:
            raise RefusalError(
                ResponseCode.NO_MESSAGE,
                f"offset is illegal, key:{topic}@{queue_id}, commit:{offset}, store:{low}~{high}")
        receipt = self._receipt(header.extra_info, queue_id)
        if receipt.is_order:
            self._ack_in_order(topic, group, queue_id, offset, receipt.pop_time)
            return 0
        return self._put_ack(
            Ack((offset,), receipt.start_offset, receipt.pop_time, queue_id, topic, group, receipt.broker_name),
            receipt.invisible_time, receipt.revive_queue_id).until

    def ack_batch(self, body: Mapping[str, Any]) -> int:
        """Acknowledge messages of one or more checkpoints; return what `ack` returns."""
        self._requests.check_writable()
        acks = objects_in(body, "acks", ACKS_MAX)
        if not acks:
            raise RefusalError(ResponseCode.NO_MESSAGE, "the request acknowledges no message")
        broker_name = body.get("brokerName") or self._config.broker_name
        if not isinstance(broker_name, str) or not broker_name.isprintable():
            raise RefusalError(ResponseCode.INVALID_PARAMETER, "brokerName is not a name")
        read = [self._batch_entry(entry, broker_name) for entry in acks]  # check all before one is stored
        until = 0
        for ack, invisible_time, revive_queue_id in read:
            if not ack.offsets:
                continue
            if revive_queue_id == ORDER_REVIVE_QUEUE:
                for offset in ack.offsets:
                    self._ack_in_order(ack.topic, ack.group, ack.queue_id, offset, ack.pop_time)
            else:
                until = max(until, self._put_ack(ack, invisible_time, revive_queue_id).until)
        return until

    def _batch_entry(self, entry: Mapping[str, Any], broker_name: str) -> tuple[Ack, int, int]:
        """Return the acknowledgement of an entry, its invisible time and its revive queue."""
        long = {"c": "consumerGroup", "t": "topic", "r": "retry", "b": "bitSet", "so": "startOffset", "q": "queueId",
                "rq": "reviveQueueId", "pt": "popTime", "it": "invisibleTime"}
        entry = {short: entry.get(short, entry.get(name)) for short, name in long.items()}
        group, flag = text_in(entry, "c"), text_in(entry, "r")
        numbers = [number_in(entry, name) for name in ("so", "pt", "it", "rq", "q")]
        for name, least in (("so", -1), ("pt", 0), ("it", 0)):
            if not least <= number_in(entry, name) <= LONG_MAX:
                raise RefusalError(
                    ResponseCode.INVALID_PARAMETER,
                    f"{name} is {number_in(entry, name)}, it may be {least} to {LONG_MAX}")
        start, pop_time, invisible_time, revive_queue_id, queue_id = numbers
        try:
            topic = real_topic(text_in(entry, "t"), group, flag)
            ExtraInfo.decode(ExtraInfo(
                start, pop_time, invisible_time, revive_queue_id, flag, broker_name, queue_id, start).encode())
            offsets = ack_offsets(start, text_in(entry, "b"))
        except ValueError as error:
            raise RefusalError(ResponseCode.INVALID_PARAMETER, str(error)) from error
        if revive_queue_id != ORDER_REVIVE_QUEUE and not 0 <= revive_queue_id < self._config.revive_queue_num:
            raise RefusalError(
                ResponseCode.INVALID_PARAMETER,
                f"rq names revive queue {revive_queue_id}, there are {self._config.revive_queue_num}")
        if self._requests.check_popped(group, topic, queue_id).is_lite:
            raise RefusalError(ResponseCode.ILLEGAL_OPERATION, "batch ack lite is not supported.")
        low, high = self._store.queue_of(topic, queue_id).bounds
        ack = Ack(
            tuple(offset for offset in offsets if low <= offset <= high), start, pop_time, queue_id, topic, group,
            broker_name, batch=True)
        return ack, invisible_time, revive_queue_id

    def _put_ack(
        self, ack: Ack, invisible_time: int, revive_queue_id: int, *, settles: bool = True
    ) -> PutMessageResult:
        result = _stored(self._revive_log.put_ack(ack, invisible_time, revive_queue_id), "acknowledgement")
        self._traffic.revive_log_put("ACK", ack.topic, ack.group, len(ack.offsets))
        if settles:
            self._settled(ack.topic, ack.group, ack.queue_id, len(ack.offsets), ack.pop_time)
        return result

    def _settled(self, topic: str, group: str, queue_id: int, count: int, pop_time: int) -> None:
        """Count messages as no longer in flight; if that ends a stop of the queue, wake a pop that waits for it."""
        metrics, config, key = self._progress.metrics, self._config, (topic, group, queue_id)
        metrics.settled(*key, count, pop_time)
        if key in metrics.stopped and metrics.in_flight(*key) <= config.pop_inflight_message_threshold:
            metrics.stopped.discard(key)
            self._polling.notify_free(normal_topic(topic, group), group, queue_id)

    def _ack_in_order(self, topic: str, group: str, queue_id: int, offset: int, pop_time: int) -> None:
        offsets = self._progress.offsets
        committed = offsets.query(group, topic, queue_id)
        if offset < committed:
            return
        following = self._progress.order.commit(topic, group, queue_id, offset, pop_time)
        if following == NOT_POPPED:
            raise RefusalError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"offset is illegal, key:{topic}@{group}@{queue_id}, old:{committed}, commit:{offset}, "
                f"next:{following}")
        if following >= 0:
            if not offsets.is_reset(group, topic, queue_id):
                offsets.commit(group, topic, queue_id, following)
            if not self._progress.order.is_blocked(None, topic, group, queue_id, 0):
                self._polling.notify_free(topic, group, queue_id)

    # -- another time

    def change(self, header: ChangeInvisibleTimeRequestHeader) -> Changed:
        """Set when a popped message is visible again."""
        group, topic, queue_id, offset = self._named(header)
        invisible_time = header.invisible_time
        limit_ms = self._store.config.timer_max_delay_sec * 1000
        if not 0 <= invisible_time <= limit_ms:
            raise RefusalError(
                ResponseCode.INVALID_PARAMETER,
                f"invisibleTime is {invisible_time} ms, it may be 0 to {limit_ms} ms (timerMaxDelaySec)")
        if header.lite_topic:
            return Changed(self._lite().change(header))
        low, high = self._store.queue_of(topic, queue_id).bounds
        if not low <= offset < high:
            raise RefusalError(
                ResponseCode.NO_MESSAGE,
                f"offset is illegal, key:{topic}@{queue_id}, change:{offset}, store:{low}~{high}")
        receipt = self._receipt(header.extra_info, queue_id)
        now = self._clock.now_ms()
        if receipt.is_order:
            if offset >= self._progress.offsets.query(group, topic, queue_id):
                self._progress.order.change_visible(
                    topic, group, queue_id, offset, receipt.pop_time, now + invisible_time)
            return Changed(ChangeInvisibleTimeResponseHeader(
                receipt.pop_time, now + invisible_time - receipt.pop_time, receipt.revive_queue_id))
        # A checkpoint is identified by its first offset and its pop time. The acknowledgement below ends the old
        # one, so the new one must have another identity.
        now = max(now, receipt.pop_time + 1)
        made = _stored(self._revive_log.put_checkpoint(PopCheckPoint(
            offset, now, invisible_time, queue_id, topic, group, receipt.broker_name, (0,), 1, suspend=header.suspend),
            receipt.revive_queue_id), "checkpoint")
        self._traffic.revive_log_put("CK", topic, group)
        changed = ChangeInvisibleTimeResponseHeader(now, invisible_time, receipt.revive_queue_id)
        old = Ack((offset,), receipt.start_offset, receipt.pop_time, queue_id, topic, group, receipt.broker_name)

        def end_old(status: PutMessageStatus) -> int | None:
            """Acknowledge the message in the old checkpoint; it stays in flight. If this fails, it comes at both times.
            """
            if status is not PutMessageStatus.PUT_OK:
                return None
            return self._put_ack(old, receipt.invisible_time, receipt.revive_queue_id, settles=False).until

        # The old checkpoint ends after the new one is synced. A power loss may keep any unsynced page; if it kept
        # only the end of the old checkpoint, the message would be lost.
        if self.durable is None:
            end_old(PutMessageStatus.PUT_OK)
            return Changed(changed)
        return Changed(changed, made.until, end_old)

    # -- checks

    def _named(
        self, header: AckMessageRequestHeader | ChangeInvisibleTimeRequestHeader
    ) -> tuple[str, str, int, int]:
        """Return group, topic, queue and offset of a request after checks. Raises RefusalError."""
        self._requests.check_writable()
        self._requests.check_popped(header.consumer_group, header.topic, header.queue_id)
        return header.consumer_group, header.topic, header.queue_id, header.offset

    def _lite(self) -> LiteAcks:
        if self._of_lite is None:
            raise RefusalError(ResponseCode.INVALID_PARAMETER, "there are no lite topics")
        return self._of_lite

    def _receipt(self, extra_info: str, queue_id: int) -> ExtraInfo:
        receipt = receipt_of(extra_info, self._config.revive_queue_num)
        if receipt.queue_id not in {-1, queue_id}:
            raise RefusalError(
                ResponseCode.INVALID_PARAMETER,
                f"extraInfo is the receipt of queue {receipt.queue_id}, the request names queue {queue_id}")
        return receipt

    # -- remoting

    @serves(RequestCode.ACK_MESSAGE)
    def ack_message(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Acknowledge one message: request 200051."""
        until = self.ack(request.read(AckMessageRequestHeader))
        return when_durable(self.durable, channel, request, request.answer(), until)

    @serves(RequestCode.BATCH_ACK_MESSAGE)
    def ack_messages(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Acknowledge messages of one or more checkpoints: request 200151."""
        until = self.ack_batch(json_object(request) if request.body else {})
        return when_durable(self.durable, channel, request, request.answer(), until)

    @serves(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
    def change_invisible_time(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Set when a popped message is visible again: request 200053."""
        changed = self.change(request.read(ChangeInvisibleTimeRequestHeader))
        return when_durable(
            self.durable, channel, request, request.answer(ext=changed.header), changed.until, changed.then)


def _stored(result: PutMessageResult, what: str) -> PutMessageResult:
    """Return the result of a put. Raises RefusalError if nothing was stored."""
    if not result.status.appended:
        raise RefusalError(
            ResponseCode.SYSTEM_ERROR, f"the {what} could not be stored: {result.status.name} {result.remark}".strip())
    return result
