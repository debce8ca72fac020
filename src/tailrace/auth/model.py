"""Users, resources and entries of permissions, and how they are written in JSON.

The JSON is that of request bodies (UserInfo, AclInfo) and of ``config/tailrace-users.json`` and
``config/tailrace-acls.json``. Every value that cannot be honoured raises ConfigError with its place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tailrace.auth.addresses import Addresses, addresses_problem
from tailrace.errors import ConfigError
from tailrace.formats.requests.table import Action

__all__ = [
    "ALL", "ANY_RESOURCE", "CUSTOM", "DEFAULT", "PASSWORD_MIN", "PREVIOUS", "PREVIOUS_MAX_S", "PREVIOUS_SECONDS",
    "PREVIOUS_UNTIL", "Acl", "Entry", "Resource", "User", "acl_of", "entry_of", "resource_of", "subject_name",
    "user_of", "with_end",
]

SUPER: Final = "Super"
NORMAL: Final = "Normal"
ENABLE: Final = "enable"
DISABLE: Final = "disable"
CUSTOM: Final = "Custom"
DEFAULT: Final = "Default"
ALLOW: Final = "Allow"
DENY: Final = "Deny"
ALL: Final = "All"
ACTIONS: Final[Mapping[str, Action]] = {
    ALL: ~Action(0), **{action.name.capitalize(): action for action in Action if action.name}}
"""Actions of an entry, by their names."""
KINDS: Final = ("Cluster", "Namespace", "Topic", "Group")
ENTRIES_MAX: Final = 10_000
"""Entries of one user."""
NAME_MAX: Final = 255
_USER_NAME: Final = re.compile(r"[^\x00-\x20\x7f#]+")
SHOWN_MAX: Final = 60
PASSWORD_MIN: Final = 16
"""Fewest characters of a password that `tailrace acl user` takes; a start names users with a shorter one."""
PREVIOUS: Final = "previousPassword"
PREVIOUS_UNTIL: Final = "previousPasswordUntil"
PREVIOUS_SECONDS: Final = "previousPasswordSeconds"
"""In a request: how long the password before stays valid."""
PREVIOUS_MAX_S: Final = 30 * 86_400


@dataclass(frozen=True, slots=True)
class User:
    """A user. The password is the key of signatures, so it is kept as it is, and never shown."""

    name: str
    password: str = field(repr=False)
    is_super: bool = False
    enabled: bool = True
    previous_password: str = field(default="", repr=False)
    """The password before, which is valid as well until ``previous_until_ms``; empty if it has only one."""
    previous_until_ms: int = 0

    @property
    def earlier(self) -> User:
        """The user as one that was proven with the password before."""
        return replace(self, password=self.previous_password)

    def to_json(self) -> dict[str, Any]:
        """The members of UserInfo, and two of Tailrace's own if the previous password is still valid."""
        made: dict[str, Any] = {
            "password": self.password, "userStatus": ENABLE if self.enabled else DISABLE,
            "userType": SUPER if self.is_super else NORMAL, "username": self.name}
        if self.previous_password:
            made |= {PREVIOUS: self.previous_password, PREVIOUS_UNTIL: self.previous_until_ms}
        return made


@dataclass(frozen=True, slots=True)
class Resource:
    """What an entry is about: a name, names with a prefix, or every name of a kind."""

    kind: str
    """A member of `KINDS`; empty for every resource (``*``)."""
    name: str = ""
    prefixed: bool = False
    """Whether ``name`` is the beginning of names; an empty one is that of all names."""

    @property
    def key(self) -> str:
        """The resource as it is written, such as ``Topic:orders``, ``Topic:ord*``, ``Topic:*`` or ``*``."""
        return f"{self.kind}:{self.name}{'*' if self.prefixed else ''}" if self.kind else "*"

    def matches(self, kind: str, name: str) -> bool:
        """Return whether a resource with exactly this name is meant."""
        if not self.kind:
            return True
        if self.kind != kind:
            return False
        return name.startswith(self.name) if self.prefixed else name == self.name

    @property
    def rank(self) -> tuple[int, int]:
        """The order of entries that match the same resource; the least decides.

        A name comes first, then prefixes with the longest first, then ``Topic:*``, then ``*``.
        """
        if not self.kind:
            return 3, 0
        if not self.prefixed:
            return 0, 0
        return (1, -len(self.name)) if self.name else (2, 0)


ANY_RESOURCE: Final = Resource("")


@dataclass(frozen=True, slots=True)
class Entry:
    """What is allowed or denied on one resource."""

    resource: Resource
    actions: tuple[str, ...]
    """Names of actions."""
    source_ips: tuple[str, ...] = ()
    """Addresses and ranges of clients; empty for all."""
    allow: bool = True
    mask: Action = field(init=False, compare=False, repr=False)
    addresses: Addresses = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        mask = Action(0)
        for name in self.actions:
            mask |= ACTIONS[name]
        object.__setattr__(self, "mask", mask)
        object.__setattr__(self, "addresses", Addresses(self.source_ips))

    def to_json(self) -> dict[str, Any]:
        """The members of PolicyEntryInfo."""
        made: dict[str, Any] = {
            "actions": list(self.actions), "decision": ALLOW if self.allow else DENY, "resource": self.resource.key}
        if self.source_ips:
            made["sourceIps"] = list(self.source_ips)
        return made

    def __str__(self) -> str:
        where = f" from {','.join(self.source_ips)}" if self.source_ips else ""
        return f"{ALLOW if self.allow else DENY} {','.join(self.actions)} on {self.resource.key}{where}"


@dataclass(frozen=True, slots=True)
class Acl:
    """The entries of one user: of policy ``Custom``, and of policy ``Default``, which counts where no other matches."""

    name: str
    """Name of the user."""
    custom: tuple[Entry, ...] = ()
    default: tuple[Entry, ...] = ()

    @property
    def subject(self) -> str:
        """The user as requests name it."""
        return f"User:{self.name}"

    def entries(self, policy: str) -> tuple[Entry, ...]:
        """Return the entries of a policy."""
        return self.custom if policy == CUSTOM else self.default

    def updated(self, other: Acl) -> Acl:
        """Return these entries with those of another; one of the same resource and policy is replaced."""
        made = Acl(self.name, _merged(self.custom, other.custom), _merged(self.default, other.default))
        if max(len(made.custom), len(made.default)) > ENTRIES_MAX:
            raise ConfigError(f"{self.subject} would have more than {ENTRIES_MAX} entries")
        return made

    def without(self, policy: str, resource: Resource) -> Acl:
        """Return the entries without that of a resource."""
        kept = tuple(entry for entry in self.entries(policy) if entry.resource != resource)
        return replace(self, custom=kept) if policy == CUSTOM else replace(self, default=kept)

    def __bool__(self) -> bool:
        return bool(self.custom or self.default)

    def to_json(self) -> dict[str, Any]:
        """The members of AclInfo."""
        return {
            "policies": [
                {"entries": [entry.to_json() for entry in entries], "policyType": policy}
                for policy, entries in ((CUSTOM, self.custom), (DEFAULT, self.default)) if entries],
            "subject": self.subject}


def _merged(present: tuple[Entry, ...], new: tuple[Entry, ...]) -> tuple[Entry, ...]:
    table = {entry.resource: entry for entry in present}
    for entry in new:
        table[entry.resource] = entry
    return tuple(table.values())


# --- reading


def _choice(value: Any, choices: Iterable[str], what: str, default: str = "") -> str:
    """Return the member of ``choices`` that a text means, whatever the case of its letters."""
    if value is None or value == "":
        if default:
            return default
        raise ConfigError(f"The {what} is null or illegal.")
    for choice in choices:
        if isinstance(value, str) and value.lower() == choice.lower():
            return choice
    raise ConfigError(f"The {what} {_shown(value)} is not one of {', '.join(choices)}.")


def _shown(value: Any) -> str:
    return repr(value)[:SHOWN_MAX] if isinstance(value, str) else type(value).__name__


def _text(value: Any, what: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ConfigError(f"The {what} is not text.")
    return value


def user_name(value: Any) -> str:
    """Return the name of a user. Raises ConfigError for one that cannot be."""
    name = _text(value, "username")
    if not name.strip():
        raise ConfigError("username can not be blank")
    if len(name) > NAME_MAX or not _USER_NAME.fullmatch(name):
        raise ConfigError(f"The username {_shown(name)} has a blank, a control character or `#`, or is too long.")
    return name


def user_of(value: Mapping[str, Any], present: User | None = None) -> User:
    """Return a user from the members of UserInfo; what is missing is that of ``present``, or the default."""
    name = user_name(value.get("username"))
    password = _text(value.get("password"), "password")
    if not password.strip():
        if present is None:
            raise ConfigError("password can not be blank")
        password = present.password
    before = present or User(name, password)
    kind = _choice(value.get("userType"), (SUPER, NORMAL), "user type", SUPER if before.is_super else NORMAL)
    status = _choice(
        value.get("userStatus"), (ENABLE, DISABLE), "user status", ENABLE if before.enabled else DISABLE)
    previous, until = _previous(value, present, password)
    return User(name, password, kind == SUPER, status == ENABLE, previous, until)


def _previous(value: Mapping[str, Any], present: User | None, password: str) -> tuple[str, int]:
    """Return the password before, and until when it is valid; an empty text and 0 if it is not."""
    if present is None:
        previous = _text(value.get(PREVIOUS), PREVIOUS)
        until = value.get(PREVIOUS_UNTIL, 0)
    elif password != present.password:
        previous, until = present.password, value.get(PREVIOUS_UNTIL, 0)
    else:
        previous, until = present.previous_password, value.get(PREVIOUS_UNTIL, present.previous_until_ms)
    if type(until) is not int or until < 0:
        raise ConfigError(f"{PREVIOUS_UNTIL} is not a time in milliseconds.")
    return (previous, until) if previous and until else ("", 0)


def with_end(value: Mapping[str, Any], now_ms: int) -> dict[str, Any]:
    """Return members of a request with the time at which the password before ends, instead of its seconds.

    A request cannot set the password before. Raises ConfigError for seconds that cannot be.
    """
    made = {name: one for name, one in value.items() if name not in {PREVIOUS, PREVIOUS_UNTIL, PREVIOUS_SECONDS}}
    seconds = value.get(PREVIOUS_SECONDS)
    if seconds is None:
        return made
    if type(seconds) is not int or not 0 <= seconds <= PREVIOUS_MAX_S:
        raise ConfigError(f"{PREVIOUS_SECONDS} is not a number of seconds from 0 to {PREVIOUS_MAX_S} (30 days).")
    return {**made, PREVIOUS_UNTIL: now_ms + seconds * 1000 if seconds else 0}


def subject_name(subject: str) -> str:
    """Return the name of the user of a subject. Raises ConfigError."""
    kind, _, name = subject.partition(":")
    if kind.lower() != "user":
        raise ConfigError("The subject is null." if not subject else f"The subject {_shown(subject)} is not User:NAME.")
    return user_name(name)


def resource_of(key: Any) -> Resource:
    """Return a resource such as ``Topic:orders``. Raises ConfigError."""
    text = _text(key, "resource")
    if not text.strip():
        raise ConfigError("The resource is null.")
    if text == "*":
        return ANY_RESOURCE
    kind, separator, name = text.partition(":")
    kind = _choice(kind, KINDS, "resource type")
    if not separator or not name:
        raise ConfigError(f"The resource {_shown(text)} has no name: say {kind}:NAME, {kind}:PREFIX* or {kind}:*.")
    if name.endswith("*"):
        name = name[:-1]
        if "*" in name:
            raise ConfigError(f"The resource {_shown(text)} has a `*` that is not its last character.")
        return Resource(kind, name, prefixed=True)
    if "*" in name:
        raise ConfigError(f"The resource {_shown(text)} has a `*` that is not its last character.")
    return Resource(kind, name)


def _texts(value: Any, what: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        raise ConfigError(f"The {what} are not a list of texts.")
    return tuple(value)


def entry_of(value: Any) -> Entry:
    """Return an entry from the members of PolicyEntryInfo. Raises ConfigError."""
    if not isinstance(value, Mapping):
        raise ConfigError("An entry is not an object.")
    resource = resource_of(value.get("resource"))
    names = _texts(value.get("actions"), "actions")
    if not names:
        raise ConfigError("The actions is empty.")
    if any(name.lower() == "any" for name in names):
        raise ConfigError("The actions can not be Any.")
    actions = tuple(dict.fromkeys(_choice(name, ACTIONS, "action") for name in names))
    source_ips = _texts(value.get("sourceIps"), "source ips")
    if problem := addresses_problem(source_ips):
        raise ConfigError(problem)
    decision = _choice(value.get("decision"), (ALLOW, DENY), "decision")
    return Entry(resource, actions, source_ips, decision == ALLOW)


def acl_of(value: Mapping[str, Any], subject: str = "") -> Acl:
    """Return the entries of a user from the members of AclInfo; ``subject`` counts if it has none."""
    name = subject_name(_text(value.get("subject"), "subject") or subject)
    policies = value.get("policies")
    if not isinstance(policies, list) or not policies:
        raise ConfigError("The policies is empty.")
    found: dict[str, tuple[Entry, ...]] = {CUSTOM: (), DEFAULT: ()}
    for policy in policies:
        if not isinstance(policy, Mapping):
            raise ConfigError("A policy is not an object.")
        kind = _choice(policy.get("policyType"), (CUSTOM, DEFAULT), "policy type", CUSTOM)
        entries = policy.get("entries")
        if not isinstance(entries, list) or not entries:
            raise ConfigError("The policy entries is empty.")
        if len(entries) > ENTRIES_MAX:
            raise ConfigError(f"A policy has more than {ENTRIES_MAX} entries.")
        found[kind] += tuple(map(entry_of, entries))
    return Acl(name).updated(Acl(name, found[CUSTOM], found[DEFAULT]))
