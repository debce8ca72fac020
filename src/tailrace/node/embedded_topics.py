"""Topics and queues of an embedded program: creation, and the queue of a message."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import final

from tailrace.errors import ConfigError, MessageIllegalError, StoreNotWritableError
from tailrace.formats.commitlog import java_string_hash
from tailrace.node.directory_opening import DEFAULT_QUEUES
from tailrace.node.left_over_queues import LeftOverQueue, log_left_over
from tailrace.node.topic_config import (
    TopicConfig,
    TopicConfigManager,
    check_attribute,
    check_together,
    check_unchangeable,
    validate_topic,
)
from tailrace.store.default_message_store import DefaultMessageStore

__all__ = ["EmbeddedTopics"]


@final
class EmbeddedTopics:
    """Creates topics for the puts of an embedded program, and chooses queues."""

    def __init__(
        self, topics: TopicConfigManager, store: DefaultMessageStore,
        left_over: Callable[[Mapping[str, int]], dict[str, list[LeftOverQueue]]],
    ) -> None:
        self._topics = topics
        self._left_over = left_over
        self._store = store
        self._turn = itertools.count()

    def create(self, topic: str, queues: int, attributes: Mapping[str, str]) -> TopicConfig:
        """Create a topic, or change its queues and attributes. Raises ConfigError."""
        reason = validate_topic(topic)
        if not reason and not 0 < queues < 1 << 31:
            reason = f"queues={queues!r} is not above 0"
        if not reason and self._topics.has_state_of_broker(topic):
            reason = f"{topic} is a system topic of the broker"
        if reason:
            raise ConfigError(reason)
        try:
            for attribute in attributes.items():
                check_attribute(*attribute)
            present = self._topics.select(topic)
            check_unchangeable(present, dict(attributes))
            check_together({**(present.attributes if present is not None else {}), **attributes})
        except ValueError as error:
            raise ConfigError(str(error)) from None
        made = replace(present or TopicConfig(topic_name=topic), read_queue_nums=queues, write_queue_nums=queues)
        made.attributes = {**made.attributes, **attributes}
        if attributes and (unsupported := self._topics.unsupported_type(made)):
            raise ConfigError(f"{topic} has {unsupported}, which is not supported")
        self._topics.update(made)
        if present is not None and queues < present.read_queue_nums:
            log_left_over(topic, queues, self._left_over({topic: queues}).get(topic, []), {})
        return made

    def queue_of(self, topic: str, queue_id: int | None, ordering_key: str | None = None) -> int:
        """Return the queue of a message: of its key, as Java producers choose, the given one, or each in turn.

        Creates a topic that is missing. Raises MessageIllegalError or StoreNotWritableError.
        """
        if not isinstance(topic, str):
            raise MessageIllegalError("topic", f"is a text, not {topic!r}")
        if ordering_key is not None and queue_id is not None:
            raise MessageIllegalError("ordering_key", "is given with queue_id; give one of them")
        known = self._topics.select(topic)
        if known is None:
            # A refused topic must leave no config: the log checks names first.
            self._store.rules.topic_bytes(topic)
            if not self._store.is_writeable:
                raise StoreNotWritableError(self._store.not_writeable_reason)
            known = self._topics.create_if_missing(topic, max(DEFAULT_QUEUES, (queue_id or 0) + 1))
        if known.attributes and (unsupported := self._topics.unsupported_type(known)):
            raise MessageIllegalError("topic", f"{topic} has {unsupported}, which is not supported")
        if topic in self._topics.mappings.table:
            raise MessageIllegalError(
                "topic", f"{topic} is a static topic: its queues may be on several brokers, send to one of them")
        count = known.write_queue_nums
        if queue_id is None and count > 0:
            number = next(self._turn) if ordering_key is None else abs(java_string_hash(ordering_key))
            return number % count
        if queue_id is None or not 0 <= queue_id < count:
            raise MessageIllegalError("queueId", f"{queue_id}, {topic} has queues 0 to {count - 1}")
        return queue_id
