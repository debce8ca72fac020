"""The users and permissions of a broker, and the check of its requests."""

from __future__ import annotations

from typing import final

from tailrace import events
from tailrace.auth.check import AccessControl
from tailrace.auth.model import user_of
from tailrace.auth.signature import Credentials
from tailrace.auth_settings import AuthConfig
from tailrace.env.clock import Clock
from tailrace.env.filesystem import FileSystem
from tailrace.errors import ConfigError
from tailrace.logs import get_logger
from tailrace.node.access import AclManager, UserManager
from tailrace.remoting import Channel, RemotingServer
from tailrace.remoting.strangers import Strangers

__all__ = ["Access"]

_log = get_logger(__name__)


@final
class Access:
    """Users and permissions of a directory, loaded.

    Raises StoreError if a file cannot be read, and ConfigError if authentication is on and no super user exists.
    """

    def __init__(
        self, clock: Clock, file_system: FileSystem, config_dir: str, config: AuthConfig, cluster: str, *,
        read_only: bool = False,
    ) -> None:
        self.config = config
        self.users = UserManager(file_system, config_dir)
        self.acls = AclManager(file_system, config_dir)
        self.users.load()
        self.acls.load()
        inner = config.inner_client()
        self.inner_client = None if inner is None else Credentials(*inner)
        """Credentials with which the broker signs its own requests; None if it signs none."""
        for pair in (config.first_user(), inner):
            if pair is not None and self.users.get(pair[0]) is None and not read_only:
                user = user_of({"username": pair[0], "password": pair[1], "userType": "Super"})
                self.users.change(self.users.creation(user))
                events.SUPER_USER_CREATED.log(_log, user=repr(pair[0]))
        if config.authentication_enabled and not any(user.is_super and user.enabled for user in self.users.values()):
            raise ConfigError(
                "authenticationEnabled=true, but there is no super user: start with `serve --user NAME --password-file "
                "FILE`, or set initAuthenticationUser")
        self.control = AccessControl(clock, config, cluster, self.users.get, self.acls.get)
        self.users.on_change = self.acls.on_change = self.control.changed
        self._strangers: Strangers[Channel] = Strangers(
            config.unauthenticated_frame_max_bytes, config.unauthenticated_timeout_seconds,
            config.unauthenticated_connections_max)

    @property
    def enforced(self) -> AccessControl | None:
        """The check of requests; None if clients need no user."""
        return self.control if self.config.authentication_enabled else None

    def guard(self, server: RemotingServer) -> None:
        """Have a server check every request first, and limit connections that are not authenticated yet."""
        if self.enforced is not None:
            server.check = self.control.check
            server.strangers = self._strangers
