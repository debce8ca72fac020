"""Timers of Tailrace beside the reference's, over the wire, in one run. Needs Maven and a Java 17 JDK.

One generator sends the same frames to both brokers. Enqueue: sends a second, and the time until the wheel has
all timers. Drain: timers that are due at one moment, from the first to the last in their queues. Lateness: put
time minus due time at a steady rate. Pending: memory, and the open after a kill with many pending timers; with
``--direct`` they are not sent: Tailrace makes the directory from which its wheel is filled, and the reference
opens another directory made in the same way. One JSON line; ratios above 1 are in our favour.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
from peer import reference, reference_broker, reference_release
from results import note, report
from store import arguments_of, rss_anon_mb, serving

from tailrace import MessageStore, StoreConfig
from tailrace.client import PullConsumer
from tailrace.errors import RemotingError
from tailrace.formats.names import TIMER_TOPIC
from tailrace.formats.remoting import RemotingCommand, SerializeType, decode_frame, encode
from tailrace.kernels.properties import encode_properties
from tailrace.model import MessageExtBrokerInner

QUEUES = 8
IN_FLIGHT = 320
CHUNK = 64
WARM_UP = 10_000
GRACE_S = 60
READY_S = 180
"""At most, until the reference serves a directory with many pending timers."""
DIRECTORIES = {"tailrace": "ours", "reference": "java"}


class Generator:
    """Sends timer messages on one connection, many before the first answer."""

    def __init__(self, broker: str, topic: str, body: int) -> None:
        host, port = broker.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)))
        self._topic, self._body = topic, bytes(body)
        self._number, self._open, self._data = 0, 0, b""
        self.refused = 0

    def frame(self, due_ms: int) -> bytes:
        self._number += 1
        return encode(RemotingCommand(310, {
            "a": "bench", "b": self._topic, "c": "TBW102", "d": str(QUEUES),
            "e": str(self._number % QUEUES), "f": "0", "g": "1", "h": "0", "j": "0", "k": "false",
            "i": f"UNIQ_KEY\x01{os.getpid():08X}{self._number:024X}\x02TIMER_DELIVER_MS\x01{due_ms}\x02",
        }, self._body, opaque=self._number, serialize_type=SerializeType.ROCKETMQ))

    def send(self, dues: list[int]) -> None:
        """Send one message for each due time, and wait for every answer."""
        for at in range(0, len(dues), CHUNK):
            self._socket.sendall(b"".join(map(self.frame, dues[at : at + CHUNK])))
            self._open += len(dues[at : at + CHUNK])
            self._receive(IN_FLIGHT - CHUNK)
        self._receive(0)

    def _receive(self, most_open: int) -> None:
        while self._open > most_open:
            data = self._socket.recv(1 << 20)
            if not data:
                raise SystemExit("the broker closed the connection")
            self._data += data
            at = 0
            while len(self._data) - at >= 12:
                size, kind, code = struct.unpack_from(">iB3xh", self._data, at)
                if len(self._data) - at < 4 + size:
                    break
                frame = self._data[at : at + 4 + size]
                if code != 0 if kind else b'"code":0,' not in frame:
                    self._refuse(frame)
                self._open -= 1
                at += 4 + size
            self._data = self._data[at:]

    def _refuse(self, frame: bytes) -> None:
        self.refused += 1
        command, _ = decode_frame(frame, 0, len(frame))
        if self.refused == 1 and command is not None:
            note(f"refused: {command.code} {command.remark}")

    def ask(self, code: int) -> bytes:
        """The body of an answer to a request without fields."""
        self._socket.sendall(encode(RemotingCommand(code, {}, b"", opaque=0)))
        while True:
            command, end = decode_frame(self._data, 0, len(self._data))
            if command is not None:
                self._data = self._data[end:]
                return command.body
            self._data += self._socket.recv(1 << 20)

    def runtime_figure(self, name: str) -> int:
        """One of the broker's runtime figures."""
        while not (body := self.ask(28)):
            time.sleep(0.1)  # the reference answers with an error until its statistics have a sample
        return int(orjson.loads(body)["table"][name])

    def wait_enqueued(self) -> None:
        """Until the wheel has everything."""
        while self.runtime_figure("timerOffsetBehind") > 0:
            time.sleep(0.02)

    def close(self) -> None:
        self._socket.close()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def stored(broker: str, topic: str) -> int:
    with PullConsumer(broker=broker) as consumer:
        return sum(consumer.max_offset(queue) for queue in consumer.queues(topic))


def enqueue_and_drain(
    broker: str, topic: str, count: int, body: int, pid: int, ahead_s: float, most_s: float
) -> dict[str, Any]:
    """Timers that are all due in one moment, so far ahead that all are sent before it.

    Searches their queues for ``most_s`` after that moment; the rate is of the timers that arrived.
    """
    generator = Generator(broker, f"{topic}Warm", body)
    generator.send([now_ms() + 1000] * WARM_UP)
    generator.wait_enqueued()
    note(f"warm, {generator.refused} refused")
    generator.close()
    generator = Generator(broker, topic, body)
    generator.send([now_ms() + 1])  # the topic is there
    due = now_ms() + int(1000 * (ahead_s or 5 + count / 4000))
    began = time.perf_counter()
    generator.send([due] * count)
    sent_s = time.perf_counter() - began
    generator.wait_enqueued()
    enqueued_s = time.perf_counter() - began
    if now_ms() > due - 500:
        raise SystemExit("the timers were due before all were sent; choose fewer, or a longer --ahead")
    cpu = cpu_seconds(pid)
    wanted, first, last, seen = count + 1 - generator.refused, 0.0, 0.0, 0
    time.sleep(max(due / 1000 - time.time() - 0.2, 0))
    with PullConsumer(broker=broker) as consumer:
        queues = consumer.queues(topic)
        while seen < wanted and time.time() < due / 1000 + most_s:
            before, seen = seen, sum(consumer.max_offset(queue) for queue in queues)
            first = first or (time.time() if seen > 1 else 0.0)
            last = time.time() if seen > before else last
            time.sleep(0.02)
    cpu = cpu_seconds(pid) - cpu
    refused = generator.refused
    generator.close()
    return {
        "count": count, "refused": refused, "missing": wanted - seen,
        "send_per_s": round(count / sent_s), "enqueue_per_s": round(count / enqueued_s),
        "drain_per_s": round((seen - 1) / max(last - first, 0.001)),
        "drain_cpu_us": round(cpu / count * 1e6, 1),
        "last_after_due_ms": round(last * 1000 - due),
    }


def lateness(broker: str, topic: str, per_s: int, seconds: int, body: int) -> dict[str, Any]:
    """Put time minus due time of timers that are due one after another."""
    generator = Generator(broker, topic, body)
    start = now_ms() + 3000 + per_s * seconds // 4
    generator.send([start + number * 1000 // per_s for number in range(per_s * seconds)])
    refused = generator.refused
    generator.close()
    late: list[int] = []
    until = time.time() + (start - now_ms()) / 1000 + seconds + GRACE_S
    while stored(broker, topic) < per_s * seconds - refused and time.time() < until:
        time.sleep(0.2)
    with PullConsumer(broker=broker) as consumer:
        for message in consumer.messages(topic, start="first", follow=False):
            late.append(message.store_timestamp - int(message.properties["TIMER_DELIVER_MS"]))
    if not late:
        raise SystemExit("no timer arrived")
    late.sort()
    return {
        "per_s": per_s, "count": len(late), "missing": per_s * seconds - refused - len(late),
        "refused": refused, "early": sum(ms < 0 for ms in late), "p50_ms": late[len(late) // 2],
        "p99_ms": late[len(late) * 99 // 100], "max_ms": late[-1],
    }


def fill_directly(path: Path, topic: str, count: int, body: int) -> float:
    """Timers over a day from in an hour on, put on the timer topic as the broker would, then enqueued.

    Leaves a clean directory; how many of them a second came into the wheel.
    """
    start, at_once = now_ms() + 3_600_000, 10_000
    config = StoreConfig(timer_stop_enqueue=True)
    with MessageStore.open(path, config=config) as store:
        for first in range(0, count, at_once):
            dues = [start + n * 86_400_000 // count for n in range(first, min(first + at_once, count))]
            made = store.inner.append(store.inner.commit_log.items_writer(  # no delivery is made of these timers
                MessageExtBrokerInner(TIMER_TOPIC, 0, b"", born_timestamp=now_ms()), [
                    (0, bytes(body), encode_properties({
                        "UNIQ_KEY": f"{first + n:032X}", "TIMER_DELIVER_MS": str(due),
                        "REAL_TOPIC": topic, "TIMER_OUT_MS": str((due - 1) // 1000 * 1000),
                        "REAL_QID": str(n % QUEUES)}))
                    for n, due in enumerate(dues)]))
            store.inner.let_dispatch_follow(made.until)
    began = time.perf_counter()
    with MessageStore.open(path) as store:
        while store.stats()["timerOffsetBehind"]:
            time.sleep(0.02)
        took = time.perf_counter() - began
        if store.stats()["timerPending"] != count:
            raise SystemExit(f"{store.stats()['timerPending']} timers are pending, not {count}")
    return count / took


def fill(broker: str, topic: str, count: int, body: int, pid: int) -> dict[str, Any]:
    """Timers due over a day from in an hour on; memory once they are in the wheel."""
    generator = Generator(broker, topic, body)
    start = now_ms() + 3_600_000
    began = time.perf_counter()
    generator.send([start + number * 86_400_000 // count for number in range(count)])
    return wait_and_look(generator, began, count, pid)


def wait_and_look(generator: Generator, began: float, count: int, pid: int) -> dict[str, Any]:
    """Until the wheel has all of them; then what they cost while nothing is due."""
    generator.wait_enqueued()
    took = time.perf_counter() - began
    return {**look(generator, count, pid), "fill_per_s": round(count / took)}


def look(generator: Generator, count: int, pid: int) -> dict[str, Any]:
    """What pending timers cost while nothing is due."""
    time.sleep(2)
    cpu, began = cpu_seconds(pid), time.perf_counter()
    time.sleep(5)
    idle = (cpu_seconds(pid) - cpu) / (time.perf_counter() - began)
    refused, in_wheel = generator.refused, generator.runtime_figure("timerCongestNum")
    generator.close()
    return {
        "count": count, "refused": refused, "in_wheel": in_wheel, "rss_anon_mb": rss_anon_mb(pid),
        "idle_cpu_ratio": round(idle, 4),
    }


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def broker_of(kind: str, scratch: Path) -> Iterator[tuple[int, str, float]]:
    """Process, address and seconds until it served, on the store of its kind below ``scratch``."""
    if kind == "tailrace":
        with serving(scratch / DIRECTORIES[kind]) as (process, at, took):
            yield process.pid, at["broker"], took
        return
    with reference_broker(scratch, "ASYNC_FLUSH", READY_S) as (processes, _, broker, took):
        yield processes[1].pid, broker, took


def measure(kind: str, scratch: Path, arguments: Any) -> dict[str, Any]:
    metrics: dict[str, Any] = {}
    if arguments.count or arguments.rates:
        with broker_of(kind, scratch) as (pid, broker, _):
            metrics = measure_due(kind, broker, pid, arguments)
        clear(scratch)
    if arguments.pending:
        metrics["pending"] = measure_pending(kind, scratch, arguments)
        note(f"{kind} pending: {metrics['pending']}")
        clear(scratch)
    return metrics


def measure_due(kind: str, broker: str, pid: int, arguments: Any) -> dict[str, Any]:
    """What is due at one moment, and what is due one after another."""
    metrics: dict[str, Any] = {}
    if arguments.count:
        metrics["burst"] = enqueue_and_drain(
            broker, "BenchBurst", arguments.count, arguments.body, pid, arguments.ahead,
            arguments.most)
        note(f"{kind} burst: {metrics['burst']}")
    for per_s in arguments.rates:
        name = f"lateness_{per_s}"
        metrics[name] = lateness(
            broker, f"BenchLate{per_s}", per_s, arguments.seconds, arguments.body)
        note(f"{kind} {name}: {metrics[name]}")
    return metrics


def measure_pending(kind: str, scratch: Path, arguments: Any) -> dict[str, Any]:
    """Memory with timers to come, a kill, and what the next start takes."""
    count, found = arguments.pending, dict[str, Any]()
    if arguments.direct:
        per_s = fill_directly(
            scratch / DIRECTORIES[kind], "BenchFar", count, arguments.body)
        note(f"{count} timers are in the wheel, {per_s:.0f} a second")
        if kind == "tailrace":
            found["backlog_enqueue_per_s"] = round(per_s)
    with broker_of(kind, scratch) as (pid, broker, took):
        if arguments.direct:
            found["ready_s"] = round(took, 2)
            generator = Generator(broker, "BenchFar", 0)
            generator.wait_enqueued()
            found |= look(generator, count, pid)
        else:
            found |= fill(broker, "BenchFar", count, arguments.body, pid)
        os.kill(pid, signal.SIGKILL)
        time.sleep(0.5)
    with broker_of(kind, scratch) as (pid, broker, took):
        found["ready_after_kill_s"] = round(took, 2)
        found["rss_anon_mb_after"] = rss_anon_mb(pid)
    return found


def clear(scratch: Path) -> None:
    for name in DIRECTORIES.values():
        shutil.rmtree(scratch / name, ignore_errors=True)


def ratios(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, float]:
    found = {}
    if "burst" in ours:
        for name in ("send_per_s", "enqueue_per_s", "drain_per_s"):
            found[name] = ours["burst"][name] / theirs["burst"][name]
        found["drain_cpu"] = theirs["burst"]["drain_cpu_us"] / ours["burst"]["drain_cpu_us"]
    for name in ours:
        if name.startswith("lateness"):
            found[f"{name} p99"] = theirs[name]["p99_ms"] / max(ours[name]["p99_ms"], 1)
    if "pending" in ours:
        found["memory"] = theirs["pending"]["rss_anon_mb"] / ours["pending"]["rss_anon_mb"]
        found["ready_after_kill"] = (
            theirs["pending"]["ready_after_kill_s"] / ours["pending"]["ready_after_kill_s"])
    return {name: round(value, 2) for name, value in found.items()}


def main() -> int:
    parser = arguments_of(__doc__ or "")
    parser.set_defaults(body=128)
    parser.add_argument("--count", type=int, default=100_000, help="timers due at one moment; 0: leave out")
    parser.add_argument("--rates", type=int, nargs="*", default=[100], help="due a second")
    parser.add_argument("--seconds", type=int, default=20, help="of each rate")
    parser.add_argument("--pending", type=int, default=100_000, help="timers to come; 0: leave out")
    parser.add_argument("--direct", action="store_true",
                        help="pending ones are put by Tailrace's store, not sent; the reference "
                             "takes over such a directory")
    parser.add_argument("--ahead", type=float, default=0,
                        help="seconds until that moment, in which all are sent; default: 4,000 a second")
    parser.add_argument("--most", type=float, default=150, help="seconds to wait for what is due")
    parser.add_argument("--only", choices=("tailrace", "reference"), help="one of them alone")
    arguments = parser.parse_args()
    kinds = [arguments.only] if arguments.only else ["tailrace", "reference"]
    if "reference" in kinds:
        if shutil.which("mvn") is None or shutil.which("javac") is None:
            print("needs Maven and a Java 17 JDK on the PATH", file=sys.stderr)
            return 3
        reference("setup")
    metrics: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="tailrace-timers-", dir=arguments.directory) as name:
        for kind in kinds:
            metrics[kind] = measure(kind, Path(name), arguments)
    if len(kinds) == 2:
        metrics["ratios"] = ratios(metrics["tailrace"], metrics["reference"])
        note("\n".join(f"{name:32} {value}" for name, value in metrics["ratios"].items()))
    report("timers", {
        "count": arguments.count, "rates": arguments.rates, "seconds": arguments.seconds,
        "pending": arguments.pending, "body": arguments.body,
        "reference": reference_release(),
    }, metrics)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RemotingError as error:
        raise SystemExit(f"the broker went away: {error}") from error
