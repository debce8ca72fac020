"""Settings of access control 2.0, by RocketMQ's names."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import re
import zoneinfo
from dataclasses import dataclass
from typing import Final

from tailrace.config import KIB, MIB, _Config, _option, _shown, whole_number

__all__ = ["AuthConfig"]

_AUTH: Final = "org.apache.rocketmq.auth"
_STATEFUL: Final = f"{_AUTH}.authentication.strategy.StatefulAuthenticationStrategy"
_OFFSET: Final = re.compile(r"([+-])([0-9]{2}):([0-5][0-9])")
_OFFSET_MAX: Final = dt.timedelta(hours=14)
_ADDRESS: Final = re.compile(r"([0-9.]+|\[[0-9a-f:.]+\]):[0-9]{1,5}")
_BOTH: Final = ("authentication", "Authentication"), ("authorization", "Authorization")


def _auth_classes(part: str) -> tuple[tuple[str, ...], ...]:
    """Return the Java classes that a setting may name, an empty text for the default, for both halves."""
    made = []
    for room, name in _BOTH:
        classes = {
            "provider": (f"provider.Default{name}Provider",), "metadata": (f"provider.Local{name}MetadataProvider",),
            "strategy": (f"strategy.Stateless{name}Strategy", f"strategy.Stateful{name}Strategy")}[part]
        made.append(("", *(f"{_AUTH}.{room}.{one}" for one in classes)))
    return tuple(made)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthConfig(_Config):
    """Who may do what: access control 2.0."""

    authentication_enabled: bool = _option(
        False, "Whether every request must prove which user sent it, by its signature.", main=True)
    authorization_enabled: bool = _option(
        False, "Whether users that are not super users need permissions. It needs `authenticationEnabled`.", main=True)
    authentication_whitelist: str = _option(
        "", "Codes of requests that need no user, separated by commas.")
    authorization_whitelist: str = _option(
        "", "Codes of requests that need no permission, separated by commas.")
    init_authentication_user: str = _option(
        "", "Super user that is created at the first start, when the directory has no user yet, as "
        '`{"username":"NAME","password":"PASSWORD"}`. See also `serve --user`.', secret=True, main=True)
    inner_client_authentication_credentials: str = _option(
        "", "User with which the broker registers at other name servers, as "
        '`{"accessKey":"NAME","secretKey":"PASSWORD"}`. It is created as a super user at the first start, when the '
        "directory has no user yet.", secret=True, main=True)
    access_changes_need_super_user: bool = _option(
        True, "Whether only super users may change users and permissions. False: as in RocketMQ, a user with Update on "
        "the cluster may change them, but can grant only its own permissions.")
    auto_create_needs_permission: bool = _option(
        True, "Whether a topic or a group that a request creates because it does not exist needs Create on it. A group "
        "may also be created with Sub on it by an entry with exactly its name. `false` is RocketMQ's rule: whoever may "
        "send to a topic or consume with a group creates it.")
    max_topics_of_user: int = _option(
        0, "Topics that one user may create, unless it is a super user; 0: no limit. Topics count that were created "
        "while the setting was not 0.", low=0)
    max_groups_of_user: int = _option(
        0, "Consumer groups that one user may create, unless it is a super user; 0: no limit. Groups count that were "
        "created while the setting was not 0.", low=0)
    super_user_reserve_percent: int = _option(
        1, "Share of `maxTopics` and of `maxSubscriptionGroups` that only super users may use, at least one topic and "
        "one group; 0: nothing is reserved.", unit="%", low=0, high=90)
    password_length_min: int = _option(
        0, "Fewest characters of a new password in a request, for example of `mqadmin createUser`; 0: no limit. "
        "`tailrace acl user` takes at least 16 characters in any case.", low=0, high=200)
    audit_log: str = _option(
        "", "File to which one JSON line is appended for each request of administration, each denied request and each "
        "log-in to the console. See also `serve --audit-log`.", main=True)
    authentication_strategy: str = _option(
        "", "The Java class. Stateless (the default) checks the signature of each request, Stateful only once for a "
        "connection and user in `statefulAuthenticationCacheExpiredSecond`.", choices=_auth_classes("strategy")[0])
    authorization_strategy: str = _option(
        "", "The Java class. Both are the same here: verdicts are remembered until a user or a permission changes.",
        choices=_auth_classes("strategy")[1])
    authentication_provider: str = _option("", "The Java class.", choices=_auth_classes("provider")[0])
    authorization_provider: str = _option("", "The Java class.", choices=_auth_classes("provider")[1])
    authentication_metadata_provider: str = _option("", "The Java class.", choices=_auth_classes("metadata")[0])
    authorization_metadata_provider: str = _option("", "The Java class.", choices=_auth_classes("metadata")[1])
    stateful_authentication_cache_max_num: int = _option(
        10_000, "Users on connections that Stateful remembers.", low=1, high=10_000_000)
    stateful_authentication_cache_expired_second: int = _option(
        60, "How long Stateful remembers them.", unit="s", low=1, high=86_400)
    authentication_binding: str = _option(
        "accept", "Whether a request needs a binding, a signed field of Tailrace's clients by which a recorded request "
        "cannot be changed or sent again: `required` for each one, `superUsers` for those of super users, `accept` for "
        "none, but a wrong one is refused. `off` ignores the field. Clients of RocketMQ have none.",
        choices=("off", "accept", "superUsers", "required"))
    authentication_binding_max_age: int = _option(
        300, "How far the time of a binding may be from the server's clock, in both directions.", unit="s", low=1,
        high=86_400)
    authentication_binding_addresses: str = _option(
        "", "Addresses `IP:PORT` at which clients reach this server and which it does not know, such as those of a "
        "port forwarding, separated by commas. `*` is every address: then a request for another server is served.")
    authentication_failures_max: int = _option(
        10, "Wrong signatures and passwords of one address in a minute, after which attempts from there are refused "
        "for a time that grows from 1 s to 60 s. 0 refuses none.", low=0, high=1_000_000)
    unauthenticated_frame_max_bytes: int = _option(
        5 * MIB, "Longest request of a connection before its first valid signature, if its header has the name and the "
        "signature of a user; a longer one closes it. Without them, and for the header itself, the limit is 64 KiB.",
        unit="bytes", low=4 * KIB, high=16 * MIB)
    unauthenticated_buffer_max_bytes: int = _option(
        32 * MIB, "Memory of incomplete requests and unread answers of all connections without a valid signature "
        "together; above it the largest ones are closed.", unit="bytes", low=1 * MIB)
    user_requests_per_second: int = _option(
        0, "Requests a second that one user may send; more are refused (SYSTEM_BUSY, FLOW_CONTROL for pulls, "
        "TOO_MANY_REQUESTS over gRPC). Super users have no quota. 0: no quota.", low=0)
    user_request_bytes_per_second: int = _option(
        0, "Bytes of requests a second that one user may send, as of userRequestsPerSecond. 0: no quota.",
        unit="bytes", low=0)
    user_connections_max: int = _option(
        0, "Connections of one user; requests on more are refused, as of userRequestsPerSecond. 0: no quota.", low=0)
    unauthenticated_timeout_seconds: int = _option(
        30, "A connection without a valid signature is closed after this time.", unit="s", low=1)
    unauthenticated_connections_max: int = _option(
        200, "Connections of one address without a valid signature yet; more are closed.", low=1)

    grpc_signature_max_age: int = _option(
        900, "How far the time in the signature of a gRPC call may be from the server's clock, in both directions. "
        "0: every text is accepted as a time, as by RocketMQ's proxy, and the recorded headers of one call are valid "
        "until the password changes.", unit="s", low=0, high=86_400)
    grpc_signature_time_zones: str = _option(
        "", "Zones of gRPC clients, separated by commas, such as `Europe/Berlin` or `+08:00`. Java and Python clients "
        "write the time of their own zone. UTC and the zone of the server are always accepted.")
    registration_needs_topics: bool = _option(
        True, "Whether a broker that registers at the name server needs Pub and Sub on each of its topics, if its user "
        "is not a super user. A Java name server checks nothing.")

    @property
    def is_stateful(self) -> bool:
        """Whether a valid signature counts for some time on its connection."""
        return self.authentication_strategy == _STATEFUL

    def binding_addresses(self) -> frozenset[str]:
        """Return the members of ``authenticationBindingAddresses``."""
        return frozenset(one for part in self.authentication_binding_addresses.split(",") if (one := part.strip()))

    @staticmethod
    def codes(text: str) -> frozenset[int]:
        """Return the codes of a whitelist."""
        return frozenset(int(code) for part in text.split(",") if (code := part.strip()))

    def time_zones(self) -> tuple[dt.tzinfo, ...]:
        """Return the zones of ``grpcSignatureTimeZones``. Raises ValueError for one that does not exist."""
        return tuple(_zone(name) for part in self.grpc_signature_time_zones.split(",") if (name := part.strip()))

    def first_user(self) -> tuple[str, str] | None:
        """Return name and password of ``initAuthenticationUser``."""
        return _pair(self.init_authentication_user, "username", "password")

    def inner_client(self) -> tuple[str, str] | None:
        """Return name and password of ``innerClientAuthenticationCredentials``."""
        return _pair(self.inner_client_authentication_credentials, "accessKey", "secretKey")

    def validate(self) -> list[str]:
        """Return a sentence for each value that cannot work; none shows a secret."""
        problems = _Config.validate(self)
        if self.authorization_enabled and not self.authentication_enabled:
            problems.append(
                "authorizationEnabled=true needs authenticationEnabled=true: without it a client has the permissions "
                "of every user that it names")
        for name, text in (("authenticationWhitelist", self.authentication_whitelist),
                           ("authorizationWhitelist", self.authorization_whitelist)):
            parts = (part.strip() for part in str(text).split(","))
            if wrong := [part for part in parts if part and whole_number(part) is None]:
                problems.append(f"{name} has {_shown(wrong[0])}, which is not the code of a request")
        if wrong := [one for one in self.binding_addresses() if one != "*" and not _ADDRESS.fullmatch(one)]:
            problems.append(f"authenticationBindingAddresses has {_shown(wrong[0])}, which is not IP:PORT")
        for name, read in (("initAuthenticationUser", self.first_user),
                           ("innerClientAuthenticationCredentials", self.inner_client),
                           ("grpcSignatureTimeZones", self.time_zones)):
            try:
                read()
            except ValueError as error:
                problems.append(f"{name} {error}")
        return problems


def _zone(name: str) -> dt.tzinfo:
    if found := _OFFSET.fullmatch(name):
        sign, hours, minutes = found.groups()
        offset = dt.timedelta(hours=int(hours), minutes=int(minutes))
        if offset <= _OFFSET_MAX:
            return dt.timezone(-offset if sign == "-" else offset)
    else:
        with contextlib.suppress(zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            return zoneinfo.ZoneInfo(name)
    raise ValueError(f"has {_shown(name)}, which is not a time zone such as Europe/Berlin or +08:00")


def _pair(text: str, name: str, secret: str) -> tuple[str, str] | None:
    """Return two members of a JSON object; None for an empty text. Raises ValueError without a secret."""
    if not text.strip():
        return None
    wanted = f'is not {{"{name}":"...","{secret}":"..."}}'
    try:
        value = json.loads(text)
    except ValueError:
        raise ValueError(wanted) from None
    found = [str(value.get(member) or "") for member in (name, secret)] if isinstance(value, dict) else [""]
    if not all(one.strip() for one in found):
        raise ValueError(wanted)
    return found[0], found[1]
