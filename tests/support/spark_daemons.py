"""Processes of Spark on loopback, on ports that the system chose: a standalone cluster, a Spark Connect server."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

LOOPBACK = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")


class Daemon:
    """A process of Spark, by a command of its directory ``bin``, with the lines of its log."""

    def __init__(self, home: Path, *command: str, **variables: str) -> None:
        from tailrace.spark.session import find_java_home

        environment = {
            **os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "512m", "JAVA_HOME": str(find_java_home()), **variables}
        self.lines: list[str] = []
        self._found = threading.Event()
        self._pattern = re.compile("$^")
        self.process = subprocess.Popen(
            [f"{home}/bin/{command[0]}", *command[1:]], env=environment, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True)
        self._reader = threading.Thread(target=self._read, daemon=True)

    def _read(self) -> None:
        for line in self.process.stdout:
            self.lines.append(line)
            if self._pattern.search(line):
                self._found.set()
        self._found.set()

    def wait_for(self, pattern: str) -> re.Match[str]:
        """The first line that matches; the test's own limit of time applies."""
        self._pattern = re.compile(pattern)
        if not self._reader.is_alive() and not self.lines:
            self._reader.start()
        self._found.wait(240)
        for line in self.lines:
            if match := self._pattern.search(line):
                return match
        raise AssertionError("".join(self.lines[-40:]))

    def kill(self) -> None:
        """Kill it and its executors, which have its process group, as a machine that loses its power."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self._end()

    def stop(self) -> None:
        self.process.terminate()
        self._end()

    def _end(self) -> None:
        self.process.wait(60)
        if self._reader.ident is not None:
            self._reader.join(60)
        self.process.stdout.close()


def worker_of(home: Path, master: str, work: Path, cores: int = 2) -> Daemon:
    """Start a worker, which keeps the logs of its executors in ``work``; return it when the master knows it."""
    work.mkdir(parents=True)
    started = Daemon(
        home, "spark-class", "org.apache.spark.deploy.worker.Worker", *LOOPBACK, "--cores", str(cores), "--memory",
        "1g", "--work-dir", str(work), master)
    started.wait_for("Successfully registered with master")
    return started


@contextlib.contextmanager
def master_and_workers(home: Path, work: Path, count: int, cores: int = 2) -> Iterator[tuple[str, list[Daemon]]]:
    """The URL of a master, and its workers. Workers that a test adds to the list are stopped as well."""
    running: list[Daemon] = []
    master = Daemon(home, "spark-class", "org.apache.spark.deploy.master.Master", *LOOPBACK)
    try:
        url = master.wait_for(r"Starting Spark master at (spark://127\.0\.0\.1:\d+)")[1]
        for number in range(count):
            running.append(worker_of(home, url, work / str(number), cores))
        yield url, running
    finally:
        for one in [*reversed(running), master]:
            one.stop()


@contextlib.contextmanager
def connect_server(home: Path) -> Iterator[str]:
    """The URL of a Spark Connect server with local workers."""
    server = Daemon(
        home, "spark-submit", "--class", "org.apache.spark.sql.connect.service.SparkConnectServer",
        "--master", "local[2]", "--conf", "spark.connect.grpc.binding.address=127.0.0.1",
        "--conf", "spark.connect.grpc.binding.port=0", "--conf", "spark.ui.enabled=false",
        "--conf", f"spark.sql.warehouse.dir={home}/warehouse", "spark-internal", PYSPARK_PYTHON=sys.executable)
    try:
        port = server.wait_for(r"Spark Connect server started at: \S*:(\d+)")[1]
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.stop()
