"""Filters of pulls: by tags code, or by an expression over properties."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, final

from tailrace import events
from tailrace.config import BrokerConfig
from tailrace.errors import FilterExpressionError, RefusalError
from tailrace.filters.compilation import SQL92, compile_filter, prepare_sql
from tailrace.filters.consumer_filters import ConsumerFilterManager
from tailrace.filters.sql_expression import SqlExpression
from tailrace.filters.subscriptions import SubscriptionData
from tailrace.formats import names as N
from tailrace.formats.remoting import ResponseCode
from tailrace.logs import get_logger
from tailrace.store.hooks import PropertyFilter

__all__ = ["EVERYTHING", "MessageFilter", "MessageFilters"]

_log = get_logger(__name__)
RETRY_TOPIC: Final = N.RETRY_TOPIC.encode()
"""Property of a message in a retry topic: the topic that it was sent to."""


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """The filter of a consumer for a topic. At most one field is set; without both every message matches."""

    codes: frozenset[int] | None = None
    """Tags codes that match."""
    properties: PropertyFilter | None = None

    def matches_codes(self, tags_codes: Sequence[int]) -> bool:
        """Return whether one of these tags codes matches."""
        return self.codes is None or not self.codes.isdisjoint(tags_codes)


EVERYTHING: Final = MessageFilter()
"""The filter that every message matches."""


@final
class RetryFilter:
    """The filter of a retry topic with filterSupportRetry: each message is filtered as in its original topic.

    A message whose original topic has no expression matches.
    """

    __slots__ = ("_parts", "cost", "names")

    def __init__(self, expressions: dict[str, SqlExpression]) -> None:
        names = dict.fromkeys([RETRY_TOPIC, *(name for one in expressions.values() for name in one.names)])
        self.names = tuple(names)
        place = {name: at for at, name in enumerate(self.names)}
        self._parts = {
            topic: (one, tuple(place[name] for name in one.names)) for topic, one in expressions.items()}
        self.cost = max([len(self.names) // 8, 1, *(one.cost for one in expressions.values())])

    def matches(self, values: Sequence[str | None]) -> bool:
        """Return whether a message matches."""
        found = self._parts.get(values[0] or "")
        return found is None or found[0].matches([values[at] for at in found[1]])


@final
class MessageFilters:
    """Creates the filters of pulls. Its methods raise RefusalError."""

    def __init__(self, config: BrokerConfig, consumer_filters: ConsumerFilterManager) -> None:
        self._enabled = config.enable_property_filter
        self._support_retry = config.filter_support_retry
        self._consumer_filters = consumer_filters
        if self._enabled:
            compile_filter("TRUE", SQL92, at_once=True)  # loads the parser, so that no client waits for that

    def of_request(
        self, subscription: SubscriptionData, group: str, *, always: bool = False
    ) -> MessageFilter:
        """Return the filter of a request that carries its subscription.

        With ``always`` expressions are served also with enablePropertyFilter=false, as RocketMQ does for pops and
        notifications.
        """
        if subscription.is_tag:
            return MessageFilter(subscription.codes)
        return self._filter(subscription, group, self.compile(subscription, always=always))

    def of_group(self, subscription: SubscriptionData, group: str, sub_version: int) -> MessageFilter:
        """Return the filter from the heartbeat of a group, which must have at least this subscription version."""
        if subscription.is_tag:
            return MessageFilter(subscription.codes)
        self._check_enabled(subscription)
        data = self._consumer_filters.find(subscription.topic, group)
        if data is None or data.compiled is None:
            raise RefusalError(
                ResponseCode.FILTER_DATA_NOT_EXIST,
                "The broker's consumer filter data is not exist!Your expression may be wrong!")
        if data.client_version < sub_version:
            raise RefusalError(
                ResponseCode.FILTER_DATA_NOT_LATEST, "the consumer's consumer filter data not latest")
        return self._filter(subscription, group, data.compiled)

    def compile(self, subscription: SubscriptionData, *, always: bool = False) -> SqlExpression:
        """Return the compiled expression of a subscription of another type than TAG."""
        if not always:
            self._check_enabled(subscription)
        try:
            return compile_filter(subscription.sub_string, subscription.expression_type)
        except FilterExpressionError as error:
            events.EXPRESSION_CANNOT_BE_COMPILED.log(
                _log, topic=str(subscription.topic)[:255], expression=str(subscription.sub_string)[:500], reason=error)
            raise RefusalError(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"parse the consumer's subscription failed: {error}") from error

    def prepare(self, subscriptions: Iterable[tuple[str, str]]) -> None:
        """Raise NotPreparedError if these (expression, type) take too long to compile on the event loop."""
        if self._enabled:
            prepare_sql(text for text, kind in subscriptions if kind == SQL92)

    def _check_enabled(self, subscription: SubscriptionData) -> None:
        if not self._enabled:
            raise RefusalError(
                ResponseCode.SYSTEM_ERROR,
                "The broker does not support consumer to filter message by "
                f"{subscription.expression_type[:40]}; set enablePropertyFilter=true in its settings")

    def _filter(self, subscription: SubscriptionData, group: str, expression: SqlExpression) -> MessageFilter:
        if self._support_retry and subscription.topic.startswith(N.RETRY_GROUP_TOPIC_PREFIX):
            return MessageFilter(properties=RetryFilter({
                data.topic: data.compiled for data in self._consumer_filters.of_group(group)
                if data.compiled is not None}))
        return MessageFilter(properties=expression)
