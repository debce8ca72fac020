"""Real kills of the archive's writer and of the sink's sender; part of ``make crash``.

Each run is a forked process that is killed at a random moment. After every kill of the archive each
segment that has a manifest must be rebuilt byte for byte; when all are there, every Parquet file must
be named by one manifest. After each kill of a batch's sender, sometimes of several in a row, one run
is let through: the topic must hold each message once. ``--jvm`` kills the JVM of real drivers, see
``jvm_kills``; each costs some ten seconds. Prints counts; a violation ends it with 1.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from jvm_kills import kill_archives, kill_streams
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from tailrace.client import PullConsumer
from tailrace.config import StoreConfig
from tailrace.env.filesystem import OsFileSystem
from tailrace.model import Message
from tailrace.node.message_store import MessageStore
from tailrace.pytest_plugin import TailraceBroker
from tailrace.spark.archive.job import ArchiveJob, ArchiveOptions, local_runner
from tailrace.spark.archive.verification import restored
from tailrace.spark.sink.commit import commit_batch, stage
from tailrace.spark.sink.options import parse_write_options
from tailrace.spark.sink.requests import TXN
from tailrace.store.archive_manifest import list_manifests, read_manifest
from tailrace.store.archive_store import PosixArchive

FILES = OsFileSystem()
SEGMENT = 256 << 10
FILES_OF_LOG = 6
MESSAGES = 600


def forked(work: Callable[[], None], after_s: float | None) -> bool:
    """Run ``work`` in a process of its own, killed after a while; whether it came to its end.

    This process itself never uses PyArrow's threads, which a fork would not survive.
    """
    child = os.fork()
    if not child:
        try:
            work()
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    if after_s is not None:
        time.sleep(after_s)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return False
    if os.waitstatus_to_exitcode(status):
        raise SystemExit("violation")
    return True


def check_archive(store: Path, archive: Path, sealed: int | None) -> None:
    """What was published is right; with a number of segments, all are there and nothing else."""
    named = []
    for segment in list_manifests(PosixArchive(str(archive))):
        manifest = read_manifest(PosixArchive(str(archive)), segment)
        assert manifest is not None
        assert manifest.verified
        data = (store / "commitlog" / f"{segment:020d}").read_bytes()
        assert b"".join(restored(PosixArchive(str(archive)), manifest)) == data, segment
        named += [file.path for file in manifest.files]
    there = sorted(str(path.relative_to(archive)) for path in archive.rglob("part-*.parquet"))
    if sealed is not None:
        assert len(list_manifests(PosixArchive(str(archive)))) == sealed, "segments are missing"
        assert there == sorted(named), "files that nothing names"
    else:
        assert set(named) <= set(there), "files are missing"


def make_store(store: Path, chance: random.Random) -> None:
    """A store of some small segments."""
    with MessageStore.open(
        str(store), config=StoreConfig(mapped_file_size_commit_log=SEGMENT)
    ) as opened:
        while len(list((store / "commitlog").iterdir())) < FILES_OF_LOG:
            opened.put(Message(topic=f"t{chance.randrange(5)}", body=chance.randbytes(2000)))
        opened.wait_dispatched(60_000)


def kill_archive(scratch: Path, kills: int, chance: random.Random) -> None:
    store, archive = scratch / "store", scratch / "archive"
    make_store(store, chance)

    def run() -> None:
        with ArchiveJob(
            str(store), str(archive), local_runner(FILES),
            options=ArchiveOptions(piece_bytes=1 << 16)) as job:
            job.step()

    began = time.perf_counter()
    forked(run, None)
    took = time.perf_counter() - began
    sealed = len(list_manifests(PosixArchive(str(archive))))
    assert sealed >= FILES_OF_LOG - 2
    shutil.rmtree(archive)
    done = rounds = 0
    while done < kills:
        if forked(run, chance.random() * took):
            forked(lambda: check_archive(store, archive, sealed), None)
            shutil.rmtree(archive)
            rounds += 1
        else:
            done += 1
            forked(lambda: check_archive(store, archive, None), None)
            if done % 20 == 0:
                print(f"  {done} of {kills} kills, {rounds} archives whole", flush=True)
    forked(run, None)
    forked(lambda: check_archive(store, archive, sealed), None)
    print(f"archive: {done} kills, {rounds + 1} archives of {sealed} segments whole, 0 violations")


def kill_sink(scratch: Path, kills: int, chance: random.Random) -> None:
    broker = TailraceBroker(scratch / "served")
    broker.start()
    schema = StructType([StructField("topic", StringType()), StructField("body", BinaryType())])

    def batch(number: int) -> None:
        checkpoint = scratch / f"checkpoint{number}"
        checkpoint.mkdir(exist_ok=True)
        (checkpoint / "metadata").write_text(json.dumps({"id": "kills"}))
        options = parse_write_options(
            {"broker": broker.broker, "checkpointLocation": str(checkpoint)}, schema, stream=True,
            overwrite=False)
        rows = pa.RecordBatch.from_pylist(
            [{"topic": f"out{number}", "body": b"%d" % n} for n in range(MESSAGES)])
        files = [
            stage(FILES, options, 0, part, f"{os.getpid()}", iter([rows.slice(part * 200, 200)]))
            for part in range(3)]
        commit_batch(FILES, options, 0, files, time.sleep)

    try:
        began = time.perf_counter()
        forked(lambda: batch(0), None)
        took = time.perf_counter() - began
        done = number = 0
        while done < kills:
            number += 1
            for _ in range(chance.choice((1, 1, 2, 3))):
                done += not forked(lambda n=number: batch(n), chance.random() * took)  # type: ignore[misc]
            forked(lambda n=number: batch(n), None)  # type: ignore[misc]
            with PullConsumer(broker=broker.broker) as consumer:
                while any(  # acknowledged is not yet in its queue
                    int(one["dispatchBehindBytes"]) > 0
                    for one in consumer.runtime_info(f"out{number}").values()):
                    time.sleep(0.01)
                found = [
                    (message.body, message.properties[TXN])
                    for message in consumer.messages(f"out{number}", follow=False)]
            wanted = [(b"%d" % n, f"kills/0/{n}") for n in range(MESSAGES)]
            if sorted(found) != sorted(wanted):
                raise SystemExit(f"violation: {len(found)} messages of {MESSAGES} in out{number}")
            if number % 10 == 0:
                print(f"  {done} of {kills} kills, {number} batches whole", flush=True)
        print(f"sink: {done} kills over {number} batches of {MESSAGES}, each message once")
    finally:
        broker.stop()


def kill_jvm_of_archive(scratch: Path, kills: int, chance: random.Random) -> None:
    store = scratch / "jvm-store"
    make_store(store, chance)
    sealed = len(list((store / "commitlog").iterdir())) - 1
    kill_archives(
        store, scratch / "jvm-archive", sealed, kills, chance,
        lambda store, archive, count: forked(lambda: check_archive(store, archive, count), None))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--archive", type=int, default=200, help="kills of the archive's writer")
    parser.add_argument("--sink", type=int, default=100, help="kills of the sink's sender")
    parser.add_argument("--jvm", type=int, default=10, help="kills of a stream's JVM, and of an archive's")
    arguments = parser.parse_args()
    seed = int(os.environ.get("SEED", "1"))
    print(f"seed {seed}", flush=True)
    scratch = Path(tempfile.mkdtemp(prefix="tailrace-kills-"))
    try:
        if arguments.archive:
            kill_archive(scratch, arguments.archive, random.Random(seed))
        if arguments.sink:
            kill_sink(scratch, arguments.sink, random.Random(seed))
        if arguments.jvm:
            kill_streams(scratch, arguments.jvm)
            kill_jvm_of_archive(scratch, arguments.jvm, random.Random(seed))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
