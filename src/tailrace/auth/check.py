"""The check of requests: who sent it, and may that user do it (AuthenticationPipeline, AuthorizationPipeline).

`AccessControl.check` runs before any other work on a request of remoting; `AccessControl.prove` and
`AccessControl.authorize` are its two steps for calls of another protocol. `check` sees only what a request names. A
processor that finds more, such as the topic of a record, calls `AccessControl.require` or `require_record` before it
uses what it found. The remarks are those of RocketMQ, except that a client that has not proven who it is does not learn
which users there are. A denied request is counted, and logged without password and signature.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple, Protocol, final

from tailrace.auth.accesses import RESOURCE_MAX, TOPIC, Access, Accesses, name_too_long
from tailrace.auth.attempts import Attempts
from tailrace.auth.binding import BINDING, Bindings
from tailrace.auth.denials import REASONS, Denials
from tailrace.auth.model import NAME_MAX, Acl, Entry, Resource, User
from tailrace.auth.signature import (
    ACCESS_KEY,
    FIELD_NAME_MAX,
    FIELDS_MAX,
    Signer,
    problem_of_fields,
)
from tailrace.auth_settings import AuthConfig
from tailrace.env.clock import Clock
from tailrace.errors import ConfigError, RefusalError
from tailrace.formats.remoting import RemotingCommand, ResponseCode, sender_of
from tailrace.formats.requests.table import Action
from tailrace.kernels.signatures import NAMES_MAX, Proof

__all__ = ["REASONS", "AccessControl", "Peer", "Recorder", "Verdict", "common_names", "decide"]

ALLOWED_MAX: Final = 20_000
"""Requests that are remembered as allowed, by user, address and the fields that name resources."""
SHARED_MAX: Final = 10_000
"""Answers of `AccessControl.share_topic` that are remembered, by the names and addresses of both users."""
ALLOWED_CHARS_MAX: Final = 4_000_000
"""Characters of all remembered fields together."""
KEY_CHARS_MAX: Final = 1_600
"""Characters of the fields of one request, and of their names; a decision about more is not remembered."""
NO_SUBJECT: Final = "Authorization failed. Please verify your access rights and try again."
NO_POLICY: Final = "no matched policies."
DENIED: Final = "the decision is deny."
WRONG_SIGNATURE: Final = "check signature failed."
WRONG_PASSWORD: Final = "check password failed."
TOO_MANY_ATTEMPTS: Final = "too many attempts have failed from this address, try again in a minute."
TOO_MANY_FIELDS: Final = (
    f"a signed request has at most {FIELDS_MAX} fields, with names of at most {FIELD_NAME_MAX} characters.")
_CAUSES: Final = {"user": "the user is not found", "disabled": "the user is disabled"}


class Peer(Protocol):
    """The connection of a request."""

    peer_ip: str
    authenticated: bool
    """True after a request with a valid signature."""
    user: str
    """The user whose signature was the first valid one; empty without one, and after a wrong one of this user."""
    users: dict[str, Any]
    """The users that were authenticated on the connection, by name, with the password that they used."""
    proof: Proof | None
    """What is known of requests of ``user``; None if nothing is."""

    @property
    def own_address(self) -> str:
        """Address of the server to which the client has connected, ``ip:port``."""
        ...


class Recorder(Protocol):
    """Records what `AccessControl` finds."""

    def denied(self, **fields: Any) -> None:
        """Record a denied request by the fields of its line of the log."""

    def logged_in(self, user: str, address: str, call: str) -> None:
        """Record that a user has proven its password."""


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
    if len(access.name) > RESOURCE_MAX:
        return Verdict(allowed=False, reason=name_too_long(access))
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
        acl: Callable[[str], Acl | None], recorder: Recorder | None = None,
    ) -> None:
        self._clock = clock
        self._recorder = recorder
        self.config = config
        self._user = user
        self._acl = acl
        self._accesses = Accesses(cluster)
        self._no_authentication = config.codes(config.authentication_whitelist)
        self._no_authorization = config.codes(config.authorization_whitelist)
        self._proven_ns = (
            config.stateful_authentication_cache_expired_second * 1_000_000_000 if config.is_stateful else 0)
        self._proven: dict[tuple[int, str], tuple[Peer, int]] = {}
        self._no_user = User("", ""), Signer(""), "user"
        """What stands for a user that does not exist."""
        self._known: dict[str, tuple[User, Signer, str]] = {}
        self._earlier: dict[str, tuple[User, Signer]] = {}
        """Users of `_known` whose password before may still be valid, with that password."""
        self._allowed = _Allowed()
        self._shared: dict[tuple[str, str, str, str], bool] = {}
        self.bindings = None if config.authentication_binding == "off" else Bindings(
            clock, config.authentication_binding, config.authentication_binding_max_age, config.binding_addresses())
        """Checks bound requests; None if bindings are ignored."""
        self._attempts = Attempts(clock, config.authentication_failures_max)
        self.denials = Denials(clock, None if recorder is None else recorder.denied)
        self.denied = self.denials.counts
        """Denied requests by reason, a member of `REASONS`."""

    def changed(self) -> None:
        """Forget what was decided with the users and entries before."""
        self._proven.clear()
        self._earlier = {}
        self._known = {}  # new ones: a request that is being checked may still write into those before
        before, self._allowed = self._allowed, _Allowed()
        before.clear()  # connections keep it until their next request
        self._shared.clear()
        if self.bindings is not None:
            self.bindings.forget(self._user)

    def check(self, peer: Peer, request: RemotingCommand) -> None:
        """Raise RefusalError unless the request may be served.

        One call checks a request like one that this connection has sent before.
        """
        proof = peer.proof
        if proof is not None and (
            name := proof.sender(self._allowed, request.code, request.ext, request.body, request.version)
        ) is not None:
            request.sender = name
        else:
            self._check(peer, request)

    def _check(self, peer: Peer, request: RemotingCommand) -> None:
        allowed = self._allowed  # before users and entries are read: see `changed`
        code, ext = request.code, request.ext
        if code in self._no_authentication:
            if not self.config.authorization_enabled or code in self._no_authorization:
                return  # without a user, so the limits of connections without a user stay
            if ACCESS_KEY not in ext:
                raise self.refusal(peer.peer_ip, code, "missing", "", NO_SUBJECT)
        name = ext.get(ACCESS_KEY, "")
        user, signer, problem = self._known.get(name) or self._claimed(peer.peer_ip, code, name)
        if self._attempts.refusing_until_ns and not (name == peer.user and peer.authenticated):
            self._refuse_attempt(peer.peer_ip, code, name)
        by_earlier = False
        if self._proven_ns and self._is_proven(peer, name):
            pass
        elif not signer.has_signed(ext, request.body, request.version) or problem:
            earlier = self._by_earlier(name, lambda key: key.has_signed(ext, request.body, request.version))
            if earlier is None or problem:
                raise self._failed(peer, request, name, problem)
            user, by_earlier = earlier, True
            self._proved(peer, name)
        elif not peer.authenticated or self._proven_ns:
            self._proved(peer, name)
        bindings = self.bindings
        needs_binding = bindings is not None and (bindings.required or (user.is_super and bindings.required_of_super))
        if bindings is not None and (needs_binding or BINDING in ext) and (
            wrong := bindings.problem(peer, request, user)
        ):
            raise self.refusal(peer.peer_ip, code, "binding", name, wrong)
        request.sender = name
        if peer.users.get(name) is not user:
            peer.users[name] = user
        proof = allowed.proof(name, peer.peer_ip, signer)
        if name == peer.user:  # others have no right to be spared the slowing down of attempts
            peer.proof = None if by_earlier or needs_binding or self._proven_ns else proof
        if not proof.allows(code, ext):
            if user.is_super or not self.config.authorization_enabled or code in self._no_authorization:
                allowed.add_request(proof, code, (), ext)
            else:
                self._authorize_request(peer.peer_ip, request, user)
                if code in self._accesses.names:
                    allowed.add_request(proof, code, self._accesses.names[code], ext)

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
        user, signer, problem = self._known.get(name) or self._claimed(address, call, name)
        if self._attempts.refusing_until_ns:
            self._refuse_attempt(address, call, name)
        if not signer.has_signed_bytes(content, signature or b"") or problem:
            earlier = self._by_earlier(name, lambda key: key.has_signed_bytes(content, signature or b""))
            if earlier is not None and not problem:
                self._attempts.proved(address, name)
                return earlier
            raise self._wrong(address, call, name, problem or "signature", WRONG_SIGNATURE)
        self._attempts.proved(address, name)
        return user

    def log_in(self, address: str, call: str, name: str, password: str) -> User:
        """Return the user with this name and password. Raises RefusalError."""
        user, _, problem = self._known.get(name) or self._claimed(address, call, name)
        if self._attempts.refusing_until_ns:
            self._refuse_attempt(address, call, name)
        given = password.encode("utf-8", "surrogatepass")
        if not hmac.compare_digest(user.password.encode("utf-8", "surrogatepass"), given) or problem:
            earlier = self._by_earlier(name, lambda key: key.is_of(password))
            if earlier is None or problem:
                raise self._wrong(address, call, name, problem or "password", WRONG_PASSWORD)
            user = earlier
        self._attempts.proved(address, name)
        if self._recorder is not None:
            self._recorder.logged_in(name, address, call)
        return user

    def require(self, peer: Peer, request: RemotingCommand, *accesses: Access) -> None:
        """Raise RefusalError unless the user that sent a request may also do all of this.

        A processor calls it before it uses something that the request does not name: the topic of a record, a queue
        in a property, a group of a client. A refusal is counted and logged as one of `check`, and its remark names
        the resource. If the existence of a record is a secret, call `require_record`. The user is looked up again, so
        a request that has waited is refused if its user was deleted, or lost the permission. Super users, and codes
        that the authorizationWhitelist names, may do everything. Call it in the thread of the event loop, and only
        if there are users (`BrokerParts.control`).
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
            f"User:{user.name} may not access this message, or it does not exist.",
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
        return (not self.config.authorization_enabled or request.code in self._no_authorization
                or self.is_super(sender_of(request)))

    def permits(self, name: str, address: str, *accesses: Access) -> bool:
        """Return whether a user exists, is enabled, and may do all of this from an address; nothing is counted."""
        user = self._enabled(name)
        if user is None:
            return False
        if user.is_super or not self.config.authorization_enabled:
            return True
        allowed, acl = self._allowed, self._acl(name)
        for access in accesses:
            key = name, address, access
            if key not in allowed.keys:
                if not decide(user, acl, access, address).allowed:
                    return False
                allowed.add(key, len(access.name))
        return True

    def has_left(self, proven: User) -> bool:
        """Return whether a user was deleted or disabled, or its password is not the one that it used."""
        user = self._enabled(proven.name)
        return user is None or (user.password != proven.password and not (
            user.previous_password == proven.password and self._clock.now_ms() < user.previous_until_ms))

    def refused(self, peer: Peer, request: RemotingCommand) -> RefusalError | None:
        """Return the refusal of a request that has waited, if its user may not send it any more."""
        try:
            user = self._sender(peer, request)
            if user is not None and not user.is_super:
                self._authorize_request(peer.peer_ip, request, user)
        except RefusalError as refusal:
            return refusal
        return None

    def permits_by_name(self, name: str, address: str, access: Access) -> bool:
        """Return whether an entry with exactly the name of a resource allows a user to access it."""
        user = self._enabled(name)
        if user is None:
            return False
        entry = decide(user, self._acl(name), access, address).entry
        return entry is not None and entry.allow and bool(entry.resource.kind) and not entry.resource.prefixed

    def permits_some(self, name: str, address: str, kind: str, actions: Action) -> bool:
        """Return whether an entry allows a user from an address one of these actions on any resource of a kind."""
        user = self._enabled(name)
        if user is None:
            return False
        if user.is_super or not self.config.authorization_enabled:
            return True
        return next(self._allowing(name, address, kind, actions), None) is not None

    def share_topic(self, publisher: str, its_address: str, consumer: str, address: str) -> bool:
        """Return whether there may be a topic to which one user may send and which another may consume."""
        key = publisher, its_address, consumer, address
        if key not in self._shared:
            sends = self._resources(publisher, its_address, Action.PUB)
            reads = self._resources(consumer, address, Action.SUB)
            if len(self._shared) >= SHARED_MAX:
                self._shared.clear()
            self._shared[key] = any(
                self.permits(publisher, its_address, Access(TOPIC, name, Action.PUB))
                and self.permits(consumer, address, Access(TOPIC, name, Action.SUB))
                for name in common_names(sends, reads))
        return self._shared[key]

    def _resources(self, name: str, address: str, action: Action) -> list[Resource]:
        """Return the topics, by name or prefix, on which entries of a user allow an action."""
        if self.permits(name, address, Access(TOPIC, "", action)):
            return [Resource(TOPIC, prefixed=True)]
        return [
            entry.resource if entry.resource.kind else Resource(TOPIC, prefixed=True)
            for entry in self._allowing(name, address, TOPIC, action)]

    def _allowing(self, name: str, address: str, kind: str, actions: Action) -> Iterator[Entry]:
        """Yield the entries that allow a user from an address one of these actions on resources of a kind."""
        acl = self._acl(name)
        if acl is None:
            return
        for policy in ("Custom", "Default"):
            for entry in acl.entries(policy):
                if (entry.allow and entry.mask & actions and entry.resource.kind in {"", kind}
                        and entry.addresses.has(address)):
                    yield entry

    def _enabled(self, name: str) -> User | None:
        """Return a user by name, unless it is disabled."""
        user = self._user(name)
        return user if user is not None and user.enabled else None

    def is_super(self, name: str) -> bool:
        """Return whether this is the name of an enabled super user."""
        user = self._enabled(name)
        return user is not None and user.is_super

    def may(self, name: str, address: str, access: Access) -> bool:
        """Return what `permits` returns, for any thread: nothing is remembered, so a long list pushes nothing out."""
        user = self._enabled(name)
        return user is not None and (
            not self.config.authorization_enabled or decide(user, self._acl(name), access, address).allowed)

    def _sender(self, peer: Peer, request: RemotingCommand) -> User | None:
        """Return the user that sent a request; None if the request needs no permission. Raises RefusalError."""
        if not self.config.authorization_enabled or request.code in self._no_authorization:
            return None
        return self._find(peer.peer_ip, request.code, sender_of(request))[0]

    def authorize(self, address: str, call: int | str, user: User, accesses: Iterable[Access]) -> None:
        """Raise RefusalError unless a proven user may do all of this from an address."""
        if user.is_super or not self.config.authorization_enabled:
            return
        allowed, acl = self._allowed, self._acl(user.name)
        for access in accesses:
            key = user.name, address, access
            if key not in allowed.keys:
                self._authorize(address, call, user, acl, access)
                allowed.add(key, len(access.name))

    def _find(self, address: str, call: int | str, name: str) -> tuple[User, Signer]:
        """Return a user that was proven before, and its key. Raises RefusalError if it is gone."""
        user, signer, problem = self._known.get(name) or self._claimed(address, call, name)
        if problem:
            raise self.refusal(address, call, problem, name, WRONG_SIGNATURE, _CAUSES[problem])
        return user, signer

    def _claimed(self, address: str, call: int | str, name: str) -> tuple[User, Signer, str]:
        """Return the user that a request names, its key, and the reason for which it may do nothing; mostly empty.

        A user that does not exist has a key as well, so that the answer takes as long. Raises RefusalError without a
        name. Names of users that do not exist are not kept.
        """
        if not name:
            raise self.refusal(address, call, "missing", "", "username cannot be null.")
        users, earlier = self._known, self._earlier
        user = self._user(name) if len(name) <= NAME_MAX else None
        if user is None:
            return self._no_user
        found = user, Signer(user.password), "" if user.enabled else "disabled"
        if user.enabled:
            users[user.name] = found
            if user.previous_password:
                earlier[user.name] = user.earlier, Signer(user.previous_password)
        return found

    def _by_earlier(self, name: str, is_proven: Callable[[Signer], bool]) -> User | None:
        """Return a user that was proven with the password before, while that password is valid."""
        found = self._earlier.get(name)
        if found is None or self._clock.now_ms() >= found[0].previous_until_ms or not is_proven(found[1]):
            return None
        return found[0]

    def _refuse_attempt(self, address: str, call: int | str, name: str) -> None:
        """Raise RefusalError if too many attempts have failed from an address."""
        if self._attempts.refuses(address, name):
            raise self.refusal(address, call, "attempts", name, TOO_MANY_ATTEMPTS)

    def _failed(self, peer: Peer, request: RemotingCommand, name: str, problem: str) -> RefusalError:
        """Return the error for a request with a wrong signature."""
        if problem_of_fields(request.ext):
            return self.refusal(peer.peer_ip, request.code, "request", "", TOO_MANY_FIELDS)
        if peer.user == name:
            peer.user, peer.proof = "", None  # a later attempt on this connection is one like others
        return self._wrong(peer.peer_ip, request.code, name, problem or "signature", WRONG_SIGNATURE)

    def _wrong(self, address: str, call: int | str, name: str, reason: str, remark: str) -> RefusalError:
        """Count a failed attempt, and return the error to raise.

        The remark is the same for a user that does not exist or is disabled: it does not say which users there are.
        """
        closes = self._attempts.failed(address, name)
        error = self.refusal(
            address, call, reason, name, TOO_MANY_ATTEMPTS if closes else remark, _CAUSES.get(reason, remark))
        error.closes = closes
        return error

    def _proved(self, peer: Peer, name: str) -> None:
        """Note a valid signature of a connection that had none yet, or whose last one counts no longer."""
        if not peer.authenticated:
            peer.authenticated, peer.user = True, name
            self._attempts.proved(peer.peer_ip, name)
        if self._proven_ns:
            if len(self._proven) >= self.config.stateful_authentication_cache_max_num:
                self._proven.clear()
            self._proven[id(peer), name] = peer, self._clock.monotonic_ns() + self._proven_ns

    def _is_proven(self, peer: Peer, name: str) -> bool:
        """Return whether this connection had a valid signature of this user a short time ago."""
        found = self._proven.get((id(peer), name))
        return found is not None and found[0] is peer and self._clock.monotonic_ns() < found[1]

    def _authorize(self, address: str, call: int | str, user: User, acl: Acl | None, access: Access) -> None:
        if len(access.name) > RESOURCE_MAX:
            raise self.refusal(address, call, "request", user.name, name_too_long(access))
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
        self.denials.note(address, call, reason, name, cause or remark, access)
        return RefusalError(ResponseCode.NO_PERMISSION, remark)


def common_names(some: Iterable[Resource], others: Iterable[Resource]) -> set[str]:
    """Return the names, or beginnings of names, that both of two lists of resources of one kind have.

    The time grows with the lengths of the names, not with the product of the numbers of resources.
    """
    some, others = list(some), list(others)
    return _within(some, others) | _within(others, some)


def _within(some: list[Resource], others: list[Resource]) -> set[str]:
    """Return the names of resources that are names of others, or begin with one of their prefixes."""
    names = {one.name for one in others if not one.prefixed}
    prefixes = {one.name for one in others if one.prefixed}
    return {
        name for one in some
        if ((name := one.name) in names and not one.prefixed)
        or any(name[:length] in prefixes for length in range(len(name) + 1))}


@final
class _Allowed:
    """What was allowed before, so that it is one look-up. Bounded in number and in characters."""

    __slots__ = ("_chars", "_count", "_proofs", "keys")

    def __init__(self) -> None:
        self.keys: set[tuple[object, ...]] = set()
        """Names of users and addresses with accesses."""
        self._proofs: dict[tuple[str, str], Proof] = {}
        """The requests of users from addresses."""
        self.clear()

    def __len__(self) -> int:
        return self._count

    def clear(self) -> None:
        """Forget everything."""
        self.keys.clear()
        for proof in list(self._proofs.values()):
            proof.forget()
        self._proofs.clear()
        self._count = self._chars = 0

    def add(self, key: tuple[object, ...], chars: int) -> None:
        """Add what names a decision, with ``chars`` characters that a client has chosen."""
        if self._has_room(chars):
            self.keys.add(key)

    def proof(self, name: str, address: str, signer: Signer) -> Proof:
        """Return what is known of the requests of a user that was proven from an address."""
        found = self._proofs.get((name, address))
        if found is None:
            found = Proof(self, name, signer.key)
            if self._has_room(len(name) + len(address)):
                self._proofs[name, address] = found
        return found

    def add_request(self, proof: Proof, code: int, fields: tuple[str, ...], ext: dict[str, str]) -> None:
        """Add a request; whether it is allowed depends on these fields."""
        chars = sum(len(ext.get(field) or "") for field in fields)
        if self._has_room(chars if proof.knows(code) else chars + NAMES_MAX):
            proof.allow(code, fields, ext)

    def _has_room(self, chars: int) -> bool:
        if chars > KEY_CHARS_MAX:
            return False
        if self._count >= ALLOWED_MAX or self._chars + chars > ALLOWED_CHARS_MAX:
            self.clear()
        self._count += 1
        self._chars += chars
        return True
