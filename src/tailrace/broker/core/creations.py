"""Which topics and groups a user may create, and how many.

A request may need a topic or a group that does not exist: a send, a pull, a heartbeat. RocketMQ creates it for every
user that may send such a request. With users, Tailrace creates it for a user that may create it:

- a topic needs Create;
- a group needs Create, or Sub by an entry with exactly the name of the group: such an entry names one group, and
  the user cannot make up others;
- a retry topic or a topic of dead letters needs its group, which exists or may be created.

The last topics and groups below maxTopics and maxSubscriptionGroups are reserved for super users, so that no user can
keep them from creating one. A user may also have a quota; topics and groups that count have the member
`tailraceCreator` in their files.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, final

from tailrace.auth.accesses import GROUP, TOPIC, Access
from tailrace.auth.check import AccessControl
from tailrace.config import BrokerConfig
from tailrace.errors import RefusalError, StoreError
from tailrace.formats.names import DLQ_GROUP_TOPIC_PREFIX, RETRY_GROUP_TOPIC_PREFIX
from tailrace.formats.remoting import RemotingCommand, ResponseCode, sender_of
from tailrace.formats.requests.table import Action
from tailrace.node.config_manager import Draft
from tailrace.node.subscription_group import SubscriptionGroupConfig, SubscriptionGroupManager
from tailrace.node.topic_config import TopicConfig, TopicConfigManager
from tailrace.remoting import Channel
from tailrace.requests.config_changes import Change, MissingConfigError

__all__ = ["Creations"]

CREATOR: Final = "tailraceCreator"
"""Member of a topic or a group in its file: the user that has created it while there was a quota."""


class _Bounds(NamedTuple):
    """Limits of a user that is not a super user."""

    user: str
    what: str
    most: int
    reserved: int
    quota: int
    setting: str
    quota_setting: str


@final
class Creations:
    """Topics and groups that requests create. ``control`` is None without users, who may then create everything.

    Used on the event loop only, except `topic` and `group`.
    """

    def __init__(
        self, topics: TopicConfigManager, groups: SubscriptionGroupManager, config: BrokerConfig,
        control: AccessControl | None,
    ) -> None:
        self.topics, self.groups = topics, groups
        self._config, self._control = config, control

    def group(self, name: str) -> SubscriptionGroupConfig | None:
        """Return a group; None if it does not exist and may not be created by a consumer.

        Raises MissingConfigError if it has to be created first.
        """
        group = self.groups.select(name)
        if group is None and self.groups.may_create(name):
            raise MissingConfigError(Change(
                self.groups, self.groups.creation(SubscriptionGroupConfig(group_name=name)), creates=(name,)))
        return group

    def topic(self, name: str, queue_nums: int, sys_flag: int = 0) -> TopicConfig:
        """Return a topic of the broker's own, such as a retry topic.

        Raises MissingConfigError if it has to be created first.
        """
        topic = self.topics.select(name)
        if topic is None:
            raise MissingConfigError(self.topic_creation(name, queue_nums, sys_flag))
        return topic

    def topic_creation(self, name: str, queue_nums: int, sys_flag: int = 0) -> Change:
        """Return the change that creates a topic if it is missing."""
        return Change(self.topics, self.topics.creation(TopicConfig(
            topic_name=name, read_queue_nums=queue_nums, write_queue_nums=queue_nums,
            topic_sys_flag=sys_flag)), creates=(name,))

    def check(self, channel: Channel, request: RemotingCommand, change: Change) -> None:
        """Raise RefusalError if a user may not create the topics or groups that a request lacks."""
        for name in change.creates:
            kind = TOPIC if change.manager is self.topics else GROUP
            if self._is_missing(kind, name) and not self._may_create(channel, request, kind, name):
                control = self._control
                assert control is not None, "without users everything may be created"
                user, access = sender_of(request), Access(kind, name, Action.CREATE)
                raise control.refusal(
                    channel.peer_ip, request.code, "permission", user,
                    f"{kind}:{name} does not exist, and User:{user} may not create it: that needs Create on it",
                    "the request would create it", access)

    def may_create_group(self, channel: Channel, request: RemotingCommand, name: str) -> bool:
        """Return whether the user of a request may create a group that is missing."""
        return self._may_create(channel, request, GROUP, name)

    def bounded(self, request: RemotingCommand, change: Change) -> Change:
        """Return a change that fails with StoreError if its topics or groups are too many for the user of a request."""
        bounds = self._bounds(request, change)
        return change if bounds is None else change._replace(
            edit=lambda draft: _edited(draft, change, bounds))

    def _is_missing(self, kind: str, name: str) -> bool:
        table = self.topics if kind == TOPIC else self.groups
        return table.select(name) is None

    def _may_create(self, channel: Channel, request: RemotingCommand, kind: str, name: str) -> bool:
        control = self._control
        if control is None or not control.config.auto_create_needs_permission or control.needs_no_permission(request):
            return True
        if kind == TOPIC:
            for prefix in (RETRY_GROUP_TOPIC_PREFIX, DLQ_GROUP_TOPIC_PREFIX):
                if name.startswith(prefix):
                    group = name.removeprefix(prefix)
                    return not self._is_missing(GROUP, group) or self._may_create(channel, request, GROUP, group)
        user, address = sender_of(request), channel.peer_ip
        return control.permits(user, address, Access(kind, name, Action.CREATE)) or (
            kind == GROUP and control.permits_by_name(user, address, Access(GROUP, name, Action.SUB)))

    def _bounds(self, request: RemotingCommand, change: Change) -> _Bounds | None:
        control = self._control
        if control is None or not change.creates or control.needs_no_permission(request):
            return None
        settings, config, user = control.config, self._config, sender_of(request)
        if change.manager is self.topics:
            most, setting = config.max_topics, "maxTopics"
            what, quota, quota_setting = "topics", settings.max_topics_of_user, "maxTopicsOfUser"
        elif change.manager is self.groups:
            most, setting = config.max_subscription_groups, "maxSubscriptionGroups"
            what, quota, quota_setting = "consumer groups", settings.max_groups_of_user, "maxGroupsOfUser"
        else:
            return None
        percent = settings.super_user_reserve_percent
        reserved = max(1, most * percent // 100) if percent else 0
        return _Bounds(user, what, most, reserved, quota, setting, quota_setting)


def _edited(draft: Draft[str, Any], change: Change, bounds: _Bounds) -> Any:
    """Apply a change of topics or groups. Raises StoreError if the new ones are too many."""
    before = {name: draft.get(name) for name in change.creates}
    if new := sum(present is None for present in before.values()):
        _check_room(draft, new, bounds)
    result = change.edit(draft)
    for name, present in before.items():
        made = draft.get(name)
        if made is not None and made is not present:  # its members may be those of a body
            creator = present.extra.get(CREATOR) if present is not None else bounds.user if bounds.quota else None
            made.extra = {key: value for key, value in made.extra.items() if key != CREATOR}
            if creator is not None:
                made.extra[CREATOR] = creator
    return result


def _check_room(draft: Draft[str, Any], new: int, bounds: _Bounds) -> None:
    there, room = len(draft), bounds.most - bounds.reserved
    if there + new > room:
        raise StoreError(
            f"there are {there} {bounds.what}, {new} more are over the limit {bounds.setting}={bounds.most}, of which "
            f"{bounds.reserved} are reserved for super users; delete {bounds.what} or raise {bounds.setting}")
    if bounds.quota:
        mine = sum(one.extra.get(CREATOR) == bounds.user for one in draft.merged().values())
        if mine + new > bounds.quota:
            raise RefusalError(
                ResponseCode.SYSTEM_ERROR, f"User:{bounds.user} has created {mine} {bounds.what}, {new} more are over "
                f"the limit {bounds.quota_setting}={bounds.quota}")
