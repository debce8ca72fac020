"""The consumer groups: ``subscriptionGroup.json``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from tailrace.config import BrokerConfig
from tailrace.env.clock import Clock
from tailrace.env.filesystem import FileSystem
from tailrace.formats.commitlog import LMQ_PREFIX
from tailrace.node.config_manager import ConfigManager

__all__ = ["SubscriptionGroupConfig", "SubscriptionGroupManager", "validate_group"]

GROUP_MAX_LENGTH: Final = 120
SYSTEM_GROUPS: Final = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
)
_MEMBERS: Final = {
    "groupName": "group_name",
    "consumeEnable": "consume_enable",
    "consumeFromMinEnable": "consume_from_min_enable",
    "consumeBroadcastEnable": "consume_broadcast_enable",
    "consumeMessageOrderly": "consume_message_orderly",
    "retryQueueNums": "retry_queue_nums",
    "retryMaxTimes": "retry_max_times",
    "brokerId": "broker_id",
    "whichBrokerWhenConsumeSlowly": "which_broker_when_consume_slowly",
    "notifyConsumerIdsChangedEnable": "notify_consumer_ids_changed_enable",
    "groupSysFlag": "group_sys_flag",
    "consumeTimeoutMinute": "consume_timeout_minute",
    "attributes": "attributes",
}


@dataclass(slots=True, kw_only=True)
class SubscriptionGroupConfig:
    """A consumer group. ``extra`` holds members that Tailrace does not know."""

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

    def to_json(self) -> dict[str, Any]:
        """Members by RocketMQ's names."""
        return {
            "groupRetryPolicy": {"type": "CUSTOMIZED"},
            **self.extra,
            **{name: getattr(self, attribute) for name, attribute in _MEMBERS.items()},
        }

    @classmethod
    def from_json(cls, value: dict[str, Any], group: str = "") -> SubscriptionGroupConfig:
        """A group from RocketMQ's names; absent members take their defaults."""
        made = cls(group_name=str(value.get("groupName") or group))
        for name, attribute in _MEMBERS.items():
            member = value.get(name)
            if member is not None and isinstance(member, type(getattr(made, attribute))):
                setattr(made, attribute, member)
        made.extra = {k: v for k, v in value.items() if k not in _MEMBERS}
        return made


def validate_group(group: str) -> str:
    """Why ``group`` is no group's name; empty when it is one."""
    if not group.strip():
        return "the specified group is blank"
    if len(group) > GROUP_MAX_LENGTH:
        return f"the specified group is longer than group max length {GROUP_MAX_LENGTH}."
    if not all(c.isascii() and (c.isalnum() or c in "%|_-") for c in group):
        return f"the specified group[{group}] contains illegal characters"
    return ""


class SubscriptionGroupManager(ConfigManager):
    """The consumer groups, by name. Every change is durable when its call returns."""

    def __init__(
        self, file_system: FileSystem, config_dir: str, broker_config: BrokerConfig, clock: Clock
    ) -> None:
        super().__init__(file_system, config_dir, "subscriptionGroup.json")
        self._config = broker_config
        self._clock = clock
        self._table: dict[str, SubscriptionGroupConfig] = {}
        self._forbidden: dict[str, Any] = {}
        self.enable_lmq = False
        """Whether every LMQ name is a group; no such group has an entry."""

    def select(self, group: str) -> SubscriptionGroupConfig | None:
        """The group, if it exists."""
        if self.enable_lmq and group.startswith(LMQ_PREFIX):
            return SubscriptionGroupConfig(group_name=group)
        return self._table.get(group)

    def find_or_create(self, group: str) -> SubscriptionGroupConfig | None:
        """The group, created when the configuration allows it and the name is one; else None."""
        found = self.select(group)
        if found is not None:
            return found
        if not self._config.auto_create_subscription_group or validate_group(group):
            return None
        with self._lock:
            if (found := self._table.get(group)) is None:
                found = SubscriptionGroupConfig(group_name=group)
                self.update_all([found])
            return found

    def items(self) -> list[SubscriptionGroupConfig]:
        """All groups."""
        return list(self._table.values())

    def update_all(self, configs: list[SubscriptionGroupConfig]) -> None:
        """Create or replace groups, written at once."""
        with self._lock:
            for config in configs:
                self._table[config.group_name] = config
            self._changed()

    def delete(self, group: str) -> bool:
        """Forget a group; False when it did not exist."""
        with self._lock:
            if self._table.pop(group, None) is None:
                return False
            self._changed()
        return True

    def ensure_system_groups(self) -> None:
        """Create the groups that a broker has from its start, in one write."""
        with self._lock:
            missing = [
                SubscriptionGroupConfig(
                    group_name=name, consume_broadcast_enable=name != "CID_RMQ_SYS_TRANS"
                )
                for name in SYSTEM_GROUPS
                if name not in self._table
            ]
            if missing:
                self.update_all(missing)

    def _changed(self) -> None:
        self.data_version.next(self._clock.now_ms())
        self.persist()

    def _decode(self, value: dict[str, Any]) -> None:
        found = value.pop("subscriptionGroupTable", None)
        self._forbidden = value.pop("forbiddenTable", None) or {}
        self._table = {
            str(name): SubscriptionGroupConfig.from_json(member, str(name))
            for name, member in (found or {}).items()
            if isinstance(member, dict)
        }

    def _encode(self) -> dict[str, Any]:
        return {
            "subscriptionGroupTable": {name: c.to_json() for name, c in self._table.items()},
            "forbiddenTable": self._forbidden,
        }
