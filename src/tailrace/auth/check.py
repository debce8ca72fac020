"""The check of requests: who sent it, and may that user do it (AuthenticationPipeline, AuthorizationPipeline).

`AccessControl.check` runs before any other work on a request of remoting; `AccessControl.prove` and
`AccessControl.authorize` are its two steps for calls of another protocol. `check` sees only what a request names. A
processor that finds more, such as the topic of a record, calls `AccessControl.require` or `require_record` before it
uses what it found. The remarks are those of RocketMQ. A denied request is counted, and logged without password and
signature.
"""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Final, NamedTuple, Protocol, final

from tailrace import events
from tailrace.auth.accesses import TOPIC, Access, Accesses
from tailrace.auth.model import Acl, Entry, Resource, User
from tailrace.auth.signature import ACCESS_KEY, Signer
from tailrace.auth_settings import AuthConfig
from tailrace.env.clock import Clock
from tailrace.errors import ConfigError, RefusalError
from tailrace.formats.remoting import RemotingCommand, ResponseCode, sender_of
from tailrace.formats.requests.table import Action
from tailrace.logs import get_logger

__all__ = ["REASONS", "AccessControl", "Peer", "Verdict", "decide"]

_log = get_logger(__name__)

ALLOWED_MAX: Final = 20_000
"""Requests that are remembered as allowed, by user, address and the fields that name resources."""
SHARED_MAX: Final = 10_000
"""Answers of `AccessControl.share_topic` that are remembered, by the names and addresses of both users."""
LOG_PERIOD_NS: Final = 10_000_000_000
"""One denied request of a kind is logged in this time; the next line has the number of the others."""
LOGGED_MAX: Final = 10_000
NO_SUBJECT: Final = "Authorization failed. Please verify your access rights and try again."
NO_POLICY: Final = "no matched policies."
DENIED: Final = "the decision is deny."


REASONS: Final = ("missing", "user", "disabled", "signature", "password", "permission", "request")


class Peer(Protocol):
    """The connection of a request."""

    peer_ip: str
    authenticated: bool


class Verdict(NamedTuple):
    """Whether an access is allowed, and by which entry."""

    allowed: bool
    reason: str
    entry: Entry | None = None
    policy: str = ""


def decide(user: User | None, acl: Acl | None, access: Access, address: str) -> Verdict:
    """Return whether a user may do something from an address.

    A super user may do everything. Of the entries that match, those of policy Custom count, and those of policy
    Default only without such a one. The entry with the most exact resource decides, and of several Deny.
    """
    if user is None:
        return Verdict(allowed=False, reason="the user is not found")
    if not user.enabled:
        return Verdict(allowed=False, reason="the user is disabled")
    if user.is_super:
        return Verdict(allowed=True, reason="the user is a super user")
    for policy in ("Custom", "Default") if acl is not None else ():
        assert acl is not None
        found = [
            entry for entry in acl.entries(policy)
            if entry.resource.matches(access.kind, access.name) and entry.mask & access.actions
            and entry.addresses.has(address)]
        if found:
            best = min(found, key=_order)
            return Verdict(best.allow, "" if best.allow else DENIED, best, policy)
    return Verdict(allowed=False, reason=NO_POLICY)


def _order(entry: Entry) -> tuple[tuple[int, int], bool]:
    return entry.resource.rank, entry.allow


@final
class AccessControl:
    """Checks requests with the users and entries that ``user`` and ``acl`` return by name.

    `changed` must be called after a change of users or entries. Used in one thread.
    """

    def __init__(
        self, clock: Clock, config: AuthConfig, cluster: str, user: Callable[[str], User | None],
        acl: Callable[[str], Acl | None],
    ) -> None:
        self._clock = clock
        self._config = config
        self._user = user
        self._acl = acl
        self._accesses = Accesses(cluster)
        self._no_authentication = config.codes(config.authentication_whitelist)
        self._no_authorization = config.codes(config.authorization_whitelist)
        self._proven_ns = (
            config.stateful_authentication_cache_expired_second * 1_000_000_000 if config.is_stateful else 0)
        self._proven: dict[tuple[int, str], tuple[Peer, int]] = {}
        self._values: dict[int, Callable[[dict[str, str]], object]] = {
            code: itemgetter(*names) if names else _nothing for code, names in self._accesses.names.items()}
        """What returns the fields on which the result of `Accesses.of` depends; it raises KeyError without one."""
        self._known: dict[str, tuple[User, Signer]] = {}
        self._allowed: set[tuple[object, ...]] = set()
        self._shared: dict[tuple[str, str, str, str], bool] = {}
        self._logged: dict[tuple[object, ...], list[int]] = {}
        self.denied: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
        """Denied requests by reason: user, disabled, signature, missing, permission, request."""

    def changed(self) -> None:
        """Forget what was decided with the users and entries before."""
        self._proven.clear()
        self._known = {}  # new ones: a request that is being checked may still write into those before
        self._allowed = set()
        self._shared.clear()

    def check(self, peer: Peer, request: RemotingCommand) -> None:
        """Raise RefusalError unless the request may be served."""
        code, ext = request.code, request.ext
        if code in self._no_authentication:
            if not self._config.authorization_enabled or code in self._no_authorization:
                return  # without a user, so the limits of connections without a user stay
            if ACCESS_KEY not in ext:
                raise self.refusal(peer.peer_ip, code, "missing", "", NO_SUBJECT)
        user, signer = self._known.get(ext.get(ACCESS_KEY, "")) or self._find(
            peer.peer_ip, code, ext.get(ACCESS_KEY))
        if self._proven_ns:
            self._authenticate_connection(peer, request, user, signer)
        elif not signer.has_signed(ext, request.body, request.version):
            raise self.refusal(peer.peer_ip, code, "signature", user.name, "check signature failed.")
        peer.authenticated = True
        request.sender = user.name
        if user.is_super or not self._config.authorization_enabled or code in self._no_authorization:
            return
        allowed, values = self._allowed, self._values.get(code)  # before entries are read: see `changed`
        key: tuple[object, ...] = ()
        if values is not None:
            try:
                key = user.name, peer.peer_ip, code, values(ext)
            except KeyError:  # a field is missing
                key = user.name, peer.peer_ip, code, tuple(map(ext.get, self._accesses.names[code]))
            if key in allowed:
                return
        self._authorize_request(peer.peer_ip, request, user)
        if key:
            _remember(allowed, key)

    def _authorize_request(self, address: str, request: RemotingCommand, user: User) -> None:
        code = request.code
        try:
            accesses = self._accesses.of(request)
        except ConfigError as error:
            raise self.refusal(
                address, code, "request", user.name, "parse authorization context error.", str(error)) from None
        acl = self._acl(user.name)
        for access in accesses:
            self._authorize(address, code, user, acl, access)

    def prove(self, address: str, call: str, name: str, content: bytes, signature: bytes | None) -> User:
        """Return the user that signed ``content``. Raises RefusalError."""
        user, signer = self._find(address, call, name)
        if signature is None or not signer.has_signed_bytes(content, signature):
            raise self.refusal(address, call, "signature", name, "check signature failed.")
        return user

    def log_in(self, address: str, call: str, name: str, password: str) -> User:
        """Return the user with this name and password. Raises RefusalError."""
        user, _ = self._find(address, call, name)
        if not hmac.compare_digest(user.password.encode(), password.encode()):
            raise self.refusal(address, call, "password", name, "check password failed.")
        return user

    def require(self, peer: Peer, request: RemotingCommand, *accesses: Access) -> None:
        """Raise RefusalError unless the user that sent a request may also do all of this.

        A processor calls it before it uses something that the request does not name: the topic of a record, a queue
        in a property, a group of a client. A refusal is counted and logged as one of `check`, and its remark names
        the resource. If the existence of a record is a secret, call `require_record`. The user is looked up again, so
        a request that has waited is refused if its user was deleted, or lost the permission. Super users, and codes
        that the authorizationWhitelist names, may do everything. Call it in the thread of the event loop, and only
        if there are users (`BrokerContext.control`).
        """
        user = self._sender(peer, request)
        if user is not None:
            self.authorize(peer.peer_ip, request.code, user, accesses)

    def require_record(self, peer: Peer, request: RemotingCommand, *accesses: Access) -> None:
        """Raise RefusalError unless the user that sent a request may do one of these things with a record.

        Without ``accesses`` no record was found: that is refused with the same code and remark, so that no answer
        says whether there is a record. Only a super user, or a code of the authorizationWhitelist, is let through
        without a record, and the processor says what is wrong. See `require` for the rest.
        """
        user = self._sender(peer, request)
        if user is None or user.is_super or any(
            self.permits(user.name, peer.peer_ip, access) for access in accesses
        ):
            return
        raise self.refusal(
            peer.peer_ip, request.code, "permission", user.name,
            f"User:{user.name} has no permission to access this message, or it does not exist.",
            "the message is one of this resource" if accesses else "there is no such message",
            accesses[0] if accesses else None)

    def require_super(self, peer: Peer, request: RemotingCommand, what: str) -> None:
        """Raise RefusalError unless a super user sent a request. White lists do not change that."""
        user, _ = self._find(peer.peer_ip, request.code, sender_of(request))
        if not user.is_super:
            raise self.refusal(
                peer.peer_ip, request.code, "permission", user.name,
                f"User:{user.name} has no permission to {what} from {peer.peer_ip}, only super users have it.")

    def needs_no_permission(self, request: RemotingCommand) -> bool:
        """Return whether a request is one of a super user, or needs no permission at all."""
        if not self._config.authorization_enabled or request.code in self._no_authorization:
            return True
        user = self._user(sender_of(request))
        return user is not None and user.enabled and user.is_super

    def permits(self, name: str, address: str, *accesses: Access) -> bool:
        """Return whether a user exists, is enabled, and may do all of this from an address; nothing is counted."""
        user = self._user(name)
        if user is None or not user.enabled:
            return False
        if user.is_super or not self._config.authorization_enabled:
            return True
        allowed, acl = self._allowed, self._acl(name)
        for access in accesses:
            key = name, address, access
            if key not in allowed:
                if not decide(user, acl, access, address).allowed:
                    return False
                _remember(allowed, key)
        return True

    def permits_some(self, name: str, address: str, kind: str, actions: Action) -> bool:
        """Return whether an entry allows a user from an address one of these actions on any resource of a kind."""
        user = self._user(name)
        if user is None or not user.enabled:
            return False
        if user.is_super or not self._config.authorization_enabled:
            return True
        acl = self._acl(name)
        return acl is not None and any(
            entry.allow and entry.mask & actions and entry.resource.kind in {"", kind} and entry.addresses.has(address)
            for policy in ("Custom", "Default") for entry in acl.entries(policy))

    def share_topic(self, publisher: str, its_address: str, consumer: str, address: str) -> bool:
        """Return whether there may be a topic to which one user may send and which another may consume."""
        key = publisher, its_address, consumer, address
        if key not in self._shared:
            sends = self._resources(publisher, its_address, Action.PUB)
            reads = self._resources(consumer, address, Action.SUB)
            names = (_common(one, other) for one in sends for other in reads)
            if len(self._shared) >= SHARED_MAX:
                self._shared.clear()
            self._shared[key] = any(
                self.permits(publisher, its_address, Access(TOPIC, name, Action.PUB))
                and self.permits(consumer, address, Access(TOPIC, name, Action.SUB))
                for name in names if name is not None)
        return self._shared[key]

    def _resources(self, name: str, address: str, action: Action) -> list[Resource]:
        """Return the topics, by name or prefix, on which entries of a user allow an action."""
        if self.permits(name, address, Access(TOPIC, "", action)):
            return [Resource(TOPIC, prefixed=True)]
        acl = self._acl(name)
        return [] if acl is None else [
            entry.resource if entry.resource.kind else Resource(TOPIC, prefixed=True)
            for policy in ("Custom", "Default") for entry in acl.entries(policy)
            if entry.allow and entry.mask & action and entry.resource.kind in {"", TOPIC}
            and entry.addresses.has(address)]

    def is_exempt(self, request: RemotingCommand) -> bool:
        """Return whether a request needs no permission: for its code, because of its super user, or as none does."""
        return (not self._config.authorization_enabled or request.code in self._no_authorization
                or self.is_super(sender_of(request)))

    def is_super(self, name: str) -> bool:
        """Return whether this is the name of an enabled super user."""
        user = self._user(name)
        return user is not None and user.enabled and user.is_super

    def may(self, name: str, address: str, access: Access) -> bool:
        """Return what `permits` returns, for any thread: nothing is remembered, so a long list pushes nothing out."""
        user = self._user(name)
        return user is not None and user.enabled and (
            not self._config.authorization_enabled or decide(user, self._acl(name), access, address).allowed)

    def _sender(self, peer: Peer, request: RemotingCommand) -> User | None:
        """Return the user that sent a request; None if the request needs no permission. Raises RefusalError."""
        if not self._config.authorization_enabled or request.code in self._no_authorization:
            return None
        return self._find(peer.peer_ip, request.code, sender_of(request))[0]

    def authorize(self, address: str, call: int | str, user: User, accesses: Iterable[Access]) -> None:
        """Raise RefusalError unless a proven user may do all of this from an address."""
        if user.is_super or not self._config.authorization_enabled:
            return
        allowed, acl = self._allowed, self._acl(user.name)
        for access in accesses:
            key = user.name, address, access
            if key not in allowed:
                self._authorize(address, call, user, acl, access)
                _remember(allowed, key)

    def _find(self, address: str, call: int | str, name: str | None) -> tuple[User, Signer]:
        if not name:
            raise self.refusal(address, call, "missing", "", "username cannot be null.")
        users = self._known
        known = users.get(name)
        if known is None:
            user = self._user(name)
            if user is None:
                raise self.refusal(address, call, "user", name, f"User:{name} is not found.")
            if not user.enabled:
                raise self.refusal(address, call, "disabled", name, f"User:{name} is disabled.")
            known = users[name] = user, Signer(user.password)
        return known

    def _authenticate_connection(self, peer: Peer, request: RemotingCommand, user: User, signer: Signer) -> None:
        """Check a signature, unless the connection had a valid one of this user a short time ago."""
        name = user.name
        if self._is_proven(peer, name):
            return
        if not signer.has_signed(request.ext, request.body, request.version):
            raise self.refusal(peer.peer_ip, request.code, "signature", name, "check signature failed.")
        if len(self._proven) >= self._config.stateful_authentication_cache_max_num:
            self._proven.clear()
        self._proven[id(peer), name] = peer, self._clock.monotonic_ns() + self._proven_ns

    def _is_proven(self, peer: Peer, name: str) -> bool:
        """Return whether this connection had a valid signature of this user a short time ago."""
        found = self._proven.get((id(peer), name))
        return found is not None and found[0] is peer and self._clock.monotonic_ns() < found[1]

    def _authorize(self, address: str, call: int | str, user: User, acl: Acl | None, access: Access) -> None:
        verdict = decide(user, acl, access, address)
        if not verdict.allowed:
            raise self.refusal(
                address, call, "permission", user.name,
                f"User:{user.name} has no permission to access {access.key} from {address}, {verdict.reason}",
                f"{verdict.reason} {verdict.entry or ''}".strip(), access)

    def refusal(
        self, address: str, call: int | str, reason: str, name: str, remark: str, cause: str = "",
        access: Access | None = None,
    ) -> RefusalError:
        """Count and log a denied request (its code, or the name of the call), and return the error to raise."""
        self.denied[reason] += 1
        key = reason, name, address, call, access
        now, last = self._clock.monotonic_ns(), self._logged.get(key)
        if last is None or now - last[0] >= LOG_PERIOD_NS:
            if last is None and len(self._logged) >= LOGGED_MAX:
                self._logged.clear()
            events.ACCESS_DENIED.log(
                _log, user=repr(name), address=address, code=call,
                action=action_names(access.actions) if access else "", resource=repr(access.key if access else ""),
                reason=cause or remark, more=last[1] if last else 0)
            self._logged[key] = [now, 0]
        else:
            last[1] += 1
        return RefusalError(ResponseCode.NO_PERMISSION, remark)


def _common(one: Resource, other: Resource) -> str | None:
    """Return a name, or the beginning of names, that two resources have in common; None without one."""
    longer, shorter = (one, other) if len(one.name) >= len(other.name) else (other, one)
    has = longer.name.startswith(shorter.name) if shorter.prefixed else longer.name == shorter.name
    return longer.name if has else None


def _nothing(_: dict[str, str]) -> object:
    return ()


def _remember(allowed: set[tuple[object, ...]], key: tuple[object, ...]) -> None:
    if len(allowed) >= ALLOWED_MAX:
        allowed.clear()
    allowed.add(key)


def action_names(actions: Action) -> str:
    """Return the names of actions as entries have them."""
    return ",".join((action.name or "").capitalize() for action in actions)
