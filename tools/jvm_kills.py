"""kill -9 of the JVM of Spark's driver, while a stream is being sent and while an archive is made.

A driver is a process of its own. A stream's is killed when the manifest of a batch says that all of
it was sent and Spark has not noted that the batch is over, and in turn in the middle of sending; then a
new driver takes the stream to its end, and the topic must hold each message once. An archive's is
killed at a random moment after its first staged file; what is published must be complete, and the next
run makes the rest.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson

from tailrace.client import PullConsumer
from tailrace.errors import RemotingCommandError
from tailrace.model import Message
from tailrace.node.message_store import MessageStore
from tailrace.pytest_plugin import TailraceBroker

MESSAGES, BATCHES = 6000, 3
DRIVER = """
import sys
from tailrace.spark.data_source import TailraceDataSource
from tailrace.spark.session import local_session
store, broker, checkpoint, topic, most = sys.argv[1:]
spark = local_session()
spark.dataSource.register(TailraceDataSource)
rows = (spark.readStream.format("tailrace").option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", most).option("columns", "body").load(store))
query = (rows.writeStream.format("tailrace").option("broker", broker).option("topic", topic)
         .option("checkpointLocation", checkpoint).trigger(availableNow=True).start())
query.awaitTermination()
"""


def below(root: int) -> dict[int, str]:
    """Command lines of the processes below one, by process."""
    children: dict[int, list[int]] = {}
    texts: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                texts[int(entry.name)] = (entry / "cmdline").read_text()
            except OSError:  # it has ended
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found: dict[int, str] = {}
    waiting = [root]
    while waiting:
        for child in children.get(waiting.pop(), []):
            found[child] = texts[child]
            waiting.append(child)
    return found


@contextlib.contextmanager
def driver(*arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    """A driver that is over, with all below it, at the end of the block."""
    process = subprocess.Popen(
        [sys.executable, *map(str, arguments)], stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"})
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def kill_jvm_when(process: subprocess.Popen[bytes], moment: Callable[[], bool], limit_s: float = 600) -> bool:
    """kill -9 of the driver's JVM at a moment; False when the driver ended before. Waits for all below it."""
    until = time.monotonic() + limit_s
    while not moment() or not (machines := machines_of(process)):
        if process.poll() is not None:
            return False
        if time.monotonic() > until:
            raise SystemExit("violation: a driver does not come to its moment")
        time.sleep(0.0005)
    for pid in machines:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        raise SystemExit("violation: a driver outlives its JVM") from None
    return True


def machines_of(process: subprocess.Popen[bytes]) -> list[int]:
    """The JVM of a driver, none before it has started."""
    return [pid for pid, text in below(process.pid).items() if "org.apache.spark.deploy.SparkSubmit" in text]


def batch_state(checkpoint: Path) -> str:
    """Of the last batch that the sink has begun: ``sending``, ``sent`` or ``over``; else nothing."""
    numbers = [int(one.stem) for one in (checkpoint / "tailrace-sink").glob("*.json")]
    if not numbers:
        return ""
    if (checkpoint / "commits" / str(max(numbers))).exists():
        return "over"
    try:
        manifest = orjson.loads((checkpoint / "tailrace-sink" / f"{max(numbers)}.json").read_bytes())
    except FileNotFoundError:
        return ""
    return "sent" if manifest["sent"] else "sending"


def held(consumer: PullConsumer, topic: str) -> list[int]:
    """Bodies of a topic as numbers, in order."""
    try:
        return sorted(int(message.body) for message in consumer.messages(topic, follow=False))
    except RemotingCommandError:  # the topic is not there yet
        return []


def kill_streams(scratch: Path, kills: int) -> None:
    """Kill drivers while batches are sent; a last run without a kill finishes each stream."""
    store = scratch / "jvm-in"
    with MessageStore.open(str(store)) as opened:
        opened.put_many([Message(topic="in", body=b"%d" % number) for number in range(MESSAGES)])
        opened.wait_dispatched(60_000)
    broker = TailraceBroker(scratch / "jvm-served")
    broker.start()
    found = {"sending": 0, "sent": 0, "over": 0, "": 0}
    done = streams = 0
    try:
        while done < kills:
            streams += 1
            checkpoint, topic = scratch / f"jvm-checkpoint{streams}", f"jvm{streams}"
            arguments = "-c", DRIVER, store, broker.broker, checkpoint, topic, MESSAGES // BATCHES
            for wanted in ("sent", "sending"):
                with driver(*arguments) as process:
                    if done < kills and kill_jvm_when(
                        process, lambda at=checkpoint, one=wanted: batch_state(at) == one):  # type: ignore[misc]
                        done += 1
                        found[batch_state(checkpoint)] += 1
            with driver(*arguments) as process:
                if process.wait(180):
                    raise SystemExit(f"violation: the stream of {topic} does not end well")
            with PullConsumer(broker=broker.broker) as consumer:
                bodies = held(consumer, topic)
            if bodies != list(range(MESSAGES)):
                raise SystemExit(
                    f"violation: {len(bodies)} messages of {MESSAGES} in {topic}, {len(set(bodies))} of them different")
            print(f"  {done} of {kills} kills, {streams} streams whole", flush=True)
        print(f"jvm, sink: {done} kills over {streams} streams of {MESSAGES}, each message once; what a kill left: "
              f"{found['sending']} sending, {found['sent']} sent and not committed, {found['over'] + found['']} else")
    finally:
        broker.stop()


def kill_archives(
    store: Path, archive: Path, sealed: int, kills: int, chance: random.Random,
    check: Callable[[Path, Path, int | None], None],
) -> None:
    """Kill drivers after the first staged file of an archive of ``store``; ``check`` checks the archive."""
    command = "-c", "from tailrace.cli import main; main()", "pipeline", "archive", store, archive
    done = whole = 0
    while done < kills:
        with driver(*command) as process:
            staging = archive / "_staging"
            old = set(staging.glob("*/*"))  # what a kill has left
            after = chance.random() * 0.8
            began = [0.0]

            def moment(
                staging: Path = staging, old: set[Path] = old, after: float = after, began: list[float] = began
            ) -> bool:
                if not began[0] and set(staging.glob("*/*")) - old:
                    began[0] = time.monotonic()
                return bool(began[0]) and time.monotonic() >= began[0] + after

            killed = kill_jvm_when(process, moment)
        done += killed
        check(store, archive, None)
        if not killed:
            check(store, archive, sealed)
            shutil.rmtree(archive)
            whole += 1
        print(f"  {done} of {kills} kills, {whole} archives whole", flush=True)
    with driver(*command) as process:
        if process.wait(180):
            raise SystemExit("violation: the archive does not end well")
    check(store, archive, sealed)
    print(f"jvm, archive: {done} kills, {whole + 1} archives of {sealed} segments whole, 0 violations")
