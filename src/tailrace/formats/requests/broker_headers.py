"""Headers of requests about topics, queues and the broker itself."""

from __future__ import annotations

import msgspec

from tailrace.formats.requests.custom_header import CustomHeader, Int32, Int64

__all__ = [
    "CheckRocksdbCqWriteProgressRequestHeader",
    "CreateTopicRequestHeader",
    "DeleteTopicRequestHeader",
    "ExportRocksDBConfigToJsonRequestHeader",
    "GetAllTopicConfigRequestHeader",
    "FreeBytesRequestHeader",
    "GetBrokerConfigResponseHeader",
    "GetEarliestMsgStoretimeRequestHeader",
    "GetEarliestMsgStoretimeResponseHeader",
    "GetLiteClientInfoRequestHeader",
    "GetLiteGroupInfoRequestHeader",
    "GetLiteTopicInfoRequestHeader",
    "GetMaxOffsetRequestHeader",
    "GetMaxOffsetResponseHeader",
    "GetMinOffsetRequestHeader",
    "GetMinOffsetResponseHeader",
    "GetParentTopicInfoRequestHeader",
    "GetTopicConfigRequestHeader",
    "GetTopicStatsInfoRequestHeader",
    "PurgeTopicRequestHeader",
    "QueryConsumeQueueRequestHeader",
    "ResetMasterFlushOffsetHeader",
    "SearchOffsetRequestHeader",
    "SearchOffsetResponseHeader",
    "SetCommitLogReadModeRequestHeader",
    "SwitchTimerEngineRequestHeader",
    "TriggerLiteDispatchRequestHeader",
    "ViewBrokerStatsDataRequestHeader",
]


class CreateTopicRequestHeader(CustomHeader):
    """Requests 17 and 513."""

    topic: str
    default_topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_filter_type: str
    topic_sys_flag: Int32 | None = None
    order: bool = False
    attributes: str | None = None
    force: bool = False


class GetAllTopicConfigRequestHeader(CustomHeader):
    """Request 21. Old clients send no header."""

    topic_seq: Int32 | None = None
    data_version: str | None = None
    max_topic_num: Int32 | None = None


class SearchOffsetRequestHeader(CustomHeader):
    """Request 29: the offset at a time (epoch ms)."""

    topic: str
    queue_id: Int32
    timestamp: Int64
    lite_topic: str | None = None
    boundary_type: str | None = None


class SearchOffsetResponseHeader(CustomHeader):
    """Answer to request 29: the offset at that time."""

    offset: Int64


class GetMaxOffsetRequestHeader(CustomHeader):
    """Request 30."""

    topic: str
    queue_id: Int32
    committed: bool = True


class GetMaxOffsetResponseHeader(CustomHeader):
    """Answer to request 30: the offset of the next message."""

    offset: Int64


class GetMinOffsetRequestHeader(CustomHeader):
    """Request 31."""

    topic: str
    queue_id: Int32


class GetMinOffsetResponseHeader(CustomHeader):
    """Answer to request 31: the offset of the first message."""

    offset: Int64


class GetEarliestMsgStoretimeRequestHeader(CustomHeader):
    """Request 32."""

    topic: str
    queue_id: Int32


class GetEarliestMsgStoretimeResponseHeader(CustomHeader):
    """Answer to request 32: store time of the first message, epoch ms."""

    timestamp: Int64


class GetTopicStatsInfoRequestHeader(CustomHeader):
    """Request 202."""

    topic: str


class DeleteTopicRequestHeader(CustomHeader):
    """Request 215."""

    topic: str


class ViewBrokerStatsDataRequestHeader(CustomHeader):
    """Request 315."""

    stats_name: str
    stats_key: str


class QueryConsumeQueueRequestHeader(CustomHeader):
    """Request 321."""

    topic: str | None = None
    queue_id: Int32 = 0
    index: Int64 = 0
    count: Int32 = 0
    consumer_group: str | None = None


class GetTopicConfigRequestHeader(CustomHeader):
    """Request 351."""

    topic: str
    lo: bool | None = None
    """Whether the answer also has the mapping of a static topic."""


class CheckRocksdbCqWriteProgressRequestHeader(CustomHeader):
    """Request 354."""

    topic: str
    check_store_time: Int64 = 0


class ExportRocksDBConfigToJsonRequestHeader(CustomHeader):
    """Request 355."""

    config_type: str
    """topics, subscriptionGroups and consumerOffsets, separated by `;`."""


class SetCommitLogReadModeRequestHeader(CustomHeader):
    """Request 2004."""

    mode: Int32 = msgspec.field(name="READ_AHEAD_MODE")
    """0: normal, 1: random, the values of madvise(2)."""


class SwitchTimerEngineRequestHeader(CustomHeader):
    """Request 5001."""

    engine: str | None = msgspec.field(name="E_T", default=None)
    """F: the timer wheel, R: RocksDB."""


class ExchangeHAInfoHeader(CustomHeader):
    """Request 906, and its answer."""

    master_ha_address: str | None = None
    """Where slaves copy from. A request with it names a master; a request without it asks for the one it is sent to."""
    master_flush_offset: Int64 | None = None
    """End of the log of the master when its store was opened."""
    master_address: str | None = None


class ResetMasterFlushOffsetHeader(CustomHeader):
    """Request 908."""

    master_flush_offset: Int64 | None = None


class GetBrokerConfigResponseHeader(CustomHeader):
    """Answer to request 26: the version of the settings."""

    version: str


class FreeBytesRequestHeader(CustomHeader):
    """Request 329002, which only Tailrace has: free bytes of the CommitLog, or return the last such request."""

    free_bytes: Int64 | None = None
    """Bytes to free; without it, the answer is the state of the last request."""
    dry_run: bool = False
    """Answer with the files that would be deleted, and delete nothing."""


class PurgeTopicRequestHeader(CustomHeader):
    """Request 329001, which only Tailrace has: release messages of a topic, or of one of its queues."""

    topic: str
    queue_id: Int32 | None = None
    before_ms: Int64 | None = None
    """Only messages that were stored before this time, epoch ms."""


class GetParentTopicInfoRequestHeader(CustomHeader):
    """Request 200075: the Lite topics and groups of a parent topic."""

    topic: str


class GetLiteTopicInfoRequestHeader(CustomHeader):
    """Request 200076: offsets and subscribers of a Lite topic."""

    parent_topic: str = ""
    lite_topic: str = ""


class GetLiteClientInfoRequestHeader(CustomHeader):
    """Request 200077: the subscriptions of a client."""

    parent_topic: str = ""
    group: str = ""
    client_id: str = ""
    max_count: Int32 = 1000


class GetLiteGroupInfoRequestHeader(CustomHeader):
    """Request 200078: how far a group has consumed its Lite topics, or one of them."""

    group: str
    lite_topic: str = ""
    top_k: Int32 = 0


class TriggerLiteDispatchRequestHeader(CustomHeader):
    """Request 200079: look for messages of all Lite topics of a group, or of one client."""

    group: str
    client_id: str = ""
