"""A signed field for what RocketMQ's signature leaves open: which request, when, how often, and for which server.

RocketMQ signs the values of a request's fields, one after the other, and its body. The code, the names and borders of
the fields, the time and the server are not signed. So a recorded request can be changed into another one with the same
values, and sent at any time to any server. The field `BINDING` has a time, a random number for the connection, a number
that grows with each of its requests, the address of the server, and an HMAC-SHA256 with the password of the user over
these, the code, the names and values of the other fields with their lengths, and the body. RocketMQ's signature covers
the field as it covers others, so a server that does not know it accepts the request as before.

The server refuses a number that it has seen before, or that is too old to tell. So a request cannot be sent again.
"""

from __future__ import annotations

import enum
import hmac
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final, Protocol, final

from tailrace import events
from tailrace.auth.model import User
from tailrace.auth.signature import SIGNATURE
from tailrace.env.clock import Clock
from tailrace.formats.remoting import RemotingCommand
from tailrace.logs import LogRateLimiter, get_logger

__all__ = ["BINDING", "BINDING_MISSING", "Binder", "Bindings", "Row"]

_log = get_logger(__name__)

BINDING: Final = "TailraceBinding"
BINDING_MISSING: Final = "authenticationBinding=required: the request has no binding."
"""The remark by which a client knows that it has to bind its requests."""
SESSIONS_MAX: Final = 10_000
"""Connections of one user whose numbers are remembered; each is forgotten when its requests are too old."""
ALL_SESSIONS_MAX: Final = 100_000
WINDOW: Final = 1_024
"""Numbers below the highest one of a connection that may still arrive; requests under way may overtake each other."""
_SEEN: Final = (1 << WINDOW) - 1
_FORM: Final = re.compile(r"1;(\d{1,15});([0-9a-f]{16});(\d{1,15});([^;]{1,80});([0-9a-f]{64})")
_DOMAIN: Final = "tailrace binding"


class Mode(enum.StrEnum):
    """Members of the setting `authenticationBinding`."""

    OFF = "off"
    ACCEPT = "accept"
    SUPER_USERS = "superUsers"
    REQUIRED = "required"


class Place(Protocol):
    """The connection of a request."""

    @property
    def own_address(self) -> str:
        """Address of the server to which the client has connected, ``ip:port``."""
        ...


@final
class _Key:
    """The password of a user as the key of digests."""

    __slots__ = ("_begun",)

    def __init__(self, secret: str) -> None:
        self._begun = hmac.new(secret.encode("utf-8", "surrogatepass"), digestmod="sha256")

    def digest(self, head: str, code: int, ext: Mapping[str, str], body: bytes) -> str:
        """Return the digest of a request; ``head`` is the value of `BINDING` before it."""
        parts = [_DOMAIN, "\n", head, "\n", str(code), "\n"]
        for name in sorted(ext):
            if name not in {SIGNATURE, BINDING}:
                value = ext[name]
                parts += str(len(name)), ":", name, str(len(value)), ":", value
        parts.append("\n")
        made = self._begun.copy()
        made.update("".join(parts).encode("utf-8", "surrogatepass"))
        made.update(body)
        return made.hexdigest()


@final
class Row:
    """The numbers of the requests of one connection of a client."""

    __slots__ = ("number", "server", "session")

    def __init__(self, server: str, number: int) -> None:
        """Begin a row for a server, named by a random number of 64 bits."""
        self.server = server
        self.session = f"{number:016x}"
        self.number = 0


@final
class Binder:
    """Binds the requests of one user."""

    __slots__ = ("_clock", "_key")

    def __init__(self, clock: Clock, secret: str) -> None:
        self._clock = clock
        self._key = _Key(secret)

    def value(self, row: Row, code: int, ext: Mapping[str, str], body: bytes) -> str:
        """Return the value of `BINDING` for the next request of a connection."""
        row.number += 1
        head = f"1;{self._clock.now_ms()};{row.session};{row.number};{row.server}"
        return f"{head};{self._key.digest(head, code, ext, body)}"


@final
class _Session:
    """Numbers that one connection has used: the highest one, and a bit for each of those below it."""

    __slots__ = ("highest", "last_ms", "seen")

    def __init__(self) -> None:
        self.highest = self.seen = self.last_ms = 0

    def take(self, number: int) -> bool:
        """Return whether a number is new."""
        ahead = number - self.highest
        if ahead > 0:
            self.seen = (self.seen << ahead | 1) & _SEEN if ahead < WINDOW else 1
            self.highest = number
            return True
        if -ahead >= WINDOW or self.seen >> -ahead & 1:
            return False
        self.seen |= 1 << -ahead
        return True


@final
class Bindings:
    """Checks the bindings of requests whose signature is valid. Used in one thread."""

    def __init__(self, clock: Clock, mode: str, max_age_s: int, addresses: frozenset[str]) -> None:
        """``addresses`` stand for this server in addition to its own; ``*`` for every address."""
        self._clock = clock
        self.required = mode == Mode.REQUIRED
        """Whether each request needs a binding."""
        self.required_of_super = mode in {Mode.REQUIRED, Mode.SUPER_USERS}
        """Whether each request of a super user needs one."""
        self._max_age_ms = max_age_s * 1_000
        self._addresses = addresses
        self.advertised: set[str] = set()
        """Addresses under which name servers know this server."""
        self._started_ms = clock.now_ms()
        self._keys: dict[str, tuple[str, _Key]] = {}
        self._sessions: dict[str, OrderedDict[str, _Session]] = {}
        self._count = 0
        self._lines = LogRateLimiter()

    def forget(self, find: Callable[[str], User | None]) -> None:
        """Forget the users that ``find`` does not find any more."""
        self._keys.clear()
        for name in [name for name in self._sessions if find(name) is None]:
            self._count -= len(self._sessions.pop(name))

    def problem(self, place: Place, request: RemotingCommand, user: User) -> str:
        """Return what is wrong with a request; empty if it may be served. The same request is then refused."""
        needed = self.required or (self.required_of_super and user.is_super)
        value = request.ext.get(BINDING)
        if value is None:
            return BINDING_MISSING if needed else ""
        found = _FORM.fullmatch(value)
        if found is None:
            return "the binding of the request cannot be read."
        at_ms, session, number, server, digest = found.groups()
        made = self._key(user).digest(value[: found.start(5) - 1], request.code, request.ext, request.body)
        if not hmac.compare_digest(made, digest):
            return "the binding of the request is wrong."
        now = self._clock.now_ms()
        if abs(now - int(at_ms)) > self._max_age_ms:
            return (
                f"the request was bound {(now - int(at_ms)) // 1_000} s ago by the clocks of both, the limit is "
                f"{self._max_age_ms // 1_000} s.")
        if needed and int(at_ms) < self._started_ms:
            return "the request was bound before the server started."
        if not self._is_mine(server, place.own_address):
            if needed:
                return f"the request is bound to the server {server}, see authenticationBindingAddresses."
            if count := self._lines.due("server", self._clock.monotonic_ns() / 1e9):
                events.REQUEST_IS_BOUND_TO_ANOTHER_ADDRESS.log(_log, user=repr(user.name), address=server, count=count)
        return self._number_problem(user.name, session, int(number), now)

    def _is_mine(self, server: str, own: str) -> bool:
        return server == own or server in self.advertised or server in self._addresses or "*" in self._addresses

    def _key(self, user: User) -> _Key:
        found = self._keys.get(user.name)
        if found is None or found[0] != user.password:
            found = self._keys[user.name] = user.password, _Key(user.password)
        return found[1]

    def _number_problem(self, name: str, session: str, number: int, now: int) -> str:
        sessions = self._sessions.setdefault(name, OrderedDict())
        found = sessions.get(session)
        if found is None:
            self._forget_old(sessions, now)
            if self._count >= ALL_SESSIONS_MAX:
                for others in self._sessions.values():
                    self._forget_old(others, now)
            if len(sessions) >= SESSIONS_MAX or self._count >= ALL_SESSIONS_MAX:
                return "too many connections have sent bound requests; try again later."
            found = sessions[session] = _Session()
            self._count += 1
        found.last_ms = now
        sessions.move_to_end(session)
        return "" if found.take(number) else "the request was sent before."

    def _forget_old(self, sessions: OrderedDict[str, _Session], now: int) -> None:
        """Forget the connections whose every request would be refused as too old, with clocks that differ."""
        limit = now - 2 * self._max_age_ms
        while sessions and next(iter(sessions.values())).last_ms < limit:
            sessions.popitem(last=False)
            self._count -= 1
