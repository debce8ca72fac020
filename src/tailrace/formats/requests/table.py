"""Table of all requests that Tailrace answers or sends: fields, and action and resource for access control.

Codes, names, fields, actions and resources are those of RocketMQ 5.5.1 (RequestCode, the classes
``*RequestHeader`` and their annotations RocketMQAction and RocketMQResource).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from tailrace.formats import filenames
from tailrace.formats.remoting import RequestCode as Code
from tailrace.formats.requests import access_headers as a
from tailrace.formats.requests import broker_headers as b
from tailrace.formats.requests import consumer_headers as c
from tailrace.formats.requests import message_headers as m
from tailrace.formats.requests import name_server_headers as n
from tailrace.formats.requests.custom_header import CustomHeader

__all__ = ["ADMINISTRATION", "REQUESTS", "Action", "Request", "Resource", "Role", "Touch"]


class Role(enum.Enum):
    """The kind of process that answers a request."""

    BROKER = "broker"
    NAME_SERVER = "name server"
    CLIENT = "client"


class Action(enum.Flag):
    """Kind of access of a request, by the names of RocketMQ's access control."""

    PUB = enum.auto()
    SUB = enum.auto()
    CREATE = enum.auto()
    UPDATE = enum.auto()
    DELETE = enum.auto()
    GET = enum.auto()
    LIST = enum.auto()


class Resource(enum.Flag):
    """Kind of resource that a request accesses, by the names of RocketMQ's access control."""

    TOPIC = enum.auto()
    GROUP = enum.auto()
    CLUSTER = enum.auto()


class Touch(enum.Flag):
    """Resources that a request touches without naming them, so that its processor also checks them."""

    RECORD = enum.auto()
    """A message, by its place in the log or in a queue, its id, a receipt or a handle."""
    RETRY = enum.auto()
    """A retry topic, which belongs to a group."""
    PROPERTIES = enum.auto()
    """Queues, topics, groups and clients that properties of a message name."""
    CLIENT = enum.auto()
    """A client by its id."""
    OTHER = enum.auto()
    """A second group or topic."""
    BROKER = enum.auto()
    """Another broker."""
    CREATION = enum.auto()
    """A topic or a group that it creates because it is missing."""


NOTHING: Final = Touch(0)
RECORD, RETRY, PROPERTIES, CLIENT = Touch.RECORD, Touch.RETRY, Touch.PROPERTIES, Touch.CLIENT
OTHER, BROKER, CREATION = Touch.OTHER, Touch.BROKER, Touch.CREATION
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
    named: str = ""
    """The fields that name its resources, such as ``Topic:topic Group:consumerGroup``.

    ``body``: its body names them. Signs after a field: ``~`` a retry topic of the consumer group is left out, ``^`` a
    POP retry topic of the consumer group is the topic it was popped from, ``=`` a retry topic is a topic (else it is
    its group), ``?`` an empty one names nothing, ``;`` and ``,`` separate several names.
    """
    touches: Touch | None = None
    """What its processor checks besides `named`; each row says it, with NOTHING if it is nothing."""
    reference: bool = True
    """Whether a Java broker checks permissions for it; if not, the check is one of Tailrace."""

    @property
    def administers(self) -> bool:
        """Whether it changes what others use, such as topics, groups, users, settings or files; not a message."""
        return self.role is not Role.CLIENT and not self.action & (PUB | SUB) and bool(
            self.action & (CREATE | UPDATE | DELETE))


def _of(role: Role, *rows: Request) -> tuple[Request, ...]:
    return tuple(replace(row, role=role) for row in rows)


_LOG: Final = "the CommitLog"
_USERS: Final = filenames.USERS
_ACLS: Final = filenames.ACLS
_BROKER: Final = (
    Request(Code.SEND_MESSAGE, PUB, TOPIC, m.SendMessageRequestHeader, m.SendMessageResponseHeader, _LOG,
            named="Topic:topic", touches=RETRY | PROPERTIES | CREATION),
    Request(Code.PULL_MESSAGE, SUB, TOPIC | GROUP, m.PullMessageRequestHeader, m.PullMessageResponseHeader,
            "consumerOffset.json", named="Topic:topic~ Group:consumerGroup", touches=RETRY | CREATION),
    Request(Code.QUERY_MESSAGE, SUB | GET, TOPIC, m.QueryMessageRequestHeader, m.QueryMessageResponseHeader,
            named="Topic:topic=", touches=NOTHING),
    Request(Code.QUERY_CONSUMER_OFFSET, SUB | GET, TOPIC | GROUP, c.QueryConsumerOffsetRequestHeader,
            c.QueryConsumerOffsetResponseHeader, named="Topic:topic~ Group:consumerGroup", touches=RETRY),
    Request(Code.UPDATE_CONSUMER_OFFSET, SUB | UPDATE, TOPIC | GROUP, c.UpdateConsumerOffsetRequestHeader,
            changes="consumerOffset.json", named="Topic:topic~ Group:consumerGroup", touches=RETRY),
    Request(Code.UPDATE_AND_CREATE_TOPIC, CREATE, TOPIC, b.CreateTopicRequestHeader, changes="topics.json",
            named="Topic:topic", touches=NOTHING),
    Request(Code.UPDATE_AND_CREATE_STATIC_TOPIC, CREATE, TOPIC, b.CreateTopicRequestHeader,
            changes="topics.json, topicQueueMapping.json", named="Topic:topic", reference=False, touches=NOTHING),
    Request(Code.UPDATE_AND_CREATE_TOPIC_LIST, CREATE, TOPIC, changes="topics.json", named="body", reference=False,
            touches=NOTHING),
    Request(Code.GET_ALL_TOPIC_CONFIG, LIST, CLUSTER, b.GetAllTopicConfigRequestHeader, reference=False,
            touches=NOTHING),
    Request(Code.UPDATE_BROKER_CONFIG, UPDATE, CLUSTER, changes="the file of settings", reference=False,
            touches=NOTHING),
    Request(Code.GET_BROKER_CONFIG, GET, CLUSTER, answer=b.GetBrokerConfigResponseHeader, reference=False,
            touches=NOTHING),
    Request(Code.GET_BROKER_RUNTIME_INFO, GET, CLUSTER, reference=False, touches=NOTHING),
    Request(Code.SEARCH_OFFSET_BY_TIMESTAMP, GET, TOPIC, b.SearchOffsetRequestHeader, b.SearchOffsetResponseHeader,
            named="Topic:topic", touches=NOTHING),
    Request(Code.GET_MAX_OFFSET, GET, TOPIC, b.GetMaxOffsetRequestHeader, b.GetMaxOffsetResponseHeader,
            named="Topic:topic", touches=NOTHING),
    Request(Code.GET_MIN_OFFSET, GET, TOPIC, b.GetMinOffsetRequestHeader, b.GetMinOffsetResponseHeader,
            named="Topic:topic", touches=NOTHING),
    Request(Code.GET_EARLIEST_MSG_STORETIME, GET, TOPIC, b.GetEarliestMsgStoretimeRequestHeader,
            b.GetEarliestMsgStoretimeResponseHeader, named="Topic:topic", touches=NOTHING),
    Request(Code.VIEW_MESSAGE_BY_ID, GET, TOPIC, m.ViewMessageRequestHeader, named="Topic:topic", touches=RECORD),
    Request(Code.HEART_BEAT, SUB, TOPIC | GROUP, changes="members of groups", named="body",
            touches=RETRY | CLIENT | CREATION),
    Request(Code.UNREGISTER_CLIENT, SUB, GROUP, c.UnregisterClientRequestHeader, changes="members of groups",
            named="Group:consumerGroup?", touches=CLIENT),
    Request(Code.CONSUMER_SEND_MSG_BACK, SUB, GROUP, m.ConsumerSendMsgBackRequestHeader, changes=_LOG,
            named="Group:group", touches=RECORD | CREATION),
    Request(Code.END_TRANSACTION, PUB, TOPIC, m.EndTransactionRequestHeader, changes=_LOG, named="Topic:topic?=",
            touches=RECORD),
    Request(Code.GET_CONSUMER_LIST_BY_GROUP, SUB | GET, GROUP, c.GetConsumerListByGroupRequestHeader,
            named="Group:consumerGroup", touches=NOTHING),
    Request(Code.LOCK_BATCH_MQ, SUB, TOPIC | GROUP, changes="locks of queues", named="body", touches=RETRY | CLIENT),
    Request(Code.UNLOCK_BATCH_MQ, SUB, TOPIC | GROUP, changes="locks of queues", named="body", touches=RETRY | CLIENT),
    Request(Code.GET_ALL_CONSUMER_OFFSET, LIST, CLUSTER, reference=False, touches=NOTHING),
    Request(Code.GET_ALL_DELAY_OFFSET, LIST, CLUSTER, reference=False, touches=NOTHING),
    Request(Code.GET_TIMER_CHECK_POINT, GET, CLUSTER, reference=False, touches=NOTHING),
    Request(Code.GET_TIMER_METRICS, GET, CLUSTER, reference=False, touches=NOTHING),
    Request(Code.CHECK_CLIENT_CONFIG, SUB, TOPIC | GROUP, named="body", reference=False, touches=CLIENT),
    Request(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, CREATE, GROUP, changes="subscriptionGroup.json", named="body",
            reference=False, touches=NOTHING),
    Request(Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, LIST, CLUSTER, c.GetAllSubscriptionGroupRequestHeader,
            reference=False, touches=NOTHING),
    Request(Code.GET_TOPIC_STATS_INFO, GET, TOPIC, b.GetTopicStatsInfoRequestHeader, named="Topic:topic",
            touches=NOTHING),
    Request(Code.GET_CONSUMER_CONNECTION_LIST, GET, GROUP, c.GetConsumerConnectionListRequestHeader,
            named="Group:consumerGroup", touches=NOTHING),
    Request(Code.GET_PRODUCER_CONNECTION_LIST, GET, CLUSTER, c.GetProducerConnectionListRequestHeader, touches=NOTHING),
    Request(Code.DELETE_SUBSCRIPTIONGROUP, DELETE, GROUP, c.DeleteSubscriptionGroupRequestHeader,
            changes="subscriptionGroup.json, consumerOffset.json", named="Group:groupName", touches=NOTHING),
    Request(Code.GET_CONSUME_STATS, GET, TOPIC | GROUP, c.GetConsumeStatsRequestHeader,
            named="Group:consumerGroup Topic:topic Topic:topicList;", touches=NOTHING),
    Request(Code.DELETE_TOPIC_IN_BROKER, DELETE, TOPIC, b.DeleteTopicRequestHeader,
            changes="topics.json, consumerOffset.json, files of queues", named="Topic:topic", touches=NOTHING),
    Request(Code.DELETE_TOPIC_IN_BROKER_LIST, DELETE, TOPIC,
            changes="topics.json, consumerOffset.json, files of queues", named="body", reference=False,
            touches=NOTHING),
    Request(Code.DELETE_SUBSCRIPTION_GROUP_LIST, DELETE, GROUP,
            changes="subscriptionGroup.json, consumerOffset.json", named="body", reference=False, touches=NOTHING),
    Request(Code.INVOKE_BROKER_TO_RESET_OFFSET, UPDATE, TOPIC | GROUP, c.ResetOffsetRequestHeader,
            changes="consumerOffset.json", named="Group:group Topic:topic", touches=NOTHING),
    Request(Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, GET, TOPIC | GROUP, c.GetConsumerStatusRequestHeader,
            named="Topic:topic Group:group", touches=CLIENT),
    Request(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, CREATE, GROUP, changes="subscriptionGroup.json",
            named="body", reference=False, touches=NOTHING),
    Request(Code.QUERY_TOPIC_CONSUME_BY_WHO, GET, TOPIC, c.QueryTopicConsumeByWhoRequestHeader, named="Topic:topic",
            touches=NOTHING),
    Request(Code.QUERY_CONSUME_TIME_SPAN, GET, TOPIC | GROUP, c.QueryConsumeTimeSpanRequestHeader,
            named="Topic:topic Group:group", touches=NOTHING),
    Request(Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, LIST, CLUSTER, reference=False, touches=NOTHING),
    Request(Code.CLEAN_EXPIRED_CONSUMEQUEUE, DELETE, CLUSTER, changes="files of queues", reference=False,
            touches=NOTHING),
    Request(Code.GET_CONSUMER_RUNNING_INFO, GET, GROUP, c.GetConsumerRunningInfoRequestHeader,
            named="Group:consumerGroup", touches=CLIENT),
    Request(Code.QUERY_CORRECTION_OFFSET, GET, TOPIC | GROUP, c.QueryCorrectionOffsetHeader,
            named="Group:filterGroups, Group:compareGroup Topic:topic", touches=NOTHING),
    Request(Code.CONSUME_MESSAGE_DIRECTLY, SUB, TOPIC | GROUP, c.ConsumeMessageDirectlyResultRequestHeader,
            named="Group:consumerGroup Topic:topic", touches=RECORD | CLIENT),
    Request(Code.SEND_MESSAGE_V2, PUB, TOPIC, m.SendMessageRequestHeaderV2, m.SendMessageResponseHeader, _LOG,
            named="Topic:b", touches=RETRY | PROPERTIES | CREATION),
    Request(Code.CLONE_GROUP_OFFSET, UPDATE, TOPIC | GROUP, c.CloneGroupOffsetRequestHeader,
            changes="consumerOffset.json", named="Group:destGroup Topic:topic", touches=OTHER),
    Request(Code.VIEW_BROKER_STATS_DATA, GET, CLUSTER, b.ViewBrokerStatsDataRequestHeader, touches=NOTHING),
    Request(Code.CLEAN_UNUSED_TOPIC, DELETE, CLUSTER, changes="files of queues", reference=False, touches=NOTHING),
    Request(Code.GET_BROKER_CONSUME_STATS, GET, CLUSTER, c.GetConsumeStatsInBrokerHeader, touches=NOTHING),
    Request(Code.SEND_BATCH_MESSAGE, PUB, TOPIC, m.SendMessageRequestHeaderV2, m.SendMessageResponseHeader, _LOG,
            named="Topic:b", touches=PROPERTIES | CREATION),
    Request(Code.QUERY_CONSUME_QUEUE, GET, TOPIC | GROUP, b.QueryConsumeQueueRequestHeader,
            named="Topic:topic Group:consumerGroup", touches=NOTHING),
    Request(Code.RESUME_CHECK_HALF_MESSAGE, UPDATE, TOPIC, m.ResumeCheckHalfMessageRequestHeader, changes=_LOG,
            named="Topic:topic", touches=RECORD),
    Request(Code.SEND_REPLY_MESSAGE, PUB, TOPIC, m.SendMessageRequestHeader, m.SendMessageResponseHeader, _LOG,
            named="Topic:topic", reference=False, touches=PROPERTIES | CLIENT),
    Request(Code.SEND_REPLY_MESSAGE_V2, PUB, TOPIC, m.SendMessageRequestHeaderV2, m.SendMessageResponseHeader, _LOG,
            named="Topic:b", reference=False, touches=PROPERTIES | CLIENT),
    Request(Code.GET_ALL_PRODUCER_INFO, GET, CLUSTER, touches=NOTHING),
    Request(Code.DELETE_EXPIRED_COMMITLOG, DELETE, CLUSTER, changes=_LOG, reference=False, touches=NOTHING),
    Request(Code.QUERY_TOPICS_BY_CONSUMER, GET, GROUP, c.QueryTopicsByConsumerRequestHeader, named="Group:group",
            touches=NOTHING),
    Request(Code.QUERY_SUBSCRIPTION_BY_CONSUMER, GET, TOPIC | GROUP, c.QuerySubscriptionByConsumerRequestHeader,
            named="Group:group Topic:topic", touches=NOTHING),
    Request(Code.GET_TOPIC_CONFIG, GET, TOPIC, b.GetTopicConfigRequestHeader, named="Topic:topic", touches=NOTHING),
    Request(Code.GET_SUBSCRIPTIONGROUP_CONFIG, GET, GROUP, c.GetSubscriptionGroupConfigRequestHeader,
            named="Group:group", touches=CREATION),
    Request(Code.UPDATE_AND_GET_GROUP_FORBIDDEN, UPDATE, TOPIC | GROUP, c.UpdateGroupForbiddenRequestHeader,
            changes="subscriptionGroup.json", named="Group:group Topic:topic", touches=NOTHING),
    Request(Code.CHECK_ROCKSDB_CQ_WRITE_PROGRESS, GET, TOPIC, b.CheckRocksdbCqWriteProgressRequestHeader,
            named="Topic:topic", touches=NOTHING),
    Request(Code.EXPORT_ROCKSDB_CONFIG_TO_JSON, GET, CLUSTER, b.ExportRocksDBConfigToJsonRequestHeader,
            touches=NOTHING),
    Request(Code.LITE_PULL_MESSAGE, SUB, TOPIC | GROUP, m.PullMessageRequestHeader, m.PullMessageResponseHeader,
            "consumerOffset.json", named="Topic:topic~ Group:consumerGroup", reference=False, touches=RETRY | CREATION),
    Request(Code.RECALL_MESSAGE, PUB, TOPIC, m.RecallMessageRequestHeader, m.RecallMessageResponseHeader, _LOG,
            named="Topic:topic=", touches=RECORD),
    Request(Code.QUERY_ASSIGNMENT, SUB, TOPIC | GROUP, named="body", reference=False,
            touches=RETRY | CLIENT | CREATION),
    Request(Code.SET_MESSAGE_REQUEST_MODE, UPDATE, TOPIC | GROUP, changes="messageRequestMode.json", named="body",
            reference=False, touches=NOTHING),
    Request(Code.GET_ALL_MESSAGE_REQUEST_MODE, GET, CLUSTER, reference=False, touches=NOTHING),
    Request(Code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, UPDATE, CLUSTER, reference=False, touches=NOTHING),
    Request(Code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, UPDATE, CLUSTER, reference=False, touches=NOTHING),
    Request(Code.GET_COLD_DATA_FLOW_CTR_INFO, GET, CLUSTER, reference=False, touches=NOTHING),
    Request(Code.SET_COMMITLOG_READ_MODE, UPDATE, CLUSTER, b.SetCommitLogReadModeRequestHeader, reference=False,
            touches=NOTHING),
    Request(Code.SWITCH_TIMER_ENGINE, UPDATE, CLUSTER, b.SwitchTimerEngineRequestHeader, reference=False,
            touches=NOTHING),
    Request(Code.EXCHANGE_BROKER_HA_INFO, UPDATE, CLUSTER, b.ExchangeHAInfoHeader, b.ExchangeHAInfoHeader,
            reference=False, touches=NOTHING),
    Request(Code.GET_BROKER_HA_STATUS, GET, CLUSTER, reference=False, touches=NOTHING),
    Request(Code.RESET_MASTER_FLUSH_OFFSET, UPDATE, CLUSTER, b.ResetMasterFlushOffsetHeader, touches=NOTHING),
    Request(Code.GET_BROKER_EPOCH_CACHE, GET, CLUSTER, reference=False, touches=NOTHING),
    Request(Code.POP_ROLLBACK, UPDATE, CLUSTER, reference=False, touches=NOTHING),
    Request(Code.POP_MESSAGE, SUB, TOPIC | GROUP, m.PopMessageRequestHeader, m.PopMessageResponseHeader,
            f"{_LOG}, consumerOffset.json, consumerOrderInfo.json", named="Group:consumerGroup Topic:topic",
            touches=RETRY | CREATION),
    Request(Code.ACK_MESSAGE, SUB, TOPIC | GROUP, m.AckMessageRequestHeader,
            changes=f"{_LOG}, consumerOffset.json, consumerOrderInfo.json", named="Group:consumerGroup Topic:topic^",
            touches=RECORD | RETRY),
    Request(Code.PEEK_MESSAGE, SUB, TOPIC | GROUP, m.PeekMessageRequestHeader, m.PopMessageResponseHeader,
            named="Topic:topic Group:consumerGroup", touches=RETRY | CREATION),
    Request(Code.CHANGE_MESSAGE_INVISIBLETIME, SUB, TOPIC | GROUP, m.ChangeInvisibleTimeRequestHeader,
            m.ChangeInvisibleTimeResponseHeader, f"{_LOG}, consumerOrderInfo.json",
            named="Group:consumerGroup Topic:topic^", touches=RECORD | RETRY),
    Request(Code.NOTIFICATION, SUB, TOPIC | GROUP, m.NotificationRequestHeader, m.NotificationResponseHeader,
            named="Group:consumerGroup Topic:topic", touches=RETRY | CLIENT | CREATION),
    Request(Code.POLLING_INFO, GET, TOPIC | GROUP, m.PollingInfoRequestHeader, m.PollingInfoResponseHeader,
            named="Group:consumerGroup Topic:topic", touches=RETRY | CREATION),
    Request(Code.BATCH_ACK_MESSAGE, SUB, TOPIC | GROUP,
            changes=f"{_LOG}, consumerOffset.json, consumerOrderInfo.json", named="body", reference=False,
            touches=RECORD | RETRY),
    Request(Code.POP_LITE_MESSAGE, SUB, TOPIC | GROUP, m.PopLiteMessageRequestHeader, m.PopLiteMessageResponseHeader,
            "consumerOffset.json", named="Group:consumerGroup Topic:topic", reference=False,
            touches=RETRY | CLIENT | CREATION),
    Request(Code.LITE_SUBSCRIPTION_CTL, SUB, TOPIC | GROUP, changes="subscriptions to Lite topics, consumerOffset.json",
            named="body", reference=False, touches=CLIENT),
    Request(Code.GET_BROKER_LITE_INFO, GET, CLUSTER, reference=False, touches=NOTHING),
    Request(Code.GET_PARENT_TOPIC_INFO, GET, TOPIC, b.GetParentTopicInfoRequestHeader, named="Topic:topic",
            reference=False, touches=NOTHING),
    Request(Code.GET_LITE_TOPIC_INFO, GET, TOPIC, b.GetLiteTopicInfoRequestHeader, named="Topic:parentTopic",
            reference=False, touches=NOTHING),
    Request(Code.GET_LITE_CLIENT_INFO, GET, TOPIC | GROUP, b.GetLiteClientInfoRequestHeader,
            named="Topic:parentTopic Group:group", reference=False, touches=CLIENT),
    Request(Code.GET_LITE_GROUP_INFO, GET, GROUP, b.GetLiteGroupInfoRequestHeader, named="Group:group",
            reference=False, touches=OTHER),
    Request(Code.TRIGGER_LITE_DISPATCH, UPDATE, GROUP, b.TriggerLiteDispatchRequestHeader, named="Group:group",
            reference=False, touches=CLIENT),
    Request(Code.AUTH_CREATE_USER, UPDATE, CLUSTER, a.UserRequestHeader, changes=_USERS, touches=NOTHING),
    Request(Code.AUTH_UPDATE_USER, UPDATE, CLUSTER, a.UserRequestHeader, changes=_USERS, touches=NOTHING),
    Request(Code.AUTH_DELETE_USER, UPDATE, CLUSTER, a.UserRequestHeader, changes=f"{_USERS}, {_ACLS}", touches=NOTHING),
    Request(Code.AUTH_GET_USER, GET, CLUSTER, a.UserRequestHeader, touches=NOTHING),
    Request(Code.AUTH_LIST_USER, GET, CLUSTER, a.ListUsersRequestHeader, touches=NOTHING),
    Request(Code.AUTH_CREATE_ACL, UPDATE, CLUSTER, a.AclRequestHeader, changes=_ACLS, touches=NOTHING),
    Request(Code.AUTH_UPDATE_ACL, UPDATE, CLUSTER, a.AclRequestHeader, changes=_ACLS, touches=NOTHING),
    Request(Code.AUTH_DELETE_ACL, UPDATE, CLUSTER, a.DeleteAclRequestHeader, changes=_ACLS, touches=NOTHING),
    Request(Code.AUTH_GET_ACL, GET, CLUSTER, a.AclRequestHeader, touches=NOTHING),
    Request(Code.AUTH_LIST_ACL, GET, CLUSTER, a.ListAclsRequestHeader, touches=NOTHING),
    Request(Code.PURGE_TOPIC, DELETE, TOPIC, b.PurgeTopicRequestHeader, changes="files of queues",
            named="Topic:topic", reference=False, touches=NOTHING),
    Request(Code.SYNC_STORE, GET, CLUSTER, reference=False, touches=NOTHING),
    Request(Code.GET_SLAVE_STATE, LIST, CLUSTER, reference=False, touches=NOTHING),
    Request(Code.GET_SLAVE_USERS, LIST, CLUSTER, reference=False, touches=NOTHING),
    Request(Code.FREE_BYTES, DELETE, CLUSTER, b.FreeBytesRequestHeader, changes=_LOG, reference=False, touches=NOTHING),
)
_ROUTES: Final = "routes of topics"
_NAME_SERVER: Final = _of(
    Role.NAME_SERVER,
    Request(Code.PUT_KV_CONFIG, UPDATE, CLUSTER, n.PutKVConfigRequestHeader, changes="kvConfig.json", touches=NOTHING),
    Request(Code.GET_KV_CONFIG, GET, CLUSTER, n.GetKVConfigRequestHeader, n.GetKVConfigResponseHeader, touches=NOTHING),
    Request(Code.DELETE_KV_CONFIG, UPDATE, CLUSTER, n.DeleteKVConfigRequestHeader, changes="kvConfig.json",
            touches=NOTHING),
    Request(Code.REGISTER_BROKER, UPDATE, CLUSTER, n.RegisterBrokerRequestHeader, n.RegisterBrokerResponseHeader,
            _ROUTES, named="Cluster:clusterName", touches=BROKER),
    Request(Code.UNREGISTER_BROKER, UPDATE, CLUSTER, n.UnRegisterBrokerRequestHeader, changes=_ROUTES,
            named="Cluster:clusterName", touches=BROKER),
    Request(Code.GET_ROUTEINFO_BY_TOPIC, PUB | SUB | GET, TOPIC, n.GetRouteInfoRequestHeader, named="Topic:topic",
            touches=NOTHING),
    Request(Code.GET_BROKER_CLUSTER_INFO, GET, CLUSTER, reference=False, touches=NOTHING),
    Request(Code.WIPE_WRITE_PERM_OF_BROKER, UPDATE, CLUSTER, n.WipeWritePermOfBrokerRequestHeader,
            n.WipeWritePermOfBrokerResponseHeader, _ROUTES, touches=BROKER),
    Request(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, LIST, CLUSTER, reference=False, touches=NOTHING),
    Request(Code.DELETE_TOPIC_IN_NAMESRV, UPDATE, CLUSTER, n.DeleteTopicFromNamesrvRequestHeader, changes=_ROUTES,
            named="Cluster:clusterName", touches=BROKER),
    Request(Code.REGISTER_TOPIC_IN_NAMESRV, UPDATE, CLUSTER, n.RegisterTopicRequestHeader, changes=_ROUTES,
            touches=BROKER),
    Request(Code.GET_KVLIST_BY_NAMESPACE, GET, CLUSTER, n.GetKVListByNamespaceRequestHeader, touches=NOTHING),
    Request(Code.GET_TOPICS_BY_CLUSTER, LIST, CLUSTER, n.GetTopicsByClusterRequestHeader, named="Cluster:cluster",
            reference=False, touches=NOTHING),
    Request(Code.GET_SYSTEM_TOPIC_LIST_FROM_NS, LIST, CLUSTER, reference=False, touches=NOTHING),
    Request(Code.GET_UNIT_TOPIC_LIST, LIST, CLUSTER, reference=False, touches=NOTHING),
    Request(Code.GET_HAS_UNIT_SUB_TOPIC_LIST, LIST, CLUSTER, reference=False, touches=NOTHING),
    Request(Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, LIST, CLUSTER, reference=False, touches=NOTHING),
    Request(Code.UPDATE_NAMESRV_CONFIG, UPDATE, CLUSTER, changes="the file of settings", reference=False,
            touches=NOTHING),
    Request(Code.GET_NAMESRV_CONFIG, GET, CLUSTER, reference=False, touches=NOTHING),
    Request(Code.QUERY_DATA_VERSION, GET, CLUSTER, n.QueryDataVersionRequestHeader, n.QueryDataVersionResponseHeader,
            named="Cluster:clusterName", touches=BROKER),
    Request(Code.ADD_WRITE_PERM_OF_BROKER, UPDATE, CLUSTER, n.AddWritePermOfBrokerRequestHeader,
            n.AddWritePermOfBrokerResponseHeader, _ROUTES, touches=BROKER),
    Request(Code.GET_BROKER_MEMBER_GROUP, GET, CLUSTER, n.GetBrokerMemberGroupRequestHeader,
            named="Cluster:clusterName", touches=BROKER),
    Request(Code.BROKER_HEARTBEAT, UPDATE, CLUSTER, n.BrokerHeartbeatRequestHeader, changes=_ROUTES,
            named="Cluster:clusterName", touches=BROKER),
)
_CLIENT: Final = _of(
    Role.CLIENT,
    Request(Code.CHECK_TRANSACTION_STATE, PUB, TOPIC, m.CheckTransactionStateRequestHeader, touches=RECORD | CLIENT),
    Request(Code.NOTIFY_CONSUMER_IDS_CHANGED, SUB, GROUP, c.NotifyConsumerIdsChangedRequestHeader, touches=NOTHING),
    Request(Code.RESET_CONSUMER_CLIENT_OFFSET, SUB, TOPIC | GROUP, c.ResetOffsetRequestHeader, touches=NOTHING),
    Request(Code.GET_CONSUMER_STATUS_FROM_CLIENT, SUB, TOPIC | GROUP, c.GetConsumerStatusRequestHeader,
            touches=NOTHING),
    Request(Code.NOTIFY_UNSUBSCRIBE_LITE, SUB, GROUP, m.NotifyUnsubscribeLiteRequestHeader, touches=NOTHING),
    Request(Code.PUSH_REPLY_MESSAGE_TO_CLIENT, SUB, TOPIC | GROUP, m.ReplyMessageRequestHeader,
            touches=PROPERTIES | CLIENT),
)
REQUESTS: Final[Mapping[Code, Request]] = {r.code: r for r in (*_BROKER, *_NAME_SERVER, *_CLIENT)}
"""Requests by their code. A consumer also answers 307 and 309, which a broker forwards to it."""
ADMINISTRATION: Final = frozenset(int(code) for code, request in REQUESTS.items() if request.administers)
"""Codes of requests of administration."""
