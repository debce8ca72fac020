"""Headers of requests about consumers: their offsets, groups and connections."""

from __future__ import annotations

import msgspec

from tailrace.formats.requests.custom_header import CustomHeader, Int32, Int64

__all__ = [
    "CloneGroupOffsetRequestHeader",
    "ConsumeMessageDirectlyResultRequestHeader",
    "DeleteSubscriptionGroupRequestHeader",
    "GetAllSubscriptionGroupRequestHeader",
    "GetConsumeStatsInBrokerHeader",
    "GetConsumeStatsRequestHeader",
    "GetConsumerConnectionListRequestHeader",
    "GetConsumerListByGroupRequestHeader",
    "GetConsumerRunningInfoRequestHeader",
    "GetConsumerStatusRequestHeader",
    "GetProducerConnectionListRequestHeader",
    "GetSubscriptionGroupConfigRequestHeader",
    "NotifyConsumerIdsChangedRequestHeader",
    "QueryConsumeTimeSpanRequestHeader",
    "QueryConsumerOffsetRequestHeader",
    "QueryConsumerOffsetResponseHeader",
    "QueryCorrectionOffsetHeader",
    "QuerySubscriptionByConsumerRequestHeader",
    "QueryTopicConsumeByWhoRequestHeader",
    "QueryTopicsByConsumerRequestHeader",
    "ResetOffsetRequestHeader",
    "UnregisterClientRequestHeader",
    "UpdateConsumerOffsetRequestHeader",
    "UpdateGroupForbiddenRequestHeader",
]


class QueryConsumerOffsetRequestHeader(CustomHeader):
    """Request 14."""

    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None


class QueryConsumerOffsetResponseHeader(CustomHeader):
    """The committed offset."""

    offset: Int64


class UpdateConsumerOffsetRequestHeader(CustomHeader):
    """Request 15."""

    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: Int64


class UnregisterClientRequestHeader(CustomHeader):
    """Request 35."""

    client_id: str = msgspec.field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class GetConsumerListByGroupRequestHeader(CustomHeader):
    """Request 38."""

    consumer_group: str


class NotifyConsumerIdsChangedRequestHeader(CustomHeader):
    """Request 40, which the broker sends: members of a group have changed."""

    consumer_group: str


class GetAllSubscriptionGroupRequestHeader(CustomHeader):
    """Request 201. Old clients send no header."""

    group_seq: Int32 | None = None
    data_version: str | None = None
    max_group_num: Int32 | None = None


class GetConsumerConnectionListRequestHeader(CustomHeader):
    """Request 203."""

    consumer_group: str


class GetProducerConnectionListRequestHeader(CustomHeader):
    """Request 204."""

    producer_group: str


class DeleteSubscriptionGroupRequestHeader(CustomHeader):
    """Request 207."""

    group_name: str
    clean_offset: bool = False


class GetConsumeStatsRequestHeader(CustomHeader):
    """Request 208."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


class ResetOffsetRequestHeader(CustomHeader):
    """Requests 220 and 222: set offsets by hand or by time (epoch ms)."""

    group: str
    topic: str
    timestamp: Int64
    is_force: bool
    queue_id: Int32 = -1
    offset: Int64 | None = None


class GetConsumerStatusRequestHeader(CustomHeader):
    """Requests 221 and 223: offsets as the consumers of a group have them."""

    topic: str
    group: str
    client_addr: str | None = None


class QueryTopicConsumeByWhoRequestHeader(CustomHeader):
    """Request 300."""

    topic: str


class QueryConsumeTimeSpanRequestHeader(CustomHeader):
    """Request 303."""

    topic: str
    group: str


class GetConsumerRunningInfoRequestHeader(CustomHeader):
    """Request 307."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class QueryCorrectionOffsetHeader(CustomHeader):
    """Request 308."""

    compare_group: str
    topic: str
    filter_groups: str | None = None


class ConsumeMessageDirectlyResultRequestHeader(CustomHeader):
    """Request 309: let a consumer process one message."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None


class CloneGroupOffsetRequestHeader(CustomHeader):
    """Request 314."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class GetConsumeStatsInBrokerHeader(CustomHeader):
    """Request 317."""

    is_order: bool


class QueryTopicsByConsumerRequestHeader(CustomHeader):
    """Request 343."""

    group: str


class QuerySubscriptionByConsumerRequestHeader(CustomHeader):
    """Request 345."""

    group: str
    topic: str | None = None


class GetSubscriptionGroupConfigRequestHeader(CustomHeader):
    """Request 352."""

    group: str


class UpdateGroupForbiddenRequestHeader(CustomHeader):
    """Request 353."""

    group: str
    topic: str
    readable: bool | None = None
