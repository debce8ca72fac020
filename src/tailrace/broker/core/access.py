"""The users and permissions of a broker, and the check of its requests."""

from __future__ import annotations

from typing import Final, final

from tailrace import events
from tailrace.auth.check import AccessControl, Recorder
from tailrace.auth.model import PASSWORD_MIN, user_of
from tailrace.auth.quotas import UserConnection, UserQuotas, request_size
from tailrace.auth.signature import Credentials
from tailrace.auth_settings import AuthConfig
from tailrace.broker.clients.leaving import Departures
from tailrace.env.clock import Clock
from tailrace.env.filesystem import FileSystem
from tailrace.errors import ConfigError
from tailrace.formats.remoting import RemotingCommand, sender_of
from tailrace.logs import get_logger
from tailrace.node.access import AclManager, UserManager
from tailrace.remoting import Channel, RemotingServer
from tailrace.remoting.unauthenticated import Unauthenticated

__all__ = ["Access"]

_log = get_logger(__name__)

NAMED_MAX: Final = 20
"""Number of users that a line of the log names."""


@final
class Access:
    """Users and permissions of a directory, loaded.

    Raises StoreError if a file cannot be read, and ConfigError if authentication is on and no super user exists.
    """

    def __init__(
        self, clock: Clock, file_system: FileSystem, config_dir: str, config: AuthConfig, cluster: str, *,
        read_only: bool = False, recorder: Recorder | None = None,
    ) -> None:
        self.config = config
        self.are_copied = False
        """True on a slave whose users and permissions are those of its master; a change there would be undone."""
        self.users = UserManager(file_system, config_dir)
        self.acls = AclManager(file_system, config_dir)
        had_users = self.users.load()
        self.acls.load()
        inner = config.inner_client()
        self.inner_client = None if inner is None else Credentials(*inner)
        """Credentials with which the broker signs its own requests; None if it signs none."""
        if not read_only:
            self._create_users({
                "initAuthenticationUser": config.first_user(), "innerClientAuthenticationCredentials": inner},
                had_users=had_users)
        if config.authentication_enabled and not any(user.is_super and user.enabled for user in self.users.values()):
            raise ConfigError(
                "authenticationEnabled=true, but there is no super user: " + (
                    "add one with `tailrace acl user add STORE NAME --super --password-file FILE`" if had_users else
                    "start with `serve --user NAME --password-file FILE`, or set initAuthenticationUser"))
        if config.authentication_enabled:
            self._warn_about_short_passwords()
        self.control = AccessControl(clock, config, cluster, self.users.get, self.acls.get, recorder)
        for table in (self.users, self.acls):
            table.on_change(self._changed)
        self.departures: Departures | None = None
        """Ends what users may not have any more; set by the broker if clients need a user."""
        self.quotas = UserQuotas(clock, config)
        """What users may send."""
        self._unauthenticated: Unauthenticated[Channel] = Unauthenticated(
            config.unauthenticated_frame_max_bytes, config.unauthenticated_timeout_seconds,
            config.unauthenticated_connections_max)

    def _warn_about_short_passwords(self) -> None:
        short = [user.name for user in self.users.values() if len(user.password) < PASSWORD_MIN and user.enabled]
        if short:
            events.SHORT_PASSWORDS.log(_log, users=",".join(map(repr, short[:NAMED_MAX])), count=len(short))

    def _changed(self) -> None:
        self.control.changed()
        if self.departures is not None:
            self.departures.changed()

    def _create_users(self, wanted: dict[str, tuple[str, str] | None], *, had_users: bool) -> None:
        """Create the super users that settings name, if the directory never had a user.

        Later a missing user may be one that was deleted, for example because its password became known, so a start
        must not create it again with that password.
        """
        missing = {setting: pair for setting, pair in wanted.items() if pair and self.users.get(pair[0]) is None}
        if had_users:
            for setting, (name, _) in missing.items():
                events.USER_OF_A_SETTING_NOT_CREATED.log(_log, user=repr(name), setting=setting)
            return
        users = {name: user_of({"username": name, "password": password, "userType": "Super"})
                 for name, password in missing.values()}
        if users:
            edits = [self.users.creation(user) for user in users.values()]
            self.users.change(lambda draft: [edit(draft) for edit in edits])
        for name in users:
            events.SUPER_USER_CREATED.log(_log, user=repr(name))

    @property
    def enforced(self) -> AccessControl | None:
        """The check of requests; None if clients need no user."""
        return self.control if self.config.authentication_enabled else None

    def advertise(self, address: str) -> None:
        """Accept requests that are bound to an address under which name servers know this server."""
        if self.control.bindings is not None:
            self.control.bindings.advertised.add(address)

    def _check_with_quotas(self, channel: Channel, request: RemotingCommand) -> None:
        self.control.check(channel, request)
        if name := sender_of(request):
            self.take(name, channel, request_size(request), request.code)

    def take(self, name: str, connection: UserConnection, size: int, code: int) -> None:
        """Count a request of a proven user. Raises RefusalError if the user is over a quota."""
        user = self.users.get(name)
        if user is not None and not user.is_super:
            self.quotas.take(name, connection, size, code)

    def check_proven(self, channel: Channel, request: RemotingCommand) -> None:
        """Check a request whose user another protocol has proven. Raises RefusalError."""
        if (refusal := self.control.refused(channel, request)) is not None:
            raise refusal
        if self.quotas.enabled:
            self.take(sender_of(request), channel, request_size(request), request.code)

    def guard(self, server: RemotingServer) -> None:
        """Have a server check every request first, and limit connections that are not authenticated yet."""
        if self.enforced is not None:
            server.check = self._check_with_quotas if self.quotas.enabled else self.control.check
            server.limits.over_quota = self.quotas.refused
            server.unauthenticated = self._unauthenticated
            server.limits.unauthenticated_bytes_max = self.config.unauthenticated_buffer_max_bytes
        if self.departures is not None:
            self.departures.servers.append(server)
