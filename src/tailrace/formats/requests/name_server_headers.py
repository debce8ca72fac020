"""Headers of requests to a name server."""

from __future__ import annotations

from tailrace.formats.requests.custom_header import CustomHeader, Int32, Int64

__all__ = [
    "AddWritePermOfBrokerRequestHeader",
    "AddWritePermOfBrokerResponseHeader",
    "BrokerHeartbeatRequestHeader",
    "DeleteKVConfigRequestHeader",
    "DeleteTopicFromNamesrvRequestHeader",
    "GetBrokerMemberGroupRequestHeader",
    "GetKVConfigRequestHeader",
    "GetKVConfigResponseHeader",
    "GetKVListByNamespaceRequestHeader",
    "GetRouteInfoRequestHeader",
    "GetTopicsByClusterRequestHeader",
    "PutKVConfigRequestHeader",
    "QueryDataVersionRequestHeader",
    "QueryDataVersionResponseHeader",
    "RegisterBrokerRequestHeader",
    "RegisterBrokerResponseHeader",
    "RegisterTopicRequestHeader",
    "UnRegisterBrokerRequestHeader",
    "WipeWritePermOfBrokerRequestHeader",
    "WipeWritePermOfBrokerResponseHeader",
]


class PutKVConfigRequestHeader(CustomHeader):
    """Request 100."""

    namespace: str
    key: str
    value: str


class GetKVConfigRequestHeader(CustomHeader):
    """Request 101."""

    namespace: str
    key: str


class GetKVConfigResponseHeader(CustomHeader):
    """The value of a key."""

    value: str | None = None


class DeleteKVConfigRequestHeader(CustomHeader):
    """Request 102."""

    namespace: str
    key: str


class RegisterBrokerRequestHeader(CustomHeader):
    """Request 103."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Int64
    heartbeat_timeout_millis: Int64 | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: Int32 = 0


class RegisterBrokerResponseHeader(CustomHeader):
    """Answer to a registration: addresses of the master of a slave; empty for a master."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class UnRegisterBrokerRequestHeader(CustomHeader):
    """Request 104."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class GetRouteInfoRequestHeader(CustomHeader):
    """Request 105."""

    topic: str
    accept_standard_json_only: bool | None = None


class WipeWritePermOfBrokerRequestHeader(CustomHeader):
    """Request 205."""

    broker_name: str


class WipeWritePermOfBrokerResponseHeader(CustomHeader):
    """Number of topics that were changed."""

    wipe_topic_count: Int32


class DeleteTopicFromNamesrvRequestHeader(CustomHeader):
    """Request 216."""

    topic: str
    cluster_name: str | None = None


class RegisterTopicRequestHeader(CustomHeader):
    """Request 217."""

    topic: str


class GetKVListByNamespaceRequestHeader(CustomHeader):
    """Request 219."""

    namespace: str


class GetTopicsByClusterRequestHeader(CustomHeader):
    """Request 224."""

    cluster: str


class QueryDataVersionRequestHeader(CustomHeader):
    """Request 322."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class QueryDataVersionResponseHeader(CustomHeader):
    """Answer to a version query: whether the name server has an older version."""

    changed: bool


class AddWritePermOfBrokerRequestHeader(CustomHeader):
    """Request 327."""

    broker_name: str


class AddWritePermOfBrokerResponseHeader(CustomHeader):
    """Number of topics that were changed."""

    add_topic_count: Int32


class GetBrokerMemberGroupRequestHeader(CustomHeader):
    """Request 901."""

    cluster_name: str
    broker_name: str


class BrokerHeartbeatRequestHeader(CustomHeader):
    """Request 904."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: Int64 | None = None
    epoch: Int32 | None = None
    max_offset: Int64 | None = None
    confirm_offset: Int64 | None = None
    heartbeat_timeout_mills: Int64 | None = None
    election_priority: Int32 | None = None
