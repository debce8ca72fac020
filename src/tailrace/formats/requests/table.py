"""Every request that Tailrace answers or sends, with its fields, and who may do what.

Codes, names, fields, actions and resources are those of RocketMQ 5.5.0 (RequestCode, the classes
``*RequestHeader`` and their annotations RocketMQAction and RocketMQResource).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from tailrace.formats.remoting import RequestCode as Code
from tailrace.formats.requests import broker_headers as b
from tailrace.formats.requests import consumer_headers as c
from tailrace.formats.requests import message_headers as m
from tailrace.formats.requests import name_server_headers as n
from tailrace.formats.requests.custom_header import CustomHeader

__all__ = ["REQUESTS", "Action", "Request", "Resource", "Role"]


class Role(enum.Enum):
    """Who answers a request."""

    BROKER = "broker"
    NAME_SERVER = "name server"
    CLIENT = "client"


class Action(enum.Flag):
    """What a request does, as access control names it."""

    PUB = enum.auto()
    SUB = enum.auto()
    CREATE = enum.auto()
    UPDATE = enum.auto()
    DELETE = enum.auto()
    GET = enum.auto()
    LIST = enum.auto()


class Resource(enum.Flag):
    """What a request does it to, as access control names it."""

    TOPIC = enum.auto()
    GROUP = enum.auto()
    CLUSTER = enum.auto()


TOPIC, GROUP, CLUSTER = Resource.TOPIC, Resource.GROUP, Resource.CLUSTER
PUB, SUB, GET, LIST = Action.PUB, Action.SUB, Action.GET, Action.LIST
CREATE, UPDATE, DELETE = Action.CREATE, Action.UPDATE, Action.DELETE


@dataclass(frozen=True, slots=True)
class Request:
    """A request of the protocol."""

    code: Code
    action: Action
    resource: Resource
    header: type[CustomHeader] | None = None
    """Its fields; None if it has none, or only a body."""
    answer: type[CustomHeader] | None = None
    """The fields of its answer."""
    changes: str = ""
    """The file or the state that it changes."""
    role: Role = Role.BROKER


def _of(role: Role, *rows: Request) -> tuple[Request, ...]:
    return tuple(replace(row, role=role) for row in rows)


_LOG: Final = "the CommitLog"
_BROKER: Final = (
    Request(Code.SEND_MESSAGE, PUB, TOPIC, m.SendMessageRequestHeader, m.SendMessageResponseHeader, _LOG),
    Request(Code.PULL_MESSAGE, SUB, TOPIC | GROUP, m.PullMessageRequestHeader, m.PullMessageResponseHeader,
            "consumerOffset.json"),
    Request(Code.QUERY_MESSAGE, SUB | GET, TOPIC, m.QueryMessageRequestHeader, m.QueryMessageResponseHeader),
    Request(Code.QUERY_CONSUMER_OFFSET, GET, TOPIC | GROUP, c.QueryConsumerOffsetRequestHeader,
            c.QueryConsumerOffsetResponseHeader),
    Request(Code.UPDATE_CONSUMER_OFFSET, SUB, TOPIC | GROUP, c.UpdateConsumerOffsetRequestHeader,
            changes="consumerOffset.json"),
    Request(Code.UPDATE_AND_CREATE_TOPIC, CREATE, TOPIC, b.CreateTopicRequestHeader, changes="topics.json"),
    Request(Code.UPDATE_AND_CREATE_TOPIC_LIST, CREATE, TOPIC, changes="topics.json"),
    Request(Code.GET_ALL_TOPIC_CONFIG, LIST, TOPIC, b.GetAllTopicConfigRequestHeader),
    Request(Code.UPDATE_BROKER_CONFIG, UPDATE, CLUSTER, changes="the file of settings"),
    Request(Code.GET_BROKER_CONFIG, GET, CLUSTER, answer=b.GetBrokerConfigResponseHeader),
    Request(Code.GET_BROKER_RUNTIME_INFO, GET, CLUSTER),
    Request(Code.SEARCH_OFFSET_BY_TIMESTAMP, GET, TOPIC, b.SearchOffsetRequestHeader, b.SearchOffsetResponseHeader),
    Request(Code.GET_MAX_OFFSET, GET, TOPIC, b.GetMaxOffsetRequestHeader, b.GetMaxOffsetResponseHeader),
    Request(Code.GET_MIN_OFFSET, GET, TOPIC, b.GetMinOffsetRequestHeader, b.GetMinOffsetResponseHeader),
    Request(Code.GET_EARLIEST_MSG_STORETIME, GET, TOPIC, b.GetEarliestMsgStoretimeRequestHeader,
            b.GetEarliestMsgStoretimeResponseHeader),
    Request(Code.VIEW_MESSAGE_BY_ID, GET, TOPIC, m.ViewMessageRequestHeader),
    Request(Code.HEART_BEAT, PUB | SUB, GROUP, changes="members of groups"),
    Request(Code.UNREGISTER_CLIENT, PUB | SUB, GROUP, c.UnregisterClientRequestHeader, changes="members of groups"),
    Request(Code.CONSUMER_SEND_MSG_BACK, SUB, TOPIC | GROUP, m.ConsumerSendMsgBackRequestHeader, changes=_LOG),
    Request(Code.END_TRANSACTION, PUB, TOPIC, m.EndTransactionRequestHeader, changes=_LOG),
    Request(Code.GET_CONSUMER_LIST_BY_GROUP, SUB, GROUP, c.GetConsumerListByGroupRequestHeader),
    Request(Code.LOCK_BATCH_MQ, SUB, GROUP, changes="locks of queues"),
    Request(Code.UNLOCK_BATCH_MQ, SUB, GROUP, changes="locks of queues"),
    Request(Code.GET_ALL_CONSUMER_OFFSET, LIST, CLUSTER),
    Request(Code.GET_ALL_DELAY_OFFSET, LIST, CLUSTER),
    Request(Code.CHECK_CLIENT_CONFIG, SUB, GROUP),
    Request(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, CREATE, GROUP, changes="subscriptionGroup.json"),
    Request(Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, LIST, GROUP, c.GetAllSubscriptionGroupRequestHeader),
    Request(Code.GET_TOPIC_STATS_INFO, GET, TOPIC, b.GetTopicStatsInfoRequestHeader),
    Request(Code.GET_CONSUMER_CONNECTION_LIST, GET, GROUP, c.GetConsumerConnectionListRequestHeader),
    Request(Code.GET_PRODUCER_CONNECTION_LIST, GET, CLUSTER, c.GetProducerConnectionListRequestHeader),
    Request(Code.DELETE_SUBSCRIPTIONGROUP, DELETE, GROUP, c.DeleteSubscriptionGroupRequestHeader,
            changes="subscriptionGroup.json, consumerOffset.json"),
    Request(Code.GET_CONSUME_STATS, GET, TOPIC | GROUP, c.GetConsumeStatsRequestHeader),
    Request(Code.DELETE_TOPIC_IN_BROKER, DELETE, TOPIC, b.DeleteTopicRequestHeader,
            changes="topics.json, consumerOffset.json, files of queues"),
    Request(Code.INVOKE_BROKER_TO_RESET_OFFSET, UPDATE, TOPIC | GROUP, c.ResetOffsetRequestHeader,
            changes="consumerOffset.json"),
    Request(Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, GET, TOPIC | GROUP, c.GetConsumerStatusRequestHeader),
    Request(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, CREATE, GROUP, changes="subscriptionGroup.json"),
    Request(Code.QUERY_TOPIC_CONSUME_BY_WHO, GET, TOPIC, c.QueryTopicConsumeByWhoRequestHeader),
    Request(Code.QUERY_CONSUME_TIME_SPAN, GET, TOPIC | GROUP, c.QueryConsumeTimeSpanRequestHeader),
    Request(Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, LIST, TOPIC),
    Request(Code.CLEAN_EXPIRED_CONSUMEQUEUE, UPDATE, CLUSTER, changes="files of queues"),
    Request(Code.GET_CONSUMER_RUNNING_INFO, GET, GROUP, c.GetConsumerRunningInfoRequestHeader),
    Request(Code.QUERY_CORRECTION_OFFSET, GET, TOPIC | GROUP, c.QueryCorrectionOffsetHeader),
    Request(Code.CONSUME_MESSAGE_DIRECTLY, SUB, TOPIC | GROUP, c.ConsumeMessageDirectlyResultRequestHeader),
    Request(Code.SEND_MESSAGE_V2, PUB, TOPIC, m.SendMessageRequestHeaderV2, m.SendMessageResponseHeader, _LOG),
    Request(Code.CLONE_GROUP_OFFSET, UPDATE, TOPIC | GROUP, c.CloneGroupOffsetRequestHeader,
            changes="consumerOffset.json"),
    Request(Code.VIEW_BROKER_STATS_DATA, GET, CLUSTER, b.ViewBrokerStatsDataRequestHeader),
    Request(Code.CLEAN_UNUSED_TOPIC, UPDATE, CLUSTER, changes="files of queues"),
    Request(Code.GET_BROKER_CONSUME_STATS, GET, CLUSTER, c.GetConsumeStatsInBrokerHeader),
    Request(Code.SEND_BATCH_MESSAGE, PUB, TOPIC, m.SendMessageRequestHeaderV2, m.SendMessageResponseHeader, _LOG),
    Request(Code.QUERY_CONSUME_QUEUE, GET, TOPIC | GROUP, b.QueryConsumeQueueRequestHeader),
    Request(Code.RESUME_CHECK_HALF_MESSAGE, UPDATE, TOPIC, m.ResumeCheckHalfMessageRequestHeader, changes=_LOG),
    Request(Code.SEND_REPLY_MESSAGE, PUB, TOPIC, m.SendMessageRequestHeader, m.SendMessageResponseHeader, _LOG),
    Request(Code.SEND_REPLY_MESSAGE_V2, PUB, TOPIC, m.SendMessageRequestHeaderV2, m.SendMessageResponseHeader, _LOG),
    Request(Code.GET_ALL_PRODUCER_INFO, GET, CLUSTER),
    Request(Code.DELETE_EXPIRED_COMMITLOG, UPDATE, CLUSTER, changes=_LOG),
    Request(Code.QUERY_TOPICS_BY_CONSUMER, GET, GROUP, c.QueryTopicsByConsumerRequestHeader),
    Request(Code.QUERY_SUBSCRIPTION_BY_CONSUMER, GET, TOPIC | GROUP, c.QuerySubscriptionByConsumerRequestHeader),
    Request(Code.GET_TOPIC_CONFIG, GET, TOPIC, b.GetTopicConfigRequestHeader),
    Request(Code.GET_SUBSCRIPTIONGROUP_CONFIG, GET, GROUP, c.GetSubscriptionGroupConfigRequestHeader),
    Request(Code.UPDATE_AND_GET_GROUP_FORBIDDEN, UPDATE, TOPIC | GROUP, c.UpdateGroupForbiddenRequestHeader,
            changes="subscriptionGroup.json"),
    Request(Code.CHECK_ROCKSDB_CQ_WRITE_PROGRESS, GET, TOPIC, b.CheckRocksdbCqWriteProgressRequestHeader),
    Request(Code.EXPORT_ROCKSDB_CONFIG_TO_JSON, GET, CLUSTER, b.ExportRocksDBConfigToJsonRequestHeader),
    Request(Code.LITE_PULL_MESSAGE, SUB, TOPIC | GROUP, m.PullMessageRequestHeader, m.PullMessageResponseHeader,
            "consumerOffset.json"),
    Request(Code.RECALL_MESSAGE, PUB, TOPIC, m.RecallMessageRequestHeader, m.RecallMessageResponseHeader, _LOG),
    Request(Code.QUERY_ASSIGNMENT, SUB, TOPIC | GROUP),
    Request(Code.SET_MESSAGE_REQUEST_MODE, UPDATE, TOPIC | GROUP, changes="messageRequestMode.json"),
    Request(Code.GET_ALL_MESSAGE_REQUEST_MODE, GET, CLUSTER),
    Request(Code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, UPDATE, CLUSTER),
    Request(Code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, UPDATE, CLUSTER),
    Request(Code.GET_COLD_DATA_FLOW_CTR_INFO, GET, CLUSTER),
    Request(Code.SET_COMMITLOG_READ_MODE, UPDATE, CLUSTER, b.SetCommitLogReadModeRequestHeader),
    Request(Code.SWITCH_TIMER_ENGINE, UPDATE, CLUSTER, b.SwitchTimerEngineRequestHeader),
    Request(Code.GET_BROKER_HA_STATUS, GET, CLUSTER),
    Request(Code.RESET_MASTER_FLUSH_OFFSET, UPDATE, CLUSTER, b.ResetMasterFlushOffsetHeader),
    Request(Code.GET_BROKER_EPOCH_CACHE, GET, CLUSTER),
    Request(Code.POP_ROLLBACK, UPDATE, CLUSTER),
    Request(Code.POP_MESSAGE, SUB, TOPIC | GROUP, m.PopMessageRequestHeader, m.PopMessageResponseHeader,
            f"{_LOG}, consumerOffset.json, consumerOrderInfo.json"),
    Request(Code.ACK_MESSAGE, SUB, TOPIC | GROUP, m.AckMessageRequestHeader,
            changes=f"{_LOG}, consumerOffset.json, consumerOrderInfo.json"),
    Request(Code.PEEK_MESSAGE, SUB, TOPIC | GROUP, m.PeekMessageRequestHeader, m.PopMessageResponseHeader),
    Request(Code.CHANGE_MESSAGE_INVISIBLETIME, SUB, TOPIC | GROUP, m.ChangeInvisibleTimeRequestHeader,
            m.ChangeInvisibleTimeResponseHeader, f"{_LOG}, consumerOrderInfo.json"),
    Request(Code.NOTIFICATION, SUB, TOPIC | GROUP, m.NotificationRequestHeader, m.NotificationResponseHeader),
    Request(Code.POLLING_INFO, GET, TOPIC | GROUP, m.PollingInfoRequestHeader, m.PollingInfoResponseHeader),
    Request(Code.BATCH_ACK_MESSAGE, SUB, TOPIC | GROUP,
            changes=f"{_LOG}, consumerOffset.json, consumerOrderInfo.json"),
    Request(Code.PURGE_TOPIC, DELETE, TOPIC, b.PurgeTopicRequestHeader, changes="files of queues"),
)
_ROUTES: Final = "routes of topics"
_NAME_SERVER: Final = _of(
    Role.NAME_SERVER,
    Request(Code.PUT_KV_CONFIG, UPDATE, CLUSTER, n.PutKVConfigRequestHeader, changes="kvConfig.json"),
    Request(Code.GET_KV_CONFIG, GET, CLUSTER, n.GetKVConfigRequestHeader, n.GetKVConfigResponseHeader),
    Request(Code.DELETE_KV_CONFIG, UPDATE, CLUSTER, n.DeleteKVConfigRequestHeader, changes="kvConfig.json"),
    Request(Code.REGISTER_BROKER, UPDATE, CLUSTER, n.RegisterBrokerRequestHeader, n.RegisterBrokerResponseHeader,
            _ROUTES),
    Request(Code.UNREGISTER_BROKER, UPDATE, CLUSTER, n.UnRegisterBrokerRequestHeader, changes=_ROUTES),
    Request(Code.GET_ROUTEINFO_BY_TOPIC, GET, CLUSTER, n.GetRouteInfoRequestHeader),
    Request(Code.GET_BROKER_CLUSTER_INFO, GET, CLUSTER),
    Request(Code.WIPE_WRITE_PERM_OF_BROKER, UPDATE, CLUSTER, n.WipeWritePermOfBrokerRequestHeader,
            n.WipeWritePermOfBrokerResponseHeader, _ROUTES),
    Request(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, LIST, TOPIC),
    Request(Code.DELETE_TOPIC_IN_NAMESRV, UPDATE, CLUSTER, n.DeleteTopicFromNamesrvRequestHeader, changes=_ROUTES),
    Request(Code.REGISTER_TOPIC_IN_NAMESRV, UPDATE, CLUSTER, n.RegisterTopicRequestHeader, changes=_ROUTES),
    Request(Code.GET_KVLIST_BY_NAMESPACE, GET, CLUSTER, n.GetKVListByNamespaceRequestHeader),
    Request(Code.GET_TOPICS_BY_CLUSTER, LIST, TOPIC, n.GetTopicsByClusterRequestHeader),
    Request(Code.GET_SYSTEM_TOPIC_LIST_FROM_NS, LIST, TOPIC),
    Request(Code.GET_UNIT_TOPIC_LIST, LIST, TOPIC),
    Request(Code.GET_HAS_UNIT_SUB_TOPIC_LIST, LIST, TOPIC),
    Request(Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, LIST, TOPIC),
    Request(Code.UPDATE_NAMESRV_CONFIG, UPDATE, CLUSTER, changes="the file of settings"),
    Request(Code.GET_NAMESRV_CONFIG, GET, CLUSTER),
    Request(Code.QUERY_DATA_VERSION, GET, CLUSTER, n.QueryDataVersionRequestHeader, n.QueryDataVersionResponseHeader),
    Request(Code.ADD_WRITE_PERM_OF_BROKER, UPDATE, CLUSTER, n.AddWritePermOfBrokerRequestHeader,
            n.AddWritePermOfBrokerResponseHeader, _ROUTES),
    Request(Code.GET_BROKER_MEMBER_GROUP, GET, CLUSTER, n.GetBrokerMemberGroupRequestHeader),
    Request(Code.BROKER_HEARTBEAT, UPDATE, CLUSTER, n.BrokerHeartbeatRequestHeader, changes=_ROUTES),
)
_CLIENT: Final = _of(
    Role.CLIENT,
    Request(Code.CHECK_TRANSACTION_STATE, PUB, TOPIC, m.CheckTransactionStateRequestHeader),
    Request(Code.NOTIFY_CONSUMER_IDS_CHANGED, SUB, GROUP, c.NotifyConsumerIdsChangedRequestHeader),
    Request(Code.RESET_CONSUMER_CLIENT_OFFSET, SUB, TOPIC | GROUP, c.ResetOffsetRequestHeader),
    Request(Code.GET_CONSUMER_STATUS_FROM_CLIENT, SUB, TOPIC | GROUP, c.GetConsumerStatusRequestHeader),
    Request(Code.PUSH_REPLY_MESSAGE_TO_CLIENT, SUB, TOPIC | GROUP, m.ReplyMessageRequestHeader),
)
REQUESTS: Final[Mapping[Code, Request]] = {r.code: r for r in (*_BROKER, *_NAME_SERVER, *_CLIENT)}
"""Requests by their code. A consumer also answers 307 and 309, which a broker passes on."""
