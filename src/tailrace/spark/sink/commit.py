"""Commits a batch of a stream: makes its manifest durable, sends it, marks it as sent.

Below the checkpoint:

    tailrace-sink/<batch>.json       manifest: the staged files of the batch, in order, and the ends of the queues
    tailrace-sink/staged/<batch>/    rows, written by tasks

A batch has five steps, and a kill may interrupt any of them: tasks stage rows; the manifest is renamed into place;
messages are sent; the manifest is marked as sent; staged files are removed. If a batch runs again and has a
manifest, it uses the files of the manifest, not those that tasks have staged this time, so that numbers mean the
same messages. It searches the log for the last message that the earlier try has sent. A batch that is marked is
not sent again.

A broker may refuse a message in each try. So nothing is written for a batch with a message over the limits of its
brokers, and the manifest is removed again if another message is refused before one of the batch is stored. A query
that is corrected then stages other rows.

One process at a time sends for a checkpoint (``_lock``), because the Python process of a driver may continue for a
while after the JVM of the driver is killed.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import orjson
import pyarrow as pa

from tailrace.env.filesystem import FileSystem
from tailrace.env.state_file import StateFile
from tailrace.env.whole_files import read_if_there, replace_file
from tailrace.errors import CorruptionError, StoreError, StoreLockedError
from tailrace.formats.filenames import is_number
from tailrace.spark.sink.limits import Need, joined, needs_of
from tailrace.spark.sink.options import WriteOptions
from tailrace.spark.sink.publish import Publisher, Sleep, Starts, publish
from tailrace.spark.sink.rows import STAGED_SCHEMA, staged

__all__ = ["BatchManifest", "StagedFile", "checkpoint_of", "commit_batch", "discard", "query_of", "stage"]

_DIRECTORY: Final = "tailrace-sink"
_KEPT: Final = 100
_LOCK_WAIT_S: Final = 0.25
_LOCK_TRIES: Final = 240


@dataclass(frozen=True, slots=True)
class StagedFile:
    """Rows that one task wrote; ``path`` is below the checkpoint."""

    path: str
    partition: int
    rows: int
    sha256: str
    needs: tuple[Need, ...] = ()


@dataclass(frozen=True, slots=True)
class BatchManifest:
    """The manifest of a batch. The messages of its files, in their order, are numbered from 0."""

    query: str
    batch: int
    files: tuple[StagedFile, ...]
    starts: Starts = field(default_factory=dict)
    sent: bool = False


def stage(
    file_system: FileSystem, options: WriteOptions, batch: int, partition: int, attempt: str,
    rows: Iterator[pa.RecordBatch],
) -> StagedFile:
    """Write the rows of a task. Raises MessageIllegalError for a row that is not a valid message."""
    sink = pa.BufferOutputStream()
    count, needs = 0, list[Need]()
    with pa.ipc.new_file(sink, STAGED_SCHEMA) as writer:
        for one in rows:
            made = staged(one, options.topic)
            needs += needs_of(made)
            writer.write_batch(made)
            count += made.num_rows
    data = sink.getvalue().to_pybytes()
    path = f"{_DIRECTORY}/staged/{batch}/part-{partition:05d}-{attempt}.arrow"
    target = f"{options.checkpoint}/{path}"
    file_system.makedirs(target.rpartition("/")[0])
    replace_file(file_system, target, data)
    return StagedFile(path, partition, count, hashlib.sha256(data).hexdigest(), joined(needs))


def discard(file_system: FileSystem, options: WriteOptions, files: Sequence[StagedFile], batch: int) -> None:
    """Remove files that tasks staged for a batch that failed, except the files in its manifest."""
    known = _manifest(file_system, options.checkpoint, batch).read()
    kept = {one.path for one in known.files} if known is not None else set()
    for one in files:
        path = f"{options.checkpoint}/{one.path}"
        if one.path not in kept and file_system.exists(path):
            file_system.remove(path)


def query_of(file_system: FileSystem, checkpoint: str) -> str:
    """Return the id of the query, which Spark keeps in its checkpoint."""
    data = read_if_there(file_system, f"{checkpoint}/metadata")
    try:
        return str(orjson.loads(data or b"")["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{checkpoint}/metadata does not name the query: {error}") from error


def checkpoint_of(file_system: FileSystem, root: str, query: str) -> str:
    """Return the checkpoint of a query below ``root``, the directory of all checkpoints in a setting of Spark.

    Spark names a checkpoint by the name of the query or at random; its file ``metadata`` has the id of the query.
    """
    for name in file_system.list(root):
        try:
            if query_of(file_system, f"{root}/{name}") == query:
                return f"{root}/{name}"
        except (StoreError, OSError):
            continue  # not a checkpoint, or one that is being created
    raise StoreError(
        f"no checkpoint below {root} belongs to query {query}: set the option checkpointLocation of the "
        "stream")


def _manifest(file_system: FileSystem, checkpoint: str, batch: int) -> StateFile[BatchManifest]:
    return StateFile(file_system, f"{checkpoint}/{_DIRECTORY}/{batch}.json", BatchManifest, None)


def commit_batch(
    file_system: FileSystem, options: WriteOptions, batch: int, files: Sequence[StagedFile],
    sleep: Sleep, *, connect: Callable[[WriteOptions, Sleep], Publisher] = Publisher,
) -> int:
    """Send a batch exactly once. Return the number of messages that this call sent.

    Waits up to a minute while another process sends for the same checkpoint. Raises RemotingError or
    StoreError; the next call for the batch continues where this one ended.
    """
    with _alone(file_system, options.checkpoint, sleep):
        return _commit(file_system, options, batch, files, sleep, connect)


@contextlib.contextmanager
def _alone(file_system: FileSystem, checkpoint: str, sleep: Sleep) -> Iterator[None]:
    """Hold the lock of the sender of a query. The sender of a killed driver may hold it for a while."""
    file_system.makedirs(f"{checkpoint}/{_DIRECTORY}")
    path = f"{checkpoint}/{_DIRECTORY}/_lock"
    for _ in range(_LOCK_TRIES):
        lock = file_system.lock(path)
        if lock is not None:
            break
        sleep(_LOCK_WAIT_S)
    else:
        raise StoreLockedError(checkpoint, "a sender that is still running")
    try:
        yield
    finally:
        lock.release()


def _commit(
    file_system: FileSystem, options: WriteOptions, batch: int, files: Sequence[StagedFile],
    sleep: Sleep, connect: Callable[[WriteOptions, Sleep], Publisher],
) -> int:
    checkpoint = options.checkpoint
    query = query_of(file_system, checkpoint)
    file = _manifest(file_system, checkpoint, batch)
    manifest = file.read()
    begun = manifest is not None
    if manifest is None:
        ordered = tuple(sorted(files, key=lambda one: one.partition))
        starts: Starts = {}
        if needs := joined(need for one in ordered for need in one.needs):
            with connect(options, sleep) as publisher:
                publisher.refuse(needs)
                starts = publisher.starts([one.topic for one in needs])
        manifest = BatchManifest(query, batch, ordered, starts, sent=not needs)
        file.write(manifest)
    elif manifest.query != query:
        raise StoreError(
            f"{checkpoint} has staged rows of query {manifest.query}, but is of query {query}")
    sent = 0
    if not manifest.sent:
        prefix = f"{query}/{batch}/"
        sent = publish(
            options, lambda first: _rows(file_system, checkpoint, manifest, first),
            prefix, manifest.starts, sleep, begun=begun, refused=file.remove, connect=connect)
        file.write(replace(manifest, sent=True))
    _clean(file_system, checkpoint, batch)
    return sent


def _rows(
    file_system: FileSystem, checkpoint: str, manifest: BatchManifest, first: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the staged rows of a batch from a number onwards, in batches with the numbers of their first rows."""
    number = 0
    for one in manifest.files:
        if number + one.rows <= first:
            number += one.rows
            continue
        path = f"{checkpoint}/{one.path}"
        data = read_if_there(file_system, path)
        if data is None or hashlib.sha256(data).hexdigest() != one.sha256:
            raise CorruptionError("staged rows are not what the batch's manifest says", path=path)
        with pa.ipc.open_file(pa.BufferReader(data)) as reader:
            for place in range(reader.num_record_batches):
                batch = reader.get_batch(place)
                skipped = max(first - number, 0)
                if skipped < batch.num_rows:
                    yield number + skipped, batch.slice(skipped)
                number += batch.num_rows


def _clean(file_system: FileSystem, checkpoint: str, batch: int) -> None:
    """Remove staged rows up to a batch that was sent, and manifests that no later run needs."""
    root = f"{checkpoint}/{_DIRECTORY}"
    for name in file_system.list(f"{root}/staged"):
        if is_number(name) and int(name) <= batch:
            for child in file_system.list(f"{root}/staged/{name}"):
                file_system.remove(f"{root}/staged/{name}/{child}")
            file_system.rmdir(f"{root}/staged/{name}")
    for name in file_system.list(root):
        stem, _, suffix = name.rpartition(".")
        if suffix == "json" and is_number(stem) and int(stem) <= batch - _KEPT:
            file_system.remove(f"{root}/{name}")
