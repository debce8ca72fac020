"""``tailrace acl``: users and permissions of a directory or of a running broker."""

import base64
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional, TypeVar, Union

import typer

from tailrace.cli import completion
from tailrace.cli.admin import administer
from tailrace.cli.arguments import AsJson, Yes, complain, confirm, duration, usage
from tailrace.cli.contexts import Target, with_target
from tailrace.cli.output import show
from tailrace.cli.problems import no_such
from tailrace.errors import ConfigError, MissingPackageError, StoreError

if TYPE_CHECKING:
    from tailrace.auth.model import Acl, User
    from tailrace.cli.access import StoreAccess
    from tailrace.client.admin import AdminClient

__all__ = [
    "allow", "deny", "import_plain", "list_entries", "may", "remove", "user_add", "user_list", "user_remove",
    "user_update",
]

Name = Annotated[str, typer.Argument(
    metavar="[STORE] USER", help="A store directory, if no server is named, and the name of a user.",
    autocompletion=completion.places)]
PasswordFile = Annotated[
    Optional[Path],  # noqa: UP045 - typer reads the annotation at run time
    typer.Option("--password-file", metavar="FILE", help="A file with one line, the password. Without it the command "
                 "asks for the password.")]
On = Annotated[
    str, typer.Option("--on", metavar="RESOURCE", help="Topic:NAME, Group:NAME or Cluster:NAME; a prefix such as "
                      "Topic:ord*; all names, such as Topic:*; or * for everything.")]
Actions = Annotated[
    str, typer.Option("--action", metavar="ACTIONS", help="One or more of Pub, Sub, Create, Update, Delete, Get and "
                      "List, separated by commas; or All.")]
From = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--from", metavar="ADDRESS", help="Only for clients with this address or in this range, such as "
                 "10.0.0.0/8; may be repeated.")]
Default = Annotated[
    bool, typer.Option("--default", help="An entry of policy Default, which is used if no other entry matches.")]
Generate = Annotated[
    bool, typer.Option("--generate", help="Make a password, and print it once.")]
KeepOld = Annotated[
    str, typer.Option("--keep-old", metavar="TIME", help="How long the password before stays valid beside the new one, "
                      "such as 30m, 24h or 7d, at most 30d. Without a new password: from now on; 0 ends it.")]


def _password(path: Path | None, name: str, *, generate: bool = False) -> str:
    from tailrace.auth.model import PASSWORD_MIN  # noqa: PLC0415
    from tailrace.cli.serve_settings import read_password  # noqa: PLC0415 - the broker
    from tailrace.env.entropy import SystemEntropy  # noqa: PLC0415

    if generate:
        if path is not None:
            raise usage("--generate and --password-file are both given")
        return base64.urlsafe_b64encode(SystemEntropy().bytes(18)).decode()
    if path is not None:
        password = read_password(path)
    elif sys.stdin.isatty():
        password = str(typer.prompt(f"password of {name}", hide_input=True, confirmation_prompt=True, err=True))
    else:
        raise usage("there is no terminal to ask for the password; use --password-file FILE or --generate")
    if len(password) < PASSWORD_MIN:
        raise usage(f"the password has {len(password)} characters, but needs {PASSWORD_MIN}; --generate makes one")
    return password


def _seconds(text: str) -> int:
    """Return a time such as 24h in seconds."""
    from tailrace.auth.model import PREVIOUS_MAX_S  # noqa: PLC0415

    return -(-duration(text, "--keep-old", PREVIOUS_MAX_S * 1_000) // 1_000)


def _shown(user: "User", password: str = "") -> dict[str, Any]:
    from datetime import UTC, datetime  # noqa: PLC0415

    from tailrace.env.clock import SystemClock  # noqa: PLC0415

    made = {"user": user.name, "type": "Super" if user.is_super else "Normal",
            "status": "enable" if user.enabled else "disable"}
    if (until_ms := user.previous_until_ms) > SystemClock().now_ms():
        made["old_password_until"] = datetime.fromtimestamp(until_ms / 1000, UTC).isoformat("T", "seconds")
    return {**made, "password": password} if password else made


_Result = TypeVar("_Result")
Admin = Union["AdminClient", "StoreAccess"]


def _change(target: Target, change: Callable[[Admin], Awaitable[_Result]]) -> _Result:
    """Change users and permissions of a server, or of a directory that no server has open; return the result."""
    from tailrace.cli.access import access_to_change  # noqa: PLC0415 - asyncio

    return administer(target, access_to_change, change)


def _look(target: Target, read: Callable[[Admin], Awaitable[_Result]]) -> _Result:
    """Return what a server has, or a directory that is neither locked nor changed."""
    from tailrace.cli.access import access_to_read  # noqa: PLC0415 - asyncio

    return administer(target, access_to_read, read)


async def _users(access: Admin) -> "list[User]":
    """Return all users; passwords may be missing."""
    from tailrace.auth.model import user_of  # noqa: PLC0415

    return [user_of({"password": "-", "previousPassword": "-", **user}) for user in await access.users()]


async def _acls(access: Admin) -> "list[Acl]":
    from tailrace.auth.model import acl_of  # noqa: PLC0415

    return [acl_of(acl) for acl in await access.acls()]


def _lines(acl: "Acl") -> list[dict[str, Any]]:
    return [
        {"user": acl.name, "policy": policy, "decision": "Allow" if entry.allow else "Deny",
         "resource": entry.resource.key, "actions": ",".join(entry.actions), "from": ",".join(entry.source_ips)}
        for policy, entries in (("Custom", acl.custom), ("Default", acl.default)) for entry in entries]


# --- users


@with_target
def user_add(
    *, name: Name, password_file: PasswordFile = None, generate: Generate = False,
    is_super: Annotated[bool, typer.Option("--super", help="A super user, who may do everything.")] = False,
    target: Target, as_json: AsJson = False,
) -> None:
    """Add a user.

    This command writes to STORE.
    """
    from tailrace.auth.model import user_of  # noqa: PLC0415

    user = user_of({"username": name, "password": _password(password_file, name, generate=generate),
                    "userType": "Super" if is_super else "Normal"})
    _change(target, lambda access: access.create_user(name, user.to_json()))
    show([_shown(user, user.password if generate else "")], as_json=as_json)


@with_target
def user_update(
    *, name: Name, password_file: PasswordFile = None, generate: Generate = False, keep_old: KeepOld = "",
    kind: Annotated[str, typer.Option("--type", help="Super or Normal.")] = "",
    status: Annotated[str, typer.Option(help="enable or disable.")] = "",
    target: Target, as_json: AsJson = False,
) -> None:
    """Change the password, the type or the status of a user.

    Without --keep-old a new password ends the one before, and what the user has open with it, immediately.

    This command writes to STORE.
    """
    from tailrace.auth.model import PREVIOUS_SECONDS  # noqa: PLC0415
    value: dict[str, Any] = {"userType": kind, "userStatus": status}
    value = {name: text for name, text in value.items() if text}
    has_new = generate or password_file is not None
    if not (value or has_new or keep_old):
        raise usage("nothing to change: use --password-file, --generate, --keep-old, --type or --status")
    if keep_old:
        value[PREVIOUS_SECONDS] = _seconds(keep_old)
    if has_new:
        value["password"] = _password(password_file, name, generate=generate)

    async def update(access: Admin) -> "list[User]":
        await access.update_user(name, {**value, "username": name})
        return [user for user in await _users(access) if user.name == name]

    users = _change(target, update)
    show([_shown(user, value["password"] if generate else "") for user in users], as_json=as_json)
    if value.get(PREVIOUS_SECONDS) and not any(user.previous_until_ms for user in users):
        raise StoreError(f"no password before of {name} is valid: it had only one, or the server knows only one")


@with_target
def user_remove(*, name: Name, target: Target, yes: Yes = False, as_json: AsJson = False) -> None:
    """Remove a user with its permissions.

    This command writes to STORE.
    """
    confirm(f"remove user {name} with its permissions", yes=yes)

    async def remove_user(access: Admin) -> None:
        if name not in {user.name for user in await _users(access)}:
            raise ConfigError("The user is not exist")
        await access.delete_user(name)

    _change(target, remove_user)
    show([{"removed": name}], as_json=as_json)


@with_target
def user_list(*, target: Target, as_json: AsJson = False) -> None:
    """List users, without passwords.

    Nothing in STORE changes.
    """
    show(map(_shown, _look(target, _users)), as_json=as_json, empty="there is no user")


# --- permissions


@with_target
def allow(
    *, name: Name, on: On, action: Actions, source: From = None, default: Default = False,
    target: Target, as_json: AsJson = False,
) -> None:
    """Allow a user to do something.

    The entry replaces another one of the same resource.

    This command writes to STORE.
    """
    _set(name, on, action, source, "Allow", target, default=default, as_json=as_json)


@with_target
def deny(
    *, name: Name, on: On, action: Actions = "All", source: From = None, default: Default = False,
    target: Target, as_json: AsJson = False,
) -> None:
    """Deny a user something, even if another entry allows it.

    The entry replaces another one of the same resource.

    This command writes to STORE.
    """
    _set(name, on, action, source, "Deny", target, default=default, as_json=as_json)


def _set(
    name: str, on: str, action: str, source: list[str] | None, decision: str, target: Target,
    *, default: bool, as_json: bool,
) -> None:
    from tailrace.auth.model import acl_of  # noqa: PLC0415
    entry = {"resource": on, "actions": [one.strip() for one in action.split(",") if one.strip()],
             "decision": decision, "sourceIps": source or []}
    acl = acl_of({"subject": f"User:{name}", "policies": [
        {"policyType": "Default" if default else "Custom", "entries": [entry]}]})

    async def update(access: Admin) -> "list[Acl]":
        await access.update_acl(acl.subject, acl.to_json())
        return [one for one in await _acls(access) if one.name == name]

    show((line for one in _change(target, update) for line in _lines(one)), as_json=as_json)


@with_target
def list_entries(
    *, user: Annotated[str, typer.Option(metavar="NAME", help="Only the permissions of this user.")] = "",
    target: Target, as_json: AsJson = False,
) -> None:
    """List permissions.

    Nothing in STORE changes.
    """
    acls = [acl for acl in _look(target, _acls) if user in {"", acl.name}]
    show((line for acl in acls for line in _lines(acl)), as_json=as_json, empty="there is no permission")


@with_target
def remove(
    *, name: Name,
    on: Annotated[str, typer.Option("--on", metavar="RESOURCE", help="Only the entry of this resource.")] = "",
    default: Default = False, target: Target, yes: Yes = False, as_json: AsJson = False,
) -> None:
    """Remove permissions of a user.

    This command writes to STORE.
    """
    from tailrace.auth.model import resource_of  # noqa: PLC0415
    resource = resource_of(on) if on else None
    policy = "Default" if default else "Custom"
    confirm(f"remove {'the permission on ' + on if on else 'all permissions'} of {name}", yes=yes)

    async def remove_entry(access: Admin) -> None:
        acl = next((acl for acl in await _acls(access) if acl.name == name), None)
        if acl is None or (resource and resource not in {entry.resource for entry in acl.entries(policy)}):
            raise StoreError(f"{name} has no permission {f'on {on} of policy {policy}' if on else ''}".rstrip())
        await access.delete_acl(acl.subject, policy, "" if resource is None else resource.key)

    _change(target, remove_entry)
    show([{"removed": on or "all", "user": name}], as_json=as_json)


@with_target
def may(
    *, name: Name, on: On, action: Actions,
    source: Annotated[str, typer.Option("--from", metavar="ADDRESS", help="Address of the client.")] = "127.0.0.1",
    target: Target, as_json: AsJson = False,
) -> None:
    """Report whether a user may do something, and which entry decides.

    Exit code 0: allowed, 1: denied.

    Nothing in STORE changes.
    """
    from tailrace.auth.accesses import Access  # noqa: PLC0415
    from tailrace.auth.addresses import addresses_problem  # noqa: PLC0415
    from tailrace.auth.check import decide  # noqa: PLC0415
    from tailrace.auth.model import ACTIONS, resource_of  # noqa: PLC0415
    resource = resource_of(on)
    wanted = next((mask for one, mask in ACTIONS.items() if one.lower() == action.lower()), None)
    if wanted is None or action.lower() == "all":
        raise usage(f"--action {action!r} is not one of {', '.join(one for one in ACTIONS if one != 'All')}")
    if not resource.kind or resource.prefixed:
        raise usage(f"--on {on} is not one name, such as Topic:orders")
    if "/" in source or addresses_problem([source]):
        raise usage(f"--from {source!r} is not an address")

    async def read(access: Admin) -> "tuple[User, Acl | None]":
        users = {user.name: user for user in await _users(access)}
        if name not in users:
            raise no_such("user", name, users, str(target))
        return users[name], next((acl for acl in await _acls(access) if acl.name == name), None)

    verdict = decide(*_look(target, read), Access(resource.kind, resource.name, wanted), source)
    by = f"{verdict.entry} ({verdict.policy})" if verdict.entry else verdict.reason
    show([{"user": name, "action": action, "resource": on, "from": source,
           "verdict": "allowed" if verdict.allowed else "denied", "by": by}], as_json=as_json)
    if not verdict.allowed:
        raise typer.Exit(1)


@with_target
def import_plain(
    *, name: Annotated[str, typer.Argument(
        metavar="[STORE] FILE", help="A store directory, if no server is named, and the plain_acl.yml.")],
    target: Target, as_json: AsJson = False,
) -> None:
    """Import users and permissions from RocketMQ 4.x (plain_acl.yml).

    Users that exist are not changed. The command needs the extra `acl` (PyYAML).

    This command writes to STORE.
    """
    from tailrace.auth.plain_acl import from_plain_acl  # noqa: PLC0415
    try:
        import yaml  # noqa: PLC0415 - the extra acl
    except ModuleNotFoundError:
        raise MissingPackageError("files of plain_acl.yml", "pyyaml", "acl") from None
    try:
        imported = from_plain_acl(yaml.safe_load(Path(name).read_text("utf-8")))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name} is not YAML: {' '.join(str(error).split())}") from None
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None
    lines = []
    acls = {acl.name: acl for acl in imported.acls}

    async def add(access: Admin) -> None:
        present = {user.name for user in await _users(access)}
        for user in imported.users:
            if user.name not in present:
                await access.create_user(user.name, user.to_json())
                if user.name in acls:
                    await access.update_acl(acls[user.name].subject, acls[user.name].to_json())
            lines.append({**_shown(user), "entries": len(_lines(acls[user.name])) if user.name in acls else 0,
                          "done": "left as it is" if user.name in present else "imported"})

    _change(target, add)
    for text in imported.left_out:
        complain(f"not imported: {text}")
    show(lines, as_json=as_json, empty="the file has no account")
