"""kill -9 of a master and of its slave, in pairs of Tailrace and RocketMQ.

Each round sends from four threads, kills the master, the slave, or both together at some moment, looks at both logs,
starts what was killed again, and waits until the slave has everything. Some rounds do not wait, so that the next kill
hits a slave that connects or compares. These rules are checked after each kill:

- the log of the slave is a prefix of the log of its master, byte for byte, except for a last record that a kill of the
  slave has cut off: its end is zeros;
- every message that was acknowledged with SEND_OK is in the log of the slave, at the position that the answer named;
- a slave of Tailrace puts nothing into quarantine;
- in the end every acknowledged message can be consumed from the master.

PAIRS=ours/ours,ours/java,java/ours (master/slave; those with java need Maven and a JDK, and are left out without them),
KILLS=n in each pair, both sides together, SEED=n, FLUSH=ASYNC_FLUSH,SYNC_FLUSH of both brokers. The master is a
SYNC_MASTER. A seed repeats the choices, not the moments of the kills to the instruction. After a violation the
directory of the pair stays, and its path is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"
sys.path.insert(0, str(TESTS / "support"))

from java_peer import SIZES, JavaPeer, free_port, properties  # noqa: E402

from tailrace import Message, Producer, PullConsumer  # noqa: E402
from tailrace.client.admin import AdminClient  # noqa: E402
from tailrace.errors import RemotingError  # noqa: E402
from tailrace.formats import filenames  # noqa: E402
from tailrace.formats.commitlog import BLANK_MAGIC  # noqa: E402
from tailrace.formats.remoting import RequestCode  # noqa: E402
from tailrace.pytest_plugin import TailraceBroker  # noqa: E402
from tailrace.remoting.client import RemotingClient  # noqa: E402
from tailrace.testing.sent import ViolationError  # noqa: E402

REFERENCE = TESTS / "interop" / "reference" / "rocketmq"
TOPIC = "kills"
THREADS = 4
FILE = SIZES["mappedFileSizeCommitLog"]
FOLLOWS_S = 180.0
"""Longest time until a slave has everything: it connects each 5 s, and a JVM on a busy machine starts slowly."""
NO_WAIT = 0.15
"""Share of the rounds after which the next one does not wait for the slave."""
MASTER = {
    "brokerRole": "SYNC_MASTER", "brokerId": 0, "inSyncReplicas": 2, "slaveTimeout": 600,
    "autoCreateTopicEnable": "true"}
SLAVE = {
    "brokerRole": "SLAVE", "brokerId": 1, "haHousekeepingInterval": 5000, "registerNameServerPeriod": 10_000}
BOTH = {
    **SIZES, "brokerName": "broker-a", "brokerClusterName": "DefaultCluster", "brokerIP1": "127.0.0.1",
    "brokerIP2": "127.0.0.1", "timerWheelEnable": "false",
    # A slave leaves a master that is silent for haHousekeepingInterval. A slave of RocketMQ reports for the first time
    # when this has passed since its start.
    "haSendHeartbeatInterval": 500}
JVM = os.environ.get(
    "ROCKETMQ_JAVA_OPTS", "-Xms64m -Xmx512m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dtls.server.mode=disabled")
"""A JVM that lives for seconds takes most of its time to compile, and to make the key of a certificate."""


def at_once(calls: Iterable[Callable[[], object]]) -> None:
    """Make all calls in threads; raise what one of them raises when all have ended."""
    with ThreadPoolExecutor() as pool:
        done = [pool.submit(call) for call in calls]
    for one in done:
        one.result()


class Ours:
    """A broker of Tailrace that is started again on the same port."""

    kind = "ours"

    def __init__(self, root: Path, namesrv: int, settings: dict[str, object], *, serves_names: bool) -> None:
        self.root, port = root, free_port()
        self.address = f"127.0.0.1:{port}"
        self._broker = TailraceBroker(
            root, "--listen", self.address, "--namesrv-listen", f"127.0.0.1:{namesrv}" if serves_names else "none",
            settings={**settings, **({"haAllowedHosts": "127.0.0.1"} if settings["brokerId"] == 0 else {}),
                      **({} if serves_names else {"namesrvAddr": f"127.0.0.1:{namesrv}"})})

    def start(self) -> None:
        self._broker.start()

    def kill(self) -> None:
        self._broker.kill()

    def said(self) -> str:
        return self._broker.log[-3000:]


class Java:
    """A broker of RocketMQ that is started again on the same port."""

    kind = "java"

    def __init__(self, root: Path, namesrv: int, settings: dict[str, object]) -> None:
        root.parent.mkdir(exist_ok=True)
        self.root, self._port = root, free_port()
        self.address = f"127.0.0.1:{self._port}"
        self._conf = properties(root.with_name(f"{root.name}.conf"), {
            **settings, "listenPort": self._port, "namesrvAddr": f"127.0.0.1:{namesrv}", "storePathRootDir": root,
            "storePathCommitLog": f"{root}/commitlog", "transactionMetricFlushInterval": 100})
        self._log = root.with_name(f"{root.name}.log")
        self._peer: JavaPeer | None = None
        self.master_port = 0
        """Port of its master. It gets this by a request, because its first question to a name server gets no answer,
        and the next one comes 10 s later."""

    def start(self) -> None:
        self._peer = JavaPeer(
            [REFERENCE, "broker", self._conf], self._log, self._port, env={"ROCKETMQ_JAVA_OPTS": JVM})
        if self.master_port:
            asyncio.run(self._tell_master())

    async def _tell_master(self) -> None:
        client = RemotingClient()
        try:
            await client.invoke(self.address, RequestCode.EXCHANGE_BROKER_HA_INFO, {
                "masterHaAddress": f"127.0.0.1:{self.master_port + 1}", "masterFlushOffset": "0",
                "masterAddress": f"127.0.0.1:{self.master_port}"}, timeout_ms=10_000)
        finally:
            await client.close()

    def kill(self) -> None:
        peer, self._peer = self._peer, None
        if peer is not None:
            peer.end(signal.SIGKILL)

    def said(self) -> str:
        return self._log.read_text(errors="replace")[-3000:] if self._log.exists() else ""


class Log:
    """The log of a broker, as its files are."""

    def __init__(self, root: Path, file_size: int = FILE) -> None:
        self._directory, self._size = root / "commitlog", file_size
        self._end = self.last = 0
        """End of the log; start of its last record."""

    def bytes(self, start: int, until: int) -> bytes:
        found = []
        while start < until:
            path = self._directory / f"{start - start % self._size:020d}"
            if not path.exists():
                break
            with path.open("rb") as file:
                file.seek(start % self._size)
                part = file.read(min(until - start, self._size - start % self._size))
            if not part:
                break
            found.append(part)
            start += len(part)
        return b"".join(found)

    def end(self) -> int:
        """Return the position after the last whole record that follows the one that was found before."""
        while len(head := self.bytes(self._end, self._end + 8)) == 8:
            size, magic = int.from_bytes(head[:4], "big", signed=True), int.from_bytes(head[4:], "big")
            if size <= 0:
                break
            if magic != BLANK_MAGIC and not self.bytes(self._end + size - 1, self._end + size):
                break
            self.last = self._end
            self._end += size if magic != BLANK_MAGIC else self._size - self._end % self._size
        return self._end

    def body(self, at: int) -> bytes:
        """Return the bytes of the record at a position."""
        size = int.from_bytes(self.bytes(at, at + 4), "big", signed=True)
        return self.bytes(at, at + max(size, 0))


async def _follows(master: Ours | Java) -> None:
    async with AdminClient(broker=master.address) as admin:
        while True:
            with contextlib.suppress(RemotingError):
                status = await admin.ha_status()
                end = status["masterCommitLogMaxOffset"]
                if any(one["slaveAckOffset"] == end for one in status["haConnectionInfo"]):
                    return
            await asyncio.sleep(0.1)


def until_it_follows(master: Ours | Java, slave: Ours | Java) -> None:
    """Wait until the slave has acknowledged the end of the log. Raises ViolationError if it does not."""
    try:
        asyncio.run(asyncio.wait_for(_follows(master), FOLLOWS_S))
    except TimeoutError:
        raise ViolationError(
            f"the slave does not follow in {FOLLOWS_S:g} s: {master.said()}\n{slave.said()}") from None


def is_cut_off(copy: bytes, whole: bytes) -> bool:
    """Return whether the copy of a record has ended within it: it is equal up to some byte, and zeros from there."""
    come = copy.rstrip(b"\0")
    return copy != whole and whole.startswith(come)


class Pair:
    """A master and a slave, and what was sent to them."""

    def __init__(self, home: Path, kinds: str, seed: int, flush: str) -> None:
        self.dice = random.Random(f"{kinds} {seed}")
        self.kinds, self.namesrv = kinds, free_port()
        master, _, slave = kinds.partition("/")
        both = {**BOTH, "flushDiskType": flush}
        (home / "m").mkdir()
        (home / "s").mkdir()
        self._names = None
        if master == "java":
            self._names = JavaPeer(
                [REFERENCE, "namesrv", self.namesrv], home / "namesrv.log", self.namesrv,
                env={"ROCKETMQ_JAVA_OPTS": JVM})
            self.master: Ours | Java = Java(home / "m" / "store", self.namesrv, both | MASTER)
        else:
            self.master = Ours(home / "m" / "store", self.namesrv, both | MASTER, serves_names=True)
        self.slave: Ours | Java = (
            Java(home / "s" / "store", self.namesrv, both | SLAVE) if slave == "java"
            else Ours(home / "s" / "store", self.namesrv, both | SLAVE, serves_names=False))
        if isinstance(self.slave, Java):
            self.slave.master_port = int(self.master.address.rpartition(":")[2])
        self.acknowledged: dict[bytes, int] = {}
        """Position by body."""
        self.counts: collections.Counter[str] = collections.Counter()
        self.spent: collections.Counter[str] = collections.Counter()
        """Seconds by part of a round."""
        self._looked = 0
        self._same_until = 0
        self._checked: set[bytes] = set()

    # -- traffic

    def _send(self, name: str, stop: threading.Event) -> None:
        dice = random.Random(name)
        with contextlib.suppress(RemotingError), Producer(
            namesrv=f"127.0.0.1:{self.namesrv}", group=f"p{name}", timeout_ms=3000, retries=0
        ) as producer:
            for number in range(1 << 30):
                if stop.is_set():
                    return
                body = f"{name}-{number} ".encode().ljust(dice.choice((20, 200, 3000)), b".")
                sent = producer.send(Message(topic=TOPIC, body=body), queue_id=number % 2)
                self.counts[sent.status] += 1
                if sent.status == "SEND_OK":
                    self.acknowledged[body] = int(sent.offset_msg_id[16:], 16)

    @property
    def kills(self) -> int:
        """Number of kills of both sides."""
        return self.counts["kills of the master"] + self.counts["kills of the slave"]

    @contextlib.contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.spent[part] += time.monotonic() - began

    def round(self, number: int) -> None:
        """Send, and kill one of both, or both. Raises ViolationError."""
        victims = self.dice.choice(((self.master,), (self.slave,), (self.master, self.slave)))
        before = len(self.acknowledged)
        stop = threading.Event()
        threads = [threading.Thread(target=self._send, args=(f"{number}.{n}", stop)) for n in range(THREADS)]
        with self._timed("send"):
            for thread in threads:
                thread.start()
            time.sleep(0.3 + self.dice.random() * 1.2)
            at_once(victim.kill for victim in victims)
            if self.master not in victims:
                time.sleep(self.dice.random() * 0.5)
            stop.set()
            for thread in threads:
                thread.join(60)
        for victim in victims:
            self.counts["kills of the master" if victim is self.master else "kills of the slave"] += 1
        self.counts["kills of both together"] += len(victims) == 2
        self.counts["rounds"] += 1
        self.counts["rounds with acknowledged messages"] += len(self.acknowledged) > before
        with self._timed("look"):
            self.look()
        with self._timed("start"):
            at_once(victim.start for victim in victims)
        if self.dice.random() < NO_WAIT:
            self.counts["rounds without a wait"] += 1
            return
        with self._timed("follow"):
            until_it_follows(self.master, self.slave)

    # -- what must hold

    def look(self) -> None:
        """Compare the logs, and look for what was acknowledged since the last look. Raises ViolationError."""
        ours, theirs = Log(self.slave.root), Log(self.master.root)
        ours._end = ours.last = theirs._end = self._looked
        end, master_end = ours.end(), theirs.end()
        if end > master_end:
            raise ViolationError(f"the slave has {end}, and its master {master_end}")
        start, last = self._same_until, ours.last
        if is_cut_off(ours.bytes(last, end), theirs.bytes(last, end)):
            self.counts["records cut off by a kill"] += 1
            end = last
        if ours.bytes(start, end) != theirs.bytes(start, end):
            raise ViolationError(f"the logs differ between {start} and {end}")
        for body, at in self.acknowledged.items():
            if body not in self._checked and (at >= end or body not in ours.body(at)):
                raise ViolationError(f"{body[:20]!r} at {at} is acknowledged, and not in the slave's log up to {end}")
            self._checked.add(body)
        self._looked = self._same_until = end
        if (self.slave.root / filenames.QUARANTINE).exists():
            raise ViolationError("the slave has put bytes into quarantine")

    def start(self) -> None:
        self.master.start()
        self.slave.start()
        until = time.monotonic() + FOLLOWS_S
        with Producer(namesrv=f"127.0.0.1:{self.namesrv}", timeout_ms=3000) as producer:
            while True:
                with contextlib.suppress(RemotingError):
                    producer.create_topic(TOPIC, queues=2)
                    with PullConsumer(namesrv=f"127.0.0.1:{self.namesrv}") as consumer:
                        if len(consumer.queues(TOPIC)) == 2:
                            break
                if time.monotonic() > until:
                    raise ViolationError(f"no route: {self.master.said()}")
                time.sleep(0.5)
        until_it_follows(self.master, self.slave)

    def finish(self) -> None:
        """Consume everything. Raises ViolationError."""
        until_it_follows(self.master, self.slave)
        self.look()
        if self.counts["rounds with acknowledged messages"] * 2 < self.counts["rounds"]:
            raise ViolationError("nothing was acknowledged in most rounds, so they prove nothing")
        with PullConsumer(namesrv=f"127.0.0.1:{self.namesrv}", group="audit", timeout_ms=10_000) as consumer:
            found = {message.body for message in consumer.messages(TOPIC, start="first", follow=False)}
        if lost := self.acknowledged.keys() - found:
            raise ViolationError(f"{len(lost)} acknowledged messages cannot be consumed: {sorted(lost)[:3]}")

    def told(self) -> str:
        """Return the counts and times as text."""
        counts = ", ".join(f"{name} {count}" for name, count in sorted(self.counts.items()))
        spent = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in self.spent.items())
        return (f"{self.kills} kills, {len(self.acknowledged)} acknowledged, {self._same_until} bytes: {counts}; "
                f"{spent}")

    def stop(self) -> None:
        self.slave.kill()
        self.master.kill()
        if self._names is not None:
            self._names.end(signal.SIGKILL)


def run(kinds: str, kills: int, seed: int, flush: str) -> bool:
    """Run one pair. Return whether nothing was lost."""
    began = time.time()
    directory = Path(tempfile.mkdtemp(prefix="tailrace-kills-"))
    pair, number = Pair(directory, kinds, seed, flush), 0
    try:
        pair.start()
        while pair.kills < kills:
            pair.round(number)
            number += 1
            if number % 10 == 0:
                print(f"{kinds} {flush}: {pair.told()}", flush=True)
        pair.finish()
    except KeyboardInterrupt:
        print(f"{kinds} {flush} SEED={seed}: ended in round {number}, 0 violations before, {pair.told()}", flush=True)
        raise
    except Exception as error:
        print(f"VIOLATION {kinds} {flush} SEED={seed} in round {number}, {pair.told()}; see {directory}: "
              f"{type(error).__name__}: {error}", flush=True)
        return False
    finally:
        pair.stop()
    shutil.rmtree(directory)
    print(f"{kinds} {flush} SEED={seed}: 0 violations in {time.time() - began:.0f} s, {pair.told()}", flush=True)
    return True


def has_reference() -> bool:
    """Return whether RocketMQ can run here."""
    if any(shutil.which(program) is None for program in ("mvn", "javac")):
        return False
    return not subprocess.run([REFERENCE, "setup"], capture_output=True, timeout=900, check=False).returncode


def main() -> int:
    seed, kills = int(os.environ.get("SEED", "1")), int(os.environ.get("KILLS", "20"))
    flushes = os.environ.get("FLUSH", "ASYNC_FLUSH,SYNC_FLUSH").split(",")
    pairs = os.environ.get("PAIRS", "ours/ours,ours/java,java/ours").split(",")
    bad = 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the brokers end as well
    for kinds in pairs:
        if "java" in kinds and not has_reference():
            print(f"{kinds} is left out: it needs Maven, a JDK and the jars of RocketMQ")
            continue
        bad += sum(not run(kinds, kills, seed, flush) for flush in flushes)
    return 1 if bad else 0


if __name__ == "__main__":
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    sys.exit(main())
