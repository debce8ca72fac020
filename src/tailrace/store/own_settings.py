"""Settings that are needed to read a directory. Each open stores them in ``tailrace/settings.json``.

Units of delay levels have times computed from ``messageDelayLevel``, timer files depend on ``timerPrecisionMs``,
and the CommitLog may be in another directory. A later command uses each stored setting that it is not given itself:
a setting that is given, also one with the default value, overrides only itself. The paths of the CommitLog count as one
setting. The stored paths are used only if the store is at the same path as before, because a copy of a store must not
open the log of the original.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import orjson

from tailrace import events
from tailrace.config import StoreConfig, option_name
from tailrace.env.filesystem import FileSystem
from tailrace.env.whole_files import read_if_there, replace_file
from tailrace.errors import ConfigError
from tailrace.formats import filenames
from tailrace.logs import get_logger

__all__ = ["remembered", "write_settings"]

_log = get_logger(__name__)
_MOST: Final = 65_536
_FORMATS: Final = frozenset({
    "message_delay_level", "timer_precision_ms", "message_index_enable", "enabled_append_prop_crc"})
_PLACES: Final = frozenset({
    "store_path_commit_log", "read_only_commit_log_store_paths", "store_path_root_dir",
    "multi_path_splitter"})


def remembered(file_system: FileSystem, root: str, config: StoreConfig) -> StoreConfig:
    """Return ``config`` with the stored settings of the directory at ``root`` that ``config`` was not given."""
    path = f"{root}/{filenames.SETTINGS}"
    try:
        kept = _kept(read_if_there(file_system, path, _MOST))
        if not kept:
            return config
        values, at = kept
        given = config.given | {
            f.name for f in dataclasses.fields(StoreConfig) if getattr(config, f.name) != f.default}
        fields = _FORMATS - given
        if at == root and not _PLACES & given:
            fields |= _PLACES
        names = {option_name(f) for f in dataclasses.fields(StoreConfig) if f.name in fields}
        stored = StoreConfig.from_properties({n: v for n, v in values.items() if n in names})
        found = dataclasses.replace(config, **{name: getattr(stored, name) for name in stored.given})
    except (ValueError, ConfigError) as error:
        events.SETTINGS_OF_THE_DIRECTORY_CANNOT_BE_READ.log(_log, file=path, cause=error)
        return config
    if found != config:
        events.READ_BY_THE_SETTINGS_OF_THE_DIRECTORY.log(_log, file=path, settings=values)
    return found


def _kept(text: bytes | None) -> tuple[dict[str, str], str] | None:
    """Return (values by RocketMQ's names, path of the store when they were written), None without a file.

    Raises ValueError.
    """
    if text is None:
        return None
    found: Any = orjson.loads(text)
    values = found.get("settings") if isinstance(found, dict) else None
    if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
        raise ValueError("it is not of the form that Tailrace writes")
    return values, str(found.get("root", ""))


def write_settings(file_system: FileSystem, root: str, config: StoreConfig) -> None:
    """Write the settings that ``remembered`` returns. An OSError is logged, not raised."""
    default = StoreConfig()
    values = {
        option_name(f): _text(getattr(config, f.name)) for f in dataclasses.fields(StoreConfig)
        if f.name in _FORMATS | _PLACES and getattr(config, f.name) != getattr(default, f.name)}
    path = f"{root}/{filenames.SETTINGS}"
    try:
        there = read_if_there(file_system, path, _MOST)
        text = orjson.dumps({"root": root, "settings": values})
        if there == text or (there is None and not values):
            return
        file_system.makedirs(f"{root}/{filenames.OWN}")
        replace_file(file_system, path, text)
    except OSError as error:
        events.CANNOT_KEEP_THE_SETTINGS_OF_THE_DIRECTORY.log(_log, file=path, cause=error)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
