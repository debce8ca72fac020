"""Filters of pulls: from the subscription that a pull carries, or from that of its group's heartbeat."""

from __future__ import annotations

from typing import Final, final

from tailrace.auth.check import AccessControl
from tailrace.broker.clients.client_manager import ConsumerManager
from tailrace.broker.consumers.consumer_checks import EXPRESSION_MAX, check_allowed
from tailrace.errors import RefusalError
from tailrace.filters.message_filters import MessageFilter, MessageFilters
from tailrace.filters.retry_owner import own_messages, reader_of
from tailrace.filters.subscriptions import TAG, SubscriptionData
from tailrace.formats.names import RETRY_GROUP_TOPIC_PREFIX
from tailrace.formats.remoting import ResponseCode
from tailrace.formats.requests.message_headers import PullMessageRequestHeader, PullSysFlag
from tailrace.node.subscription_group import SubscriptionGroupConfig, SubscriptionGroupManager
from tailrace.requests.caller import Caller

__all__ = ["PullSubscriptions"]

PASSIVELY: Final = "CONSUME_PASSIVELY"
"""Consume type in the heartbeat of a push consumer."""


@final
class PullSubscriptions:
    """Makes the filters of pulls. Used on the event loop only."""

    def __init__(
        self, groups: SubscriptionGroupManager, consumers: ConsumerManager, filters: MessageFilters,
        control: AccessControl | None,
    ) -> None:
        self._groups, self._consumers, self._filters, self._control = groups, consumers, filters, control

    def is_pushed(self, group: str) -> bool:
        """Return whether the members of a group are push consumers."""
        info = self._consumers.find(group)
        return info is not None and info.consume_type == PASSIVELY

    def filter_of(
        self, header: PullMessageRequestHeader, topic: str, caller: Caller, group_config: SubscriptionGroupConfig
    ) -> MessageFilter:
        """Return the filter of a pull from a topic, from its own subscription or from that of its group's heartbeat.

        Raises RefusalError, or NotPreparedError if an expression has to be compiled first.
        """
        filters, group = self._filters, header.consumer_group
        if header.sys_flag & PullSysFlag.SUBSCRIPTION:
            wanted = filters.of_request(_own_subscription(header, topic), group)
        else:
            wanted = filters.of_group(
                self._subscription(header, topic, caller, group_config), group, header.sub_version)
        if topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
            return own_messages(topic, reader_of(self._control, caller.request, topic, group), wanted)
        return wanted

    def _subscription(
        self, header: PullMessageRequestHeader, topic: str, caller: Caller, group_config: SubscriptionGroupConfig
    ) -> SubscriptionData:
        info = self._consumers.find(header.consumer_group)
        if info is None:
            raise RefusalError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist"
            )
        if info.broadcasting and not group_config.consume_broadcast_enable:
            raise RefusalError(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{info.group}] can not consume by broadcast way",
            )
        check_allowed(self._groups, info.group, topic)
        found = info.subscriptions.get(topic)
        if found is None:
            raise RefusalError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's subscription not exist"
            )
        if found.sub_version < header.sub_version:
            self._consumers.ask_for_subscriptions(info.group, caller.channel)
            raise RefusalError(
                ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest"
            )
        return found


def _own_subscription(header: PullMessageRequestHeader, topic: str) -> SubscriptionData:
    """Return the subscription that a pull carries."""
    expression, expression_type = header.subscription or "", header.expression_type or TAG
    if len(expression) > EXPRESSION_MAX:
        raise RefusalError(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"the subscription has {len(expression)} characters, over the limit of {EXPRESSION_MAX}")
    if not expression and expression_type != TAG:
        raise RefusalError(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            "parse the consumer's subscription failed: the expression is empty")
    try:
        return SubscriptionData.parse(topic, expression, expression_type=expression_type)
    except ValueError as error:
        raise RefusalError(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed") from error
