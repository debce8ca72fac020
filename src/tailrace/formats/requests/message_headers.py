"""Headers of requests that write, read, find or confirm messages."""

from __future__ import annotations

from typing import Final

from tailrace.formats.requests.custom_header import CustomHeader, Int32, Int64, with_short_names

__all__ = [
    "BROKER_NAME_FIELDS",
    "AckMessageRequestHeader",
    "ChangeInvisibleTimeRequestHeader",
    "ChangeInvisibleTimeResponseHeader",
    "CheckTransactionStateRequestHeader",
    "ConsumerSendMsgBackRequestHeader",
    "EndTransactionRequestHeader",
    "NotificationRequestHeader",
    "NotificationResponseHeader",
    "NotifyUnsubscribeLiteRequestHeader",
    "PeekMessageRequestHeader",
    "PollingInfoRequestHeader",
    "PollingInfoResponseHeader",
    "PopLiteMessageRequestHeader",
    "PopLiteMessageResponseHeader",
    "PopMessageRequestHeader",
    "PopMessageResponseHeader",
    "PullMessageRequestHeader",
    "PullMessageResponseHeader",
    "PullSysFlag",
    "QueryMessageRequestHeader",
    "QueryMessageResponseHeader",
    "RecallMessageRequestHeader",
    "RecallMessageResponseHeader",
    "ReplyMessageRequestHeader",
    "ResumeCheckHalfMessageRequestHeader",
    "SendMessageRequestHeader",
    "SendMessageRequestHeaderV2",
    "SendMessageResponseHeader",
    "ViewMessageRequestHeader",
]


class SendMessageRequestHeader(CustomHeader):
    """Requests 10 and 324; requests 310, 320 and 325 have the short names of version 2."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None
    batch: bool | None = None
    max_reconsume_times: Int32 | None = None


SendMessageRequestHeaderV2: Final[type[SendMessageRequestHeader]] = with_short_names(
    SendMessageRequestHeader, "SendMessageRequestHeaderV2", "abcdefghijkml")
"""Requests 310, 320 and 325."""
BROKER_NAME_FIELDS: Final[tuple[str, str]] = ("bname", "n")
"""The long and the short name of the field of a request that is for proxies only: the name of the broker."""


class SendMessageResponseHeader(CustomHeader):
    """Answer to a send: queue and offset of the message, and its ids."""

    msg_id: str
    queue_id: Int32
    queue_offset: Int64
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None


class ReplyMessageRequestHeader(CustomHeader):
    """Request 326: a reply that the broker pushes to a producer."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    born_host: str
    store_host: str
    store_timestamp: Int64
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool = False


class ConsumerSendMsgBackRequestHeader(CustomHeader):
    """Request 36: a message that a consumer could not process."""

    offset: Int64
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None


class RecallMessageRequestHeader(CustomHeader):
    """Request 370: a timer message to be deleted."""

    topic: str
    recall_handle: str
    producer_group: str | None = None


class RecallMessageResponseHeader(CustomHeader):
    """The id of the message that was recalled."""

    msg_id: str


class EndTransactionRequestHeader(CustomHeader):
    """Request 37: a half message is committed (8), rolled back (12) or of unknown state (0)."""

    producer_group: str
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    commit_or_rollback: Int32
    msg_id: str
    topic: str | None = None
    from_transaction_check: bool = False
    transaction_id: str | None = None


class CheckTransactionStateRequestHeader(CustomHeader):
    """Request 39: the broker asks a producer for the state of a half message."""

    tran_state_table_offset: Int64
    commit_log_offset: Int64
    topic: str | None = None
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None


class ResumeCheckHalfMessageRequestHeader(CustomHeader):
    """Request 323: check a half message again after too many checks."""

    topic: str | None = None
    msg_id: str | None = None


class PullSysFlag:
    """Bits of the system flag of a pull (RocketMQ's PullSysFlag)."""

    COMMIT_OFFSET: Final = 0x1
    SUSPEND: Final = 0x2
    SUBSCRIPTION: Final = 0x4
    CLASS_FILTER: Final = 0x8
    LITE_PULL_MESSAGE: Final = 0x10


class PullMessageRequestHeader(CustomHeader):
    """Requests 11 and 361."""

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: Int64
    suspend_timeout_millis: Int64
    sub_version: Int64
    lite_topic: str | None = None
    subscription: str | None = None
    expression_type: str | None = None
    max_msg_bytes: Int32 | None = None
    request_source: Int32 | None = None
    proxy_froward_client_id: str | None = None
    """RocketMQ misspells the name, and so do its clients."""


class PullMessageResponseHeader(CustomHeader):
    """Answer to a pull: offset of the next pull, least and next offset of the queue."""

    suggest_which_broker_id: Int64
    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64
    offset_delta: Int64 | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None
    forbidden_type: Int32 | None = None


class PopMessageRequestHeader(CustomHeader):
    """Request 200050."""

    consumer_group: str
    topic: str
    queue_id: Int32
    max_msg_nums: Int32
    invisible_time: Int64
    poll_time: Int64
    born_time: Int64
    init_mode: Int32
    exp_type: str | None = None
    exp: str | None = None
    order: bool = False
    attempt_id: str | None = None


class PopMessageResponseHeader(CustomHeader):
    """Answer to a pop: the fields from which clients make the receipts."""

    pop_time: Int64
    invisible_time: Int64
    revive_qid: Int32
    rest_num: Int64
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class PopLiteMessageRequestHeader(CustomHeader):
    """Request 200070: messages of the Lite topics of a client."""

    client_id: str
    consumer_group: str
    topic: str
    max_msg_num: Int32
    invisible_time: Int64
    poll_time: Int64
    born_time: Int64
    attempt_id: str | None = None


class PopLiteMessageResponseHeader(CustomHeader):
    """Answer to request 200070; ``orderCountInfo`` has for each message how often it was popped before."""

    pop_time: Int64
    invisible_time: Int64
    revive_qid: Int32
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class NotifyUnsubscribeLiteRequestHeader(CustomHeader):
    """Request 200073: the broker has ended the subscription of a client to a Lite topic."""

    lite_topic: str
    consumer_group: str
    client_id: str


class AckMessageRequestHeader(CustomHeader):
    """Request 200051: one popped message was processed."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64
    lite_topic: str | None = None


class ChangeInvisibleTimeRequestHeader(CustomHeader):
    """Request 200053: a popped message is redelivered later or earlier."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64
    invisible_time: Int64
    lite_topic: str | None = None
    suspend: bool = False


class ChangeInvisibleTimeResponseHeader(CustomHeader):
    """Answer to a change of the invisible time: the fields of the new receipt."""

    pop_time: Int64
    invisible_time: Int64
    revive_qid: Int32


class PeekMessageRequestHeader(CustomHeader):
    """Request 200052: messages that could be popped."""

    topic: str
    queue_id: Int32
    max_msg_nums: Int32
    consumer_group: str


class NotificationRequestHeader(CustomHeader):
    """Request 200054: wait until a group can pop a message."""

    consumer_group: str
    topic: str
    queue_id: Int32
    poll_time: Int64
    born_time: Int64
    order: bool = False
    attempt_id: str | None = None
    is_lite_consumer: bool = False
    client_id: str = ""
    exp_type: str | None = None
    exp: str | None = None


class NotificationResponseHeader(CustomHeader):
    """Answer to a notification: whether the queue has a message."""

    has_msg: bool = False
    polling_full: bool = False


class PollingInfoRequestHeader(CustomHeader):
    """Request 200055: how many pops wait."""

    consumer_group: str
    topic: str
    queue_id: Int32


class PollingInfoResponseHeader(CustomHeader):
    """Number of pops that wait."""

    polling_num: Int32


class QueryMessageRequestHeader(CustomHeader):
    """Request 12: messages by key and time (epoch ms)."""

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64
    index_type: str | None = None
    last_key: str | None = None


class QueryMessageResponseHeader(CustomHeader):
    """Answer to a query by key: store time in epoch ms and position of the last indexed message."""

    index_last_update_timestamp: Int64
    index_last_update_phyoffset: Int64


class ViewMessageRequestHeader(CustomHeader):
    """Request 33: the message at a position in the log."""

    offset: Int64
    topic: str | None = None
