"""Users and permissions: requests 3001 to 3010, as mqadmin sends them, and 329005, with which a slave copies them.

Only super users change them, unless accessChangesNeedSuperUser is false. Then others need Update on the cluster. They
can give others only what they may do themselves, and change no super user.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from tailrace.auth.binding import BINDING, BINDING_MISSING
from tailrace.auth.grants import GIFTS_MAX, given_by, may_give
from tailrace.auth.model import (
    CUSTOM,
    DEFAULT,
    PREVIOUS,
    PREVIOUS_UNTIL,
    Acl,
    User,
    acl_of,
    resource_of,
    subject_name,
    user_name,
    user_of,
    with_end,
)
from tailrace.broker.core.access import Access
from tailrace.errors import ConfigError, RefusalError
from tailrace.formats import fastjson
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode, sender_of
from tailrace.formats.requests.access_headers import (
    AclRequestHeader,
    DeleteAclRequestHeader,
    ListAclsRequestHeader,
    ListUsersRequestHeader,
    UserRequestHeader,
)
from tailrace.ha.user_copy import is_inside_machine
from tailrace.node.access import AclManager, UserManager
from tailrace.remoting import Channel, RemotingServer
from tailrace.remoting.server import failure_of
from tailrace.requests.bodies import json_object
from tailrace.requests.config_changes import Change, ConfigChanges
from tailrace.requests.reply import Answer, Serve

__all__ = ["AccessProcessor"]


def _refused(step: Callable[..., Any]) -> Callable[..., Any]:
    """Change ConfigError of a step to RefusalError (NO_PERMISSION), which RocketMQ answers."""

    def run(*arguments: Any) -> Any:
        try:
            return step(*arguments)
        except ConfigError as error:
            raise RefusalError(ResponseCode.NO_PERMISSION, str(error)) from None

    return run


@final
class AccessProcessor:
    """Changes and shows users and permissions."""

    def __init__(
        self, access: Access, changes: ConfigChanges, read_only: str, now_ms: Callable[[], int],
    ) -> None:
        self._now_ms = now_ms
        self._access = access
        self._users, self._acls = access.users, access.acls
        self._changes = changes
        self._read_only = read_only

    def register(self, server: RemotingServer) -> None:
        """Register the requests that this processor serves."""
        code = RequestCode
        for number, change in {
            code.AUTH_CREATE_USER: self.create_user, code.AUTH_UPDATE_USER: self.update_user,
            code.AUTH_DELETE_USER: self.delete_user, code.AUTH_CREATE_ACL: self.update_acl,
            code.AUTH_UPDATE_ACL: self.update_acl, code.AUTH_DELETE_ACL: self.delete_acl,
        }.items():
            server.register(_refused(self._by_super_user(change)), number)
        for number, show in {
            code.AUTH_GET_USER: self.get_user, code.AUTH_LIST_USER: self.list_users,
            code.AUTH_GET_ACL: self.get_acl, code.AUTH_LIST_ACL: self.list_acls,
        }.items():
            server.register(_refused(show), number)
        server.register(self.slave_users, code.GET_SLAVE_USERS)

    def _by_super_user(self, change: Serve) -> Serve:
        control, config = self._access.enforced, self._access.config
        if control is None or not config.access_changes_need_super_user:
            return change

        def run(channel: Channel, request: RemotingCommand) -> Answer:
            control.require_super(channel, request, "change users and permissions")
            return change(channel, request)

        return run

    def _apply(self, channel: Channel, request: RemotingCommand, change: Change) -> Answer:
        if self._read_only:
            raise RefusalError(ResponseCode.SYSTEM_ERROR, self._read_only)
        if self._access.are_copied:
            raise RefusalError(
                ResponseCode.SYSTEM_ERROR, "this broker is a slave that copies users and permissions from its master, "
                "change them there")
        departures = self._access.departures
        if departures is None:
            return self._changes.apply(channel, request, [change], request.answer)
        acting = departures.acting
        acting.add(channel)

        def done() -> RemotingCommand:
            acting.discard(channel)
            return request.answer()

        def failed(channel: Channel, request: RemotingCommand, error: Exception) -> RemotingCommand:
            acting.discard(channel)
            return failure_of(channel, request, error)

        try:
            return self._changes.apply(channel, request, [change], done, failed)
        except BaseException:
            acting.discard(channel)
            raise

    def _is_super(self, request: RemotingCommand) -> bool:
        """Return whether a super user sent the request; without authentication every user counts as one."""
        if not self._access.config.authentication_enabled:
            return True
        user = self._users.get(sender_of(request))
        return user is not None and user.is_super

    def _check_gift(self, request: RemotingCommand, name: str, before: Acl | None, after: Acl | None) -> None:
        """Raise RefusalError if a change of permissions gives a user more than the sender may do."""
        if self._is_super(request):
            return
        if (user := self._users.get(name)) is not None and user.is_super:
            raise RefusalError(ResponseCode.NO_PERMISSION, "The super user can only be update by super user")
        mine = self._acls.get(sender_of(request))
        gifts = [*given_by(before, after)]
        if len(gifts) > GIFTS_MAX:
            raise RefusalError(
                ResponseCode.NO_PERMISSION,
                f"The request gives {len(gifts)} entries, the limit is {GIFTS_MAX} if no super user sends it.")
        for entry in gifts:
            if not may_give(mine, entry):
                raise RefusalError(
                    ResponseCode.NO_PERMISSION, f"User:{sender_of(request)} cannot give {','.join(entry.actions)} on "
                    f"{entry.resource.key}, because that user may not do all of it.")

    # --- users

    def _user_in(self, request: RemotingCommand) -> dict[str, Any]:
        name = request.read(UserRequestHeader).username
        if not name:
            raise RefusalError(ResponseCode.INVALID_PARAMETER, "The username is blank")
        return {**json_object(request), "username": name}

    def _check_length(self, value: dict[str, Any]) -> None:
        """Raise ConfigError for a new password that is too short."""
        low, password = self._access.config.password_length_min, value.get("password") or ""
        if 0 < len(password) < low:
            raise ConfigError(f"The password has {len(password)} characters, passwordLengthMin is {low}.")

    def _check_super(self, request: RemotingCommand, user: User) -> None:
        if user.is_super and not self._is_super(request):
            raise RefusalError(ResponseCode.NO_PERMISSION, "The super user can only be update by super user")

    def _check_update(self, request: RemotingCommand, user: User, *, takes_over: bool) -> None:
        """Raise RefusalError if the sender may not change a user; ``takes_over``: the change makes the user usable."""
        self._check_super(request, user)
        if takes_over and user.name != sender_of(request):
            self._check_gift(request, user.name, None, self._acls.get(user.name))

    def create_user(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Add a user: request 3001."""
        value = with_end(self._user_in(request), 0)
        user = user_of(value)
        self._check_length(value)
        if user.is_super and not self._is_super(request):
            raise RefusalError(ResponseCode.SYSTEM_ERROR, "The super user can only be create by super user")
        return self._apply(channel, request, Change(
            self._users, _refused(self._users.creation(user)), lambda: self._acls.forget(user.name)))

    def update_user(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Change password, type or status of a user: request 3002."""
        value = with_end(self._user_in(request), self._now_ms())
        wanted = user_of(value, User("", "-"))
        if wanted.is_super and not self._is_super(request):
            raise RefusalError(ResponseCode.SYSTEM_ERROR, "The super user can only be update by super user")
        self._check_length(value)
        takes_over = bool(value.get("password") or value.get(PREVIOUS_UNTIL)) or (
            bool(value.get("userStatus")) and wanted.enabled)
        return self._apply(channel, request, Change(self._users, _refused(self._users.update(
            value, lambda user: self._check_update(request, user, takes_over=takes_over)))))

    def delete_user(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Remove a user with its permissions: request 3003."""
        name = user_name(request.read(UserRequestHeader).username)
        return self._apply(channel, request, Change(
            self._users, _refused(self._users.deletion(name, lambda user: self._check_super(request, user))),
            lambda: self._acls.forget(name)))

    def _user_info(self, user: User, *, with_password: bool) -> dict[str, Any]:
        made = user.to_json()
        made.pop(PREVIOUS, None)
        if not with_password:
            del made["password"]
        return made

    def get_user(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Return a user: request 3004. Only authenticated super users receive its password."""
        name = request.read(UserRequestHeader).username
        if not name.strip():
            raise RefusalError(ResponseCode.INVALID_PARAMETER, "The username is blank")
        user = self._users.get(name)
        return request.answer(body=b"" if user is None else fastjson.dumps(
            self._user_info(user, with_password=self._shows_passwords(request))))

    def list_users(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Return the users whose name contains a text: request 3005."""
        text, shown = request.read(ListUsersRequestHeader).filter.strip(), self._shows_passwords(request)
        found = [self._user_info(user, with_password=shown) for user in self._users.values() if text in user.name]
        return request.answer(body=fastjson.dumps(found) if found else b"")

    def _shows_passwords(self, request: RemotingCommand) -> bool:
        return self._access.config.authentication_enabled and self._is_super(request)

    def slave_users(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Return all users with their passwords, and all permissions, as in their files: request 329005.

        A super user must have signed the request with a binding, and the connection must be encrypted or inside the
        machine; see `tailrace.ha.user_copy`.
        """
        control = self._access.enforced
        if control is None:
            raise RefusalError(
                ResponseCode.NO_PERMISSION, "authenticationEnabled is not true at the master, so it does not "
                "know whose request for passwords this is")
        control.require_super(channel, request, "copy users with their passwords")
        if control.bindings is None:
            raise RefusalError(
                ResponseCode.NO_PERMISSION, "authenticationBinding=off at the master: a request for passwords needs a "
                "binding")
        if BINDING not in request.ext:
            raise RefusalError(ResponseCode.NO_PERMISSION, BINDING_MISSING)
        if not channel.is_tls and not is_inside_machine(channel.peer_ip):
            raise RefusalError(ResponseCode.NO_PERMISSION, "passwords are copied over TLS only")
        return request.answer(body=fastjson.dumps_large({
            AclManager.member: self._acls.to_json()[AclManager.member],
            UserManager.member: self._users.to_json()[UserManager.member]}))

    # --- permissions

    def update_acl(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Add entries, or replace those of the same resource: requests 3006 and 3007."""
        acl = acl_of(json_object(request), request.read(AclRequestHeader).subject)
        return self._apply(channel, request, Change(self._acls, _refused(self._acls.update(
            acl, self._users, lambda before, after: self._check_gift(request, acl.name, before, after)))))

    def delete_acl(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Remove the entry of a resource, or all entries of a user: request 3008."""
        header = request.read(DeleteAclRequestHeader)
        name = self._subject(header.subject, "The subject is not exist.")
        policy = header.policy_type or CUSTOM
        policy = next((one for one in (CUSTOM, DEFAULT) if one.lower() == policy.lower()), "")
        if not policy:
            raise ConfigError(f"The policy type {header.policy_type[:40]!r} is not Custom or Default.")
        resource = resource_of(header.resource) if header.resource.strip() else None
        return self._apply(channel, request, Change(
            self._acls, _refused(self._acls.deletion(
                name, policy, resource, lambda before, after: self._check_gift(request, name, before, after)))))

    def get_acl(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Return the entries of a user: request 3009."""
        name = self._subject(request.read(AclRequestHeader).subject, "The subject is not exist.")
        acl = self._acls.get(name)
        return request.answer(body=b"" if acl is None else fastjson.dumps(acl.to_json()))

    def _subject(self, subject: str, remark: str) -> str:
        name = subject_name(subject)
        if self._users.get(name) is None:
            raise ConfigError(remark)
        return name

    def list_acls(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Return the entries whose subject and resource contain given texts: request 3010."""
        header = request.read(ListAclsRequestHeader)
        found = []
        for acl in self._acls.values():
            if header.subject_filter.strip() not in acl.subject:
                continue
            text = header.resource_filter.strip()
            custom, default = (
                tuple(entry for entry in entries if text in entry.resource.key)
                for entries in (acl.custom, acl.default))
            if shown := Acl(acl.name, custom, default):
                found.append(shown.to_json())
        return request.answer(body=fastjson.dumps(found) if found else b"")
