"""Find data of a Java broker that Tailrace does not serve. It is logged at each open and never changed.

Each kind gets one warning with a count, a path and the consequence (``name_leftovers``). Of a topic only the last
``MOST`` messages are read, so that millions of them do not make an open slow; the count is then "at least N". A
count is never too high, because the operation that settles a half message is always put after that message.

With every engine the messages are in the log, and queues and index are built from it. Only RocksDB has

  config/topics, config/subscriptionGroups, config/consumerOffsets
      with ``storeType=defaultRocksDB``, instead of the JSON files of (nearly) these names
  config/rdb, config/metadata
      all of them, with ``configManagerVersion=v2`` or ``useSingleRocksDBForAllConfigs``
  config/users, config/acls
      users and rights of an AuthConfig
  kvStore
      messages popped and not acknowledged, with ``popConsumerKVServiceEnable``
  rocksdbstore
      timers, transactions and index of 5.5.0, off by default. Every start creates it; it is in use only if it
      has tables (``.sst``) or a write-ahead log (``.log``) that is not empty. Its timers may be missing from
      wheel and timer log, so these are rebuilt from the CommitLog, once: ``tailrace/rocksdbstore.json`` has
      the tables for which that was done.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, final

from tailrace import events
from tailrace.config import whole_number
from tailrace.env.filesystem import FileSystem
from tailrace.env.state_file import StateFile
from tailrace.errors import CorruptionError, OddFileError, StoreError
from tailrace.formats.filenames import CONFIG, OWN
from tailrace.formats.names import TAGS, TRANSACTION_GROUP, UNIQ_KEY
from tailrace.logs import get_logger
from tailrace.model import MessageExt
from tailrace.node.config_manager import read_config
from tailrace.node.topic_config import LITE_WITHOUT_LMQ, TopicConfigManager
from tailrace.store.default_message_store import DefaultMessageStore

__all__ = ["MOST", "RocksDBStore", "name_leftovers", "name_rocksdb_configs"]

_log = get_logger(__name__)
_STORE: Final = "rocksdbstore"
_MOST: Final = 1 << 20
_CONFIGS: Final = {
    "topics": "topics.json", "subscriptionGroups": "subscriptionGroup.json",
    "consumerOffsets": "consumerOffset.json"}
"""Directory of a configuration in RocksDB (also its type for mqadmin), and its JSON file."""


def _tables(file_system: FileSystem, directory: str) -> dict[str, int]:
    """Return names and lengths of the files of a RocksDB directory that are not empty; {} without RocksDB."""
    if not file_system.exists(directory) or not file_system.stat(directory).is_dir:
        return {}
    sizes = {
        name: file_system.stat(f"{directory}/{name}").size for name in file_system.list(directory)
        if name.endswith((".sst", ".log"))}
    return {name: size for name, size in sizes.items() if size}


def name_rocksdb_configs(file_system: FileSystem, root: str) -> set[str]:
    """Warn of configurations that a Java broker has in RocksDB and that no newer JSON file has. Return their kinds."""
    directory, found = f"{root}/{CONFIG}", set()
    for kind, name in _CONFIGS.items():
        tables = _tables(file_system, f"{directory}/{kind}")
        json = f"{directory}/{name}"
        if not tables or (file_system.exists(json) and file_system.stat(json).mtime_ms >= max(
            file_system.stat(f"{directory}/{kind}/{table}").mtime_ms for table in tables
        )):
            continue
        events.CONFIGURATION_OF_A_JAVA_BROKER_IS_IN_ROCKSDB_AND_IS_NOT_READ.log(
            _log, kind=kind, path=f"{directory}/{kind}",
            export=f"mqadmin rocksDBConfigToJson -p {directory} -t {kind} -e {json}")
        found.add(kind)
    return found


@final
class RocksDBStore:
    """``rocksdbstore`` of a store directory."""

    def __init__(self, file_system: FileSystem, root: str) -> None:
        self._file = StateFile(file_system, f"{root}/{OWN}/{_STORE}.json", dict[str, int], _MOST)
        self._tables = _tables(file_system, f"{root}/{_STORE}")

    def why_timers_are_rebuilt(self) -> str:
        """Return why wheel and timer log may lack timers, or ""."""
        if not self._tables or self._known() == self._tables:
            return ""
        return f"a Java broker kept timers, transactions or an index in {_STORE}"

    def remember(self) -> None:
        """Note that the timers were rebuilt for the present tables of RocksDB. Raises OSError."""
        if self._tables and self._known() != self._tables:
            self._file.write(self._tables)

    def _known(self) -> dict[str, int] | None:
        with contextlib.suppress(CorruptionError, OddFileError, PermissionError):
            return self._file.read()
        return None


MOST: Final = 500
"""Greatest number of messages of a topic that are read to count leftovers."""
_ROCKSDB_HALF: Final = "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"
_ROCKSDB_OP: Final = "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC"
"""The two topics of a broker with ``transRocksDBEnable``."""
_TRANS_OFFSET: Final = "TRANS_OFFSET"
"""Property of an operation there: position of its half message in the CommitLog."""
_DONE_TAG: Final = "d"
_DIRECTORIES: Final = {
    f"{CONFIG}/rdb": ("configuration", "topics, groups and consumer offsets in it are not read"),
    f"{CONFIG}/metadata": ("configuration", "topics, groups and consumer offsets in it are not read"),
    f"{CONFIG}/users": ("users", "they are not read; copy them with `mqadmin copyUser`"),
    f"{CONFIG}/acls": ("permissions", "they are not read; copy them with `mqadmin copyAcl`"),
    "kvStore": ("popped messages", "messages popped and not acknowledged are not delivered again"),
}
"""Directories of RocksDB by path: what they hold, and what will not happen."""
_FILES: Final = {
    "brokerIdentity": ("controller mode", "the broker is not registered at a controller and has no replicas"),
    "epochFileCheckpoint": (
        "controller mode", "the broker is not registered at a controller and has no replicas"),
}
_TYPES: Final = {
    LITE_WITHOUT_LMQ: "sends are refused, and lite consumers are not served",
}
_OTHER_TYPE: Final = "sends are refused"


class _Leftover(NamedTuple):
    """One kind of data that is not served."""

    kind: str
    number: int
    path: str
    consequence: str
    is_bound: bool = False
    """True if there may be more."""


def name_leftovers(
    file_system: FileSystem, root: str, store: DefaultMessageStore, topics: TopicConfigManager
) -> None:
    """Log a warning for each kind of data that a Java broker left and that is not served."""
    try:
        found = [
            *_directories(file_system, root), *_unsupported_topics(topics),
            *_in_queues(file_system, root, store)]
    except (OSError, StoreError) as error:  # only a warning is lost, so the open continues
        events.CANNOT_LOOK_AT_WHAT_A_JAVA_BROKER_LEFT.log(_log, path=root, cause=error)
        return
    for left in found:
        if left.number:
            events.A_JAVA_BROKER_LEFT_WHAT_IS_NOT_SERVED.log(
                _log, kind=left.kind, count=f"at least {left.number}" if left.is_bound else left.number, path=left.path,
                consequence=left.consequence)


def _directories(file_system: FileSystem, root: str) -> Iterator[_Leftover]:
    for name, (kind, consequence) in _DIRECTORIES.items():
        yield _Leftover(
            f"{kind} in RocksDB", len(_tables(file_system, f"{root}/{name}")), f"{root}/{name}", consequence)
    for name, (kind, consequence) in _FILES.items():
        if file_system.exists(f"{root}/{name}") and file_system.stat(f"{root}/{name}").size:
            yield _Leftover(kind, 1, f"{root}/{name}", consequence)
            return


def _unsupported_topics(topics: TopicConfigManager) -> Iterator[_Leftover]:
    counts = Counter(filter(None, map(topics.unsupported_type, topics.items())))
    for kind, count in sorted(counts.items()):
        yield _Leftover(f"topics of {kind}", count, topics.path, _TYPES.get(kind, _OTHER_TYPE))
    name = topics.broker_name
    yield _Leftover(
        "static topics of another brokerName", sum(d.bname != name for d in topics.mappings.table.values()),
        topics.mappings.path, f"sends and pulls of them are refused, because the brokerName is {name}")


def _in_queues(
    file_system: FileSystem, root: str, store: DefaultMessageStore
) -> Iterator[_Leftover]:
    half = sorted(key for key in store.queues.table if key[0] == _ROCKSDB_HALF)
    name = "lmqConsumerOffset.json" if store.config.enable_lmq else "consumerOffset.json"
    path = f"{root}/{CONFIG}/{name}"
    # Read only if it is needed: it may be long.
    offsets = _Offsets(file_system, path) if half else _Offsets()
    yield _half_messages(store, offsets, half)


class _Offsets:
    """Consumer offsets of system groups, read from their file."""

    def __init__(self, file_system: FileSystem | None = None, path: str = "") -> None:
        found = (read_config(file_system, path) or {}).get("offsetTable") if file_system else None
        self._table: Mapping[str, Any] = found if isinstance(found, dict) else {}

    def get(self, topic: str, group: str, queue_id: int) -> int:
        queues = self._table.get(f"{topic}@{group}")
        offset = queues.get(str(queue_id), -1) if isinstance(queues, dict) else -1
        return offset if isinstance(offset, int) else -1


def _last(
    store: DefaultMessageStore, topic: str, queue_id: int, low: int, most: int
) -> tuple[list[MessageExt], bool]:
    """Return the last ``most`` messages of a queue that are not below ``low``, and whether there are more."""
    queue = store.queues.get(topic, queue_id)
    if queue is None:
        return [], False
    low, until = max(low, queue.min_offset), queue.max_offset
    first = max(low, until - most)
    units = (queue.unit(offset) for offset in range(first, until))
    found = (store.reader.decode_at(unit[0]) for unit in units if unit is not None)
    return [message for message in found if message is not None], first > low


def _half_messages(
    store: DefaultMessageStore, offsets: _Offsets, queues: list[tuple[str, int]]
) -> _Leftover:
    """Count half messages without an operation: neither committed nor rolled back."""
    count, is_bound, most = 0, False, MOST // max(1, len(queues))
    for half_topic, queue_id in queues:
        halves, more = _last(
            store, half_topic, queue_id, offsets.get(half_topic, TRANSACTION_GROUP, queue_id), most)
        operations, more_operations = _last(
            store, _ROCKSDB_OP, queue_id, offsets.get(_ROCKSDB_OP, TRANSACTION_GROUP, queue_id), most)
        # Operations on a message come after it, so all operations on messages after ``since`` were read.
        since = operations[0].store_timestamp if more_operations and operations else 0
        done = {number for operation in operations for number in _settled_by(operation)}
        settled, pending = set(), set()
        for half in halves:  # a half message that is put back keeps its unique key
            key = half.properties.get(UNIQ_KEY, str(half.queue_offset))
            if half.phy_offset in done:
                settled.add(key)
            elif half.store_timestamp >= since:
                pending.add(key)
        count += len(pending - settled)
        is_bound = is_bound or (bool(pending - settled) and (more or more_operations))
    return _Leftover(
        "half messages of transactions in RocksDB", count, f"{store.root}/consumequeue/{_ROCKSDB_HALF}",
        "transactions are neither checked back nor committed, so the messages are not delivered", is_bound)


def _settled_by(operation: MessageExt) -> Iterator[int | None]:
    """Yield the position in the CommitLog of the half message that an operation settles."""
    if operation.properties.get(TAGS) == _DONE_TAG:
        yield whole_number(operation.properties.get(_TRANS_OFFSET, ""))
