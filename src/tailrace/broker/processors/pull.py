"""Pulls: requests 11 and 361 (PullMessageProcessor), with long polling."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, final

from tailrace.broker.answers_later import MissingConfigError
from tailrace.broker.client_manager import TAG, SubscriptionData
from tailrace.broker.cold_reads import ColdRead
from tailrace.broker.context import BrokerContext
from tailrace.broker.heartbeat import EXPRESSION_MAX
from tailrace.broker.long_polling import HeldPull, PullRequestHoldService
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.logs import get_logger
from tailrace.model import GetMessageResult, GetMessageStatus
from tailrace.node.subscription_group import SubscriptionGroupConfig
from tailrace.node.topic_config import TopicConfig
from tailrace.remoting import Channel, RemotingServer

__all__ = ["PullMessageProcessor"]

_log = get_logger(__name__)

COMMIT_OFFSET: Final = 1
SUSPEND: Final = 2
SUBSCRIPTION: Final = 4
DEFAULT_MAX_BYTES: Final = 256 * 1024
MAX_BYTES: Final = 4 << 20
"""Of one answer, which is read on the event loop; a larger first message is still handed out."""
INT64: Final = 1 << 63
Read = Callable[..., GetMessageResult]
"""Reads the messages of a pull; with ``only_cached=True`` without waiting for the disk."""
CODES: Final[Mapping[GetMessageStatus, ResponseCode]] = {
    GetMessageStatus.FOUND: ResponseCode.SUCCESS,
    GetMessageStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    GetMessageStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetMessageStatus.OFFSET_RESET: ResponseCode.PULL_OFFSET_MOVED,
}


class _RefusalError(Exception):
    """A pull that is answered with a code and a remark."""

    def __init__(self, code: int, remark: str) -> None:
        self.code, self.remark = code, remark
        super().__init__(remark)


@final
class PullMessageProcessor:
    """Hands out messages. ``hold`` is set before the first request."""

    hold: PullRequestHoldService

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker
        self._store = broker.store

    def register(self, server: RemotingServer) -> None:
        """Take over the codes of this processor."""
        server.register(self.pull, RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)

    def pull(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | bytes | None:
        """Answer with messages, or wait for one."""
        try:
            return self._pull(channel, request, first=True)
        except MissingConfigError as missing:
            return self._broker.changes.serve_again(
                channel, request, missing,
                lambda channel, request: self._pull(channel, request, first=True))

    def run_again(self, pull: HeldPull) -> None:
        """Answer a pull that has waited, whatever is found."""
        try:
            self._answer_later(pull.channel, pull.request, first=False)
        except Exception as error:  # noqa: BLE001 - the outermost step of a held request
            _log.warning(
                "held pull failed topic=%s queue=%d reason=%r", pull.topic, pull.queue_id, error)
            self._failed(pull.channel, pull.request, error)

    def _answer_cold(
        self, channel: Channel, request: RemotingCommand, result: GetMessageResult | Exception, *, first: bool
    ) -> None:
        """Answer a pull whose messages were read from the disk."""
        try:
            if isinstance(result, Exception):
                raise result
            self._answer_later(channel, request, first=first, result=result)
        except Exception as error:  # noqa: BLE001 - the outermost step of a request that waited
            _log.warning("cold pull failed topic=%s queue=%s reason=%r", request.ext["topic"],
                         request.ext["queueId"], error)
            self._failed(channel, request, error)

    def _answer_later(
        self, channel: Channel, request: RemotingCommand, *, first: bool, result: GetMessageResult | None = None
    ) -> None:
        try:
            answer = self._pull(channel, request, first=first, result=result)
        except MissingConfigError:  # deleted while the pull waited: it does not create it again
            answer = request.answer(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{request.ext['consumerGroup']}] does not exist")
        if answer is not None:
            channel.answer(request, answer)

    def _failed(self, channel: Channel, request: RemotingCommand, error: Exception) -> None:
        channel.answer(request, request.answer(
            ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}"))

    def _pull(
        self, channel: Channel, request: RemotingCommand, *, first: bool, result: GetMessageResult | None = None
    ) -> RemotingCommand | None:
        """Return the answer to a pull; None if it comes later.

        ``first`` is whether the pull has not waited for a message yet, ``result`` what was read for it
        while it waited for the disk.
        """
        ext = request.ext
        group, topic = ext["consumerGroup"], ext["topic"]
        queue_id, offset = int(ext["queueId"]), int(ext["queueOffset"])
        sys_flag = int(ext["sysFlag"])
        try:
            group_config, topic_config = self._checked(group, topic, queue_id)
            subscription = self._subscription(channel, group_config, request, sys_flag)
        except _RefusalError as refusal:
            return request.answer(refusal.code, refusal.remark)
        if (reset := self._broker.offsets.take_reset(group, topic, queue_id)) is not None:
            return self._moved(request, reset, topic_config, group_config)
        if result is None:
            commit = int(ext["commitOffset"]) if first and sys_flag & COMMIT_OFFSET else -1
            if not -INT64 <= offset < INT64 or commit >= INT64:
                return request.answer(ResponseCode.INVALID_PARAMETER, "an offset is out of its range")
            if commit >= 0:
                self._broker.offsets.commit(group, topic, queue_id, commit)
            read = self._read(ext, topic, queue_id, offset, subscription)
            result = read(only_cached=True)
            if result.is_cold:
                return self._read_cold(channel, request, group, read, first=first)
        code = CODES.get(result.status)
        if code is None:  # the queue does not exist yet, or is empty
            code = ResponseCode.PULL_OFFSET_MOVED if offset else ResponseCode.PULL_NOT_FOUND
        if code is ResponseCode.PULL_NOT_FOUND and first and sys_flag & SUSPEND:
            self._park(channel, request, topic, queue_id, offset, subscription)
            return None
        self._broker.offsets.commit_pull(group, topic, queue_id, result.next_begin_offset)
        body = result.data
        if body:
            self._broker.traffic.hand_out(topic, group, result.message_count, len(body))
        return request.answer(
            code,
            result.status.name,
            _header(result.next_begin_offset, result.min_offset, result.max_offset, topic_config,
                    group_config),
            body,
        )

    def _read(
        self, ext: Mapping[str, str], topic: str, queue_id: int, offset: int, subscription: SubscriptionData
    ) -> Read:
        """Return the function that reads the messages of a pull; any thread may call it."""
        max_bytes = int(ext.get("maxMsgBytes") or 0)
        most = self._store.config.max_transfer_count_on_message_in_memory
        return partial(
            self._store.get_message, topic, queue_id, offset, max(1, min(int(ext["maxMsgNums"]), most)),
            max_bytes=min(max_bytes, MAX_BYTES) if max_bytes > 0 else DEFAULT_MAX_BYTES,
            codes=subscription.codes)

    def _read_cold(
        self, channel: Channel, request: RemotingCommand, group: str, read: Read, *, first: bool
    ) -> RemotingCommand | None:
        """Have the messages of a pull read in a thread, or refuse the pull."""
        answer = partial(self._answer_cold, channel, request, first=first)
        if self._broker.cold_reads.submit(ColdRead(channel, request, group, read, answer)):
            return None
        return request.answer(
            ResponseCode.SYSTEM_BUSY,
            f"{self._broker.cold_reads.pending} pulls wait for messages that are not in the page cache; "
            "try again later")

    def _moved(
        self, request: RemotingCommand, offset: int, topic: TopicConfig, group: SubscriptionGroupConfig
    ) -> RemotingCommand:
        """Tell a consumer that its offset was set by hand; nothing is read, nothing committed."""
        name, queue_id = request.ext["topic"], int(request.ext["queueId"])
        return request.answer(
            ResponseCode.PULL_OFFSET_MOVED, GetMessageStatus.OFFSET_RESET.name,
            _header(offset, max(0, self._store.min_offset_in_queue(name, queue_id)),
                    max(0, self._store.max_offset_in_queue(name, queue_id)), topic, group))

    def _park(
        self, channel: Channel, request: RemotingCommand, topic: str, queue_id: int, offset: int,
        subscription: SubscriptionData,
    ) -> None:
        config = self._broker.config
        hold_ms = config.short_polling_time_mills
        if config.long_polling_enable:
            hold_ms = int(request.ext["suspendTimeoutMillis"])
        self.hold.hold(
            HeldPull(
                channel, request, topic, queue_id, offset,
                self._broker.loop.time() + hold_ms / 1000, subscription.codes,
            )
        )

    def _checked(
        self, group: str, topic: str, queue_id: int
    ) -> tuple[SubscriptionGroupConfig, TopicConfig]:
        broker = self._broker
        group_config = broker.group(group)
        if group_config is None:
            raise _RefusalError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{group}] does not exist",
            )
        if not group_config.consume_enable:
            raise _RefusalError(
                ResponseCode.NO_PERMISSION, f"subscription group no permission, {group}"
            )
        topic_config = broker.topics.select(topic)
        if topic_config is None:
            raise _RefusalError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!"
            )
        if not topic_config.readable:
            raise _RefusalError(
                ResponseCode.NO_PERMISSION, f"the topic[{topic}] pulling message is forbidden"
            )
        if not 0 <= queue_id < topic_config.read_queue_nums:
            raise _RefusalError(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{queue_id}] is illegal, topic:[{topic}] "
                f"topicConfig.readQueueNums:[{topic_config.read_queue_nums}]",
            )
        return group_config, topic_config

    def _subscription(
        self, channel: Channel, group_config: SubscriptionGroupConfig, request: RemotingCommand,
        sys_flag: int,
    ) -> SubscriptionData:
        ext = request.ext
        expression_type = ext.get("expressionType") or TAG
        if sys_flag & SUBSCRIPTION:
            if expression_type != TAG:
                raise _no_sql(expression_type)
            expression = ext.get("subscription") or "*"
            if len(expression) > EXPRESSION_MAX:
                raise _RefusalError(
                    ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                    f"the subscription has {len(expression)} characters, over the limit of "
                    f"{EXPRESSION_MAX}")
            try:
                return SubscriptionData.parse(ext["topic"], expression)
            except ValueError as error:
                raise _RefusalError(
                    ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                    "parse the consumer's subscription failed",
                ) from error
        info = self._broker.consumers.find(ext["consumerGroup"])
        if info is None:
            raise _RefusalError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist"
            )
        if info.broadcasting and not group_config.consume_broadcast_enable:
            raise _RefusalError(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{info.group}] can not consume by broadcast way",
            )
        if self._broker.groups.is_read_forbidden(info.group, ext["topic"]):
            raise _RefusalError(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{info.group}] is forbidden for topic[{ext['topic']}]")
        found = info.subscriptions.get(ext["topic"])
        if found is None:
            raise _RefusalError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's subscription not exist"
            )
        if found.sub_version < int(ext.get("subVersion") or 0):
            self._broker.consumers.ask_for_subscriptions(info.group, channel)
            raise _RefusalError(
                ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest"
            )
        if found.expression_type != TAG:
            raise _no_sql(found.expression_type)
        return found


def _header(
    next_begin: int, low: int, high: int, topic: TopicConfig, group: SubscriptionGroupConfig
) -> dict[str, str]:
    """What every answer to a pull says: where to go on, where the queue begins and ends."""
    return {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": str(next_begin),
        "minOffset": str(low),
        "maxOffset": str(high),
        "topicSysFlag": str(topic.topic_sys_flag),
        "groupSysFlag": str(group.group_sys_flag),
    }


def _no_sql(expression_type: str) -> _RefusalError:
    return _RefusalError(
        ResponseCode.SYSTEM_ERROR,
        f"The broker does not support consumer to filter message by {expression_type}",
    )
