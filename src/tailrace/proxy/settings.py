"""Settings: what a client says about itself, and what the endpoint answers (GrpcClientSettingsManager)."""

from __future__ import annotations

from typing import Any, Final

from tailrace.filters.subscriptions import SubscriptionData
from tailrace.node.subscription_group import SubscriptionGroupConfig, SubscriptionGroupManager
from tailrace.proxy import limits
from tailrace.proxy.clients import CONSUMERS, LITE
from tailrace.proxy.protocol import Code, GrpcError, definition, duration, name_of
from tailrace.proxy.validation import check_group, check_topic

__all__ = ["check_bind_topic", "check_settings", "filter_data", "merged", "of_consumer", "retry_delay_ms"]

_Types = definition.ClientType
RETRY_DELAYS_MS: Final = tuple(
    1000 * seconds for seconds in (
        1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200))
"""CustomizedRetryPolicy, if the group has none of its own."""
INITIAL_MS: Final = 5_000
MAX_MS: Final = 7_200_000
MULTIPLIER: Final = 2


def check_settings(groups: SubscriptionGroupManager, settings: Any) -> None:
    """Check the settings of a client. Raises GrpcError."""
    if settings.ByteSize() > limits.MAX_SETTINGS_BYTES:
        raise GrpcError(
            Code.BAD_REQUEST,
            f"settings have {settings.ByteSize()} bytes, over the limit of {limits.MAX_SETTINGS_BYTES}")
    kind = settings.client_type
    if settings.HasField("publishing"):
        for topic in settings.publishing.topics:
            check_topic(topic)
        if kind != _Types.PRODUCER:
            raise GrpcError(
                Code.UNRECOGNIZED_CLIENT_TYPE, f"client_type is {_type_name(kind)}, and the settings are of a PRODUCER")
    elif settings.HasField("subscription"):
        group = check_group(settings.subscription.group)
        _check_group(groups, group, kind)
        if kind not in CONSUMERS:
            raise GrpcError(
                Code.UNRECOGNIZED_CLIENT_TYPE,
                f"client_type is {_type_name(kind)}; consumers of this broker are "
                "PUSH_CONSUMER, SIMPLE_CONSUMER or LITE_PUSH_CONSUMER")
        for entry in settings.subscription.subscriptions:
            filter_data(check_topic(entry.topic), entry.expression)
        if kind == LITE:
            topics = [name_of(entry.topic) for entry in settings.subscription.subscriptions]
            check_bind_topic(groups, group, topics[0] if topics else "")
    else:
        raise GrpcError(Code.BAD_REQUEST, "there is no publishing or subscription data in settings")


def _check_group(groups: SubscriptionGroupManager, name: str, kind: int) -> None:
    group = groups.select(name)
    if group is None and not groups.may_create(name):
        raise GrpcError(Code.ILLEGAL_CONSUMER_GROUP, f"group not found: {name}")
    is_lite = group is not None and bool(group.lite_bind_topic)
    if is_lite and kind != LITE:
        raise GrpcError(Code.ILLEGAL_CONSUMER_GROUP, f"lite group must use LITE mode: {name}")
    if kind == LITE and not is_lite:
        raise GrpcError(Code.ILLEGAL_CONSUMER_GROUP, f"regular group cannot use LITE mode: {name}")


def check_bind_topic(groups: SubscriptionGroupManager, name: str, topic: str) -> SubscriptionGroupConfig:
    """Return a group after a check that it consumes the Lite topics of a topic. Raises GrpcError."""
    group = groups.select(name)
    if group is None:
        raise GrpcError(Code.ILLEGAL_CONSUMER_GROUP, f"group not found: {name}")
    if group.lite_bind_topic != topic:
        raise GrpcError(
            Code.ILLEGAL_TOPIC,
            f"lite group {name} is expected to bind topic {group.lite_bind_topic or None}, but actual is {topic}")
    return group


def _type_name(kind: int) -> str:
    return str(_Types.Name(kind)) if kind in _Types.values() else str(kind)


def filter_data(topic: str, expression: Any) -> SubscriptionData:
    """Return the subscription of a filter expression. Raises GrpcError (ILLEGAL_FILTER_EXPRESSION)."""
    is_sql = expression.type == definition.FilterType.SQL
    if is_sql and not expression.expression:
        raise GrpcError(Code.ILLEGAL_FILTER_EXPRESSION, "Expression can't be null! SQL92")
    try:
        return SubscriptionData.parse(topic, expression.expression, expression_type="SQL92" if is_sql else "TAG")
    except ValueError as error:
        raise GrpcError(Code.ILLEGAL_FILTER_EXPRESSION, f"expression format is not correct: {error}") from None


def merged(groups: SubscriptionGroupManager, settings: Any) -> Any:
    """Return the settings with what the server decides."""
    made = definition.Settings()
    made.CopyFrom(settings)
    made.metric.on = False
    if made.HasField("publishing"):
        made.backoff_policy.max_attempts = limits.PRODUCER_MAX_ATTEMPTS
        made.backoff_policy.exponential_backoff.CopyFrom(definition.ExponentialBackoff(
            initial=duration(limits.PRODUCER_BACKOFF_INITIAL_MS), max=duration(limits.PRODUCER_BACKOFF_MAX_MS),
            multiplier=limits.PRODUCER_BACKOFF_MULTIPLIER))
        made.publishing.validate_message_type = True
        made.publishing.max_body_size = limits.MAX_MESSAGE_SIZE
        return made
    group, subscription = _group(groups, made), made.subscription
    subscription.fifo = group.consume_message_orderly
    subscription.receive_batch_size = limits.RECEIVE_BATCH_SIZE
    subscription.lite_subscription_quota = group.lite_client_quota
    subscription.max_lite_topic_size = limits.MAX_LITE_TOPIC_SIZE
    subscription.long_polling_timeout.CopyFrom(duration(limits.MAX_LONG_POLLING_MS))
    made.backoff_policy.Clear()
    made.backoff_policy.max_attempts = group.retry_max_times + 1
    policy = _policy(group)
    if policy.get("type") == "EXPONENTIAL":
        initial, most, multiplier = _exponential(policy)
        made.backoff_policy.exponential_backoff.CopyFrom(definition.ExponentialBackoff(
            initial=duration(initial), max=duration(most), multiplier=multiplier))
    else:
        made.backoff_policy.customized_backoff.next.extend(map(duration, _customized(policy)))
    return made


def of_consumer(groups: SubscriptionGroupManager, settings: Any) -> tuple[bool, int]:
    """Return whether a group consumes in order, and how often it gets a message, as `merged` settings say it."""
    if settings.HasField("publishing"):
        return False, limits.PRODUCER_MAX_ATTEMPTS
    group = _group(groups, settings)
    return group.consume_message_orderly, group.retry_max_times + 1


def _group(groups: SubscriptionGroupManager, settings: Any) -> SubscriptionGroupConfig:
    name = name_of(settings.subscription.group)
    return groups.select(name) or SubscriptionGroupConfig(group_name=name)


def retry_delay_ms(group: SubscriptionGroupConfig, reconsume_times: int) -> int:
    """Return the time until a message is delivered again that was not consumed, by the policy of its group."""
    policy = _policy(group)
    if policy.get("type") == "EXPONENTIAL":
        initial, most, multiplier = _exponential(policy)
        return int(min(most, initial * multiplier ** min(max(0, reconsume_times), 32)))
    delays = _customized(policy)
    return delays[min(max(0, reconsume_times) + 2, len(delays) - 1)]


def _policy(group: SubscriptionGroupConfig) -> dict[str, Any]:
    found = group.extra.get("groupRetryPolicy")
    return found if isinstance(found, dict) else {}


def _exponential(policy: dict[str, Any]) -> tuple[int, int, int]:
    found = policy.get("exponentialRetryPolicy") or {}
    return (_number(found, "initial", INITIAL_MS), _number(found, "max", MAX_MS),
            _number(found, "multiplier", MULTIPLIER))


def _number(of: Any, name: str, default: int) -> int:
    value = of.get(name) if isinstance(of, dict) else None
    return value if type(value) is int and 0 < value < 1 << 31 else default


def _customized(policy: dict[str, Any]) -> tuple[int, ...]:
    found = policy.get("customizedRetryPolicy") or {}
    delays = found.get("next") if isinstance(found, dict) else None
    if isinstance(delays, list) and delays and all(type(delay) is int and delay > 0 for delay in delays):
        return tuple(delays)
    return RETRY_DELAYS_MS
