"""The consumer groups: ``subscriptionGroup.json``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Self

from tailrace.config import BrokerConfig
from tailrace.env.clock import Clock
from tailrace.env.filesystem import FileSystem
from tailrace.errors import StoreError
from tailrace.formats.names import LMQ_PREFIX, SYSTEM_GROUP_PREFIX, TRANSACTION_GROUP
from tailrace.formats.pop import REVIVE_GROUP
from tailrace.node.config_manager import Draft, Edit, NamedConfigManager, members_of
from tailrace.node.topic_config import PERM_READ

__all__ = [
    "OFFSETS_OF_BROKER", "SubscriptionGroupConfig", "SubscriptionGroupManager", "is_group_of_broker", "is_system_group",
    "merged_group_attributes", "validate_group",
]

GROUP_MAX_LENGTH: Final = 120
LMQ_GROUP_MAX_LENGTH: Final = 255
FORBIDDEN_MAX: Final = 1_000
"""Topics that one group may be forbidden to read."""
SYSTEM_GROUPS: Final = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    TRANSACTION_GROUP,
)
OFFSETS_OF_BROKER: Final = frozenset({TRANSACTION_GROUP, REVIVE_GROUP})
"""Groups whose offsets are the progress of the broker itself: of the checks of transactions, and of POP."""


@dataclass(slots=True, kw_only=True)
class SubscriptionGroupConfig:
    """A consumer group. ``extra`` has the members of the file that Tailrace does not know."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15
    attributes: dict[str, str] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def priority_factor(self) -> int:
        """Share of the pops (percent) that take messages of a PRIORITY topic in the order of their priorities."""
        text = self.attributes.get("priority.factor", "")
        return int(text) if text.isdecimal() else 100

    @property
    def lite_bind_topic(self) -> str:
        """The parent topic whose Lite topics the group consumes; "" for any other group."""
        return self.attributes.get("lite.bind.topic", "")

    @property
    def is_lite_exclusive(self) -> bool:
        """True if one member at a time may subscribe to a Lite topic."""
        return self.attributes.get("lite.sub.model") == "Exclusive"

    @property
    def is_lite_wildcard(self) -> bool:
        """True if its members get the messages of all Lite topics of the parent topic."""
        return "lite.sub.wildcard" in self.attributes

    @property
    def lite_client_quota(self) -> int:
        """Lite topics to which one member may subscribe."""
        return self._number("lite.sub.client.quota", 2000)

    @property
    def lite_events_max(self) -> int:
        """Lite topics with messages that are noted for one member; -1: as the settings say."""
        return self._number("lite.sub.client.max.event.cnt", -1)

    def is_set(self, name: str) -> bool:
        """Return whether an attribute is true."""
        return self.attributes.get(name, "").lower() == "true"

    def _number(self, name: str, default: int) -> int:
        text = self.attributes.get(name, "")
        return min(int(text), (1 << 31) - 1) if text.removeprefix("-").isdecimal() else default

    def to_json(self) -> dict[str, Any]:
        """Return the members by RocketMQ's names."""
        return {
            "groupRetryPolicy": {"type": "CUSTOMIZED"},
            **self.extra,
            **{name: getattr(self, attribute) for name, attribute in _MEMBERS.items()},
        }

    @classmethod
    def from_json(cls, value: dict[str, Any], group: str = "") -> SubscriptionGroupConfig:
        """Return a group from members by RocketMQ's names; missing members have their defaults."""
        made = cls(group_name=str(value.get("groupName") or group))
        for name, attribute in _MEMBERS.items():
            member = value.get(name)
            if member is not None and isinstance(member, type(getattr(made, attribute))):
                setattr(made, attribute, member)
        made.attributes = {str(name): str(text) for name, text in made.attributes.items()}
        made.extra = {k: v for k, v in value.items() if k not in _MEMBERS}
        return made


_MEMBERS: Final = members_of(SubscriptionGroupConfig)


def is_system_group(group: str) -> bool:
    """Return True if a group belongs to the broker and not to its users."""
    return group in SYSTEM_GROUPS or group.upper().startswith(SYSTEM_GROUP_PREFIX)


def is_group_of_broker(group: str) -> bool:
    """Return True if a broker creates the group itself, or keeps its progress in it; it cannot be deleted."""
    return group in SYSTEM_GROUPS or group in OFFSETS_OF_BROKER


def validate_group(group: str) -> str:
    """Return why ``group`` is not a valid name of a group, or ""."""
    if not group.strip():
        return "the specified group is blank"
    if len(group) > GROUP_MAX_LENGTH:
        return f"the specified group is longer than group max length {GROUP_MAX_LENGTH}."
    if not all(c.isascii() and (c.isalnum() or c in "%|_-") for c in group):
        return f"the specified group[{group}] contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    return ""


_LONG_MAX: Final = (1 << 63) - 1
_BOOLEAN: Final = frozenset({"true", "false"})
_ATTRIBUTES: Final[dict[str, tuple[int, int] | frozenset[str] | None]] = {
    "priority.factor": (0, 100),
    "lite.bind.topic": None,
    "lite.sub.model": frozenset({"Shared", "Exclusive"}),
    "lite.sub.reset.offset.exclusive": _BOOLEAN,
    "lite.sub.reset.offset.unsubscribe": _BOOLEAN,
    "lite.sub.client.quota": (-1, _LONG_MAX),
    "lite.sub.client.max.event.cnt": (10, _LONG_MAX),
    "lite.sub.wildcard": None,
}
"""RocketMQ's SubscriptionGroupAttributes: least and greatest number, values, or any text."""


def merged_group_attributes(
    present: dict[str, str], changes: dict[str, str], *, creating: bool
) -> dict[str, str]:
    """Return attributes after changes by ``+name`` and ``-name``. Raises ValueError with the reason."""
    merged, seen = dict(present), set[str]()
    for key, value in changes.items():
        sign, name = key[:1], key[1:]
        if sign not in {"+", "-"} or not name or "+" in name or "-" in name:
            raise ValueError(f"wrong format key: {key}; it begins with + to set and - to remove")
        if name in seen:
            raise ValueError(f"alter duplication key. key: {name}")
        seen.add(name)
        if name not in _ATTRIBUTES:
            raise ValueError(f"unsupported key: {name}; known are {', '.join(sorted(_ATTRIBUTES))}")
        if sign == "+":
            _check_value(name, value)
            merged[name] = value
        elif creating:
            raise ValueError(f"only add attribute is supported while creating a group. key: {name}")
        elif name not in present:
            raise ValueError(f"attempt to delete a nonexistent key: {name}")
        else:
            del merged[name]
    return merged


def _check_value(name: str, value: str) -> None:
    known = _ATTRIBUTES[name]
    if isinstance(known, tuple):
        low, high = known
        # Java's Long.parseLong takes ASCII digits only.
        if not (value.isascii() and value.removeprefix("-").isdigit() and low <= int(value) <= high):
            raise ValueError(f"{name}={value} is not a number from {low} to {high}")
    elif known is _BOOLEAN:
        if value.lower() not in _BOOLEAN:
            raise ValueError(f"{name}={value} is neither true nor false")
    elif known is not None and value not in known:
        raise ValueError(f"{name}={value} is not supported; known are {', '.join(sorted(known))}")


class SubscriptionGroupManager(NamedConfigManager[SubscriptionGroupConfig]):
    """The consumer groups, by name."""

    kind, name, member = SubscriptionGroupConfig, "group_name", "subscriptionGroupTable"
    what, most = "consumer groups", "max_subscription_groups"

    def __init__(
        self, file_system: FileSystem, config_dir: str, broker_config: BrokerConfig, clock: Clock
    ) -> None:
        super().__init__(file_system, config_dir, "subscriptionGroup.json", broker_config, clock)
        self._forbidden: dict[str, Any] = {}
        self.enable_lmq = False
        """True if every LMQ name is a group. Such groups have no entry."""

    def select(self, group: str) -> SubscriptionGroupConfig | None:
        """Return the group, or None."""
        if self.is_lmq(group):
            return SubscriptionGroupConfig(group_name=group)
        return self._table.get(group)

    def is_lmq(self, group: str) -> bool:
        """Return True if a group is an LMQ group, which has no configuration (LmqSubscriptionGroupManager)."""
        return self.enable_lmq and group.startswith(LMQ_PREFIX) and len(group) <= LMQ_GROUP_MAX_LENGTH

    def find_or_create(self, group: str) -> SubscriptionGroupConfig | None:
        """Return the group, creating it if the settings allow that and the name is valid; None otherwise."""
        found = self.select(group)
        if found is not None or not self.may_create(group):
            return found
        made: SubscriptionGroupConfig = self.change(self.creation(SubscriptionGroupConfig(group_name=group)))
        return made

    def may_create(self, group: str) -> bool:
        """Return True if a consumer may create the group of this name."""
        return self._config.auto_create_subscription_group and not validate_group(group)

    def is_read_forbidden(self, group: str, topic: str) -> bool:
        """Return True if ``forbiddenTable`` forbids a group to read a topic."""
        topics = self._forbidden.get(group)
        bits = topics.get(topic) if isinstance(topics, dict) else None
        return isinstance(bits, int) and bits > 0 and bits & PERM_READ != 0

    def set_readable(self, group: str, topic: str, *, readable: bool) -> None:
        """Allow or forbid a group to read a topic; durable on return. Raises OSError or StoreError."""
        with self._lock:  # the table of what is forbidden is written with that of the groups
            before = self._forbidden
            if readable == (not self.is_read_forbidden(group, topic)):
                return
            topics = before.get(group)
            bits = dict(topics) if isinstance(topics, dict) else {}
            known = bits.get(topic)
            bits[topic] = (known if isinstance(known, int) else 0) & ~PERM_READ | (0 if readable else PERM_READ)
            if not bits[topic]:
                del bits[topic]
            if not readable and len(bits) > FORBIDDEN_MAX:
                raise StoreError(f"group {group} has {FORBIDDEN_MAX} topics that it may not read, the limit")
            after = {**before, group: bits}
            if not bits:
                del after[group]
            self._forbidden = after
            try:
                self.change(lambda draft: draft.touch())
            except BaseException:
                self._forbidden = before
                raise

    def delete(self, *names: str, also: Callable[[], None] | None = None) -> bool:
        """Delete groups and what is forbidden to them. Return False if none existed. For ``also`` see `submit`."""
        with self._lock:  # a group of such a name may be created again
            before, gone = self._forbidden, set(names)
            self._forbidden = {group: topics for group, topics in before.items() if group not in gone}
            try:
                return super().delete(*names, also=also)
            except BaseException:
                self._forbidden = before
                raise

    def _change_beside(self, edit: Edit[str, SubscriptionGroupConfig], other: Self) -> None:
        before, self._forbidden = self._forbidden, other._forbidden

        def touched(draft: Draft[str, SubscriptionGroupConfig]) -> None:
            edit(draft)
            if before != other._forbidden:
                draft.touch()

        try:
            self.change(touched)
        except BaseException:
            self._forbidden = before
            raise

    def ensure_system_groups(self) -> None:
        """Create the groups that a broker has from its start, in one write."""
        self._ensure(
            SubscriptionGroupConfig(group_name=name, consume_broadcast_enable=name != TRANSACTION_GROUP)
            for name in SYSTEM_GROUPS)

    def _decode(self, value: dict[str, Any]) -> None:
        super()._decode(value)
        forbidden = value.pop("forbiddenTable", None)
        self._forbidden = forbidden if isinstance(forbidden, dict) else {}
        for config in self._table.values():  # earlier releases of Tailrace stored the + as well
            config.attributes = {k.removeprefix("+"): v for k, v in config.attributes.items()}

    def _encode(self, table: dict[str, SubscriptionGroupConfig]) -> dict[str, Any]:
        return {**super()._encode(table), "forbiddenTable": self._forbidden}
