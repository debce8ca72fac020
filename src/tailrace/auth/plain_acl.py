"""Users and permissions of RocketMQ 4.x (``plain_acl.yml``) as those of 2.0 (AuthMigrator).

An administrator becomes a super user. Permissions of topics and groups become entries of policy Custom, default ones
entries of policy Default. Entries that 2.0 cannot express, such as white addresses, are named and left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from tailrace.auth.model import ALL, Acl, Entry, Resource, User, user_of
from tailrace.errors import ConfigError

__all__ = ["Imported", "from_plain_acl"]

_ACTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "PUB": ("Pub",), "SUB": ("Sub",), "PUB|SUB": ("Pub", "Sub"), "SUB|PUB": ("Pub", "Sub"), "DENY": (ALL,)}
_KNOWN: Final = frozenset({
    "accessKey", "secretKey", "whiteRemoteAddress", "admin", "defaultTopicPerm", "defaultGroupPerm", "topicPerms",
    "groupPerms"})


class Imported(NamedTuple):
    """Users with their permissions, and what could not be taken over."""

    users: list[User]
    acls: list[Acl]
    left_out: list[str]


def from_plain_acl(value: Any) -> Imported:
    """Return what the content of a ``plain_acl.yml`` means. Raises ConfigError with the place of an error."""
    if not isinstance(value, Mapping) or not isinstance(value.get("accounts"), list):
        raise ConfigError("there is no list accounts")
    made = Imported([], [], [])
    if addresses := value.get("globalWhiteRemoteAddresses"):
        made.left_out.append(
            f"globalWhiteRemoteAddresses {addresses}: in 2.0 every client needs a user, whatever its address")
    for place, account in enumerate(value["accounts"]):
        where = f"accounts[{place}]"
        if not isinstance(account, Mapping):
            raise ConfigError(f"{where} is not an account")
        try:
            user = user_of({
                "username": account.get("accessKey"), "password": account.get("secretKey"),
                "userType": "Super" if account.get("admin") is True else "Normal"})
            acl = Acl(user.name).updated(Acl(
                user.name,
                tuple(_named("Topic", account.get("topicPerms"))) + tuple(_named("Group", account.get("groupPerms"))),
                tuple(_default("Topic", account.get("defaultTopicPerm")))
                + tuple(_default("Group", account.get("defaultGroupPerm")))))
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
        if user.name in {one.name for one in made.users}:
            raise ConfigError(f"{where}: {user.name} is there twice")
        if unknown := sorted(set(map(str, account)) - _KNOWN):
            raise ConfigError(f"{where} has {', '.join(unknown)}, which 4.x does not know")
        if address := account.get("whiteRemoteAddress"):
            made.left_out.append(
                f"whiteRemoteAddress {address} of {user.name}: in 2.0 a client needs the password from everywhere; "
                "limit its permissions with `tailrace acl allow --from`")
        made.users.append(user)
        if acl and not user.is_super:
            made.acls.append(acl)
    return made


def _named(kind: str, values: Any) -> Iterator[Entry]:
    if values is not None and not isinstance(values, list):
        raise ConfigError(f"the permissions of {kind.lower()}s are not a list")
    for text in values or ():
        name, separator, permission = str(text).partition("=")
        if not separator or not name.strip():
            raise ConfigError(f"{text!r} is not NAME=PERMISSION")
        yield _entry(Resource(kind, name.strip()), permission)


def _default(kind: str, permission: Any) -> Iterator[Entry]:
    if permission not in {None, ""}:
        yield _entry(Resource(kind, "", prefixed=True), str(permission))


def _entry(resource: Resource, permission: str) -> Entry:
    text = permission.strip().upper()
    if text not in _ACTIONS:
        raise ConfigError(
            f"the permission {permission.strip()!r} of {resource.key} is not one of {', '.join(_ACTIONS)}")
    return Entry(resource, _ACTIONS[text], allow=text != "DENY")
