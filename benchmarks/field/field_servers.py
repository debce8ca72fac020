"""The servers of the field: how each is started on a directory, in two promises.

``async``: a message is acknowledged before it is synced to the disk. ``synced``: after it. A system is present when
its program is; `Server.missing` says what would bring it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "tests" / "interop" / "reference" / "rocketmq"
CACHE = Path.home() / ".cache" / "tailrace-field"
KAFKA = "3.9.1"
NATS = "v2.15.3"
PROMISES = ("async", "synced")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server(ABC):
    """One server on a directory. Its processes are in sessions of their own, and pinned to one processor."""

    name: str
    clients: Sequence[str] = ()
    """Names of `field_clients.CLIENTS`."""
    has_delay = False
    promises: Sequence[str] = PROMISES

    def __init__(self, directory: Path, promise: str, cpu: int) -> None:
        self.directory, self.promise, self._cpu = directory, promise, cpu
        self.port = free_port()
        self._processes: list[subprocess.Popen[bytes]] = []
        directory.mkdir(parents=True, exist_ok=True)

    @classmethod
    @abstractmethod
    def missing(cls) -> str:
        """What is not there, or an empty text."""

    @classmethod
    @abstractmethod
    def version(cls) -> str:
        """As the program gives it."""

    @abstractmethod
    def start(self) -> None:
        """Start it, without waiting until it serves."""

    def address(self, client: str) -> str:
        """Where a client finds it."""
        return f"127.0.0.1:{self.port}"

    def run(self, *command: object, **environment: str) -> None:
        with (self.directory / "output.txt").open("ab") as output:
            self._processes.append(subprocess.Popen(
                ["taskset", "-c", str(self._cpu), *map(str, command)], stdout=output, stderr=output,
                env={**os.environ, **environment}, start_new_session=True))

    def pids(self) -> list[int]:
        """All processes that were started, and theirs."""
        sessions = {process.pid for process in self._processes}
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    if os.getsid(int(entry.name)) in sessions:
                        found.append(int(entry.name))
        return found

    def rss_anon_mb(self) -> int:
        """Anonymous memory of its processes, in MiB."""
        total = 0
        for pid in self.pids():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                    if line.startswith("RssAnon:"):
                        total += int(line.split()[1])
        return total >> 10

    def disk_mb(self) -> int:
        """Blocks of its files, in MiB."""
        return sum(path.lstat().st_blocks for path in self.directory.rglob("*") if path.is_file()) * 512 >> 20

    def kill(self) -> None:
        """As ``kill -9``."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self._processes:
            process.wait()
        self._processes.clear()


class Tailrace(Server):
    name = "Tailrace"
    clients = ("tailrace",)
    has_delay = True

    @classmethod
    def missing(cls) -> str:
        return ""

    @classmethod
    def version(cls) -> str:
        import tailrace
        return tailrace.__version__

    def start(self) -> None:
        conf = self.directory / "broker.conf"
        conf.write_text("flushDiskType=" + ("SYNC_FLUSH" if self.promise == "synced" else "ASYNC_FLUSH") + "\n")
        self.run(Path(sys.executable).parent / "tailrace", "serve", self.directory / "store", "--listen", "127.0.0.1:0",
                 "--namesrv-listen", f"127.0.0.1:{self.port}", "--log-level", "error", "--config", conf)


class Rocketmq(Server):
    """Name server, and a broker with the proxy of gRPC in one process."""

    name = "RocketMQ"
    clients = ("rocketmq-grpc", "tailrace")
    has_delay = True

    @classmethod
    def missing(cls) -> str:
        return "" if shutil.which("mvn") and shutil.which("javac") else "Maven and a JDK 17"

    @classmethod
    def version(cls) -> str:
        return (REFERENCE.parent / "RELEASE").read_text().strip()

    def start(self) -> None:
        self._grpc, broker = free_port(), free_port()
        conf = self.directory / "broker.conf"
        conf.write_text("\n".join((
            "brokerClusterName=DefaultCluster", "brokerName=broker-a", "brokerId=0", "brokerIP1=127.0.0.1",
            f"listenPort={broker}", f"namesrvAddr=127.0.0.1:{self.port}", f"storePathRootDir={self.directory}/store",
            f"storePathCommitLog={self.directory}/store/commitlog", "autoCreateTopicEnable=true",
            "flushDiskType=" + ("SYNC_FLUSH" if self.promise == "synced" else "ASYNC_FLUSH"), "")))
        self.run(REFERENCE, "namesrv", self.port)
        self.run(REFERENCE, "proxy-local", conf, self._grpc)

    def address(self, client: str) -> str:
        namesrv = f"127.0.0.1:{self.port}"
        return f"127.0.0.1:{self._grpc},{namesrv}" if client == "rocketmq-grpc" else namesrv


class Kafka(Server):
    """One node that is broker and controller (KRaft)."""

    name = "Kafka"
    clients = ("kafka",)

    @classmethod
    def missing(cls) -> str:
        return "" if shutil.which("mvn") else "Maven and a Java runtime 17"

    @classmethod
    def version(cls) -> str:
        return KAFKA

    @staticmethod
    def _jars() -> Path:
        """Fetch the jars once."""
        root = CACHE / f"kafka-{KAFKA}"
        if not (root / "ready").exists():
            root.mkdir(parents=True, exist_ok=True)
            dependencies = "".join(
                f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
                "</dependency>" for group, artifact, version in (
                    ("org.apache.kafka", "kafka_2.13", KAFKA), ("org.slf4j", "slf4j-nop", "1.7.36")))
            (root / "pom.xml").write_text(
                '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
                "<groupId>field</groupId><artifactId>kafka</artifactId><version>1</version><dependencies>"
                f"{dependencies}</dependencies></project>")
            subprocess.run(["mvn", "-q", "-B", "-f", str(root / "pom.xml"), "dependency:copy-dependencies",
                            f"-DoutputDirectory={root}/lib"], check=True, stdout=subprocess.DEVNULL)
            (root / "ready").touch()
        return root / "lib"

    def start(self) -> None:
        jars, controller, conf = f"{self._jars()}/*", free_port(), self.directory / "server.properties"
        if not conf.exists():
            conf.write_text("\n".join((
                "process.roles=broker,controller", "node.id=1", f"controller.quorum.voters=1@127.0.0.1:{controller}",
                f"listeners=PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}",
                "controller.listener.names=CONTROLLER", f"log.dirs={self.directory}/store",
                "offsets.topic.replication.factor=1", "transaction.state.log.replication.factor=1",
                "transaction.state.log.min.isr=1", "group.initial.rebalance.delay.ms=0",
                *(["log.flush.interval.messages=1"] if self.promise == "synced" else []), "")))
            subprocess.run(["java", "-cp", jars, "kafka.tools.StorageTool", "format", "-t", "ZmllbGQtZmllbGQtZmllbA",
                            "-c", str(conf)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.run("java", "-Xms1g", "-Xmx1g", "-cp", jars, "kafka.Kafka", conf)


class Nats(Server):
    name = "NATS JetStream"
    clients = ("nats",)

    @classmethod
    def missing(cls) -> str:
        return "" if (CACHE / NATS / "nats-server").exists() or shutil.which("go") else "Go"

    @classmethod
    def version(cls) -> str:
        done = subprocess.run([str(cls._program()), "--version"], capture_output=True, text=True, check=True)
        return done.stdout.split()[-1]

    @staticmethod
    def _program() -> Path:
        """Build the server once."""
        program = CACHE / NATS / "nats-server"
        if not program.exists():
            subprocess.run(["go", "install", f"github.com/nats-io/nats-server/v2@{NATS}"], check=True,
                           env={**os.environ, "GOBIN": str(program.parent)}, stderr=subprocess.DEVNULL)
        return program

    def start(self) -> None:
        conf = self.directory / "nats.conf"
        every = "always" if self.promise == "synced" else '"2m"'
        conf.write_text(
            f"listen: 127.0.0.1:{self.port}\n"
            f"jetstream {{ store_dir: {self.directory}/store, sync_interval: {every} }}\n")
        self.run(self._program(), "-c", conf)


class Redis(Server):
    """Streams with an append-only file; ``async`` syncs it once a second."""

    name = "Redis Streams"
    clients = ("redis",)

    @classmethod
    def missing(cls) -> str:
        return "" if shutil.which("redis-server") else "redis-server (a package of Debian)"

    @classmethod
    def version(cls) -> str:
        done = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=True)
        return done.stdout.split()[2]

    def start(self) -> None:
        self.run("redis-server", "--bind", "127.0.0.1", "--port", self.port, "--dir", self.directory, "--save", "",
                 "--appendonly", "yes", "--appendfsync", "always" if self.promise == "synced" else "everysec")


class Rabbitmq(Server):
    """Streams where a message is acknowledged before a sync, quorum queues where after it."""

    name = "RabbitMQ"
    clients = ("rabbitmq",)
    _PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")

    @classmethod
    def missing(cls) -> str:
        return "" if cls._PROGRAM.exists() else "rabbitmq-server (a package of Debian)"

    @classmethod
    def version(cls) -> str:
        done = subprocess.run(
            ["dpkg-query", "-W", "-f", "${Version}", "rabbitmq-server"], capture_output=True, text=True, check=False)
        return done.stdout

    def start(self) -> None:
        conf = self.directory / "rabbitmq.conf"
        conf.write_text(f"listeners.tcp.1 = 127.0.0.1:{self.port}\n")
        self.run(
            self._PROGRAM, HOME=str(self.directory), RABBITMQ_NODENAME=f"field{self.port}@localhost",
            RABBITMQ_MNESIA_BASE=str(self.directory / "store"), RABBITMQ_LOG_BASE=str(self.directory / "logs"),
            RABBITMQ_DIST_PORT=str(free_port()), RABBITMQ_CONFIG_FILE=str(conf),
            RABBITMQ_ENABLED_PLUGINS_FILE=str(self.directory / "plugins"), ERL_EPMD_ADDRESS="127.0.0.1")

    def address(self, client: str) -> str:
        return f"127.0.0.1:{self.port},{'quorum' if self.promise == 'synced' else 'stream'}"

    def kill(self) -> None:
        super().kill()
        time.sleep(0.2)  # until its name is free


SERVERS: tuple[type[Server], ...] = (Tailrace, Rocketmq, Kafka, Nats, Redis, Rabbitmq)
