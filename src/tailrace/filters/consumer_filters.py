"""The expressions of consumer groups, in the file ``consumerFilter.json``, which a Java broker can read.

A heartbeat registers the expressions of a group. If a group has no member any more, or no longer subscribes to a
topic, the entry is marked as dead and kept for filterDataCleanTimeSpan, because its consumers may return.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, final

from tailrace import events
from tailrace.config import BrokerConfig
from tailrace.env.clock import Clock
from tailrace.env.filesystem import FileSystem
from tailrace.errors import FilterExpressionError
from tailrace.filters.bloom import BloomFilter, BloomFilterData
from tailrace.filters.compilation import compile_filter, prepare_sql
from tailrace.filters.sql_expression import SqlExpression
from tailrace.filters.subscriptions import SubscriptionData
from tailrace.logs import get_logger
from tailrace.node.config_manager import ConfigManager, Owned

__all__ = ["ConsumerFilterData", "ConsumerFilterManager"]

_log = get_logger(__name__)
ENTRIES_MAX: Final = 10_000
"""Number of entries, including dead ones."""
CHARACTERS_MAX: Final = 1 << 20
"""Number of characters of all expressions; a compiled expression takes about 50 bytes of memory for each."""
DEAD_BEFORE_LOAD_MS: Final = 30_000
"""An entry of the file that is not marked as dead counts as dead since this time before the load."""


@dataclass(slots=True, kw_only=True)
class ConsumerFilterData:
    """The expression of a group for a topic. ``dead_time`` is the end of its use (ms), 0 while it is used."""

    topic: str
    consumer_group: str
    expression: str
    expression_type: str
    born_time: int
    client_version: int
    """Version of the subscription: the time (ms) at which the client subscribed."""
    bloom: BloomFilterData
    dead_time: int = 0
    compiled: SqlExpression | None = None
    """Set at the first use; stays None if an expression of the file cannot be compiled."""

    @property
    def is_dead(self) -> bool:
        """True if no consumer uses it."""
        return self.dead_time >= self.born_time

    def to_json(self) -> dict[str, Any]:
        """Return the members by RocketMQ's names, in RocketMQ's order."""
        return {
            "bloomFilterData": {"bitNum": self.bloom.bits, "bitPos": list(self.bloom.positions)},
            "bornTime": self.born_time,
            "clientVersion": self.client_version,
            "consumerGroup": self.consumer_group,
            "dead": self.is_dead,
            "deadTime": self.dead_time,
            "expression": self.expression,
            "expressionType": self.expression_type,
            "topic": self.topic,
        }


@final
class ConsumerFilterManager(ConfigManager[str, dict[str, ConsumerFilterData]]):
    """Expressions by group and topic. `prepare` and `write_prepared` are called periodically.

    With enablePropertyFilter=false nothing is registered, and the file stays as it is.
    """

    owned = Owned.BY_ONE_THREAD

    def __init__(
        self, file_system: FileSystem, config_dir: str, broker_config: BrokerConfig, clock: Clock
    ) -> None:
        super().__init__(file_system, config_dir, "consumerFilter.json")
        self._enabled = broker_config.enable_property_filter
        self._keep_ms = broker_config.filter_data_clean_time_span
        self._clock = clock
        self._bloom = BloomFilter(
            broker_config.max_error_rate_of_bloom_filter, broker_config.expect_consumer_num_use_filter)
        self._count = 0
        self._characters = 0

    def load(self) -> bool:
        """Read the file or its backup; return False if there is neither."""
        return self._enabled and super().load()

    def find(self, topic: str, group: str) -> ConsumerFilterData | None:
        """Return the expression of a group for a topic, also a dead one; None without an entry."""
        found = self._table.get(group, {}).get(topic)
        if found is not None and found.compiled is None:
            found.compiled = self._compile(found.expression, found.expression_type, topic, group)
        return found

    def of_group(self, group: str) -> list[ConsumerFilterData]:
        """Return all expressions of a group that can be compiled."""
        topics = self._table.get(group, {})
        prepare_sql(data.expression for data in topics.values() if data.compiled is None)
        found = (self.find(topic, group) for topic in tuple(topics))
        return [data for data in found if data is not None and data.compiled is not None]

    # -- heartbeats

    def registered(self, group: str, subscriptions: Iterable[SubscriptionData]) -> None:
        """Register the expressions of a group's subscriptions. An expression that cannot be compiled is logged.

        Long expressions should be compiled before (`prepare`), because this call compiles them on the event loop.

        They are those that count for the group, whatever their versions are: an expression of the file may have a
        higher version, because the clock of its client was ahead. RocketMQ would keep that one without a word.
        """
        self.check_owner()
        known = self._table.get(group)
        topics = set()
        for subscription in subscriptions:
            topics.add(subscription.topic)
            if self._enabled and not subscription.is_tag:
                self._register(group, subscription)
        for data in tuple(known.values()) if known else ():
            if data.topic not in topics and not data.is_dead:
                self._die(data)

    def gone(self, group: str) -> None:
        """Mark the expressions of a group without members as dead."""
        self.check_owner()
        for data in tuple(self._table.get(group, {}).values()):
            if not data.is_dead:
                self._die(data)

    def _register(self, group: str, subscription: SubscriptionData) -> None:
        topic, text, kind = subscription.topic, subscription.sub_string, subscription.expression_type
        old = self._table.get(group, {}).get(topic)
        if old is not None and (old.expression, old.expression_type) == (text, kind):
            if subscription.sub_version != old.client_version:
                old.client_version = subscription.sub_version
                self._dirty = True
            self._revive(old)
            return
        compiled = self._compile(text, kind, topic, group, at_once=True)
        if old is not None:
            self._forget(old)
        if compiled is None or not self._has_room(group, topic, text):
            return
        self._add(ConsumerFilterData(
            topic=topic, consumer_group=group, expression=text, expression_type=kind,
            born_time=self._clock.now_ms(), client_version=subscription.sub_version,
            bloom=self._bloom.data_of(group, topic), compiled=compiled))
        events.CONSUMER_FILTER_REGISTERED.log(_log, group=group, topic=topic, expression=text)

    def _compile(
        self, text: str, kind: str, topic: str, group: str, *, at_once: bool = False
    ) -> SqlExpression | None:
        try:
            return compile_filter(text, kind, at_once=at_once)
        except FilterExpressionError as error:
            events.CONSUMER_FILTER_CANNOT_BE_COMPILED.log(_log, group=group, topic=topic, expression=text, reason=error)
            return None

    def _has_room(self, group: str, topic: str, text: str) -> bool:
        """Return whether one more expression can be kept; if necessary, entries that died first are removed."""
        def full() -> bool:
            return self._count >= ENTRIES_MAX or self._characters + len(text) > CHARACTERS_MAX

        if full():
            dead = [data for topics in self._table.values() for data in topics.values() if data.is_dead]
            for data in sorted(dead, key=lambda data: data.dead_time):
                if not full():
                    break
                self._forget(data)
        if full():
            reason = (f"there are {self._count} with {self._characters} characters, and the limits are {ENTRIES_MAX} "
                      f"and {CHARACTERS_MAX}")
            events.CONSUMER_FILTER_REFUSED.log(_log, group=group, topic=topic, reason=reason)
            return False
        return True

    def _add(self, data: ConsumerFilterData) -> None:
        self._table.setdefault(data.consumer_group, {})[data.topic] = data
        self._count += 1
        self._characters += len(data.expression)
        self._dirty = True

    def _forget(self, data: ConsumerFilterData) -> None:
        topics = self._table[data.consumer_group]
        del topics[data.topic]
        if not topics:
            del self._table[data.consumer_group]
        self._count -= 1
        self._characters -= len(data.expression)
        self._dirty = True

    def _die(self, data: ConsumerFilterData) -> None:
        data.dead_time = self._clock.now_ms()
        self._dirty = True
        events.CONSUMER_FILTER_IS_NOT_USED_ANY_MORE.log(_log, group=data.consumer_group, topic=data.topic)

    def _revive(self, data: ConsumerFilterData) -> None:
        if data.is_dead:
            data.dead_time = 0
            self._dirty = True

    # -- the file

    def forget(self, topics: set[str], groups: set[str]) -> None:
        """Forget the expressions for topics, and those of groups, that were deleted."""
        self.check_owner()
        for name, known in list(self._table.items()):
            for data in tuple(known.values()):
                if name in groups or data.topic in topics:
                    self._forget(data)

    def expire(self) -> None:
        """Remove the expressions that have been dead for filterDataCleanTimeSpan."""
        self.check_owner()
        limit = self._clock.now_ms() - self._keep_ms
        for topics in list(self._table.values()):
            for data in tuple(topics.values()):
                if data.is_dead and data.dead_time <= limit:
                    self._forget(data)

    def to_json(self) -> dict[str, Any]:
        """Return the table in the form of the file, which has no data version, as in RocketMQ."""
        return {**self._unknown, **self._encode(dict(self._table))}

    def _decode(self, value: dict[str, Any]) -> None:
        found = value.pop("filterDataByTopic", None)
        for topic, member in (found.items() if isinstance(found, dict) else ()):
            groups = member.get("groupFilterData") if isinstance(member, dict) else None
            for group, entry in (groups.items() if isinstance(groups, dict) else ()):
                data = self._data_from(str(topic), str(group), entry)
                if data is None:
                    events.CONSUMER_FILTER_REFUSED.log(
                        _log, group=group, topic=topic, reason=f"{self.path} has an incomplete entry")
                elif self._has_room(group, topic, data.expression):
                    self._add(data)
        self._dirty = False

    def _data_from(self, topic: str, group: str, entry: Any) -> ConsumerFilterData | None:
        """Return an entry of the file; None if a needed member is missing or invalid."""
        if not isinstance(entry, dict):
            return None
        text, kind = entry.get("expression"), entry.get("expressionType")
        numbers = [entry.get(name, 0) for name in ("bornTime", "deadTime", "clientVersion")]
        if not isinstance(text, str) or not isinstance(kind, str) or any(type(n) is not int for n in numbers):
            return None
        born, dead, version = numbers
        # Entries of the file are dead until a heartbeat of their group arrives.
        dead = dead or max(born, self._clock.now_ms() - DEAD_BEFORE_LOAD_MS)
        return ConsumerFilterData(
            topic=topic, consumer_group=group, expression=text, expression_type=kind, born_time=born,
            dead_time=dead, client_version=version, bloom=self._bloom.data_of(group, topic))

    def _encode(self, table: dict[str, dict[str, ConsumerFilterData]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for group, topics in table.items():
            for topic, data in topics.items():
                of_topic = found.setdefault(topic, {"groupFilterData": {}, "topic": topic})
                of_topic["groupFilterData"][group] = data.to_json()
        return {"filterDataByTopic": found}
