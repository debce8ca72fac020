"""Users and permissions in a directory that no server has open, with the methods of `AdminClient`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tailrace.auth.model import acl_of, resource_of, subject_name, user_of, with_end
from tailrace.env.clock import SystemClock
from tailrace.env.filesystem import FileSystem, OsFileSystem
from tailrace.env.memory_overlay import OverlayFileSystem
from tailrace.env.whole_files import is_directory
from tailrace.errors import NotAStoreError
from tailrace.formats.filenames import CONFIG
from tailrace.node.access import AclManager, UserManager
from tailrace.node.lock import lock_store

__all__ = ["StoreAccess", "access_to_change", "access_to_read"]


class StoreAccess:
    """Reads and changes users and permissions. Each method raises StoreError."""

    def __init__(self, users: UserManager, acls: AclManager) -> None:
        self._users, self._acls = users, acls

    async def users(self) -> list[dict[str, Any]]:
        """Return the users as UserInfo, with passwords."""
        return [user.to_json() for user in self._users.values()]

    async def acls(self) -> list[dict[str, Any]]:
        """Return the permissions of all users as AclInfo."""
        return [acl.to_json() for acl in self._acls.values()]

    async def create_user(self, name: str, user: dict[str, Any]) -> None:
        """Add a user, given as UserInfo."""
        self._users.change(self._users.creation(user_of(user)), lambda: self._acls.forget(name))

    async def update_user(self, name: str, user: dict[str, Any]) -> None:
        """Change a user, given as UserInfo with what changes."""
        self._users.change(self._users.update(with_end({**user, "username": name}, SystemClock().now_ms())))

    async def delete_user(self, name: str) -> None:
        """Remove a user with its permissions."""
        self._users.change(self._users.deletion(name), lambda: self._acls.forget(name))

    async def update_acl(self, subject: str, acl: dict[str, Any]) -> None:
        """Add entries, given as AclInfo, or replace those of the same resource."""
        self._acls.change(self._acls.update(acl_of(acl, subject), self._users))

    async def delete_acl(self, subject: str, policy: str, resource: str = "") -> None:
        """Remove the entry of a resource, or without one all entries of a subject."""
        self._acls.change(
            self._acls.deletion(subject_name(subject), policy, resource_of(resource) if resource else None))


@contextmanager
def access_to_change(store: str) -> Iterator[StoreAccess]:
    """Lock a directory, and yield its users and permissions. Raises StoreError."""
    return _opened(store, OsFileSystem())


@contextmanager
def access_to_read(store: str) -> Iterator[StoreAccess]:
    """Yield the users and permissions of a directory that is neither locked nor changed. Raises StoreError."""
    return _opened(store, OverlayFileSystem(OsFileSystem(), takes_locks=False))


def _opened(store: str, files: FileSystem) -> Iterator[StoreAccess]:
    if not is_directory(files, f"{store}/{CONFIG}"):
        raise NotAStoreError(store, "it has no directory config")
    lock = lock_store(files, store)
    try:
        users, acls = UserManager(files, f"{store}/{CONFIG}"), AclManager(files, f"{store}/{CONFIG}")
        users.load()
        acls.load()
        yield StoreAccess(users, acls)
    finally:
        lock.release()
