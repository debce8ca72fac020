"""The HTTP port of ``tailrace serve``: probes, metrics, the console and its actions."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, final

from tailrace.auth_settings import AuthConfig
from tailrace.broker.controller import BrokerController
from tailrace.broker.core.listeners import Address, why_not_listening
from tailrace.config import BrokerConfig
from tailrace.errors import ConfigError, StoreError
from tailrace.remoting.acceptor import ENFORCING, Acceptor
from tailrace.remoting.addresses import address_text

if TYPE_CHECKING:
    from tailrace.console.actions import ConsoleActions
    from tailrace.observe.http_status import HttpStatusServer, RecoveryProgress

__all__ = ["HttpPlace", "check_console_actions", "start_http"]


@final
class HttpPlace:
    """The HTTP port, and the actions that run."""

    def __init__(self, server: HttpStatusServer, *, actions: bool) -> None:
        self._server, self._with_actions = server, actions
        self._actions: ConsoleActions | None = None

    def serving(self, controller: BrokerController) -> None:
        """Show a broker that serves clients, and let its users act if they may."""
        from tailrace.console import Console  # noqa: PLC0415 - only with --http

        broker, control = controller.broker, controller.access.enforced
        if self._with_actions and control is not None:
            from tailrace.broker.admin.group_offsets import GroupOffsetsProcessor  # noqa: PLC0415
            from tailrace.broker.admin.topics import TopicsProcessor  # noqa: PLC0415
            from tailrace.console.actions import ConsoleActions  # noqa: PLC0415 - only with --console-actions

            self._actions = ConsoleActions(
                broker, control, controller.for_users("console"), controller.audit, broker.make(TopicsProcessor),
                broker.make(GroupOffsetsProcessor))
        self._server.serving(broker, control, self._actions, Console(broker, actions=self._with_actions))

    async def stopping(self) -> None:
        """Set the state to stopping, and wait until no action runs."""
        self._server.stopping()
        if self._actions is not None:
            await self._actions.stop()

    async def stop(self) -> None:
        """Close the port."""
        await self._server.stop()


def check_console_actions(http: Address | None, auth: AuthConfig) -> None:
    """Raise ConfigError if the console cannot have actions, because it is off or has no users with permissions."""
    problems = [] if http is not None else ["--console-actions needs --http HOST:PORT, the address of the console"]
    if not auth.authentication_enabled:
        problems.append(
            "--console-actions needs users, so that each action has one who may take it: start with --user NAME "
            "--password-file FILE, or set authenticationEnabled=true and authorizationEnabled=true")
    elif not auth.authorization_enabled:
        problems.append(
            "--console-actions needs authorizationEnabled=true: without it every user may take every action")
    if problems:
        raise ConfigError(*problems)


async def start_http(
    listen: Address | None, broker_config: BrokerConfig, progress: RecoveryProgress, acceptor: Acceptor, *,
    actions: bool,
) -> HttpPlace | None:
    """Listen, and print the address; return None without one. Raises StoreError if that is not possible."""
    if listen is None:
        return None
    from tailrace.cli.serve import say  # noqa: PLC0415 - it imports this module
    from tailrace.console import Console  # noqa: PLC0415
    from tailrace.observe.http_status import HttpStatusServer  # noqa: PLC0415 - only with --http

    http = HttpStatusServer(
        broker_config, progress, acceptor=acceptor, pages=Console(actions=actions),
        metrics_token=_metrics_token(broker_config))
    try:
        host, port = await http.start(*listen)
    except OSError as error:
        raise StoreError(
            f"cannot listen on --http {address_text(*listen)}: {why_not_listening(error, listen[1])}"
        ) from error
    say(f"http={address_text(host, port)}", sys.stderr)
    scheme = "https" if acceptor.mode == ENFORCING else "http"
    say(f"console at {scheme}://{address_text(host, port)}/console/", sys.stderr)
    return HttpPlace(http, actions=actions)


def _metrics_token(config: BrokerConfig) -> str:
    """Return the token that scrapers need, empty without the setting. Raises ConfigError."""
    from tailrace.cli.serve_settings import read_password  # noqa: PLC0415 - it imports cli.serve

    path = config.metrics_token_file
    if not path:
        return ""
    try:
        return read_password(Path(path))
    except OSError as error:
        raise ConfigError(f"metricsTokenFile={path} cannot be read: {error.strerror}") from None
