"""Topics and queues of an embedded program: creation, the queue of a message, and the queues that are read."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, final

from tailrace.errors import (
    ConfigError,
    MessageIllegalError,
    StoreNotWritableError,
    UnknownTopicError,
)
from tailrace.formats.commitlog import java_string_hash
from tailrace.node.arrow_table import check_not_negative
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

DISPATCH_MS: Final = 10_000
"""Time that a look at a topic without a config waits for messages that were put before."""


@final
class EmbeddedTopics:
    """Creates topics for the puts of an embedded program, and chooses queues."""

    def __init__(self, topics: TopicConfigManager, store: DefaultMessageStore) -> None:
        self._topics = topics
        self._store = store
        self._turn = itertools.count()
        self.plain: dict[str, int] = {}
        """Number of queues of topics of which `queue_of` needs to ask nothing else; another dict after a change."""
        topics.on_change(self._forget)
        topics.mappings.on_change(self._forget)

    def _forget(self) -> None:
        self.plain = {}  # what a thread that looked before the change still adds is in the dict of before

    def create(self, topic: str, queues: Any, attributes: Any) -> TopicConfig:
        """Create a topic, or change its queues and attributes. Raises ConfigError."""
        reason = validate_topic(topic)
        if not reason and (not isinstance(queues, int) or not 0 < queues < 1 << 31):
            reason = f"queues={queues!r} is not a whole number above 0"
        if not reason and not isinstance(attributes, Mapping):
            reason = f"attributes={attributes!r} is not a dict"
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
            log_left_over(topic, queues, self.left_over_queues({topic: queues}).get(topic, []), {})
        return made

    def left_over_queues(self, topics: Mapping[str, int]) -> dict[str, list[LeftOverQueue]]:
        """Return the queues with messages that are not read, see ``MessageStore.left_over_queues``."""
        found: dict[str, list[LeftOverQueue]] = {}
        for (topic, queue_id), queue in list(self._store.queues.table.items()):
            if queue_id >= topics.get(topic, queue_id + 1) and queue.max_offset > queue.min_offset:
                found.setdefault(topic, []).append(LeftOverQueue(queue_id, queue.min_offset, queue.max_offset))
        return {topic: sorted(queues) for topic, queues in found.items()}

    def check_known(self, topic: str) -> None:
        """Raise UnknownTopicError for a topic that has neither a config nor a queue, TypeError for another type.

        The queue of an LMQ makes it known, and a system topic always is. A topic that was deleted is unknown until it
        is created again.
        """
        if not isinstance(topic, str):
            raise TypeError(f"topic is a text, not {topic!r}")
        if topic in self._topics.table or self._topics.has_state_of_broker(topic) or self._has_queue(topic):
            return
        self._store.wait_dispatched(DISPATCH_MS)  # an LMQ has a queue once its first message is dispatched
        if self._has_queue(topic):
            return
        raise UnknownTopicError(self._store.root, topic, [
            name for name in self._topics.table if not self._topics.is_system_topic(name)])

    def _has_queue(self, topic: str) -> bool:
        return any(name == topic for name, _ in list(self._store.queues.table))

    def check_queue(self, topic: str, queue_id: int) -> None:
        """Raise what `queue_ids` raises for a queue that does not exist."""
        config = self._topics.table.get(topic)
        if config is None or not 0 <= queue_id < config.read_queue_nums:
            self.queue_ids(topic, queue_id)

    def queue_ids(self, topic: str, queue_id: int | None = None) -> list[int]:
        """Return the queues of a topic that are read, in order: all that it has or that have files, or the given one.

        Raises UnknownTopicError, ValueError for a queue that does not exist, TypeError for another type.
        """
        self.check_known(topic)
        check_not_negative(queue_id=queue_id)
        config = self._topics.table.get(topic)
        found = sorted({
            *range(config.read_queue_nums if config is not None else 0),
            *(number for name, number in list(self._store.queues.table) if name == topic)})
        if queue_id is None:
            return found
        if queue_id not in found:
            raise ValueError(f"{topic} has no queue {queue_id}; it has {_numbers(found)}")
        return [queue_id]

    def queue_of(self, topic: Any, queue_id: int | None, ordering_key: Any = None) -> int:
        """Return the queue of a message: of its key, as Java producers choose, the given one, or each in turn.

        Creates a topic that is missing. Raises MessageIllegalError or StoreNotWritableError.
        """
        if not isinstance(topic, str):
            raise MessageIllegalError("topic", f"is a text, not {topic!r}")
        if ordering_key is not None and queue_id is not None:
            raise MessageIllegalError("ordering_key", "is given with queue_id; give one of them")
        if ordering_key is not None and not isinstance(ordering_key, str):
            raise MessageIllegalError("ordering_key", f"is a text, not {ordering_key!r}")
        if queue_id is not None and not hasattr(queue_id, "__index__"):
            raise MessageIllegalError("queueId", f"is a whole number, not {queue_id!r}")
        plain = self.plain
        known = self._topics.select(topic)
        if known is None:
            # A refused topic must leave no config: the log checks names first.
            self._store.rules.topic_bytes(topic)
            if not self._store.flags.is_writeable():
                raise StoreNotWritableError(self._store.flags.reason)
            known = self._topics.create_if_missing(topic, max(DEFAULT_QUEUES, (queue_id or 0) + 1))
        if known.attributes and (unsupported := self._topics.unsupported_type(known)):
            raise MessageIllegalError("topic", f"{topic} has {unsupported}, which is not supported")
        if topic in self._topics.mappings.table:
            raise MessageIllegalError(
                "topic", f"{topic} is a static topic: its queues may be on several brokers, send to one of them")
        count = known.write_queue_nums
        if not known.attributes and topic not in self._store.compaction.topics:
            plain[topic] = count
        if queue_id is None and count > 0:
            number = next(self._turn) if ordering_key is None else abs(java_string_hash(ordering_key))
            return number % count
        if queue_id is None or not 0 <= queue_id < count:
            raise MessageIllegalError("queueId", f"{queue_id}, {topic} has queues 0 to {count - 1}")
        return queue_id


def _numbers(found: list[int]) -> str:
    """Return the text for the queues that a topic has."""
    return f"queue {found[0]}" if len(found) == 1 else f"queues {found[0]} to {found[-1]}"
