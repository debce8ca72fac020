"""Settings: RocketMQ's names in Python case, with unit, bounds and one sentence each.

A configuration is always valid: ``StoreConfig(...)`` and ``dataclasses.replace`` raise ConfigError with every
problem. ``from_properties`` reads the known settings of a broker's ``.properties`` file; ``java_settings`` decides
about the others. A running server may change settings that are declared ``live``, in place. Other settings never
change.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from tailrace.errors import ConfigError

__all__ = [
    "LONG_MAX", "MESSAGE_DELAY_LEVEL", "SECRET", "BrokerConfig", "BrokerRole", "FlushDiskType", "NameServerConfig",
    "RecoveryMode", "StoreConfig", "camel", "option_name", "whole_number",
]


MESSAGE_DELAY_LEVEL: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
"""The default delay levels."""


class RecoveryMode(enum.Enum):
    """What an open does with damaged bytes in the log."""

    ABSOLUTE = "ABSOLUTE"
    """Refuse to open."""
    TOLERATE_TAIL = "TOLERATE_TAIL"
    """Cut a torn end, refuse damage that has good records after it."""
    TOLERATE_ANY = "TOLERATE_ANY"
    """Always open: cut a torn end, step over damage; both go to quarantine."""


_DELAY_LEVELS: Final = re.compile(r"[0-9]{1,9}[smhd]( [0-9]{1,9}[smhd])*")


class BrokerRole(enum.Enum):
    """Who appends to the log of a broker."""

    ASYNC_MASTER = "ASYNC_MASTER"
    """Its clients; a send does not wait for slaves."""
    SYNC_MASTER = "SYNC_MASTER"
    """Its clients; a send waits for slaves."""
    SLAVE = "SLAVE"
    """Only the replication from its master."""


class FlushDiskType(enum.Enum):
    """When a put is acknowledged."""

    SYNC_FLUSH = "SYNC_FLUSH"
    ASYNC_FLUSH = "ASYNC_FLUSH"


def _option(
    default: Any, about: str, *, unit: str = "", low: int | None = None, high: int | None = None,
    name: str = "", choices: tuple[str, ...] = (), live: bool = False, secret: bool = False, deletes: bool = False,
    secret_file: bool = False, main: bool = False,
) -> Any:
    """Declare a setting: ``live`` if a running server may change it (`_Config.take`), ``secret`` if it is not shown.

    ``deletes`` if it decides which messages are deleted and when: a user needs Delete on the cluster to change it.
    ``secret_file`` if it is the path of a file with a key or another secret: reports for other people leave it out.
    ``main`` if most brokers need a decision about it; the page of settings shows it in bold.
    """
    return field(default=default, repr=not secret, metadata={
        "about": about, "unit": unit, "low": low, "high": high, "name": name, "choices": choices, "live": live,
        "secret": secret, "deletes": deletes, "secret_file": secret_file, "main": main})


def camel(name: str) -> str:
    """Return a Python name as RocketMQ writes it."""
    return re.sub(r"_([a-z])", lambda m: m.group(1).upper(), name)


SECRET: Final = "********"
"""What is shown instead of a secret."""
LONG_MAX: Final = (1 << 63) - 1
_TEN_YEARS_MS: Final = 10 * 366 * 86_400_000
_MOST_DIGITS: Final = 40
_SHOWN_MAX: Final = 100
"""Characters of a value in an error."""
_WHOLE: Final = re.compile(r"([+-]?)0*([0-9]+)")
_NUMBER: Final = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


class _Config:
    """Checks and parsing for all configurations."""

    given: frozenset[str]
    """Names of the settings that the caller passed, also with a default value. A copy does not know them."""

    def __new__(cls, *_: Any, **values: Any) -> Self:
        """Note which settings are given. ``dataclasses.replace`` passes all of them, which says nothing."""
        made = super().__new__(cls)
        is_copy = len(values) == len(dataclasses.fields(cls))  # type: ignore[arg-type]
        object.__setattr__(made, "given", frozenset() if is_copy else frozenset(values))
        return made

    def __post_init__(self) -> None:
        """Turn names of enum members into members. Raises ConfigError with every problem."""
        for f in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, f.name)
            if isinstance(f.default, enum.Enum) and isinstance(value, str):
                member = type(f.default).__members__.get(value)
                object.__setattr__(self, f.name, value if member is None else member)
        if problems := self.validate():
            raise ConfigError(*problems)

    def validate(self) -> list[str]:
        """Return a sentence for each value of a wrong type or outside its bounds."""
        problems = []
        for f in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, f.name)
            if problem := _type_problem(value, f.default) or _bounds_problem(value, f):
                shown = SECRET if f.metadata["secret"] else _shown(value)
                problems.append(f"{option_name(f)}={shown} {problem}")
        return problems

    def copy_with(self, values: Mapping[str, Any]) -> Self:
        """Return a copy with other values, by Python names, that knows which settings the caller has passed."""
        made = dataclasses.replace(self, **values)  # type: ignore[type-var]
        object.__setattr__(made, "given", self.given | values.keys())
        return made

    @classmethod
    def from_properties(cls, values: Mapping[str, str], **fixed: Any) -> Self:
        """Build a configuration from RocketMQ's names; ``fixed`` (Python names) replaces ``values``.

        Raises ConfigError with all values that cannot be parsed or are out of bounds.
        """
        taken: dict[str, Any] = {}
        problems: list[str] = []
        for f in dataclasses.fields(cls):  # type: ignore[arg-type]
            text = values.get(option_name(f))
            if text is None:
                continue
            try:
                taken[f.name] = _parse(text.strip(), f.default)
            except ValueError:
                problems.append(f"{option_name(f)}={_shown(text)} is not {_kind(f.default)}")
        try:
            made = cls(**{**taken, **fixed})
        except ConfigError as error:
            raise ConfigError(*problems, *error.problems) from None
        if problems:
            raise ConfigError(*problems)
        return made

    def changed(self, values: Mapping[str, str]) -> dict[str, Any]:
        """Return the settings that ``values`` (RocketMQ's names) set, by Python names. Unknown names are ignored.

        Raises ConfigError with all values that cannot be parsed or that contradict the present settings.
        """
        fields = {option_name(f): f.name for f in dataclasses.fields(self)}  # type: ignore[arg-type]
        present = {name: getattr(self, name) for name in fields.values()}
        taken = {name: text for name, text in values.items() if name in fields}
        made = type(self).from_properties(
            taken, **{n: v for option, n in fields.items() if (v := present[n]) is not None and option not in taken})
        return {fields[option]: getattr(made, fields[option]) for option in taken}

    def take(self, changed: Mapping[str, Any]) -> None:
        """Change live settings in place, so that every part with this configuration object reads the new values."""
        live = {f.name for f in dataclasses.fields(self) if f.metadata["live"]}  # type: ignore[arg-type]
        assert live >= changed.keys(), f"not live: {changed.keys() - live}"
        for name, value in changed.items():
            object.__setattr__(self, name, value)


def _type_problem(value: Any, default: Any) -> str:
    """Return why a value does not have the type of ``default``, or ""."""
    if isinstance(default, float):
        fits = isinstance(value, int | float) and not isinstance(value, bool) and not (
            isinstance(value, float) and math.isnan(value))  # bounds refuse infinity
    elif isinstance(default, int) and not isinstance(default, bool):
        fits = isinstance(value, int) and not isinstance(value, bool)
    else:
        fits = isinstance(value, type(default))
    if not fits:
        return f"is not {_kind(default)}"
    if isinstance(value, str) and _CONTROL.search(value):
        return "has a control character"
    return ""


def _bounds_problem(value: Any, f: dataclasses.Field[Any]) -> str:
    """Return which bounds a value of the right type breaks, or ""."""
    low, high, choices = f.metadata["low"], f.metadata["high"], f.metadata["choices"]
    if high is None and isinstance(value, int | float):
        high = _TEN_YEARS_MS if f.metadata["unit"] == "ms" else LONG_MAX
    if (low is not None and value < low) or (low is not None and high is not None and value > high):
        return f"is outside {low} to {high}"
    if choices and value not in choices:
        return f"is not one of {', '.join(choices)}"
    return ""


def _shown(value: Any) -> str:
    """Return a value as an error shows it: on one line, and short."""
    text = str(value.value) if isinstance(value, enum.Enum) else str(value)
    text = repr(text)[1:-1]
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."


def option_name(f: dataclasses.Field[Any]) -> str:
    """Return RocketMQ's name of a setting."""
    return str(f.metadata["name"]) or camel(f.name)


def whole_number(text: str) -> int | None:
    """Return the value of a text of ASCII digits, from 0 to 2^63 - 1; None for any other text.

    ``str.isdigit`` is also true for digits that ``int`` refuses, such as superscripts.
    """
    if not text.isascii() or not text.isdigit() or len(text) > _MOST_DIGITS:
        return None
    number = int(text)
    return number if number <= LONG_MAX else None


def _parse(text: str, like: Any) -> Any:
    """Return the value of a text with the type of ``like``. Raises ValueError."""
    if isinstance(like, bool):
        if text.lower() not in {"true", "false"}:
            raise ValueError(text)
        return text.lower() == "true"
    if isinstance(like, int):
        if (found := _WHOLE.fullmatch(text)) is None:
            raise ValueError(text)
        return int(found[1] + found[2][:_SHOWN_MAX + 1])  # longer ones are out of bounds
    if isinstance(like, float):
        if not _NUMBER.fullmatch(text):
            raise ValueError(text)
        return float(text)
    if isinstance(like, enum.Enum):
        return type(like)(text)
    return text


def _kind(like: Any) -> str:
    if isinstance(like, bool):
        return "true or false"
    if isinstance(like, int):
        return "a whole number"
    if isinstance(like, float):
        return "a number"
    if isinstance(like, enum.Enum):
        return "one of " + ", ".join(member.value for member in type(like))
    return "text"


KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig(_Config):
    """Settings of a store directory: files, flush, recovery, retention, delay levels and timers."""

    # -- files: lengths and directories
    mapped_file_size_commit_log: int = _option(
        GIB, "Length of a CommitLog file.", unit="bytes", low=4 * KIB, high=2 * GIB - 1)
    mapped_file_size_consume_queue: int = _option(
        300_000 * 20, "Length of a ConsumeQueue file, rounded up to whole units.", unit="bytes",
        low=20, high=2 * GIB - 1)
    mapper_file_size_batch_consume_queue: int = _option(
        300_000 * 46, "Length of a file of a batch ConsumeQueue, rounded up to whole units.", unit="bytes",
        low=46, high=2 * GIB - 1)
    compaction_mapped_file_size: int = _option(
        100 * MIB, "Length of a file of the compaction log of a new queue. As in a Java broker it is rounded to a "
        "multiple of compactionCqMappedFileSize, at least five times that.", unit="bytes", low=KIB, high=2 * GIB - 1)
    compaction_cq_mapped_file_size: int = _option(
        10 * MIB, "Length of a file with the units of such a log, rounded down to whole units.", unit="bytes",
        low=92, high=400 * MIB)
    max_hash_slot_num: int = _option(
        5_000_000, "Hash slots of an index file.", low=1, high=100_000_000)
    max_index_num: int = _option(
        20_000_000, "Entries of an index file, the unused first one included.", low=2,
        high=100_000_000)
    store_path_commit_log: str = _option(
        "", "Path of the CommitLog, or several paths separated by commas; empty: `commitlog` in the store. "
        "New files go in turn to the paths that are not too full.", main=True)
    read_only_commit_log_store_paths: str = _option(
        "", "Paths of CommitLog files in which no new file is made.")
    store_path_root_dir: str = _option(
        "", "Root directory in the settings of the broker. Its `commitlog` means the one of the opened store, so the "
        "settings fit a copy of the store.")
    store_group_readable: bool = _option(
        False, "Whether the group may read a store directory that is created (mode 2750, files 0640). Otherwise only "
        "the owner may (0700, 0600), whatever the umask is. A directory that exists keeps its mode.", main=True)
    multi_path_splitter: str = _option(
        ",", "Separator of those paths.", name="rocketmq.broker.multiPathSplitter")

    # -- replication
    broker_role: BrokerRole = _option(
        BrokerRole.ASYNC_MASTER, "Who appends to the log: clients of a master, or on a SLAVE only the replication from "
        "its master.", main=True)
    ha_master_address: str = _option(
        "", "HOST:PORT of the master's port for a SLAVE; empty: from name servers.")
    ha_listen_port: int = _option(
        0, "Port of a master for slaves, open if brokerRole or this port is set; 0: the broker's port + 1.",
        low=0, high=65_535)
    ha_allowed_hosts: str = _option(
        "", "Addresses and networks, separated by `;`, from which slaves may connect besides registered members.")
    ha_send_heartbeat_interval: int = _option(
        5000, "Heartbeats to idle slaves.", unit="ms", low=1)
    ha_housekeeping_interval: int = _option(
        20_000, "Silent slaves are disconnected.", unit="ms", low=1)
    ha_transfer_batch_size: int = _option(
        32 * KIB, "Body of a frame.", unit="bytes", low=1, high=4 * MIB - 12)
    ha_flow_control_enable: bool = _option(
        False, "Whether maxHaTransferByteInSecond applies.")
    max_ha_transfer_byte_in_second: int = _option(
        100 * MIB, "Limit for each slave.", unit="bytes/s", low=1)
    ha_max_gap_not_in_sync: int = _option(
        256 * MIB, "A slave that lacks more is not in sync.", unit="bytes", low=1)
    ha_send_unsynced: bool = _option(
        False, "Whether slaves get unsynced bytes under SYNC_FLUSH, as in RocketMQ. They may then have more after a "
        "power loss.")
    sync_from_last_file: bool = _option(
        False, "Whether an empty slave starts at the last file, as in RocketMQ.")
    in_sync_replicas: int = _option(
        0, "Brokers that must have a message before a SYNC_MASTER acknowledges it, itself included; 0: 2.",
        low=0, high=100, main=True)
    min_in_sync_replicas: int = _option(
        1, "A SYNC_MASTER refuses sends while fewer brokers are in sync, itself included.",
        low=1, high=100)
    enable_auto_in_sync_replicas: bool = _option(
        False, "Whether inSyncReplicas falls to the brokers in sync, at least minInSyncReplicas.")
    slave_timeout: int = _option(
        3000, "Longest wait for slaves; then FLUSH_SLAVE_TIMEOUT.", unit="ms", low=1)
    read_replicated_only: bool = _option(
        False, "Whether only messages that inSyncReplicas brokers have are consumed at the master.")

    # -- put and flush
    max_message_size: int = _option(
        4 * MIB, "Longest message body.", unit="bytes", low=10, high=GIB, main=True)
    flush_disk_type: FlushDiskType = _option(
        FlushDiskType.ASYNC_FLUSH, "Whether a put waits until its bytes are durable.", main=True)
    sync_flush_timeout: int = _option(
        5000, "How long a put waits for its sync.", unit="ms", low=1, live=True)
    flush_interval_commit_log: int = _option(
        500, "Period of the CommitLog flush under ASYNC_FLUSH.", unit="ms", low=1, live=True)
    flush_commit_log_least_pages: int = _option(
        4, "Dirty pages that make such a flush worthwhile.", unit="4 KiB pages", low=0, live=True)
    flush_commit_log_thorough_interval: int = _option(
        10_000, "After this long any dirty byte is flushed.", unit="ms", low=1, live=True)
    flush_interval_consume_queue: int = _option(
        1000, "Period of the ConsumeQueue flush.", unit="ms", low=1, live=True)
    flush_consume_queue_least_pages: int = _option(
        2, "Dirty pages that make flushing one queue worthwhile.", unit="4 KiB pages", low=0, live=True)
    flush_consume_queue_thorough_interval: int = _option(
        60_000, "After this long every dirty queue is flushed.", unit="ms", low=1, live=True)

    # -- topics with cleanup.policy=COMPACTION
    enable_compaction: bool = _option(
        True, "Whether topics with `cleanup.policy=COMPACTION` are compacted. If not, they are served as others, and "
        "what the CommitLog does not have any more is not shown.")
    compaction_schedule_internal: int = _option(
        900_000, "Period of compaction.", unit="ms", low=1)
    max_offset_map_size: int = _option(
        100 * MIB, "Memory for the keys of one step of a compaction. More keys need more steps.", unit="bytes",
        low=KIB)

    # -- LMQ queues
    enable_lmq: bool = _option(
        False, "Whether topics and consumer groups named `%LMQ%...` are LMQ queues (light message "
        "queues), which need no entry in topics.json and subscriptionGroup.json.")
    enable_multi_dispatch: bool = _option(
        False, "With enableLmq: whether a message gets a unit in each LMQ queue that its property "
        "INNER_MULTI_DISPATCH names, separated by `,`.")
    enable_lmq_quota: bool = _option(False, "Whether maxLmqConsumeQueueNum is a limit.", live=True)
    max_lmq_consume_queue_num: int = _option(
        20_000, "With enableLmqQuota: number of LMQ queues at which a message that needs one more "
        "is refused.", low=1, live=True)

    # -- index and records
    message_index_enable: bool = _option(True, "Whether keys are indexed.")
    enabled_append_prop_crc: bool = _option(
        False, "Whether each record has a checksum of the whole record.",
        name="enabledAppendPropCRC")
    auto_message_version_on_topic_len: bool = _option(
        True, "Whether topics over 127 bytes are allowed, as version 2 records.")

    # -- pull and query
    max_transfer_bytes_on_message_in_memory: int = _option(
        256 * KIB, "Bytes of one pull.", unit="bytes", low=1)
    max_transfer_count_on_message_in_memory: int = _option(
        32, "Messages of one pull.", low=1)
    max_filter_message_size: int = _option(
        16_000, "ConsumeQueue bytes one filtered pull looks at.", unit="bytes", low=20)
    max_msgs_num_batch: int = _option(64, "Messages of one query by key.", low=1)
    default_query_max_num: int = _option(32, "Messages of one query by unique key.", low=1)

    # -- recovery
    check_crc_on_recover: bool = _option(
        True, "Whether recovery checks body checksums.", name="checkCRCOnRecover")
    recovery_mode: RecoveryMode = _option(
        RecoveryMode.TOLERATE_ANY, "What an open does with damaged bytes in the log.", main=True)
    quarantine_max_bytes: int = _option(
        GIB, "Size of the quarantine of cut and damaged bytes. The oldest copies of earlier opens are deleted first. "
        "If the copies of one open need more, nothing is cut and the store opens read-only.",
        unit="bytes", low=0)

    # -- descriptors and disk blocks
    max_open_files: int = _option(
        0, "Descriptors that the segment files of log, queues, index and timer log may have open "
        "together; a file that is used again is opened again. 0: a quarter of the process's soft limit "
        "(`ulimit -n`), from 16 to 16,384.", low=0, high=1 << 20)
    commit_log_allocate_step: int = _option(
        64 * MIB, "Disk blocks are reserved ahead of the write position in steps of this size.",
        unit="bytes", low=4 * KIB)

    # -- retention
    file_reserved_time: float = _option(
        72.0, "How long messages are kept; fractions are allowed.", unit="hours", low=0,
        high=0x7FFFFFFF, live=True, deletes=True, main=True)
    commit_log_roll_time: float = _option(
        24.0, "Age of its first message at which a CommitLog file is ended before it is full, so that "
        "messages of a quiet store expire; 0: only full files end.", unit="hours", low=0,
        high=0x7FFFFFFF, live=True, deletes=True)
    delete_when: str = _option(
        "04", "Local hours in which expired files are deleted, from 0 to 23, separated by `;`.", live=True,
        deletes=True, main=True)
    expire_by: str = _option(
        "storeTimestamp", "How the age of a CommitLog file is found: `storeTimestamp` of the first message "
        "after it, or `mtime`, as a Java broker does.", choices=("storeTimestamp", "mtime"), live=True, deletes=True)
    clean_resource_interval: int = _option(
        10_000, "Period of the check of the disks and of the search for files to delete.", unit="ms", low=1)
    delete_commit_log_files_interval: int = _option(
        100, "Pause after the deletion of a CommitLog file.", unit="ms", low=0)
    delete_consume_queue_files_interval: int = _option(
        100, "Pause after a queue that deleted files.", unit="ms", low=0)
    delete_file_batch_max: int = _option(
        10, "Largest number of CommitLog files that one pass deletes.", low=1, live=True, deletes=True)
    delete_rate: int = _option(
        2 * GIB, "Speed at which the space of deleted files is freed; 0: no limit.",
        unit="bytes/s", low=0)
    destroy_maped_file_interval_forcibly: int = _option(
        120_000, "Time that readers may hold a file that must be deleted.", unit="ms", low=0, live=True, deletes=True)
    redelete_hanged_file_interval: int = _option(
        120_000, "Period of retries to delete a first file that readers hold.", unit="ms", low=1, live=True,
        deletes=True)

    # -- full disks
    clean_file_forcibly_enable: bool = _option(
        True, "Whether the oldest files are deleted before they expire when a disk fills up.", live=True, deletes=True)
    disk_max_used_space_ratio: int = _option(
        75, "Used share of the disk above which expired files are deleted at any hour, 10 to 99.",
        unit="percent", low=0, high=100, live=True, deletes=True, main=True)
    disk_space_clean_forcibly_ratio: int = _option(
        85, "Used share of the disk above which the oldest files are deleted before they expire, 30 to 99.",
        unit="percent", low=0, high=100, live=True, deletes=True)
    disk_space_warning_level_ratio: int = _option(
        90, "Used share of the disk above which puts are refused, 35 to 99.", unit="percent", low=0,
        high=100, live=True, main=True)
    broker_disk_space_clean_forcibly_ratio: float = _option(
        0.0, "As diskSpaceCleanForciblyRatio, as a fraction; 0: not set.", low=0, high=1,
        name="rocketmq.broker.diskSpaceCleanForciblyRatio")
    broker_disk_space_warning_level_ratio: float = _option(
        0.0, "As diskSpaceWarningLevelRatio, as a fraction; 0: not set.", low=0, high=1,
        name="rocketmq.broker.diskSpaceWarningLevelRatio")
    disk_free_bytes_delete: int = _option(
        0, "Free space that replaces diskMaxUsedSpaceRatio; 0: not set.", unit="bytes", low=0, live=True, deletes=True)
    disk_free_bytes_clean_forcibly: int = _option(
        0, "Free space that replaces diskSpaceCleanForciblyRatio; 0: not set.",
        unit="bytes", low=0, live=True, deletes=True)
    disk_free_bytes_warning_level: int = _option(
        0, "Free space that replaces diskSpaceWarningLevelRatio; 0: not set.",
        unit="bytes", low=0, live=True)
    disk_full_hysteresis: str = _option(
        "onePoint", "When puts are accepted again: `onePoint` below the warning level, or, with "
        "`reference`, at the forcible level as in RocketMQ.", choices=("onePoint", "reference"))
    max_store_bytes: int = _option(
        0, "Size of log, queues and index above which the oldest files are deleted; 0: no limit.",
        unit="bytes", low=0, live=True, deletes=True)
    replicas_per_disk_partition: int = _option(
        1, "Number of brokers that share the partition of the disk.", low=1)
    logical_disk_space_clean_forcibly_threshold: float = _option(
        0.8, "With several brokers per partition: used share of its part above which a broker deletes "
        "its oldest files.",
        low=0, high=1)

    # -- pins: what still needs expired messages
    pin_policy_groups: str = _option(
        "delete-oldest", "When space is short and a listed group has not consumed the oldest file: "
        "`delete-oldest` or `refuse-writes`.", choices=("delete-oldest", "refuse-writes"))
    pin_policy_timers: str = _option(
        "delete-oldest", "The same for pending timers.", choices=("delete-oldest", "refuse-writes"))
    pin_policy_archive: str = _option(
        "refuse-writes", "The same for messages that are not archived yet.",
        choices=("delete-oldest", "refuse-writes"))
    pin_groups: str = _option(
        "", "Consumer groups, separated by `;`, whose unconsumed messages are not deleted by age.")
    archive_directory: str = _option(
        "", "Directory or s3:// URL of the archive; a CommitLog file without a verified manifest there is not deleted "
        "by age. Empty: there is no archive.", main=True)

    # -- delay levels
    message_delay_level: str = _option(
        MESSAGE_DELAY_LEVEL, "Delays of the delay levels, the first one being level 1: whole numbers "
        "of s, m, h or d. A level above the highest one counts as the highest.", main=True)
    flush_delay_offset_interval: int = _option(
        1000, "Period of writing the offsets of the delay levels, if they have changed.", unit="ms", low=1,
        live=True)

    # -- timer wheel
    timer_wheel_enable: bool = _option(True, "Whether messages may have a delivery time (the timer wheel).")
    timer_precision_ms: int = _option(
        1000, "Width of a slot of the timer wheel.", unit="ms", low=1, high=60_000)
    timer_roll_window_slot: int = _option(
        172_800, "A timer due later than this many slots waits in several rounds.", unit="slots", low=2)
    timer_max_delay_sec: int = _option(
        3 * 86_400, "Longest delay of a timer message.", unit="s", low=1, high=10 * 366 * 86_400, main=True)
    timer_congest_num_each_slot: int = _option(
        0x7FFFFFFF, "Number of timers in one slot at which new ones are refused at random; at twice this "
        "number all are refused.", low=1, live=True)
    timer_flush_interval_ms: int = _option(
        1000, "Period of the timer flush.", unit="ms", low=1, live=True)
    timer_progress_log_interval_ms: int = _option(
        10_000, "Period of the timer progress line.", unit="ms", low=1, live=True)
    timer_stop_enqueue: bool = _option(False, "Whether timers are not moved into the wheel.", live=True)
    timer_stop_dequeue: bool = _option(False, "Whether due timers are not delivered.", live=True)
    append_topic_for_timer_delete_key: bool = _option(
        False, "Whether a recall is written as topic+key only. False also writes the bare key, which a "
        "Java broker of 5.5.0 with its default setting looks for. Tailrace accepts both forms.")
    timer_enable_check_metrics: bool = _option(
        True, "Whether pending timers of each topic are counted again at certain hours.", live=True)
    timer_check_metrics_when: str = _option(
        "05", "Local hours in which they are counted again, from 0 to 23, separated by `;`.", live=True)
    timer_metric_small_threshold: int = _option(
        1_000_000, "Topics with at least this many pending timers are not counted again.", low=0, live=True)
    mapped_file_size_timer_log: int = _option(
        100 * MIB, "Length of a timer log file.", unit="bytes", low=128, high=2 * GIB - 1)

    @property
    def replicas_needed(self) -> int:
        """Number of brokers that must have a message before it is acknowledged, this one included."""
        if self.broker_role is not BrokerRole.SYNC_MASTER:
            return 1
        return self.in_sync_replicas or max(2, self.min_in_sync_replicas)

    @property
    def multi_dispatch(self) -> bool:
        """True if messages get a unit in the LMQ queues that they name: both settings are on."""
        return self.enable_lmq and self.enable_multi_dispatch

    def validate(self) -> list[str]:
        """Return a sentence for each value that cannot work."""
        problems = _Config.validate(self)
        for name, when in (
            ("deleteWhen", self.delete_when), ("timerCheckMetricsWhen", self.timer_check_metrics_when)
        ):
            hours = [whole_number(hour.strip()) for hour in str(when).split(";")]
            if not all(hour is not None and hour < 24 for hour in hours):
                problems.append(
                    f"{name}={_shown(when)} is not a list of hours from 0 to 23, separated by `;`")
        if not _DELAY_LEVELS.fullmatch(str(self.message_delay_level)):
            problems.append(
                f"messageDelayLevel={_shown(self.message_delay_level)} is not a list such as "
                "`1s 5s 1m 2h`, separated by one blank")
        if self.broker_role is BrokerRole.SYNC_MASTER and self.min_in_sync_replicas > self.replicas_needed:
            problems.append(
                f"minInSyncReplicas={self.min_in_sync_replicas} is more than inSyncReplicas={self.replicas_needed}")
        if self.read_replicated_only and self.replicas_needed < 2:
            problems.append("readReplicatedOnly=true needs brokerRole=SYNC_MASTER with inSyncReplicas above 1")
        if not self.multi_path_splitter:
            problems.append("rocketmq.broker.multiPathSplitter is empty")
        return problems


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig(_Config):
    """Settings of a broker: names, ports, topics, groups, transactions, POP and limits of connections."""

    broker_cluster_name: str = _option("DefaultCluster", "Cluster that clients see.", main=True)
    broker_name: str = _option("broker-a", "Name that clients see.", main=True)
    broker_id: int = _option(0, "0 is the master; a slave has a number above 0.", low=0)
    slave_read_enable: bool = _option(
        False, "Whether a slave serves pulls, and a master sends readers of its disk there.")
    broker_ip1: str = _option("", "Address that clients get; empty: the listening one.", name="brokerIP1", main=True)
    broker_ip2: str = _option(
        "", "Address of the port for slaves; empty: brokerIP1.", name="brokerIP2")
    listen_port: int = _option(
        10911, "Port of the broker for `serve` without `--listen`; 0 picks one.", low=0, high=65_535, main=True)
    bind_address: str = _option(
        "127.0.0.1", "Address on which `serve` without `--listen` listens. A Java broker listens on all.", main=True)
    grpc_server_port: int = _option(
        0, "Port of the gRPC endpoint for `serve` without `--grpc`, on bindAddress; 0: no endpoint. RocketMQ's proxy "
        "has 8081.", low=0, high=65_535, main=True)
    grpc_connections_max: int = _option(
        0, "Connections of the gRPC endpoint, a part of serverSocketMaxConnections; above it those without a call are "
        "closed. 0: a third of it.", low=0, high=1 << 20)
    grpc_calls_max: int = _option(
        12_000, "Calls of gRPC under way, streams included, of all clients together.", low=16, high=1_000_000)
    grpc_calls_per_address: int = _option(
        0, "The part of grpcCallsMax that one address may have. 0: as many as are free, so less than half.", low=0)
    grpc_calls_per_user: int = _option(
        0, "The part of grpcCallsMax that one user may have. 0: as many as are free, so less than half.", low=0)
    grpc_calls_per_connection: int = _option(
        1_000, "Calls under way on one connection; a client waits with further ones.", low=1, high=1_000_000)
    grpc_first_message_timeout_seconds: int = _option(
        5, "A call of gRPC ends if its request, or the settings of a Telemetry stream, do not arrive in this time.",
        unit="s", low=1)
    grpc_first_call_timeout_seconds: int = _option(
        30, "A connection of gRPC is closed if no call has been served on it in this time.", unit="s", low=1)
    grpc_clients_max: int = _option(
        10_000, "Clients of gRPC that have sent their settings.", low=1, high=1_000_000)
    grpc_clients_per_address: int = _option(
        0, "The part of grpcClientsMax that one address may have. 0: as many as are free, so less than half.", low=0)
    grpc_clients_per_user: int = _option(
        0, "The part of grpcClientsMax that one user may have. 0: as many as are free, so less than half.", low=0)
    grpc_settings_max_bytes: int = _option(
        32 * MIB, "Bytes of the settings of all clients of gRPC together. One address, or one user, may have as many "
        "as are free.", unit="bytes", low=1 * MIB)
    namesrv_addr: str = _option(
        "", "Name servers, `HOST:PORT` separated by `;`. `serve` runs the one that is an address of this "
        "machine, unless `--namesrv-listen` is given, and registers at the others.", main=True)
    register_name_server_period: int = _option(
        30_000, "Period of registering at other name servers.", unit="ms", low=10_000, high=60_000)
    register_broker_timeout_mills: int = _option(
        24_000, "Timeout of a registration.", unit="ms", low=1, live=True)
    default_topic_queue_nums: int = _option(8, "Queues of TBW102.", low=1, high=1024)
    auto_create_topic_enable: bool = _option(True, "Whether a send creates its topic.", live=True, main=True)
    auto_create_subscription_group: bool = _option(True, "Whether a consumer creates its group.", live=True, main=True)
    cold_data_flow_control_enable: bool = _option(
        False, "Whether groups that read much from the disk get less of it for up to 5 s: a push consumer is "
        "refused (SYSTEM_BUSY) and pulls again, a pull consumer waits 3 s for one message.", live=True)
    cg_cold_read_threshold: int = _option(
        3 * MIB, "With coldDataFlowControlEnable: what a group may read from the disk in 5 s; "
        "`mqadmin updateColdDataFlowCtrGroupConfig` sets it for one group.", unit="bytes", low=0, live=True)
    global_cold_read_threshold: int = _option(
        100 * MIB, "With coldDataFlowControlEnable: what all groups together may read from the disk in 5 s.",
        unit="bytes", low=0, live=True)
    forward_timeout: int = _option(
        3000, "How long this broker waits for an answer of another broker about a static topic.", unit="ms", low=1,
        live=True)
    max_topics: int = _option(
        100_000, "Largest number of topics, system topics included; more are not created.", low=1, live=True)
    max_subscription_groups: int = _option(
        100_000, "Largest number of consumer groups; more are not created.", low=1, live=True)
    max_consumer_offsets: int = _option(
        1_000_000, "Queues, counted by group, that may have a consumer offset; more are refused.", low=1)
    long_polling_enable: bool = _option(True, "Whether pulls wait for messages.", live=True)
    short_polling_time_mills: int = _option(
        1000, "Wait of a pull without long polling.", unit="ms", low=1, live=True)
    flush_consumer_offset_interval: int = _option(
        5000, "Period of writing consumer offsets.", unit="ms", low=1, live=True)
    enable_property_filter: bool = _option(
        False, "Whether pulls may filter by an expression of SQL92 over message properties. A pop with "
        "such an expression needs no setting.")
    filter_support_retry: bool = _option(
        False, "Whether an expression on a retry topic is replaced by the one of the topic that a message "
        "was sent to.")
    filter_data_clean_time_span: int = _option(
        86_400_000, "How long the expression of a group that has left is kept.", unit="ms", low=0)
    expect_consumer_num_use_filter: int = _option(
        32, "Consumers with an expression for which a Java broker lays out its bloom filter; only written "
        "to `consumerFilter.json`.", low=1, high=100_000)
    max_error_rate_of_bloom_filter: int = _option(
        20, "Error rate of that filter.", unit="percent", low=1, high=99)
    metrics_needs_user: bool = _option(
        False, "With `--http`: whether `/metrics`, which names topics and groups, needs a user that may Get the "
        "cluster (HTTP Basic), as the console does. It needs `authenticationEnabled`.", main=True)
    metrics_token_file: str = _option(
        "", "With `--http`: file with a token. `/metrics` then needs `Authorization: Bearer TOKEN`; with "
        "metricsNeedsUser a user may read it as well.", secret_file=True)
    region_id: str = _option("DefaultRegion", "Value of MSG_REGION.")
    trace_on: bool = _option(True, "Value of TRACE_ON.")
    use_server_side_reset_offset: bool = _option(
        True, "Whether a reset of offsets holds on the broker immediately, and consumers get it with "
        "their next pull. False: it is sent to the consumers that are online, which commit it (request 220).",
        live=True)
    enable_detail_stat: bool = _option(
        True, "Whether latencies and delayed messages are counted by queue (request 315).")
    plain_lane_enable: bool = _option(
        True, "Whether plain sends and pulls are served in compiled code. False, and with users: as others are, with "
        "the same results.", live=True)
    store_reply_message_enable: bool = _option(
        True, "Whether a reply of request-reply is also stored in its topic, after it was pushed.", live=True)
    reject_transaction_message: bool = _option(False, "Whether transactional messages are refused.")
    transaction_time_out: int = _option(
        6000, "Age of a half message at which its producer is checked for the first time.", unit="ms", low=0)
    transaction_check_max: int = _option(
        15, "Number of checks after which a half message is given up; it is kept in "
        "TRANS_CHECK_MAX_TIME_TOPIC.",
        low=0, high=1_000_000)
    transaction_check_interval: int = _option(
        30_000, "Period of the checks of half messages.", unit="ms", low=1)
    transaction_op_msg_max_size: int = _option(
        4096, "Length at which the operations on half messages are written.", unit="bytes", low=1,
        high=MIB)
    transaction_op_batch_interval: int = _option(
        3000, "How long operations on half messages wait to be written together.", unit="ms", low=0)
    transaction_metric_flush_interval: int = _option(
        10_000, "Period of writing the numbers of half messages.", unit="ms", low=1)
    default_message_request_mode: str = _option(
        "PULL", "How groups with clientRebalance=false get messages of a topic for which no mode is set.",
        choices=("PULL", "POP"))
    default_pop_share_queue_num: int = _option(
        -1, "With mode POP as default: queues of how many following members a member pops as well; "
        "0 and less: every member pops all queues.", low=-1, high=1 << 20)
    revive_queue_num: int = _option(
        8, "Queues of the revive topic, over which POP checkpoints are spread.", low=1, high=256)
    revive_interval: int = _option(
        1000, "Period of the search for popped messages that were not acknowledged in time.", unit="ms",
        low=1)
    pop_polling_size: int = _option(
        1024, "Pops of one group, topic and queue that may wait for messages.", low=1)
    max_pop_polling_size: int = _option(
        100_000, "Pops that may wait for messages, of all groups together.", low=1)
    enable_retry_topic_v2: bool = _option(
        False, "Whether popped messages are redelivered in `%RETRY%group+topic`; else in `%RETRY%group_topic`, which "
        "a Java broker reads with its own defaults. A topic of the first form is popped whenever it exists.")
    retrieve_message_from_pop_retry_topic_v1: bool = _option(
        True, "With enableRetryTopicV2: whether `%RETRY%group_topic` is popped as well.")
    pop_from_retry_probability: int = _option(
        20, "Share of the pops that read the retry topic first.", unit="percent", low=0, high=100,
        live=True)
    pop_from_retry_probability_for_priority: int = _option(
        0, "The same for pops of a topic of message.type PRIORITY in the order of its priorities.",
        unit="percent",
        low=0, high=100, live=True)
    enable_pop_message_threshold: bool = _option(
        False, "Whether a queue is not popped while more than popInflightMessageThreshold of its "
        "messages are in "
        "flight for the group.", live=True)
    pop_inflight_message_threshold: int = _option(
        10_000, "Messages of a queue that a group may have popped and not acknowledged.", low=0, live=True)
    use_message_filter_for_notification: bool = _option(
        True, "Whether notifications (request 200054) use the filter expression that they contain.",
        live=True)
    max_message_filter_num_for_notification: int = _option(
        64, "A queue with at least this many messages is not searched for tags before a notification is "
        "answered.", low=0, live=True)
    priority_order_asc: bool = _option(
        True, "Whether a greater priority is delivered first.", live=True)
    use_separate_retry_queue: bool = _option(
        False, "Whether a popped message is redelivered in the queue of its number, so that it keeps its "
        "priority; "
        "else in queue 0.", live=True)
    init_pop_offset_by_check_msg_in_mem: bool = _option(
        True, "Whether a group that pops from the end reads a queue from its start if the first message is "
        "in memory.")
    max_lite_subscription_count: int = _option(
        100_000, "Subscriptions to Lite topics, of all clients together; more are refused with code 2018.", low=0,
        live=True)
    lite_subscription_check_interval: int = _option(
        120_000, "Period of the search for subscriptions to Lite topics whose client has gone.", unit="ms", low=1)
    lite_subscription_check_timeout_mills: int = _option(
        180_000, "A client that has not renewed its subscriptions to Lite topics for this long loses them.", unit="ms",
        low=1, live=True)
    max_client_event_count: int = _option(
        100, "Lite topics with messages that are noted for one client, if its group does not say "
        "lite.sub.client.max.event.cnt.", low=1, live=True)
    lite_event_check_interval: int = _option(
        10_000, "Period of the search for clients of Lite topics that do not fetch their messages.", unit="ms", low=1)
    lite_event_full_dispatch_delay_time: int = _option(
        10_000, "After a client has more Lite topics with messages than are noted, all its Lite topics are looked at "
        "again this much later.", unit="ms", low=0, live=True)
    lite_event_full_dispatch_delay_time_for_wildcard_group: int = _option(
        10_000, "The same for a group with lite.sub.wildcard.", unit="ms", low=0, live=True)
    lite_ttl_check_interval: int = _option(
        120_000, "Period of the deletion of Lite topics after lite.topic.expiration.", unit="ms", low=1)
    min_lite_ttl: int = _option(
        900_000, "A Lite topic is not deleted before it was without a message for this long, nor before the broker "
        "has run for this long.", unit="ms", low=0, live=True, deletes=True, name="minLiteTTl")
    channel_expired_ms: int = _option(
        120_000, "A client without heartbeat for this long is forgotten.", unit="ms", low=1)
    server_socket_max_connections: int = _option(
        0, "Connections of all ports together; when one more comes, the least recently used one is closed. "
        "0: half of the process's limit of descriptors (`ulimit -n`).", low=0, high=1 << 20, main=True)
    server_buffer_max_bytes: int = _option(
        256 * MIB, "Memory of incomplete and waiting requests and of unread answers of all connections "
        "together; above it requests wait and the largest connections are closed.", unit="bytes",
        low=32 * MIB)
    write_buffer_high_water_mark: int = _option(
        256 * KIB, "Unread answers of one connection at which its next requests wait; 0: 256 KiB.",
        unit="bytes", low=0, high=64 * MIB)
    server_channel_stall_timeout_seconds: int = _option(
        30, "A client that stops in the middle of a request, or does not read its answers, for this long "
        "is disconnected.", unit="s", low=1)

    def validate(self) -> list[str]:
        """Return a sentence for each value that cannot work."""
        problems = _Config.validate(self)
        if not self.bind_address:
            problems.append("bindAddress is empty; say 0.0.0.0 for all addresses of this machine")
        if not self.broker_name or " " in str(self.broker_name):
            problems.append(  # it is a field of a handle of POP (`formats.pop`), and blanks separate these fields
                f"brokerName={_shown(self.broker_name)} must be a name without blanks, as popped messages name their "
                "broker so")
        return problems


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerConfig(_Config):
    """Settings of the name server in the process of the broker."""

    order_message_enable: bool = _option(
        False, "Whether the route of a topic has its entry of the namespace ORDER_TOPIC_CONFIG.", live=True)
    return_order_topic_config_to_broker: bool = _option(
        True, "Whether a broker that registers gets that namespace.", live=True)
    enable_all_topic_list: bool = _option(True, "Whether all topics are listed (request 206).", live=True)
    enable_topic_list: bool = _option(
        True, "Whether topics are listed by cluster and by unit (requests 224 and 311 to 313).", live=True)
