"""``tailrace/format.json``: what a reader of a directory must know and cannot see in its files.

It has the settings by which the directory was written and facts about its timer files (W21). Each open that may write
compares them and replaces the file if one of them has changed. Units of delay levels have times computed from
``messageDelayLevel``, timer files depend on ``timerPrecisionMs``, and the CommitLog may be in another directory. A
later command uses each of these settings that it is not given: a setting that is given, also one with the default
value, overrides only itself. The paths of the CommitLog count as one setting. The stored paths are used only if the
store is at the same path as before, because a copy of a store must not open the log of the original.

Earlier releases had three files instead. They are read if there is no ``format.json``. The first open that may write
makes ``format.json`` durable and then removes them, so after a crash in between nothing reads them.

A damaged file counts as missing. Sizes then come from the files of the directory, and the other settings from the
command. Timers may be delivered twice, but are never lost.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

import msgspec

from tailrace import events
from tailrace.config import StoreConfig, option_name
from tailrace.env.filesystem import FileSystem
from tailrace.env.state_file import Number, StateFile
from tailrace.errors import ConfigError, CorruptionError, OddFileError, UnsupportedVersionError
from tailrace.formats import filenames
from tailrace.logs import get_logger
from tailrace.properties import setting_text
from tailrace.store.log_paths import log_paths

__all__ = [
    "SIZES", "DirectoryFormat", "TimerFormat", "fitting", "given", "read_format", "remembered", "write_format",
    "write_timers"]

_log = get_logger(__name__)
_VERSION: Final = 1
T = TypeVar("T")
SIZES: Final = frozenset({
    "mapped_file_size_commit_log", "mapped_file_size_consume_queue", "mapper_file_size_batch_consume_queue",
    "max_hash_slot_num", "max_index_num"})
"""Python names of the settings that files of a directory show."""
_FORMATS: Final = frozenset({
    "message_delay_level", "timer_precision_ms", "message_index_enable", "enabled_append_prop_crc"})
_PLACES: Final = frozenset({
    "store_path_commit_log", "read_only_commit_log_store_paths", "store_path_root_dir",
    "multi_path_splitter"})
_NAMES: Final = {
    f.name: option_name(f) for f in dataclasses.fields(StoreConfig) if f.name in SIZES | _FORMATS | _PLACES}


class TimerFormat(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Facts that the timer files of RocketMQ do not have; a number is 0 if it is not known."""

    precision_ms: Number = 0
    slots_total: Number = 0
    """Length of the wheel, for programs that read the directory."""
    grain_ms: Number = 0
    """The coarsest precision that the directory has had: slot times of messages are rounded by it, so that no message
    is early at a finer precision."""
    suspicious_until_ms: Number = 0
    """Slot time before which timers may be delivered already, although it is later than the wall clock, because the
    clock was set back."""

    def coarsest(self, precision_ms: int) -> int:
        """Return the coarsest precision that the directory has had, including the present one."""
        return max(self.grain_ms, self.precision_ms, precision_ms)


class DirectoryFormat(msgspec.Struct, frozen=True, kw_only=True):
    """Content of the file."""

    version: int = _VERSION
    root: str = ""
    """Path of the store when the settings were written."""
    settings: dict[str, str] = {}
    """Texts by RocketMQ's names."""
    timer: TimerFormat = TimerFormat()

    def of(self, names: Iterable[str]) -> dict[str, str]:
        """Return the stored ones of some settings; ``names`` are those of Python."""
        return {name: self.settings[name] for name in map(_NAMES.__getitem__, names) if name in self.settings}

    def log_directories(self) -> list[str]:
        """Return the directories of the CommitLog outside the store, as of the last open."""
        paths = log_paths(fitting(StoreConfig(), self.of(_PLACES), lambda _: None), self.root)
        return [path for path in paths.all if path != f"{self.root}/{filenames.COMMITLOG}"]


def read_format(file_system: FileSystem, root: str, *, again: bool = False) -> DirectoryFormat:
    """Return the format of a directory; that of the files of an earlier release if it has not been moved on.

    A damaged file is logged, unless the caller reads it ``again``. Raises UnsupportedVersionError for the file of a
    later release; OSError.
    """
    found = _read(file_system, f"{root}/{filenames.FORMAT}", DirectoryFormat, DirectoryFormat(), again)
    if found is None:
        return _read_old(file_system, root, again)
    if found.version > _VERSION:
        raise UnsupportedVersionError(
            "the directory was written by a later release; open it with that release",
            path=f"{root}/{filenames.FORMAT}", expected=_VERSION, actual=found.version)
    return found


def _read_old(file_system: FileSystem, root: str, again: bool) -> DirectoryFormat:
    """Return the content of the three files of earlier releases. A file that is missing or damaged is left out."""
    geometry, settings, timer = filenames.OLD_FORMAT
    sizes = _read(file_system, f"{root}/{geometry}", dict[str, int | list[str]], {}, again) or {}
    kept = _read(file_system, f"{root}/{settings}", DirectoryFormat, DirectoryFormat(), again) or DirectoryFormat()
    timers = _read(file_system, f"{root}/{timer}", TimerFormat, TimerFormat(), again) or TimerFormat()
    texts = {name: str(size) for name, size in sizes.items() if isinstance(size, int)}
    places = sizes.get("commitLogPaths")
    if isinstance(places, list) and places != ["."]:
        own = f"{kept.root}/{filenames.COMMITLOG}"
        texts[_NAMES["store_path_commit_log"]] = ",".join(own if place == "." else place for place in places)
    return DirectoryFormat(root=kept.root, settings={**texts, **kept.settings}, timer=timers)


def _read(file_system: FileSystem, path: str, kind: type[T], damaged: T, again: bool) -> T | None:
    """Return the content of a file, None without one, ``damaged`` if it cannot be read."""
    try:
        return StateFile(file_system, path, kind).read()
    except (CorruptionError, OddFileError, PermissionError) as error:
        if not again:
            events.SETTINGS_OF_THE_DIRECTORY_CANNOT_BE_READ.log(_log, file=path, cause=error)
        return damaged


def given(config: StoreConfig) -> frozenset[str]:
    """Return the Python names of the settings that the caller has passed, or that do not have their default value."""
    return config.given | {f.name for f in dataclasses.fields(StoreConfig) if getattr(config, f.name) != f.default}


def remembered(kept: DirectoryFormat, root: str, config: StoreConfig) -> StoreConfig:
    """Return ``config`` with the stored settings of the directory at ``root`` that ``config`` was not given."""
    path = f"{root}/{filenames.FORMAT}"
    own = given(config)
    values = kept.of(_FORMATS - own | (_PLACES if kept.root == root and not _PLACES & own else set()))
    found = fitting(config, values, lambda error: events.SETTINGS_OF_THE_DIRECTORY_CANNOT_BE_READ.log(
        _log, file=path, cause=error))
    if found == config:
        return config
    events.READ_BY_THE_SETTINGS_OF_THE_DIRECTORY.log(_log, file=path, settings=values)
    return found


def fitting(
    config: StoreConfig, values: Mapping[str, str], refused: Callable[[ConfigError], None]
) -> StoreConfig:
    """Return ``config`` with the valid ones of some settings by RocketMQ's names; ``refused`` gets the others."""
    try:
        stored = StoreConfig.from_properties(values)
        return config.copy_with({name: getattr(stored, name) for name in stored.given})
    except ConfigError as error:
        if len(values) == 1:
            refused(error)
            return config
    for name, text in values.items():
        config = fitting(config, {name: text}, refused)
    return config


def write_format(file_system: FileSystem, root: str, kept: DirectoryFormat, config: StoreConfig) -> None:
    """Write the settings of an open store if they differ from ``kept``, and remove the files of earlier releases.

    The file is durable on return. An OSError, such as a full disk, is logged and not raised. Raises FatalStorageError.
    """
    path = f"{root}/{filenames.FORMAT}"
    texts = {name: setting_text(getattr(config, field)) for field, name in _NAMES.items()}
    made = msgspec.structs.replace(kept, root=root, settings=texts)
    try:
        if made != kept or not file_system.exists(path):
            StateFile(file_system, path, DirectoryFormat).write(made)
        for old in filenames.OLD_FORMAT:
            if file_system.exists(f"{root}/{old}"):
                file_system.remove(f"{root}/{old}")
    except OSError as error:
        events.CANNOT_KEEP_THE_SETTINGS_OF_THE_DIRECTORY.log(_log, file=path, cause=error)


def write_timers(file_system: FileSystem, root: str, timer: TimerFormat) -> None:
    """Write facts about the timer files of an open store; durable on return. Raises OSError or FatalStorageError.

    The open and, after it, the timers are the only writers of the file.
    """
    made = msgspec.structs.replace(read_format(file_system, root), timer=timer)
    StateFile(file_system, f"{root}/{filenames.FORMAT}", DirectoryFormat).write(made)
