"""Access of ``tailrace acl`` to the users and permissions of a directory or of a running broker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from tailrace.auth.model import Acl, Resource, User, acl_of, user_of, with_end
from tailrace.cli.admin import ask, server_of
from tailrace.cli.contexts import Target
from tailrace.client.admin import AdminClient
from tailrace.env.clock import SystemClock
from tailrace.env.filesystem import FileSystem, OsFileSystem
from tailrace.env.memory_overlay import OverlayFileSystem
from tailrace.env.whole_files import is_directory
from tailrace.errors import ConfigError, NotAStoreError, StoreLockedError
from tailrace.formats.filenames import CONFIG
from tailrace.node.access import AclManager, UserManager
from tailrace.node.lock import lock_store

__all__ = ["AccessPlace", "access_of"]

_Result = TypeVar("_Result")


class AccessPlace(Protocol):
    """Reads and changes users and permissions. Each method raises StoreError."""

    def users(self) -> list[User]:
        """Return all users; passwords may be empty."""
        ...

    def acls(self) -> list[Acl]:
        """Return the permissions of all users."""
        ...

    def add_user(self, user: User) -> None:
        """Add a user."""
        ...

    def update_user(self, value: dict[str, Any]) -> None:
        """Change a user. ``value`` has the members of UserInfo that change, and the name."""
        ...

    def remove_user(self, name: str) -> None:
        """Remove a user with its permissions."""
        ...

    def update_acl(self, acl: Acl) -> None:
        """Add entries, or replace those of the same resource."""
        ...

    def remove_entry(self, name: str, policy: str, resource: Resource | None) -> None:
        """Remove the entry of a resource, or if that is None all entries of a user."""
        ...


class _Directory:
    """Users and permissions in the files of a directory that no server has open."""

    def __init__(self, users: UserManager, acls: AclManager) -> None:
        self._users, self._acls = users, acls

    def users(self) -> list[User]:
        return self._users.values()

    def acls(self) -> list[Acl]:
        return self._acls.values()

    def add_user(self, user: User) -> None:
        self._users.change(self._users.creation(user), lambda: self._acls.forget(user.name))

    def update_user(self, value: dict[str, Any]) -> None:
        self._users.change(self._users.update(with_end(value, SystemClock().now_ms())))

    def remove_user(self, name: str) -> None:
        if not self._users.change(self._users.deletion(name), lambda: self._acls.forget(name)):
            raise ConfigError("The user is not exist")

    def update_acl(self, acl: Acl) -> None:
        self._acls.change(self._acls.update(acl, self._users))

    def remove_entry(self, name: str, policy: str, resource: Resource | None) -> None:
        self._acls.change(self._acls.deletion(name, policy, resource))


class _Server:
    """Users and permissions of a running broker."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def _ask(self, question: Callable[[AdminClient], Awaitable[_Result]]) -> _Result:
        return ask(self._target, question)

    def users(self) -> list[User]:
        found = self._ask(lambda admin: admin.users())
        return [user_of({"password": "-", "previousPassword": "-", **one}) for one in found]

    def acls(self) -> list[Acl]:
        return [acl_of(one) for one in self._ask(lambda admin: admin.acls())]

    def add_user(self, user: User) -> None:
        self._ask(lambda admin: admin.create_user(user.name, user.to_json()))

    def update_user(self, value: dict[str, Any]) -> None:
        self._ask(lambda admin: admin.update_user(value["username"], value))

    def remove_user(self, name: str) -> None:
        if name not in {user.name for user in self.users()}:
            raise ConfigError("The user is not exist")
        self._ask(lambda admin: admin.delete_user(name))

    def update_acl(self, acl: Acl) -> None:
        self._ask(lambda admin: admin.update_acl(acl.subject, acl.to_json()))

    def remove_entry(self, name: str, policy: str, resource: Resource | None) -> None:
        key = "" if resource is None else resource.key
        self._ask(lambda admin: admin.delete_acl(f"User:{name}", policy, key))


@contextmanager
def access_of(target: Target, *, look: bool = False) -> Iterator[AccessPlace]:
    """Yield the users and permissions of a target. Raises StoreError.

    A directory is locked in the meantime. With ``look`` it is neither locked nor changed.
    """
    if not target.store:
        yield _Server(target)
        return
    files: FileSystem = OverlayFileSystem(OsFileSystem(), takes_locks=False) if look else OsFileSystem()
    if not is_directory(files, f"{target.store}/{CONFIG}"):
        raise NotAStoreError(target.store, "it has no directory config")
    try:
        lock = lock_store(files, target.store)
    except StoreLockedError as error:
        yield _Server(Target(broker=server_of(target.store, error), tls=target.tls))
        return
    try:
        users, acls = UserManager(files, f"{target.store}/{CONFIG}"), AclManager(files, f"{target.store}/{CONFIG}")
        users.load()
        acls.load()
        yield _Directory(users, acls)
    finally:
        lock.release()
