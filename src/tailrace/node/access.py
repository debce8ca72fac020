"""Users and their permissions: ``config/tailrace-users.json`` and ``config/tailrace-acls.json``.

Both files have the mode 0600. A change is durable before it counts. A file that cannot be read stops the start:
an older one could give back what was taken from a user.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, final

from tailrace.auth.model import Acl, Resource, User, acl_of, user_of
from tailrace.env.filesystem import FileSystem
from tailrace.env.whole_files import read_if_there
from tailrace.errors import ConfigError, StoreError
from tailrace.formats import fastjson, filenames
from tailrace.node.config_manager import ConfigManager, Draft, Owned

__all__ = ["AclManager", "UserManager"]

USERS_MAX: Final = 100_000
V = TypeVar("V")


def _anything(before: Acl | None, after: Acl | None) -> None:
    """Allow every change."""


class _AccessManager(ConfigManager[str, V]):
    """A table by name of user, in a list of the file."""

    owned = Owned.BY_DRAFT

    private = True
    member = ""

    def load(self) -> bool:
        """Read the file; its backup only if there is no file. Raises StoreError that says what is wrong, and where."""
        for path in (self.path, f"{self.path}.bak"):
            text = read_if_there(self._file_system, path)
            if text is None:
                continue
            try:
                found = fastjson.loads(text)
            except ValueError as error:
                raise self._broken(path, f"is not JSON: {error}") from None
            if not isinstance(found, dict) or not isinstance(found.get(self.member), list):
                raise self._broken(path, f"has no list {self.member}")
            self._take(found)
            return True
        return False

    def _broken(self, path: str, what: str) -> StoreError:
        return StoreError(
            f"{path} {what}; the broker does not start without the permissions that were set: repair the file, or "
            f"restore it from a backup")

    def _decode(self, value: dict[str, Any]) -> None:
        table: dict[str, V] = {}
        for place, one in enumerate(value.pop(self.member)):
            try:
                name, made = self._read(one)
            except (ConfigError, AttributeError) as error:
                text = str(error) if isinstance(error, ConfigError) else "not an object"
                raise self._broken(self.path, f"has an error in {self.member}[{place}]: {text}") from None
            if name in table:
                raise self._broken(self.path, f"has an error in {self.member}[{place}]: {name} is there twice")
            table[name] = made
        self._table = table

    def _read(self, value: Any) -> tuple[str, V]:
        raise NotImplementedError

    def get(self, name: str) -> V | None:
        """Return the value of a user."""
        return self._table.get(name)

    def values(self) -> list[V]:
        """Return all values by name of user."""
        return [value for _, value in sorted(dict(self._table).items())]

    def __len__(self) -> int:
        return len(self._table)


@final
class UserManager(_AccessManager[User]):
    """Users by name."""

    member = "users"

    def __init__(self, file_system: FileSystem, config_dir: str) -> None:
        super().__init__(file_system, config_dir, filenames.USERS)

    def creation(self, user: User) -> Callable[[Draft[str, User]], None]:
        """The change that adds a user. It raises ConfigError for one that is there."""

        def change(draft: Draft[str, User]) -> None:
            if draft.get(user.name) is not None:
                raise ConfigError("The user is existed")
            if len(draft) >= USERS_MAX:
                raise ConfigError(f"there are {USERS_MAX} users, the limit")
            draft.put(user.name, user)

        return change

    def update(
        self, value: dict[str, Any], allowed: Callable[[User], None] = lambda _: None
    ) -> Callable[[Draft[str, User]], None]:
        """The change of what members of UserInfo name; ``allowed`` may raise for the present user."""

        def change(draft: Draft[str, User]) -> None:
            present = draft.get(str(value.get("username")))
            if present is None:
                raise ConfigError("The user is not exist")
            allowed(present)
            draft.put(present.name, user_of(value, present))

        return change

    def deletion(
        self, name: str, allowed: Callable[[User], None] = lambda _: None
    ) -> Callable[[Draft[str, User]], bool]:
        """The change that removes a user; it returns whether there was one."""

        def change(draft: Draft[str, User]) -> bool:
            present = draft.get(name)
            if present is not None:
                allowed(present)
            return draft.remove(name)

        return change

    def _read(self, value: Any) -> tuple[str, User]:
        user = user_of(value)
        return user.name, user

    def _encode(self, table: dict[str, User]) -> dict[str, Any]:
        return {self.member: [user.to_json() for _, user in sorted(table.items())]}


@final
class AclManager(_AccessManager[Acl]):
    """The entries of users by name."""

    member = "acls"

    def __init__(self, file_system: FileSystem, config_dir: str) -> None:
        super().__init__(file_system, config_dir, filenames.ACLS)

    def update(
        self, acl: Acl, users: UserManager, allowed: Callable[[Acl | None, Acl | None], None] = _anything,
    ) -> Callable[[Draft[str, Acl]], None]:
        """The change that adds entries, or replaces those of the same resource.

        ``allowed`` gets the entries of the user before and after it, and may raise.
        """

        def change(draft: Draft[str, Acl]) -> None:
            if users.get(acl.name) is None:
                raise ConfigError(f"The subject of {acl.subject} is not exist.")
            before = draft.get(acl.name)
            after = (before or Acl(acl.name)).updated(acl)
            allowed(before, after)
            draft.put(acl.name, after)

        return change

    def deletion(
        self, name: str, policy: str, resource: Resource | None,
        allowed: Callable[[Acl | None, Acl | None], None] = _anything,
    ) -> Callable[[Draft[str, Acl]], None]:
        """The change that removes the entry of a resource, or without one all entries of a user; see `update`."""

        def change(draft: Draft[str, Acl]) -> None:
            present = draft.get(name)
            if present is None:
                raise ConfigError("The acl is not exist.")
            left = None if resource is None else present.without(policy, resource)
            allowed(present, left)
            if left:
                draft.put(name, left)
            else:
                draft.remove(name)

        return change

    def forget(self, name: str) -> None:
        """Remove all entries of a user; durable on return."""
        if self.get(name) is not None:
            self.change(lambda draft: draft.remove(name))

    def _read(self, value: Any) -> tuple[str, Acl]:
        acl = acl_of(value)
        return acl.name, acl

    def _encode(self, table: dict[str, Acl]) -> dict[str, Any]:
        return {self.member: [acl.to_json() for _, acl in sorted(table.items())]}
