"""What ends when a user is deleted, disabled or gets a new password, and when a permission is taken away.

A user that has left loses its connections, with the requests that wait on them, its places in groups and its locks of
queues. A user that stays and loses a permission keeps its connections: requests that wait are refused if they are not
allowed any more, and so are places in groups and locks. All of this is done before the change is answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol, final

from tailrace import events
from tailrace.auth.accesses import TOPIC, Access, group_access
from tailrace.auth.check import AccessControl
from tailrace.auth.model import Acl, User
from tailrace.broker.clients.client_manager import ConsumerManager
from tailrace.broker.clients.rebalance_lock import RebalanceLockManager
from tailrace.env.supervision import caught
from tailrace.errors import RefusalError
from tailrace.formats.names import RETRY_GROUP_TOPIC_PREFIX
from tailrace.formats.remoting import RemotingCommand, sender_of
from tailrace.formats.requests.table import Action
from tailrace.logs import get_logger
from tailrace.node.access import AclManager, UserManager
from tailrace.remoting import Channel, RemotingServer
from tailrace.requests.executors import LoopMailbox
from tailrace.requests.reply import Reply

__all__ = ["Departures", "Holds"]

_log = get_logger(__name__)

ANSWER_S: Final = 0.5
"""How long a connection over which a user changed itself stays open for the answer."""
IsWanted = Callable[[Channel, RemotingCommand], bool]


class Holds(Protocol):
    """A place where requests wait."""

    def release(self, is_wanted: IsWanted) -> Iterable[Reply]:
        """Drop the requests for which ``is_wanted`` returns True; return their replies."""
        ...


@final
class Departures:
    """Compares users and permissions with those before, whenever they change.

    `changed` may be called from any thread; everything else runs on the event loop.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, control: AccessControl, users: UserManager, acls: AclManager,
        consumers: ConsumerManager, locks: RebalanceLockManager,
    ) -> None:
        self._loop = loop
        self._control = control
        self._users, self._acls = users, acls
        self._consumers = consumers
        self._locks = locks
        self._before: tuple[dict[str, User], dict[str, Acl]] = dict(users.table), dict(acls.table)
        self._changed: LoopMailbox[None] = LoopMailbox(loop, self._apply)
        self._looked_ms = 1
        self.servers: list[RemotingServer] = []
        """The servers whose connections end."""
        self.holds: list[Holds] = []
        """Where requests wait."""
        self.forget: list[Callable[[Callable[[Channel], bool]], None]] = []
        """Functions that forget the clients for whose connection their argument returns True."""
        self.acting: set[Channel] = set()
        """Connections with a request that changes users and is not answered yet."""

    def changed(self) -> None:
        """Note that users or permissions have changed."""
        self._changed.put(None)

    def _apply(self, _: list[None]) -> None:
        (users, acls), self._before = self._before, (dict(self._users.table), dict(self._acls.table))
        names = _differing(users, self._before[0]) | _differing(acls, self._before[1])
        with caught("departures"):
            self.apply(names)

    def end_old_passwords(self, now_ms: int) -> None:
        """End what users have over connections whose password is not valid any more; called periodically."""
        ended = {user.name for user in self._before[0].values() if self._looked_ms <= user.previous_until_ms <= now_ms}
        self._looked_ms = now_ms
        if ended:
            self._control.changed()
            self.apply(ended)

    def apply(self, names: set[str]) -> None:
        """End what these users may not have any more."""
        left: dict[Channel, str] = {}
        stay: set[Channel] = set()
        for channel in [channel for server in self.servers for channel in server.channels]:
            if name := self._left(channel, names):
                left[channel] = name
            elif names & channel.users.keys():
                stay.add(channel)
        self._locks.release(lambda channel, group, topic: channel is not None and (
            bool(self._left(channel, names)) or not self._may_consume(channel, names, group, [topic])))
        for forget in self.forget:
            forget(lambda channel: bool(self._left(channel, names)))
        for channel in stay:
            for info in self._consumers.joined(channel):
                if not self._may_consume(channel, names, info.group, info.members[channel].subscriptions):
                    self._consumers.leave(channel, info.group)
        self._refuse_held(names, left)
        for channel in left:
            self._end(channel)
        for name in sorted({*left.values()}):
            events.USER_HAS_LEFT.log(_log, user=repr(name), connections=list(left.values()).count(name))

    def _left(self, channel: Channel, names: set[str]) -> str:
        """Return one of the users of a connection that has left; empty if all stay."""
        return next((
            name for name in names & channel.users.keys() if self._control.has_left(channel.users[name])), "")

    def _may_consume(self, channel: Channel, names: set[str], group: str, topics: Iterable[str]) -> bool:
        """Return whether a user of a connection may be a member of a group, as a heartbeat of it would be allowed."""
        accesses = [group_access(group, Action.SUB), *(
            Access(TOPIC, topic, Action.SUB) for topic in topics if not topic.startswith(RETRY_GROUP_TOPIC_PREFIX))]
        return not channel.users.keys() & names or any(
            name not in names or self._control.permits(name, channel.peer_ip, *accesses) for name in channel.users)

    def _refuse_held(self, names: set[str], left: dict[Channel, str]) -> None:
        """Drop requests that wait on connections that end; answer those that wait for a user without the permission."""
        refusals: dict[RemotingCommand, RefusalError] = {}

        def is_refused(channel: Channel, request: RemotingCommand) -> bool:
            if channel in left:
                return True
            if sender_of(request) in names and (refusal := self._control.refused(channel, request)) is not None:
                refusals[request] = refusal
            return request in refusals

        for hold in self.holds:
            for reply in hold.release(is_refused):
                if (refusal := refusals.get(reply.request)) is not None:
                    reply.fail(refusal)
                else:
                    reply.drop()

    def _end(self, channel: Channel) -> None:
        if channel in self.acting:
            self._loop.call_later(ANSWER_S, channel.abort)
        else:
            channel.abort()


def _differing(old: Mapping[str, object], new: Mapping[str, object]) -> set[str]:
    return {name for name in old.keys() | new.keys() if old.get(name) is not new.get(name)}
