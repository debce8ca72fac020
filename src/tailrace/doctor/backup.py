"""Copies of a store: ``tailrace backup`` and ``tailrace restore``.

A backup is a directory with a manifest and the files that it names:

  manifest.json   positions, and name, length and SHA-256 of each file; replaced atomically
  data/           CommitLog files and files of settings and offsets, named by their checksum
  lock            held while a backup is made

Queues, index and timer files can be rebuilt from the CommitLog, so they are not copied; a restore rebuilds them. The
store may be in use by a server. Only durable records are copied. Offsets and hints are read before the end of the log
is determined, so they are never after it. Topics and groups are read after it, so every message has its topic.

Commit point of a backup: the rename of the manifest. Files that a manifest names are never written again, so
the previous backup is complete until that moment. Commit point of a restore: the rename of the directory.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, Final, NamedTuple

import orjson

from tailrace.config import StoreConfig
from tailrace.env.clock import Clock, SystemClock
from tailrace.env.filesystem import File, FileSystem, OsFileSystem
from tailrace.env.permissions import make_private
from tailrace.env.whole_files import (
    is_directory,
    read_if_there,
    remove_tree,
    replace_file,
    write_file,
)
from tailrace.errors import CorruptionError, NotAStoreError, StoreError
from tailrace.formats import filenames
from tailrace.node.message_store import MessageStore
from tailrace.node.store_opening import StoreParts
from tailrace.node.synced_directory import open_synced
from tailrace.remoting.tls import TlsOptions
from tailrace.segments import MappedFile
from tailrace.store.compaction.verification import only_in_compaction_log
from tailrace.store.directory import StoreDirectory

__all__ = ["MANIFEST", "BackupManifest", "Entry", "back_up", "read_manifest", "restore", "verify_backup"]

MANIFEST: Final = "manifest.json"
DATA: Final = "data"
VERSION: Final = 1
_CHUNK: Final = 4 << 20
_HEAD: Final = 4096
_HINTS: Final = (
    "config/consumerOffset.json", "config/lmqConsumerOffset.json", "config/delayOffset.json",
    "config/consumerOrderInfo.json", "config/timercheck", "config/timermetrics", "config/transactionMetrics",
)
"""Files that are read before the end of the log is determined."""
_STATE: Final = (
    "config/topics.json", "config/subscriptionGroup.json", "config/consumerFilter.json",
    "config/messageRequestMode.json", f"config/{filenames.MIN_OFFSETS}", "config/tailrace-kvConfig.json",
    filenames.FORMAT, *filenames.OLD_FORMAT, filenames.FORCED_DELETIONS, filenames.WALL_TIMES,
    f"config/{filenames.USERS}", f"config/{filenames.ACLS}",
)
"""Files that are read after the end of the log is determined."""
_PRIVATE: Final = frozenset({f"config/{filenames.USERS}", f"config/{filenames.ACLS}"})
"""Files that only their owner may read, with the passwords of users."""
Progress = Callable[[float], None]


class Entry(NamedTuple):
    """One file of a store in a backup."""

    path: str
    """Path relative to the store."""
    size: int
    """Length in the store; bytes after the copied ones are zero."""
    length: int
    """Number of bytes that are copied."""
    sha256: str
    head: str
    """SHA-256 of the first 4 KiB, by which a later backup recognises the same file."""

    @property
    def name(self) -> str:
        """Path of its copy, relative to the backup."""
        return f"{DATA}/{self.path.replace('/', '_')}-{self.sha256[:16]}"


class BackupManifest(NamedTuple):
    """The manifest of a backup: positions of the log, and its files."""

    created_ms: int
    store: str
    log_start: int
    log_end: int
    files: tuple[Entry, ...]

    def encode(self) -> bytes:
        """Return the file's text, with a checksum of the rest."""
        value: dict[str, Any] = {
            "version": VERSION, "createdMs": self.created_ms, "store": self.store, "logStart": self.log_start,
            "logEnd": self.log_end, "files": [entry._asdict() for entry in self.files]}
        return orjson.dumps({**value, "sha256": _digest(orjson.dumps(value))}, option=orjson.OPT_INDENT_2)

    @classmethod
    def decode(cls, text: bytes, path: str) -> BackupManifest:
        """Return the manifest in a text. Raises CorruptionError."""
        try:
            value = orjson.loads(text)
            said = value.pop("sha256")
            if said != _digest(orjson.dumps(value)) or value["version"] != VERSION:
                raise ValueError("its checksum or version is another one")
            files = tuple(Entry(**entry) for entry in value["files"])
            for entry in files:
                if entry.path.startswith("/") or ".." in entry.path.split("/"):
                    raise ValueError(f"{entry.path!r} is not in a store")
            return cls(value["createdMs"], value["store"], value["logStart"], value["logEnd"], files)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptionError(f"the manifest of the backup is damaged: {error}", path=path) from error


def read_manifest(target: str, file_system: FileSystem | None = None) -> BackupManifest | None:
    """Return the manifest of a backup, None without one. Raises CorruptionError or OSError."""
    path = f"{target}/{MANIFEST}"
    text = read_if_there(file_system or OsFileSystem(), path)
    return None if text is None else BackupManifest.decode(text, path)


def back_up(
    store: str, target: str, config: StoreConfig | None = None, *, file_system: FileSystem | None = None,
    clock: Clock | None = None, progress: Progress | None = None, tls: TlsOptions | None = None,
) -> dict[str, Any]:
    """Bring a backup up to date with a store, which a server may have open. Return a report.

    The server is asked to sync first, over ``tls`` if it is given. The report has ``behind``, a reason,
    if messages may be missing that were acknowledged before.

    CommitLog files that are full and in the backup already are not read again, except their first 4 KiB, if the
    backup before was of the same path and they have not changed since: a seal of damage changes a full file.
    Raises StoreError if the directory is a store or has another store's backup, or another OSError or StoreError.
    """
    file_system = file_system or OsFileSystem()
    if not is_directory(file_system, f"{store}/{filenames.COMMITLOG}") and not is_directory(file_system, store):
        raise NotAStoreError(store, "it does not exist")
    if is_directory(file_system, f"{target}/{filenames.COMMITLOG}"):
        raise StoreError(f"{target} is a store directory: name another directory for the backup")
    if _is_inside(target, store):
        raise StoreError(f"{target} is inside the store {store}, and would be lost with it: name a directory elsewhere")
    file_system.makedirs(f"{target}/{DATA}")
    lock = file_system.lock(f"{target}/lock")
    if lock is None:
        raise StoreError(f"{target}: another process makes a backup there")
    try:
        before, started_ms = read_manifest(target, file_system), (clock or SystemClock()).now_ms()
        copy = _Copy(file_system, target, before, os.path.abspath(store), progress)
        entries = copy.small_files(store, _HINTS)
        directory, behind = open_synced(store, config=config, file_system=file_system, tls=tls)
        if before is not None and before.log_end > directory.max_phy_offset:  # also a store that was made again, empty
            raise StoreError(f"{target} has the log up to {before.log_end}, {store} only up to "
                             f"{directory.max_phy_offset}: it is another store, or it was set back; to keep both, "
                             "name a new directory")
        for topic, queue_id in only_in_compaction_log(directory):
            raise StoreError(
                f"queue {queue_id} of {topic} (cleanup.policy=COMPACTION) has messages that the CommitLog does not "
                f"have any more, and {filenames.COMPACTION} is not copied: stop the broker and copy {store}")
        entries += copy.log(directory)
        entries += copy.small_files(store, _STATE)
        made = BackupManifest(
            started_ms, store, directory.min_phy_offset, directory.max_phy_offset,
            tuple(entries))
        file_system.sync_dir(f"{target}/{DATA}")
        replace_file(file_system, f"{target}/{MANIFEST}", made.encode())
        removed = copy.remove_others(made)
    finally:
        lock.release()
    return {
        "backup": target, "logStart": made.log_start, "logEnd": made.log_end, "files": len(made.files),
        "copiedFiles": copy.files, "copiedBytes": copy.done, "removedFiles": removed, "createdMs": made.created_ms,
        **({"behind": behind} if behind else {})}


class _Copy:
    """One run of a backup: the files copied so far, and the files of the previous run that can be used again."""

    def __init__(
        self, file_system: FileSystem, target: str, before: BackupManifest | None, store: str,
        progress: Progress | None,
    ) -> None:
        self._file_system = file_system
        self._target = target
        self._before = {} if before is None else {one.path: one for one in before.files}
        self._unchanged_since_ms = (
            before.created_ms if before is not None and os.path.abspath(before.store) == store else 0)
        self._progress = progress
        self._whole = 1
        self.files = 0
        self.done = 0

    def small_files(self, store: str, paths: tuple[str, ...]) -> list[Entry]:
        found = []
        for path in paths:
            if (text := read_if_there(self._file_system, f"{store}/{path}")) is not None:
                entry = Entry(path, len(text), len(text), _digest(text), _digest(text[:_HEAD]))
                if entry != self._before.get(path):
                    name = f"{self._target}/{entry.name}"
                    if path in _PRIVATE:
                        write_file(self._file_system, name, b"")
                        make_private(name)
                    write_file(self._file_system, name, text)
                    self.files += 1
                found.append(entry)
        return found

    def log(self, directory: StoreDirectory) -> list[Entry]:
        until = directory.max_phy_offset
        wanted = [file for file in directory.log_files if file.file_from_offset < until]
        kept = [self._kept(file, until) for file in wanted]
        self._whole = sum(min(until - file.file_from_offset, file.size)
                          for file, entry in zip(wanted, kept, strict=True) if entry is None) or 1
        return [entry or self._copied(file, until) for file, entry in zip(wanted, kept, strict=True)]

    def _kept(self, file: MappedFile, until: int) -> Entry | None:
        """Return the entry of a full file that the backup has, or None. Raises StoreError for another store's file."""
        entry = self._before.get(_log_name(file))
        if entry is None:
            return None
        if _digest(file.read(0, min(_HEAD, entry.length))) != entry.head or entry.size != file.size:
            raise StoreError(f"{self._target} has another {entry.path}: a backup directory is for one store")
        if entry.length < file.size or until < file.file_from_offset + file.size:
            return None
        return entry if self._file_system.stat(file.path).mtime_ms < self._unchanged_since_ms else None

    def _copied(self, file: MappedFile, until: int) -> Entry:
        length, new = min(until - file.file_from_offset, file.size), f"{self._target}/{DATA}/.new"
        digest, head, at = hashlib.sha256(), "", 0
        with closing(self._file_system.open(new, writable=True, create=True)) as made:
            made.truncate(0)
            while at < length:
                part = file.read(at, min(_CHUNK, length - at))
                if not part:
                    raise StoreError(f"{file.path} was deleted while it was copied: start the backup again")
                head = head or _digest(part[:_HEAD])
                digest.update(part)
                made.pwrite(part, at)
                at += len(part)
                self.done += len(part)
                if self._progress is not None:
                    self._progress(self.done / self._whole)
            made.sync_data()
        entry = Entry(_log_name(file), file.size, length, digest.hexdigest(), head)
        self._file_system.rename(new, f"{self._target}/{entry.name}")
        self.files += 1
        return entry

    def remove_others(self, made: BackupManifest) -> int:
        """Remove files that the manifest does not name: copies of killed runs and of expired segments."""
        named, removed = {entry.name.rpartition("/")[2] for entry in made.files}, 0
        for name in self._file_system.list(f"{self._target}/{DATA}"):
            if name not in named:
                self._file_system.remove(f"{self._target}/{DATA}/{name}")
                removed += 1
        return removed


def _log_name(file: MappedFile) -> str:
    return f"{filenames.COMMITLOG}/{filenames.offset_to_file_name(file.file_from_offset)}"


def _is_inside(path: str, directory: str) -> bool:
    place = os.path.realpath(directory)
    return os.path.commonpath((os.path.realpath(path), place)) == place


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _parts(file_system: FileSystem, target: str, entry: Entry) -> Iterator[bytes]:
    """Yield the bytes of a file of a backup. Raises CorruptionError after them if they are not the ones copied."""
    path, digest, at = f"{target}/{entry.name}", hashlib.sha256(), 0
    try:
        file: File = file_system.open(path)
    except FileNotFoundError:
        raise CorruptionError("a file of the backup is missing", path=path) from None
    try:
        while part := file.pread(_CHUNK, at):
            digest.update(part)
            at += len(part)
            yield part
    finally:
        file.close()
    if (at, digest.hexdigest()) != (entry.length, entry.sha256):
        raise CorruptionError("a file of the backup has other bytes than were copied", path=path)


def verify_backup(
    target: str, *, file_system: FileSystem | None = None, progress: Progress | None = None
) -> BackupManifest:
    """Read every file of a backup and compare it with its checksum. Raises CorruptionError or StoreError."""
    file_system = file_system or OsFileSystem()
    manifest = _existing(target, file_system)
    done, whole = 0, sum(entry.length for entry in manifest.files) or 1
    for entry in manifest.files:
        for part in _parts(file_system, target, entry):
            done += len(part)
            if progress is not None:
                progress(done / whole)
    return manifest


def _existing(target: str, file_system: FileSystem) -> BackupManifest:
    manifest = read_manifest(target, file_system)
    if manifest is None:
        raise StoreError(f"{target} is not a backup: it has no {MANIFEST}")
    return manifest


def restore(
    target: str, store: str, *, file_system: FileSystem | None = None, clock: Clock | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Make a store from a backup: verify checksums, rebuild queues and index. Return the report of the recovery.

    ``messages`` of the report is the number of messages, ``lastStoreTimestamp`` the store time of the last one, in ms.

    The store is made as ``STORE.restoring`` and renamed when it is complete. Raises StoreError if STORE exists and
    is not empty, CorruptionError for a damaged backup, OSError.
    """
    file_system = file_system or OsFileSystem()
    manifest = _existing(target, file_system)
    if file_system.exists(store) and (not is_directory(file_system, store) or file_system.list(store)):
        raise StoreError(f"{store} exists and is not empty: a restore makes a new directory")
    if _is_inside(store, target):
        raise StoreError(f"{store} is inside the backup {target}: name a directory elsewhere")
    making = f"{store}.restoring"
    remove_tree(file_system, making)
    done, whole = 0, sum(entry.length for entry in manifest.files) or 1
    for folder in (filenames.COMMITLOG, filenames.CONFIG, filenames.OWN):
        file_system.makedirs(f"{making}/{folder}")
    for entry in manifest.files:
        with closing(file_system.open(f"{making}/{entry.path}", writable=True, create=True)) as made:
            if entry.path in _PRIVATE:
                make_private(f"{making}/{entry.path}")
            at = 0
            for part in _parts(file_system, target, entry):
                made.pwrite(part, at)
                at += len(part)
                done += len(part)
                if progress is not None:
                    progress(done / whole)
            made.truncate(entry.size)
            made.sync_data()
    for folder in (filenames.COMMITLOG, filenames.CONFIG, filenames.OWN, "."):
        file_system.sync_dir(f"{making}/{folder}" if folder != "." else making)
    with MessageStore.open(
        making, create=False,
        parts=StoreParts(file_system=file_system, clock=clock, services=False, rebuild=True, must_write=True)
    ) as opened:
        report = opened.recovery_report | _contents(opened)
    if file_system.exists(store):
        file_system.rmdir(store)
    file_system.rename(making, store)
    file_system.sync_dir(store.rpartition("/")[0] or ("/" if store.startswith("/") else "."))
    return report


def _contents(opened: MessageStore) -> dict[str, int]:
    """Return the number of messages of all topics but those of the broker, and the store time of the last one."""
    messages = last_ms = 0
    for topic, queue_id, low, high in opened.queues():
        if not opened.topics.is_system_topic(topic) and low < high:
            messages += high - low
            last_ms = max(last_ms, *(one.store_timestamp for one in opened.read(topic, queue_id, high - 1)))
    return {"messages": messages, "lastStoreTimestamp": last_ms}
