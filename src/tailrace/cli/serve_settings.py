"""Settings and addresses of ``tailrace serve``, from its options and the file of ``--config``."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from tailrace import events
from tailrace.auth_settings import AuthConfig
from tailrace.broker.core.listeners import Address, is_own_address
from tailrace.broker.core.registration import name_server_addresses
from tailrace.cli.arguments import key_values
from tailrace.cli.serve import NAMESRV_ADDR, is_of_this_machine, parse_address
from tailrace.config import BrokerConfig, BrokerRole, NameServerConfig, StoreConfig
from tailrace.env.filesystem import OsFileSystem
from tailrace.env.whole_files import read_if_there
from tailrace.errors import ConfigError
from tailrace.java_settings import REASONS, refuse_settings, refused_settings, unused_settings
from tailrace.logs import get_logger
from tailrace.remoting.addresses import address_text, host_of
from tailrace.tls_settings import DEFAULT_TLS_FILE, TlsConfig, tls_config_of

__all__ = ["Places", "Settings", "places_of", "read_password", "set_by_hand", "take_settings"]

_log = get_logger(__name__)
NAMESRV_LISTEN: Final = "127.0.0.1:9876"
NONE: Final = "none"
TLS_FILE_MAX: Final = 1 << 20
"""Largest file of TLS settings, in bytes."""
FIRST_USER: Final = "initAuthenticationUser"
Made = TypeVar("Made")


class Settings(NamedTuple):
    """The configurations of a server, from a file of settings."""

    store: StoreConfig
    broker: BrokerConfig
    name_server: NameServerConfig
    auth: AuthConfig
    tls: TlsConfig


class Places(NamedTuple):
    """The addresses on which a server listens."""

    broker: Address
    namesrv: Address | None
    """None if no name server runs in this process."""
    http: Address | None
    grpc: Address | None
    """None without a gRPC endpoint."""
    names: tuple[str, str]
    """The options or settings of the first two addresses, for errors."""

    def check_plain(self, settings: Settings, *, grpc_encrypted: bool, allowed: bool) -> None:
        """Refuse connections with other machines on which users prove themselves and that may have no TLS.

        Raises ConfigError; if they are ``allowed``, logs a warning for each address instead.
        """
        ports = self._plain_ports(settings, grpc_encrypted=grpc_encrypted)
        dialled = _plain_name_servers(settings)
        if allowed:
            for _, address in ports:
                events.CONNECTIONS_WITH_USERS_ARE_NOT_ENCRYPTED.log(_log, address=address)
            for address in dialled:
                events.SIGNED_REQUESTS_ARE_NOT_ENCRYPTED.log(_log, address=address)
            return
        problems = []
        if ports:
            problems.append(
                f"other machines can reach {' and '.join(map(' '.join, ports))} without TLS: whoever records a "
                "connection there can send requests as its user, or read the password of the console; set "
                "tls.server.mode=enforcing with tls.server.certPath and tls.server.keyPath, or add --allow-plain to "
                "start nevertheless")
        if dialled:
            problems.append(
                "the broker signs requests as the user of innerClientAuthenticationCredentials and would send them to "
                f"{' and '.join(dialled)} of namesrvAddr without TLS, where whoever records one can use it; set "
                "tls.enable=true with tls.client.trustCertPath, or add --allow-plain to start nevertheless")
        if problems:
            raise ConfigError(*problems)

    def _plain_ports(self, settings: Settings, *, grpc_encrypted: bool) -> list[tuple[str, str]]:
        """Return option and address of each port for users of other machines that does not enforce TLS."""
        if not settings.auth.authentication_enabled:
            return []
        encrypted = settings.tls.mode == "enforcing"
        ports = (
            (self.names[0], self.broker, encrypted), (self.names[1], self.namesrv, encrypted),
            ("--grpc", self.grpc, grpc_encrypted), ("--http", self.http, encrypted))
        return [(name, address_text(*place)) for name, place, safe in ports
                if place is not None and not safe and not is_of_this_machine(place[0])]

    def open_host(self, *, authenticated: bool) -> tuple[str, str] | None:
        """Return the first host at which clients of other machines need no user, with the reason; None without one."""
        found = [] if authenticated else [
            (place[0], "there is no access control without --user or authenticationEnabled=true")
            for place in (self.broker, self.namesrv, self.grpc) if place is not None]
        if self.http is not None:
            found.append((self.http[0], "the pages of --http have no access control"))
        return next((pair for pair in found if not is_of_this_machine(pair[0])), None)


def _plain_name_servers(settings: Settings) -> list[str]:
    """Return the name servers of other machines to which the broker sends signed requests without TLS."""
    if settings.auth.inner_client() is None or settings.tls.client_uses_tls:
        return []
    return [address_text(*place) for place in name_server_addresses(settings.broker.namesrv_addr)
            if not is_of_this_machine(place[0]) and not is_own_address(place[0])]


def take_settings(
    values: Mapping[str, str], ignored: Collection[str] = (), first_user: tuple[str, str] | None = None,
    audit_log: str = "",
) -> Settings:
    """Return the configurations of a file; log a warning for each unsupported setting in ``ignored``.

    A ``first_user`` (name and password) switches access control on. ``audit_log`` overrides the setting auditLog.

    Raises ConfigError for invalid values, and for unsupported settings that are not in ``ignored``.
    """
    problems: list[str] = []
    try:
        for name, setting in refuse_settings(values, ignored).items():
            events.A_SETTING_IS_IGNORED_AS_ASKED.log(_log, setting=name, reason=REASONS[setting.reason])
    except ConfigError as error:
        problems += error.problems

    def taken(make: Callable[[], Made], default: Made) -> Made:
        try:
            return make()
        except ConfigError as error:
            problems.extend(error.problems)
            return default

    def broker() -> BrokerConfig:
        made = BrokerConfig.from_properties(values)
        name_server_addresses(made.namesrv_addr)
        return made

    found = Settings(
        taken(lambda: StoreConfig.from_properties(values), StoreConfig()), taken(broker, BrokerConfig()),
        taken(lambda: NameServerConfig.from_properties(values), NameServerConfig()),
        taken(lambda: AuthConfig.from_properties({
            **values, **_with_user(values, first_user), **({"auditLog": audit_log} if audit_log else {})}),
              AuthConfig()),
        taken(lambda: tls_config_of(values, _tls_file), TlsConfig()))
    if found.broker.metrics_needs_user and not found.auth.authentication_enabled and not problems:
        problems.append("metricsNeedsUser=true needs authenticationEnabled=true: without it there are no users")
    problems += _role_problems(found)
    if problems:
        raise ConfigError(*problems)
    return found


def _role_problems(found: Settings) -> list[str]:
    """Return why role and number of the broker do not fit."""
    role, number = found.store.broker_role, found.broker.broker_id
    if role is not BrokerRole.SLAVE:
        return [f"brokerId={number} needs brokerRole=SLAVE; a master has brokerId=0"] if number else []
    problems = [] if number else ["brokerRole=SLAVE needs a brokerId above 0"]
    if not found.broker.namesrv_addr:
        problems.append("brokerRole=SLAVE needs namesrvAddr, where its master is registered")
    return problems


def set_by_hand(items: list[str]) -> dict[str, str]:
    """Return the settings of --set NAME=VALUE, and log their names. Raises ConfigError for one that does not exist."""
    values = key_values(items, "--set")
    if unknown := unused_settings(values, without=refused_settings(values)):
        raise ConfigError(f"--set: no such setting here: {', '.join(unknown)}")
    if values:
        events.SETTINGS_OF_THE_COMMAND_LINE.log(_log, settings=",".join(values))
    return values


def _tls_file(path: str) -> str | None:
    """Return the text of a file of TLS settings; None if it does not exist."""
    try:
        found = read_if_there(OsFileSystem(), path, TLS_FILE_MAX)
        return None if found is None else found.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        if path != DEFAULT_TLS_FILE:
            raise ConfigError(f"tls.config.file={path} cannot be read: {error}") from None
        events.TLS_CONFIG_FILE_IS_LEFT_OUT.log(_log, file=path, reason=error)
        return None


def _with_user(values: Mapping[str, str], first_user: tuple[str, str] | None) -> dict[str, str]:
    """Return the settings that ``serve --user`` sets. Raises ConfigError if the file contradicts them."""
    if first_user is None:
        return {}
    if values.get(FIRST_USER):
        raise ConfigError(f"--user and {FIRST_USER} of the file both name the first user")
    name, password = first_user
    made = {FIRST_USER: json.dumps({"username": name, "password": password})}
    for setting in ("authenticationEnabled", "authorizationEnabled"):
        if values.get(setting, "true").strip().lower() != "true":
            raise ConfigError(f"--user needs {setting}=true, and the file says {setting}={values[setting]}")
        made[setting] = "true"
    return made


def read_password(path: Path) -> str:
    """Return the password in a file, without the end of its line. Raises ConfigError or OSError."""
    try:
        password = path.read_text("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: byte {error.start}") from None
    if not password.strip() or "\n" in password:
        raise ConfigError(f"{path} must have exactly one line, the password")
    return password


def places_of(
    config: BrokerConfig, listen: str = "", namesrv_listen: str = "", http: str = "", grpc: str = ""
) -> Places:
    """Return the addresses to listen on; options override settings. Raises ValueError that names the wrong one.

    A slave (``broker_id`` above 0) has no name server of its own, because that would name it as a master.
    """
    broker = parse_address(listen, "--listen") if listen else (host_of(config.bind_address), config.listen_port)
    others, name, namesrv = name_server_addresses(config.namesrv_addr), "--namesrv-listen", None
    if config.broker_id:
        if namesrv_listen not in {"", NONE}:
            raise ValueError(f"{name} {namesrv_listen}: a slave has no name server, it registers at namesrvAddr")
    elif namesrv_listen:
        namesrv = None if namesrv_listen == NONE else parse_address(namesrv_listen, name)
    elif others:
        name = NAMESRV_ADDR
        namesrv = next((place for place in others if is_own_address(place[0])), None)
    else:
        namesrv = parse_address(NAMESRV_LISTEN, name)
    names = ("--listen" if listen else "bindAddress and listenPort", name)
    if broker == namesrv and broker[1]:
        raise ValueError(f"{names[0]} and {names[1]} are both {address_text(*broker)}")
    endpoint = (host_of(config.bind_address), config.grpc_server_port) if config.grpc_server_port else None
    return Places(
        broker, namesrv, parse_address(http, "--http") if http else None,
        parse_address(grpc, "--grpc") if grpc else endpoint, names)
