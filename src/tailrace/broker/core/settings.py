"""Settings of a running server: requests 25 and 26 of a broker, 318 and 319 of a name server.

Only settings that are declared ``live`` can change. A change is first written to the file of ``--config``, so
that the next start also uses it; the other lines of the file stay as they are. Without such a file the change
lasts until the server ends, and the answer says so.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, final

from tailrace import events
from tailrace.auth.accesses import CLUSTER, Access
from tailrace.auth.check import AccessControl
from tailrace.auth_settings import AuthConfig
from tailrace.config import (
    SECRET,
    BrokerConfig,
    NameServerConfig,
    StoreConfig,
    option_name,
)
from tailrace.env.clock import Clock
from tailrace.env.filesystem import FileSystem
from tailrace.env.whole_files import read_file, replace_file
from tailrace.errors import ConfigError, FatalStorageError, RefusalError
from tailrace.formats import fastjson
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode, sender_of
from tailrace.formats.requests.broker_headers import GetBrokerConfigResponseHeader
from tailrace.formats.requests.table import Action
from tailrace.java_settings import java_settings
from tailrace.logs import get_logger
from tailrace.node.config_manager import DataVersion
from tailrace.properties import SETTINGS_FILE_MAX, parse_properties, setting_text, with_settings
from tailrace.remoting import Channel, RemotingServer
from tailrace.requests.reply import Answer
from tailrace.requests.worker import RequestWorker
from tailrace.tls_settings import TLS_ALIASES, TLS_NAMES

__all__ = ["RunningSettings", "SettingsFile", "SettingsProcessor", "properties_in", "settings_of"]

_log = get_logger(__name__)
BLACK_LIST: Final = frozenset({
    "brokerConfigPath", "rocketmqHome", "configBlackList", "configStorePath", "kvConfigPath"})
"""Settings that RocketMQ refuses to change."""
BODY_MAX: Final = 256 * 1024
"""Largest properties text in a request, in bytes. Parsing that much takes about 5 ms."""
CHANGES_MAX: Final = 200
"""Number of settings in one request."""
SHOWN_MAX: Final = 60
Config = StoreConfig | BrokerConfig | NameServerConfig | AuthConfig


def settings_of(*configs: Any, **more: object) -> dict[str, str]:
    """Return settings as text, by RocketMQ's names; secrets are hidden."""
    found: dict[str, str] = {}
    for config in configs:
        for f in dataclasses.fields(config):
            value = getattr(config, f.name)
            found[option_name(f)] = SECRET if value and f.metadata["secret"] else setting_text(value)
    return {**found, **{name: setting_text(value) for name, value in more.items()}}


def properties_in(body: bytes) -> dict[str, str]:
    """Return the values of a properties text in a request. Raises RefusalError if it is too long or not UTF-8."""
    if len(body) > BODY_MAX:
        raise RefusalError(
            ResponseCode.INVALID_PARAMETER, f"the body has {len(body)} bytes, over the limit of {BODY_MAX}")
    try:
        return parse_properties(body.decode())
    except UnicodeDecodeError as error:
        raise RefusalError(
            ResponseCode.SYSTEM_ERROR,
            f"string2Properties error: byte {error.start} of the body is not UTF-8") from None
    except ValueError as error:
        raise RefusalError(ResponseCode.SYSTEM_ERROR, f"string2Properties error: {error}") from None


@final
class SettingsFile:
    """The file of ``--config``. ``path`` is absolute and not a symbolic link; a write keeps its permissions.

    A file that is a mount of its own, as containers have them, is overwritten.
    """

    def __init__(self, file_system: FileSystem, path: str) -> None:
        self._file_system = file_system
        self.path = path
        self._lock = threading.Lock()

    def write(self, values: Mapping[str, str]) -> None:
        """Write these values to the file; they are durable on return. Raises OSError or ValueError."""
        with self._lock:
            data = read_file(self._file_system, self.path, SETTINGS_FILE_MAX + 1)
            if len(data) > SETTINGS_FILE_MAX:
                raise ValueError(f"{self.path} has more than {SETTINGS_FILE_MAX} bytes")
            text = with_settings(data.decode("utf-8-sig"), values)
            replace_file(self._file_system, self.path, text.encode(), keep_permissions=True, in_place=True)


@final
class RunningSettings:
    """The settings of a broker or a name server.

    ``shown`` has the settings that the server shows, among them all of ``configs``. Only one thread at a time
    may call `update`, which calls ``changed`` after each change.
    """

    def __init__(
        self, clock: Clock, configs: tuple[Config, ...], shown: dict[str, str],
        file: SettingsFile | None = None, changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._clock = clock
        self._configs = configs
        self.shown = shown
        self._file = file
        self._changed = changed
        self._fields = {option_name(f): f for config in configs for f in dataclasses.fields(config)}
        self.version = DataVersion(clock.now_ms())

    def text(self) -> str:
        """Return all settings as a properties text."""
        return "".join(f"{name}={_one_line(value)}\n" for name, value in sorted(self.shown.items()))

    @property
    def deleting(self) -> frozenset[str]:
        """The settings that decide which messages are deleted and when."""
        return frozenset(name for name, f in self._fields.items() if f.metadata["deletes"])

    def update(self, body: bytes, user: str = "") -> str:
        """Change the settings of a properties text for a user; return a note for the caller, which may be empty.

        Either all of them change or none. Raises RefusalError that names the settings that cannot change.
        """
        values = properties_in(body)
        if len(values) > CHANGES_MAX:
            raise RefusalError(
                ResponseCode.INVALID_PARAMETER,
                f"the body has {len(values)} settings, over the limit of {CHANGES_MAX}")
        self._check_names(values)
        problems: list[str] = []
        changed: list[tuple[Config, dict[str, Any]]] = []
        for config in self._configs:
            try:
                changed.append((config, config.changed(values)))
            except ConfigError as error:
                problems += error.problems
        if problems:
            raise RefusalError(ResponseCode.INVALID_PARAMETER, "; ".join(problems))
        new = {
            name: members[f.name] for name, f in self._fields.items()
            for _, members in changed if name in values and f.name in members}
        texts = {name: setting_text(value) for name, value in new.items()}
        note = self._persist({name: _written(value) for name, value in new.items()})
        for config, members in changed:
            config.take(members)
        self._changed()
        self.shown.update(texts)
        self.version.next(self._clock.now_ms())
        events.SETTINGS_CHANGED.log(_log, user=repr(user), values=texts)
        return note

    def _check_names(self, values: Mapping[str, str]) -> None:
        """Raise RefusalError for settings that cannot change; those that RocketMQ refuses come first."""
        if black := sorted(BLACK_LIST & values.keys()):
            raise RefusalError(
                ResponseCode.NO_PERMISSION, f"Can not update config in black list: {', '.join(black)}")
        fixed: list[str] = []
        unused: list[str] = []
        unknown: list[str] = []
        for name in values:
            field, said = self._fields.get(name), repr(name[:SHOWN_MAX])[1:-1]
            if field is not None:
                if not field.metadata["live"]:
                    fixed.append(said)
            elif name in self.shown or name in TLS_NAMES or name in TLS_ALIASES:
                fixed.append(said)
            else:
                (unused if name in java_settings() else unknown).append(said)
        reasons = [
            f"{what}: {', '.join(names)}" for what, names in (
                ("cannot be changed while the server runs, set it in the file of settings and start again", fixed),
                ("has no effect here", unused), ("is not a setting", unknown)) if names]
        if reasons:
            code = ResponseCode.NO_PERMISSION if fixed else ResponseCode.INVALID_PARAMETER
            raise RefusalError(code, "; ".join(reasons))

    def _persist(self, texts: Mapping[str, str]) -> str:
        if not texts:
            return ""
        if self._file is None:
            return "changed until the server ends; there is no file of settings (--config) to write it to"
        try:
            self._file.write(texts)
        except (OSError, ValueError, FatalStorageError) as error:
            raise RefusalError(
                ResponseCode.SYSTEM_ERROR,
                f"nothing is changed, the file of settings {self._file.path} cannot be written: {error}") from error
        return ""


def _written(value: object) -> str:
    """Return a value as both brokers read it from a file: Java has whole numbers for some that may have a fraction."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else setting_text(value)


def _one_line(value: str) -> str:
    """Return a value without ends of lines. Other characters are shown as they are, as by a Java broker."""
    return value.replace("\n", r"\n").replace("\r", r"\r")


@final
class SettingsProcessor:
    """Shows and changes the settings of a broker, or of a name server.

    With ``control`` a user needs Delete on ``cluster`` to change settings that decide which messages are deleted.
    """

    def __init__(
        self, settings: RunningSettings, worker: RequestWorker, control: AccessControl | None = None, cluster: str = "",
    ) -> None:
        self._settings = settings
        self._control = control
        self._delete = Access(CLUSTER, cluster, Action.DELETE)
        self._update_later = worker.in_thread(self._update)

    def register(self, server: RemotingServer) -> None:
        """Register the requests of a broker."""
        server.register(self.show, RequestCode.GET_BROKER_CONFIG)
        server.register(self.update, RequestCode.UPDATE_BROKER_CONFIG)

    def register_name_server(self, server: RemotingServer) -> None:
        """Register the requests of a name server."""
        server.register(self.show_name_server, RequestCode.GET_NAMESRV_CONFIG)
        server.register(self.update, RequestCode.UPDATE_NAMESRV_CONFIG)

    def show(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Return the settings of a broker as a properties text, with their version: request 26."""
        version = fastjson.dumps(self._settings.version.to_json()).decode()
        return request.answer(
            ext=GetBrokerConfigResponseHeader(version), body=self._settings.text().encode())

    def show_name_server(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Return the settings of a name server as a properties text: request 319."""
        return request.answer(body=self._settings.text().encode())

    def update(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Change settings: requests 25 and 318. Either all named settings change or none."""
        if self._control is not None and self._settings.deleting & properties_in(request.body).keys():
            self._control.require(channel, request, self._delete)
        return self._update_later(channel, request)

    def _update(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        return request.answer(remark=self._settings.update(request.body, sender_of(request)) or None)
