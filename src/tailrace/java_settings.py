"""Decide about each setting of a Java broker's ``broker.conf``: it is honoured, harmless or refused.

``java_settings.tsv`` has one row (name, classes, default, decision, reason) for each field of the classes of 5.5.0
and 5.5.1 that a ``broker.conf`` is read into (BrokerConfig, MessageStoreConfig, NettyServerConfig, NettyClientConfig,
AuthConfig), of ControllerConfig, and for the TLS settings. A default of ``*`` depends on the machine; ``-`` is a
value that no file can have. The decisions are

    honoured   ``config.py`` has the setting
    harmless   without it the same messages are acknowledged and the same clients have access; a value that is
               not the default is reported as unused
    refused    without it data would be less safe, or access less limited, than the file says: ``serve`` does not
               start unless the setting has the default or ``--ignore-setting`` names it
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Mapping
from importlib import resources
from typing import Final, NamedTuple

from tailrace.auth_settings import AuthConfig
from tailrace.config import BrokerConfig, NameServerConfig, StoreConfig, option_name
from tailrace.errors import ConfigError
from tailrace.spellings import meant
from tailrace.tls_settings import TLS_ALIASES, TLS_NAMES

__all__ = [
    "REASONS", "JavaSetting", "java_settings", "known_settings", "refuse_settings", "refused_settings",
    "unused_settings",
]

ANY: Final = "*"
REASONS: Final[Mapping[str, str]] = {
    # refused
    "acl": "access control of 4.x is not checked; import its users with `tailrace acl import plain_acl.yml` and set "
           "authenticationEnabled and authorizationEnabled",
    "migrate": "no plain_acl.yml is read at a start; import it with `tailrace acl import plain_acl.yml`",
    "proxy": "connections to name servers do not use a proxy",
    "acting": "no slave acts for its master: a promotion is a command",
    "duplication": "even in RocketMQ no message can be consumed until another program moves the confirm offset",
    "dledger": "there is no DLedger CommitLog",
    "controller": "there is no controller mode",
    "container": "there is no broker container",
    "engine": "queues, timers, transactions, index and configuration are files, not RocksDB",
    "plugin": "there are no message store plug-ins",
    "permission": "the broker always takes sends and pulls; set the permission of each topic",
    "pull": "pull consumers are always served",
    "accept": "sends are taken from the start",
    "lookup": "name servers are not looked up; say namesrvAddr",
    "crc": "a record without the property checksum is accepted",
    # harmless
    "auth": "users and permissions are in memory, and of the cluster and the directory of the broker",
    "broker": "it controls an internal of the Java broker that Tailrace does not have",
    "cold": "thresholds of cold reads do not adapt, and the kernel decides what it reads ahead",
    "controllerless": "it only matters with a controller, which is refused",
    "dledgerless": "it only matters with DLedger, which is refused",
    "engineless": "it only matters with RocksDB, which is refused",
    "filter": "expressions of SQL92 are evaluated for each read; no bit maps are stored for them",
    "actingless": "it only matters with enableSlaveActingMaster, which is refused",
    "flushed": "it has no effect in RocketMQ either",
    "ha": "it only matters with an acting master or a controller, which are refused",
    "index": "messageIndexEnable switches the index off",
    "length": "autoMessageVersionOnTopicLen decides about long topics",
    "lite": "clients of Lite topics are always notified of messages, and the lag of their groups is always computed",
    "memory": "how the Java store maps, locks and buffers; flushing is set by flushDiskType",
    "netty": "how Netty uses sockets",
    "pool": "size of a thread pool or of its queue",
    "pop": "popped messages are kept as records of the revive topic, without buffer, batches or log",
    "recall": "messages can always be recalled",
    "recovery": "recovery always checks everything and starts early enough",
    "register": "how often and in which form topics are registered; see registerNameServerPeriod",
    "together": "topics or groups of a list are deleted together, so that their number in a second needs no limit",
    "renamed": "it is called channelExpiredMs here",
    "schedule": "how the Java broker delivers delay levels",
    "shutdown": "a stop is always graceful",
    "stats": "statistics, metrics and logs of the Java broker; see /metrics",
    "timer": "how the Java broker runs the timer wheel",
    "trace": "trace messages are sent to their topic as others",
    "types": "messages of each type may be sent to a topic",
}
"""Reasons of the decisions, by their short names in the table."""


class JavaSetting(NamedTuple):
    """A row of the table."""

    name: str
    classes: tuple[str, ...]
    default: str
    decision: str
    reason: str


@functools.cache
def java_settings() -> Mapping[str, JavaSetting]:
    """Return the table, by the names of settings."""
    text = resources.files("tailrace").joinpath("java_settings.tsv").read_text("utf-8")
    rows = (line.split("\t") for line in text.splitlines()[1:])
    return {
        name: JavaSetting(name, tuple(classes.split(",")), default, decision, reason)
        for name, classes, default, decision, reason in rows}


def known_settings() -> set[str]:
    """Return the names of the settings that ``config.py`` has."""
    return {option_name(f) for config in (StoreConfig, BrokerConfig, NameServerConfig, AuthConfig)
            for f in dataclasses.fields(config)} | TLS_NAMES | TLS_ALIASES.keys()


def _at_default(setting: JavaSetting, value: str) -> bool:
    default = setting.default
    return default != ANY and (value == default or (
        default in {"true", "false"} and value.lower() == default))


def refused_settings(values: Mapping[str, str]) -> dict[str, JavaSetting]:
    """Return the settings of a file with the decision ``refused``, unless they have the default."""
    known, table = known_settings(), java_settings()
    return {
        name: setting for name, value in sorted(values.items())
        if (setting := table.get(name)) is not None and setting.decision == "refused"
        and name not in known and not _at_default(setting, value.strip())}


def refuse_settings(values: Mapping[str, str], ignored: Collection[str] = ()) -> dict[str, JavaSetting]:
    """Return the refused settings that ``ignored`` names.

    Raises ConfigError with one sentence about all others, and for a name in ``ignored`` that is not a refused
    setting of the file.
    """
    refused = refused_settings(values)
    if wrong := sorted(set(ignored) - refused.keys()):
        raise ConfigError(
            f"--ignore-setting {' and '.join(wrong)}: the file has no such setting that can be ignored")
    if left := [name for name in refused if name not in ignored]:
        said = ", ".join(f"{name}={_shown(values[name])} ({REASONS[refused[name].reason]})" for name in left)
        raise ConfigError(
            f"settings that cannot be honoured: {said}; remove them, or start without what they promise: "
            + " ".join(f"--ignore-setting {name}" for name in left))
    return refused


def _shown(value: str) -> str:
    """Return a value as a message shows it: printable, and short."""
    text = repr(value)[1:-1]
    return text if len(text) <= 40 else f"{text[:40]}..."


def unused_settings(values: Mapping[str, str], *, without: Collection[str] = ()) -> list[str]:
    """Return the names of settings in a file that have no effect; for an unknown name also the closest known one.

    Settings with RocketMQ's default and those in ``without`` are left out.
    """
    known, table = known_settings(), java_settings()
    found = []
    for name in sorted(values.keys() - known - set(without)):
        setting = table.get(name)
        if setting is not None:
            if not _at_default(setting, values[name].strip()):
                found.append(name)
            continue
        near = meant(name, known | set(table), 0.85)
        found.append(f"{name} ({near.removeprefix('; ')})" if near else name)
    return found
