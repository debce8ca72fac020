"""The topics of a store: ``topics.json``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tailrace import events
from tailrace.config import BrokerConfig
from tailrace.env.clock import Clock
from tailrace.env.filesystem import FileSystem
from tailrace.formats import names as N
from tailrace.logs import get_logger
from tailrace.node.config_manager import Draft, NamedConfigManager, members_of
from tailrace.node.topic_queue_mapping import TopicQueueMappingManager
from tailrace.store.queue_types import BATCH_CQ, CLEANUP_POLICY, COMPACTION, QUEUE_TYPE
from tailrace.store.retention.topic_rules import (
    RESERVE_TIME,
    RETENTION_BYTES,
    RETENTION_MS,
    topic_limits,
)

__all__ = [
    "LITE_WITHOUT_LMQ",
    "PERM_INHERIT",
    "PERM_READ",
    "PERM_WRITE",
    "TopicConfig",
    "TopicConfigManager",
    "is_system_topic",
    "validate_topic",
]

_log = get_logger(__name__)
PERM_INHERIT: Final = 1
PERM_WRITE: Final = 2
PERM_READ: Final = 4
TOPIC_MAX_LENGTH: Final = 127
RETRY_OR_DLQ_TOPIC_MAX_LENGTH: Final = 255
_TOPIC: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
FORBIDDEN_TO_SEND: Final = frozenset({
    N.SCHEDULE_TOPIC,
    N.HALF_TOPIC,
    N.OP_TOPIC,
    "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
    "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
    N.CHECK_MAX_TIME_TOPIC,
    "SELF_TEST_TOPIC",
    "OFFSET_MOVED_EVENT",
})
SYSTEM_TOPICS: Final = frozenset({
    N.AUTO_CREATE_TOPIC_KEY_TOPIC,
    "BenchmarkTest",
    "CHECKPOINT_TOPIC",
    N.TRACE_TOPIC,
    *FORBIDDEN_TO_SEND,
})


def validate_topic(topic: str) -> str:
    """Return why ``topic`` is not a valid name of a topic, or ""."""
    if not topic:
        return "The specified topic is blank."
    if _TOPIC.fullmatch(topic) is None:
        return (
            f"The specified topic[{topic[:300]}] contains illegal characters, "
            "allowing only ^[%|a-zA-Z0-9_-]+$"
        )
    limit = TOPIC_MAX_LENGTH
    if topic.startswith((N.RETRY_GROUP_TOPIC_PREFIX, N.DLQ_GROUP_TOPIC_PREFIX)):
        limit = RETRY_OR_DLQ_TOPIC_MAX_LENGTH
    if len(topic) > limit:
        return f"The specified topic is longer than topic max length {limit}."
    return ""


LITE_EXPIRATION: Final = "lite.topic.expiration"
"""Attribute: minutes without a message after which a Lite topic is deleted; -1 and 0: never."""
LITE_EXPIRATION_MAX: Final = 30 * 24 * 60
LITE: Final = "LITE"
LITE_WITHOUT_LMQ: Final = "message.type=LITE without enableLmq=true and enableMultiDispatch=true"
_ATTRIBUTES: Final[dict[str, frozenset[str]]] = {
    CLEANUP_POLICY: frozenset({"DELETE", COMPACTION}),
    "message.type": frozenset(
        {"UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "LITE", "MIXED"}),
    QUEUE_TYPE: frozenset({"SimpleCQ", BATCH_CQ}),
    LITE_EXPIRATION: frozenset(),
    RESERVE_TIME: frozenset(), RETENTION_BYTES: frozenset(), RETENTION_MS: frozenset(),
}
"""Attributes of a topic and their possible values; () means a number."""


_TYPES: Final = ("message.type", CLEANUP_POLICY, QUEUE_TYPE)
"""Attributes that control how messages of a topic are kept and delivered."""
DELETING: Final = frozenset({LITE_EXPIRATION, RESERVE_TIME, RETENTION_BYTES, RETENTION_MS})
"""Attributes that decide which messages of a topic are deleted and when."""
_UNCHANGEABLE: Final = frozenset({QUEUE_TYPE, CLEANUP_POLICY})


@dataclass(slots=True, kw_only=True)
class TopicConfig:
    """A topic. ``extra`` has the members of the file that Tailrace does not know."""

    topic_name: str
    read_queue_nums: int = 4
    write_queue_nums: int = 4
    perm: int = PERM_READ | PERM_WRITE
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def has_batch_queues(self) -> bool:
        """True if its queues are batch queues, in which one record may have several messages."""
        return bool(self.attributes) and self.attributes.get(QUEUE_TYPE) == BATCH_CQ

    @property
    def is_compacted(self) -> bool:
        """True if only the last message of each key stays."""
        return bool(self.attributes) and self.attributes.get(CLEANUP_POLICY) == COMPACTION

    @property
    def is_lite(self) -> bool:
        """True if it is the parent of Lite topics."""
        return bool(self.attributes) and self.attributes.get("message.type") == LITE

    @property
    def lite_expiration_min(self) -> int:
        """Minutes without a message after which a Lite topic of it is deleted; -1 and 0: never."""
        text = self.attributes.get(LITE_EXPIRATION, "") if self.is_lite else ""
        return int(text) if text.isdecimal() else -1

    @property
    def readable(self) -> bool:
        """True if the topic may be consumed."""
        return self.perm & PERM_READ != 0

    @property
    def writable(self) -> bool:
        """True if messages may be sent to the topic."""
        return self.perm & PERM_WRITE != 0

    def to_json(self) -> dict[str, Any]:
        """Return the members by RocketMQ's names."""
        return {
            **self.extra,
            **{name: getattr(self, attribute) for name, attribute in _MEMBERS.items()},
        }

    @classmethod
    def from_json(cls, value: dict[str, Any], topic: str = "") -> TopicConfig:
        """Return a topic from members by RocketMQ's names; missing members have their defaults."""
        made = cls(topic_name=str(value.get("topicName") or topic))
        for name, attribute in _MEMBERS.items():
            if (member := value.get(name)) is not None:
                setattr(made, attribute, _like(member, getattr(made, attribute)))
        made.extra = {k: v for k, v in value.items() if k not in _MEMBERS}
        return made


_MEMBERS: Final = members_of(TopicConfig)


def _like(member: Any, present: Any) -> Any:
    """Return ``member`` if it has the type of ``present`` or can be converted to it, else ``present``."""
    if isinstance(present, bool):
        return member if isinstance(member, bool) else str(member).lower() == "true"
    if isinstance(present, int):
        try:
            return int(member)
        except (TypeError, ValueError):
            return present
    if isinstance(present, dict):
        return {str(k): str(v) for k, v in member.items()} if isinstance(member, dict) else present
    return str(member)


def is_system_topic(topic: str, broker: BrokerConfig) -> bool:
    """Return True if the topic belongs to this broker and not to its users."""
    cluster = broker.broker_cluster_name
    return (
        topic in SYSTEM_TOPICS or topic.startswith(N.SYSTEM_TOPIC_PREFIX)
        or topic in {cluster, broker.broker_name, f"{cluster}_REPLY_TOPIC"})


class TopicConfigManager(NamedConfigManager[TopicConfig]):
    """The topics, by name.

    ``creation`` and ``creation_in_send`` are changes for `submit`, for callers that must not wait.
    """

    kind, name, member, what, most = TopicConfig, "topic_name", "topicConfigTable", "topics", "max_topics"

    def __init__(
        self, file_system: FileSystem, config_dir: str, broker_config: BrokerConfig, clock: Clock, *,
        lmq: bool = False, multi_dispatch: bool = False,
    ) -> None:
        super().__init__(file_system, config_dir, "topics.json", broker_config, clock)
        self.enable_lmq = lmq
        """True if every LMQ name is a topic with one queue. Such topics have no entry."""
        self.multi_dispatch = multi_dispatch
        """True if messages get places in LMQ queues, without which there are no Lite topics."""
        self.was_loaded = False
        """True if the file, with all topics of the directory, was there when the store was opened."""
        self.mappings = TopicQueueMappingManager(file_system, config_dir, clock)
        """Logical queues of static topics. They are in a file of their own, which is loaded separately."""

    def unsupported_type(self, config: TopicConfig) -> str:
        """Return the attribute of a topic that cannot be honoured, such as ``message.type=LITE``; else ""."""
        if config.is_lite and not self.multi_dispatch:
            return LITE_WITHOUT_LMQ
        for name in _TYPES if config.attributes else ():
            value = config.attributes.get(name)
            if value and value not in _ATTRIBUTES[name]:
                return f"{name}={value}"
        return ""

    def has_batch_queues(self, topic: str) -> bool:
        """Return True if the queues of a topic are batch queues."""
        config = self._table.get(topic)
        return config is not None and config.has_batch_queues

    def compacted(self) -> dict[str, int]:
        """Return the topics with ``cleanup.policy=COMPACTION`` and their numbers of queues."""
        return {config.topic_name: max(config.read_queue_nums, config.write_queue_nums)
                for config in self.items() if config.is_compacted}

    @property
    def broker_name(self) -> str:
        """The name by which mappings of static topics name this broker."""
        return self._config.broker_name

    def select(self, topic: str) -> TopicConfig | None:
        """Return the topic, or None."""
        if self.enable_lmq and self.is_lmq(topic):
            return TopicConfig(topic_name=topic, read_queue_nums=1, write_queue_nums=1)
        return self._table.get(topic)

    def is_lmq(self, topic: str) -> bool:
        """Return True if a topic is an LMQ queue, which has no configuration (LmqTopicConfigManager)."""
        return self.enable_lmq and topic.startswith(N.LMQ_PREFIX) and len(topic) <= RETRY_OR_DLQ_TOPIC_MAX_LENGTH

    def update(self, config: TopicConfig) -> None:
        """Create or replace a topic."""
        self.update_all([config])

    def inherits(self, default_topic: str) -> bool:
        """Return True if a send may create its topic from ``default_topic``."""
        if default_topic == N.AUTO_CREATE_TOPIC_KEY_TOPIC and not (
            self._config.auto_create_topic_enable
        ):
            return False
        default = self._table.get(default_topic)
        return default is not None and default.perm & PERM_INHERIT != 0

    def creation_in_send(
        self, topic: str, default_topic: str, default_queue_nums: int, topic_sys_flag: int = 0
    ) -> Callable[[Draft[str, TopicConfig]], TopicConfig | None]:
        """Return the change that creates a topic from ``default_topic``. The change returns the topic or None."""

        def create(draft: Draft[str, TopicConfig]) -> TopicConfig | None:
            if (found := draft.get(topic)) is not None:
                return found
            default = draft.get(default_topic)
            if default is None or not default.perm & PERM_INHERIT:
                return None
            queues = max(0, min(default_queue_nums, default.write_queue_nums))
            made = TopicConfig(
                topic_name=topic, read_queue_nums=queues, write_queue_nums=queues,
                perm=default.perm & ~PERM_INHERIT, topic_filter_type=default.topic_filter_type,
                topic_sys_flag=topic_sys_flag,
            )
            self.put_all(draft, [made])
            events.A_SEND_CREATES_A_TOPIC.log(_log, topic=topic, queues=queues, default_topic=default_topic)
            return made

        return create

    def create_if_missing(
        self, topic: str, queue_nums: int, perm: int = PERM_READ | PERM_WRITE,
        topic_sys_flag: int = 0,
    ) -> TopicConfig:
        """Return the topic, creating it with the given values if it is missing."""
        if (found := self.select(topic)) is not None:
            return found
        made: TopicConfig = self.change(self.creation(TopicConfig(
            topic_name=topic, read_queue_nums=queue_nums, write_queue_nums=queue_nums,
            perm=perm, topic_sys_flag=topic_sys_flag,
        )))
        return made

    def ensure_system_topics(self) -> None:
        """Create the topics that a broker has from its start, in one write."""
        self._ensure(self._system_topics())

    def is_system_topic(self, topic: str) -> bool:
        """Return True if the topic belongs to the broker and not to its users."""
        return is_system_topic(topic, self._config)

    def is_of_broker(self, topic: str) -> bool:
        """Return True if a broker creates the topic itself and needs it; such a topic cannot be deleted.

        A topic with another name of the system, which a client has created, can be deleted.
        """
        return topic in FORBIDDEN_TO_SEND or topic == N.AUTO_CREATE_TOPIC_KEY_TOPIC or any(
            topic == config.topic_name for config in self._system_topics())

    def has_state_of_broker(self, topic: str) -> bool:
        """Return True if the messages of the topic are delayed messages, transactions, or other state of a broker."""
        return topic in FORBIDDEN_TO_SEND or (topic.startswith(N.SYSTEM_TOPIC_PREFIX) and self.is_of_broker(topic))

    def system_topic_names(self) -> list[str]:
        """Return all system topics, of this broker and of RocketMQ in general, sorted."""
        names = {t for t in self._table if self.is_system_topic(t)}
        return sorted(names | SYSTEM_TOPICS)

    def _system_topics(self) -> list[TopicConfig]:
        cluster, broker = self._config.broker_cluster_name, self._config.broker_name
        nums = self._config.default_topic_queue_nums
        # Name, number of queues, permissions.
        shapes: list[tuple[str, int, int]] = [
            ("SELF_TEST_TOPIC", 1, 6),
            ("BenchmarkTest", 1024, 6),
            (cluster, 16, 7),
            (broker, 1, 7),
            ("OFFSET_MOVED_EVENT", 1, 6),
            (N.SCHEDULE_TOPIC, 18, 6),
            (f"{cluster}_REPLY_TOPIC", 1, 6),
            (N.HALF_TOPIC, 1, 6),
            (N.OP_TOPIC, 1, 6),
            (f"{N.SYSTEM_TOPIC_PREFIX}REVIVE_LOG_{cluster}", self._config.revive_queue_num, 6),
            (f"{N.SYSTEM_TOPIC_PREFIX}SYNC_BROKER_MEMBER_{broker}", 1, 1),
            (N.TIMER_TOPIC, 1, 6),
        ]
        if self._config.auto_create_topic_enable:
            shapes.append((N.AUTO_CREATE_TOPIC_KEY_TOPIC, nums, 7))
        return [
            TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)
            for name, queues, perm in shapes
        ]


def check_attribute(name: str, value: str) -> None:
    """Raise ValueError for an unknown attribute or an invalid value.

    Known are RocketMQ's TopicAttributes and those of Tailrace.
    """
    if name not in _ATTRIBUTES:
        raise ValueError(f"unsupported key: {name}; known are {', '.join(sorted(_ATTRIBUTES))}")
    values = _ATTRIBUTES[name]
    if values and value not in values:
        raise ValueError(f"{name}={value} is not supported; known are {', '.join(sorted(values))}")
    if name == LITE_EXPIRATION and not (
        value.isascii() and value.removeprefix("-").isdecimal() and -1 <= int(value) <= LITE_EXPIRATION_MAX
    ):
        raise ValueError(f"{name}={value} is not a number from -1 to {LITE_EXPIRATION_MAX}")
    topic_limits({name: value})


def check_unchangeable(present: TopicConfig | None, attributes: Iterable[str]) -> None:
    """Raise ValueError if one of these attributes of a topic that exists cannot be changed any more."""
    for name in attributes:
        if present is not None and name in _UNCHANGEABLE:
            raise ValueError(f"attempt to update an unchangeable attribute. key: {name}")


def merged_attributes(present: dict[str, str], text: str, *, creating: bool) -> dict[str, str]:
    """Return attributes after the changes of a text ``+k=v,-k``. Raises ValueError with the reason."""
    changed = dict(present)
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, _, value = part.partition("=")
        if name[1:] in _UNCHANGEABLE and not creating:
            raise ValueError(f"attempt to update an unchangeable attribute. key: {name[1:]}")
        if part.startswith("+") and value:
            check_attribute(name[1:], value)
            changed[name[1:]] = value
        elif part.startswith("-") and not value:
            if creating:
                raise ValueError(f"only add attribute is supported while creating topic. key: {name[1:]}")
            changed.pop(name[1:], None)
        else:
            raise ValueError(f"add/alter attribute format is wrong: {name}")
    check_together(changed)
    return changed


def check_together(attributes: Mapping[str, str]) -> None:
    """Raise ValueError for attributes that exclude each other."""
    if attributes.get(CLEANUP_POLICY) != COMPACTION:
        return
    for name in (RESERVE_TIME, RETENTION_BYTES, RETENTION_MS):
        if name in attributes:
            raise ValueError(f"{name} and {CLEANUP_POLICY}={COMPACTION} exclude each other: compaction keeps the "
                             "last message of each key")
    if attributes.get(QUEUE_TYPE) == BATCH_CQ:
        raise ValueError(f"{QUEUE_TYPE}={BATCH_CQ} and {CLEANUP_POLICY}={COMPACTION} exclude each other")


def renamed(config: TopicConfig, topic: str) -> TopicConfig:
    """Return a copy of ``config`` for another topic."""
    return replace(config, topic_name=topic, attributes=dict(config.attributes))
