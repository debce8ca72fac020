"""Which user each client id belongs to, for clients of both protocols and for subscriptions to Lite topics.

Client ids are addresses: replies, messages to consume directly and the events of Lite topics go to a client id. So a
client id belongs to one user from its first use until its last holder has gone. A holder is a connection, or the
table of Lite subscriptions. Another user is refused in this time; the same user may use the id on further
connections, for example after a restart. Without users nothing is noted. Used on the event loop only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, final

from tailrace.auth.check import AccessControl
from tailrace.env.owner import ThreadOwner
from tailrace.errors import RefusalError, StoreError
from tailrace.formats.remoting import RemotingCommand, sender_of
from tailrace.remoting import Channel

__all__ = ["ClientIds"]

OF_CHANNEL_MAX: Final = 100
"""Number of client ids that one connection may hold."""
SHOWN_MAX: Final = 200
"""Number of characters of a client id in a remark."""


@dataclass(slots=True)
class _Owner:
    user: str
    holders: set[object] = field(default_factory=set)


@final
class ClientIds:
    """The owners of client ids. ``control`` checks requests; None if clients need no user."""

    def __init__(self, control: AccessControl | None) -> None:
        self._control = control
        self._thread = ThreadOwner("ClientIds")
        self._owners: dict[str, _Owner] = {}
        self._held: dict[Channel, set[str]] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def user_of(self, client_id: str) -> str | None:
        """Return the user to whom a client id belongs; None if no client has the id."""
        owner = self._owners.get(client_id)
        return None if owner is None else owner.user

    def check(self, channel: Channel, request: RemotingCommand, client_id: str) -> None:
        """Raise RefusalError if a client id belongs to another user than the one that sent a request."""
        if client_id in self._owners:
            self._check(sender_of(request), request.code, channel, client_id)

    def claim(self, channel: Channel, request: RemotingCommand, client_id: str) -> None:
        """Give a client id to the user that sent a request, until the connection closes. Raises RefusalError."""
        if self._control is not None:
            self.claim_as(sender_of(request), request.code, channel, client_id)

    def claim_as(self, user: str, call: int | str, channel: Channel, client_id: str) -> None:
        """Give a client id to a user that another protocol has proven, until the connection closes.

        Raises RefusalError if the client id belongs to another user.
        """
        self._check(user, call, channel, client_id)
        held = self._held.get(channel)
        if channel.closed or (held is not None and client_id in held):
            return  # nothing would release the id of a connection that has closed
        if held is None:
            held = self._held[channel] = set()
        if len(held) >= OF_CHANNEL_MAX:
            raise StoreError(
                f"a connection has {len(held)} client ids, the limit is {OF_CHANNEL_MAX}; use another connection")
        held.add(client_id)
        self._hold(client_id, user, channel)

    def claim_for(self, holder: object, channel: Channel, request: RemotingCommand, client_id: str) -> None:
        """Give a client id to the user that sent a request, until ``holder`` releases it. Raises RefusalError."""
        if self._control is not None:
            self.check(channel, request, client_id)
            self._hold(client_id, sender_of(request), holder)

    def closed(self, channel: Channel) -> None:
        """Release the client ids of a connection that has closed."""
        for client_id in self._held.pop(channel, ()):
            self.release(channel, client_id)

    def release(self, holder: object, client_id: str) -> None:
        """Note that a holder does not use a client id any more."""
        self._thread.check()
        owner = self._owners.get(client_id)
        if owner is not None:
            owner.holders.discard(holder)
            if not owner.holders:
                del self._owners[client_id]

    def _check(self, user: str, call: int | str, channel: Channel, client_id: str) -> None:
        if (owner := self.user_of(client_id)) is not None and owner != user:
            raise self.refusal(channel.peer_ip, call, user, client_id)

    def refusal(self, address: str, call: int | str, user: str, client_id: str) -> RefusalError:
        """Count and log the use of another user's client id, and return the error to raise."""
        control, remark = self._control, f"client {client_id[:SHOWN_MAX]} is one of another user"
        assert control is not None, "without users no client id has an owner"
        return control.refusal(address, call, "permission", user, remark)

    def _hold(self, client_id: str, user: str, holder: object) -> None:
        self._thread.check()
        owner = self._owners.get(client_id)
        if owner is None:
            owner = self._owners[client_id] = _Owner(user)
        owner.holders.add(holder)
