"""The limits that docs/reference/limits.md lists. Every number comes from the constant or the setting that sets it."""

from dataclasses import fields
from typing import NamedTuple

from tailrace.broker.admin import shapes, topics
from tailrace.broker.clients.rebalance_lock import LOCKS_MAX
from tailrace.broker.consumers import client_manage, consumer_checks
from tailrace.broker.core import settings
from tailrace.broker.lite.registry import OF_CLIENT_MAX
from tailrace.broker.lite.subscriptions import ENTRIES_MAX, NAMES_MAX
from tailrace.broker.messages import pull_service, reply, service
from tailrace.broker.pop.ack import ACKS_MAX
from tailrace.config import BrokerConfig, StoreConfig, option_name
from tailrace.filters import compilation
from tailrace.formats import fastjson
from tailrace.formats.copied_properties import SENT_PROPERTIES_MAX
from tailrace.formats.pop import POP_MAX
from tailrace.formats.remoting import FRAME_MAX
from tailrace.namesrv import name_server, registration_body
from tailrace.namesrv.kv_config import KV_MAX
from tailrace.node.subscription_group import GROUP_MAX_LENGTH
from tailrace.node.topic_config import (
    LITE_EXPIRATION_MAX,
    RETRY_OR_DLQ_TOPIC_MAX_LENGTH,
    TOPIC_MAX_LENGTH,
)
from tailrace.observe.http_status import CONNECTIONS_MAX, SCRAPERS_MAX
from tailrace.proxy import limits as proxy
from tailrace.remoting.server import HEADER_MAX
from tailrace.requests.executors import LOOK_UPS_MAX
from tailrace.requests.worker import (
    READS_MAX,
    READS_OF_CHANNEL_MAX,
    WAITING_BYTES_MAX,
    WAITING_MAX,
    WAITING_OF_CHANNEL_MAX,
)

SETTINGS = {f.name: f for kind in (StoreConfig, BrokerConfig) for f in fields(kind)}


class Limit(NamedTuple):
    """A row of the table."""

    what: str
    value: str
    past: str
    setting: str = ""


def number(value: int) -> str:
    """Return a number of things, with separators."""
    return f"{value:,}"


def size(value: int) -> str:
    """Return a number of bytes in the largest unit that fits."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value >= factor and value % factor == 0:
            return f"{value // factor} {unit}"
    return f"{value:,} bytes"


def by_setting(what: str, name: str, past: str, note: str = "") -> Limit:
    """Return the row of a limit that is a setting, with its default."""
    declared = SETTINGS[name]
    unit = declared.metadata["unit"]
    value = size(declared.default) if unit == "bytes" else f"{number(declared.default)}{f' {unit}' if unit else ''}"
    return Limit(what, note or value, past, f"`{option_name(declared)}`")


_BUSY = "SYSTEM_BUSY (2)"
_ILLEGAL = "MESSAGE_ILLEGAL (13)"
_INVALID = "INVALID_PARAMETER (29)"
_CLOSED = "the connection is closed"

GROUPS: dict[str, list[Limit]] = {
    "Messages": [
        by_setting("body", "max_message_size", _ILLEGAL),
        Limit("properties with their names", f"{number(SENT_PROPERTIES_MAX)} bytes", _ILLEGAL),
        Limit("request or answer", size(FRAME_MAX), _CLOSED),
        Limit("header of a request", size(HEADER_MAX), _CLOSED),
        Limit("messages of a batch", number(service.BATCH_MAX), _ILLEGAL),
        Limit("messages of one pull", f"{size(pull_service.MAX_BYTES)}", "the answer has fewer"),
    ],
    "Topics, groups and queues": [
        Limit("name of a topic", f"{TOPIC_MAX_LENGTH} characters of `%\\|a-zA-Z0-9_-`", _INVALID),
        Limit("name of a retry or dead-letter topic", f"{RETRY_OR_DLQ_TOPIC_MAX_LENGTH} characters", _INVALID),
        Limit("name of a group", f"{GROUP_MAX_LENGTH} characters", "refused"),
        Limit("queues of a topic", number(shapes.QUEUES_MAX), _INVALID),
        by_setting("topics, system topics included", "max_topics", "refused"),
        by_setting("consumer groups", "max_subscription_groups", "refused"),
        by_setting("offsets of groups, one for each queue", "max_consumer_offsets", "refused"),
        Limit("topics or groups that one request creates", number(topics.LIST_MAX), "refused"),
        Limit("subscriptions of a group", number(consumer_checks.TOPICS_MAX), "refused"),
        Limit("groups of a heartbeat, of each kind", number(consumer_checks.GROUPS_MAX), "refused"),
        Limit("tag expression; all of a group",
              f"{size(consumer_checks.EXPRESSION_MAX)}; {size(consumer_checks.EXPRESSIONS_MAX)}", "refused"),
        Limit("SQL92 expression", size(compilation.SQL_MAX), "refused"),
        Limit("queues of one request to lock; locked queues",
              f"{number(client_manage.LOCKED_MAX)}; {number(LOCKS_MAX)}", "refused"),
    ],
    "Delays, POP and Lite topics": [
        Limit("delay levels", str(len(SETTINGS["message_delay_level"].default.split())),
              "a higher level counts as the highest", "`messageDelayLevel`"),
        by_setting("delay of a timer message", "timer_max_delay_sec", _ILLEGAL),
        by_setting("timers due in one slot (`timerPrecisionMs`)", "timer_congest_num_each_slot",
                   "SYSTEM_ERROR (1)"),
        Limit("messages of one pop", str(POP_MAX), _INVALID),
        Limit("invisible time of a popped message", "that of `timerMaxDelaySec`", _INVALID),
        Limit("entries of a batch acknowledgement", number(ACKS_MAX), "refused"),
        by_setting("pops that wait, of one group and queue", "pop_polling_size", "POLLING_FULL (209)"),
        by_setting("LMQ queues, with `enableLmqQuota`", "max_lmq_consume_queue_num", "LMQ_QUOTA_EXCEEDED (2017)"),
        by_setting("subscriptions to Lite topics", "max_lite_subscription_count",
                   "LITE_SUBSCRIPTION_QUOTA_EXCEEDED (2018)"),
        Limit("Lite topics of one client", number(OF_CLIENT_MAX), "refused"),
        Limit("entries of a Lite subscription request; names in them",
              f"{ENTRIES_MAX}; {number(NAMES_MAX)}", "refused"),
        Limit("`lite.topic.expiration`", f"{number(LITE_EXPIRATION_MAX)} minutes", "refused"),
    ],
    "Connections and work": [
        by_setting("connections", "server_socket_max_connections", "one is closed", "half of `ulimit -n`"),
        by_setting("memory of all connections", "server_buffer_max_bytes", "the largest are closed"),
        by_setting("unread answers of a connection", "write_buffer_high_water_mark", "its requests wait"),
        by_setting("time without progress in a request", "server_channel_stall_timeout_seconds", _CLOSED),
        Limit("HTTP connections; requests for `/metrics`", f"{CONNECTIONS_MAX}; {SCRAPERS_MAX}", "503"),
        Limit("JSON body of a request", f"{size(fastjson.BOUNDED_MAX)}, {number(fastjson._BOUNDED_NODES)} values",
              "refused"),
        Limit("requests that wait for long look-ups; of one connection; bodies",
              f"{number(WAITING_MAX)}; {number(WAITING_OF_CHANNEL_MAX)}; {size(WAITING_BYTES_MAX)}", _BUSY),
        Limit("look-ups in index and queues that wait", number(LOOK_UPS_MAX), _BUSY),
        Limit("pulls that wait for the disk; of one connection; memory",
              f"{number(READS_MAX)}; {number(READS_OF_CHANNEL_MAX)}; "
              f"{size(WAITING_BYTES_MAX)}", _BUSY),
        Limit("replies that wait for their producer; of one connection",
              f"{number(reply.PUSHES_MAX)}, {size(reply.BYTES_MAX)}; {number(reply.PUSHES_OF_CHANNEL_MAX)}, "
              f"{size(reply.BYTES_OF_CHANNEL_MAX)}", _BUSY),
        Limit("settings of one request", size(settings.BODY_MAX), "refused"),
        Limit("topics of a broker at the name server; of all brokers",
              f"{number(registration_body.REGISTRATION_MAX)}; {number(name_server.TOPICS_MAX)}", "refused"),
        Limit("brokers at the name server", number(name_server.BROKERS_MAX), "refused"),
        Limit("key-value table of the name server", f"{number(KV_MAX)} characters", "refused"),
    ],
    "gRPC": [
        Limit("request", size(proxy.MAX_REQUEST_BYTES), "RESOURCE_EXHAUSTED"),
        Limit("user properties, tag and keys", f"{size(proxy.MAX_USER_PROPERTY_SIZE)}, "
              f"{proxy.USER_PROPERTY_MAX_NUM} properties", "MESSAGE_PROPERTIES_TOO_LARGE"),
        Limit("message group; Lite topic",
              f"{proxy.MAX_MESSAGE_GROUP_SIZE - 1}; {proxy.MAX_LITE_TOPIC_SIZE} bytes", "refused"),
        Limit("delay", f"{proxy.MAX_DELAY_TIME_MS // 3_600_000} hours", "ILLEGAL_DELIVERY_TIME"),
        Limit("invisible time", f"{proxy.MAX_INVISIBLE_TIME_MS // 3_600_000} hours", "ILLEGAL_INVISIBLE_TIME"),
        Limit("messages of one receive", str(proxy.RECEIVE_BATCH_SIZE), "the answer has fewer"),
        Limit("renewal of a message by its push consumer", f"{proxy.RENEW_MAX_TIME_MS // 3_600_000} hours",
              "it is delivered again"),
        by_setting("calls under way", "grpc_calls_max", "RESOURCE_EXHAUSTED"),
        by_setting("clients", "grpc_clients_max", "the stream fails"),
    ],
}
