"""Quotas of users: requests a second, bytes of requests a second, and connections; each is off by default.

A user may send in one moment what one second allows. After that each request is refused until enough time has passed;
the error names the setting. Super users have no quota, because they must be able to help. Used in one thread.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, Protocol, final
from weakref import WeakSet

from tailrace import events
from tailrace.auth_settings import AuthConfig
from tailrace.env.clock import Clock
from tailrace.errors import RefusalError
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.logs import LogRateLimiter, get_logger

__all__ = ["QUOTAS", "UserConnection", "UserQuotas", "code_of", "request_size"]

_log = get_logger(__name__)

USERS_MAX: Final = 10_000
REQUESTS: Final = "requests"
BYTES: Final = "bytes"
CONNECTIONS: Final = "connections"
QUOTAS: Final = (REQUESTS, BYTES, CONNECTIONS)
_SETTINGS: Final = {
    REQUESTS: "userRequestsPerSecond", BYTES: "userRequestBytesPerSecond", CONNECTIONS: "userConnectionsMax"}
_PULLS: Final = frozenset({
    RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE, RequestCode.POP_MESSAGE, RequestCode.POP_LITE_MESSAGE})


class UserConnection(Protocol):
    """A connection of a user."""

    closed: bool

    def __hash__(self) -> int:
        """Return a number for sets."""
        ...


def request_size(request: RemotingCommand) -> int:
    """Return the bytes of a request that count: its body, and its fields with their names."""
    return len(request.body) + sum(len(name) + len(value) for name, value in request.ext.items())


def code_of(request: int) -> ResponseCode:
    """Return the code that says to clients that they should send this request again later."""
    return ResponseCode.FLOW_CONTROL if request in _PULLS else ResponseCode.SYSTEM_BUSY


@final
class _Usage:
    __slots__ = ("at_ns", "bytes", "connections", "requests")

    def __init__(self, at_ns: int, requests: float, size: float) -> None:
        self.at_ns = at_ns
        self.requests = requests
        self.bytes = size
        self.connections: WeakSet[UserConnection] = WeakSet()


@final
class UserQuotas:
    """What each user has sent, and how much more that user may send."""

    def __init__(self, clock: Clock, config: AuthConfig) -> None:
        self._clock = clock
        self._limits = {
            REQUESTS: config.user_requests_per_second, BYTES: config.user_request_bytes_per_second,
            CONNECTIONS: config.user_connections_max}
        self._usage: dict[str, _Usage] = {}
        self._lines = LogRateLimiter()
        self.refused: Counter[str] = Counter(dict.fromkeys(QUOTAS, 0))
        """Number of refused requests, by quota."""

    @property
    def enabled(self) -> bool:
        """Whether there is any quota."""
        return any(self._limits.values())

    def take(self, user: str, connection: UserConnection, size: int, code: int) -> None:
        """Count a request of ``size`` bytes. Raises RefusalError with the code for a request of this ``code``."""
        now_ns, limits = self._clock.monotonic_ns(), self._limits
        usage = self._usage.get(user)
        if usage is None:
            if len(self._usage) >= USERS_MAX:
                self._usage.clear()
            usage = self._usage[user] = _Usage(now_ns, limits[REQUESTS], limits[BYTES])
        if limits[CONNECTIONS] and connection not in usage.connections:
            if sum(not one.closed for one in usage.connections) >= limits[CONNECTIONS]:
                raise self._refusal(user, CONNECTIONS, code)
            usage.connections.add(connection)
        passed_s, usage.at_ns = (now_ns - usage.at_ns) / 1e9, now_ns
        usage.requests = min(limits[REQUESTS], usage.requests + passed_s * limits[REQUESTS])
        usage.bytes = min(limits[BYTES], usage.bytes + passed_s * limits[BYTES])
        if limits[REQUESTS] and usage.requests < 1:
            raise self._refusal(user, REQUESTS, code)
        if limits[BYTES] and usage.bytes <= 0:
            raise self._refusal(user, BYTES, code)
        usage.requests -= 1
        usage.bytes -= size

    def _refusal(self, user: str, quota: str, code: int) -> RefusalError:
        self.refused[quota] += 1
        limit, setting = self._limits[quota], _SETTINGS[quota]
        if count := self._lines.due(f"{quota} {user}", self._clock.monotonic_ns() / 1e9):
            events.USER_OVER_QUOTA.log(_log, user=repr(user), quota=quota, limit=limit, count=count)
        what = "has more connections than" if quota == CONNECTIONS else "sends more than"
        unit = "" if quota == CONNECTIONS else f" {quota} a second"
        return RefusalError(
            code_of(code), f"User:{user} {what} {limit}{unit} ({setting}); try again later")
