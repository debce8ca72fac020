"""Pairs of Tailrace and RocketMQ: a master and its slave, each of either kind, on directories of their own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from pathlib import Path

from java_peer import SIZES, ask, free_port, java_name_server, properties, start_java_broker

from tailrace import Producer, PullConsumer
from tailrace.errors import RemotingError
from tailrace.pytest_plugin import TailraceBroker

TOPIC = "replicated"
BOTH = {
    **SIZES, "brokerName": "broker-a", "brokerClusterName": "DefaultCluster", "brokerIP1": "127.0.0.1",
    "brokerIP2": "127.0.0.1", "timerWheelEnable": "true", "autoCreateTopicEnable": "true", "slaveReadEnable": "true",
    "registerNameServerPeriod": 10_000, "haSendHeartbeatInterval": 500, "haHousekeepingInterval": 3000}
MASTER = {"brokerRole": "ASYNC_MASTER", "brokerId": 0}
SLAVE = {"brokerRole": "SLAVE", "brokerId": 1}


class Ours:
    """A broker of ours on one directory, in one role after the other."""

    def __init__(self, root, namesrv, **settings):
        self.root, self.address = root, f"127.0.0.1:{free_port()}"
        self.settings = {**BOTH, "namesrvAddr": namesrv, **settings}
        self._broker = TailraceBroker(
            root, "--listen", self.address, "--namesrv-listen", "none", "--http", "127.0.0.1:0", settings=self.settings)
        self.conf = root.with_name(f"{root.name}.properties")

    def start(self):
        self._broker.start()
        return self

    def set(self, **settings):
        self.settings |= settings
        properties(self.conf, self.settings)

    def kill(self):
        self._broker.kill()

    stop = kill

    def said(self):
        return self._broker.log

    def memory(self):
        """Its resident memory, in bytes."""
        pages = Path(f"/proc/{self._broker._process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def metric_sum(self, name, label=""):
        """The sum of the values of a metric, of those with a label such as ``reason="disk"``."""
        http = re.findall(r"http=(\S+)", self.said())[-1]
        with urllib.request.urlopen(f"http://{http}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines
                   if line.startswith((f"{name}{{", f"{name} ")) and label in line)

    def command(self, *arguments):
        done = subprocess.run(
            [sys.executable, "-m", "tailrace.cli", *map(str, arguments)], capture_output=True, text=True, timeout=120,
            check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout


class Java:
    """A broker of RocketMQ on one directory, in one role after the other."""

    def __init__(self, reference, root, namesrv, **settings):
        root.parent.mkdir(exist_ok=True)
        self._reference, self.root = reference, root
        self.settings = {**BOTH, "namesrvAddr": namesrv, **settings}
        self._peer = None

    def start(self):
        self._peer = start_java_broker(self._reference, self.root, self.settings)
        self.address = self._peer.address
        return self

    def set(self, **settings):
        self.settings |= settings

    def said(self):
        return self.root.with_name("broker.log").read_text()

    def kill(self):
        peer, self._peer = self._peer, None
        if peer is not None:
            peer.end(signal.SIGKILL)

    def stop(self):
        peer, self._peer = self._peer, None
        if peer is not None:
            peer.end()

    def signal(self, number):
        self._peer.process.send_signal(number)

    def follow(self, master, ha_address):
        """Tell a slave where its master is."""
        assert ask(self.address, 906, {
            "masterHaAddress": ha_address, "masterFlushOffset": "0", "masterAddress": master}).code == 0


def status(address):
    return json.loads(ask(address, 907).body)


def follows(master):
    """Whether a slave has everything that its master has, and has said so."""
    with contextlib.suppress(RemotingError):
        found = status(master.address)
        return [one["slaveAckOffset"] for one in found["haConnectionInfo"]] == [found["masterCommitLogMaxOffset"]]
    return False


def ha_port(master):
    """Where a master listens for slaves."""
    return "127.0.0.1", int(master.address.rpartition(":")[2]) + 1


def created(namesrv):
    with contextlib.suppress(RemotingError), Producer(namesrv=namesrv, timeout_ms=10_000) as producer:
        producer.create_topic(TOPIC, queues=1)
        return ask(namesrv, 105, {"topic": TOPIC}).code == 0
    return False


def topics(address):
    """The names of the topics of a broker."""
    return set(json.loads(ask(address, 21).body)["topicConfigTable"])


def bodies(namesrv):
    """How often each message of the topic can be read."""
    with contextlib.suppress(RemotingError), PullConsumer(namesrv=namesrv, timeout_ms=10_000) as reader:
        return Counter(one.body for one in reader.messages(TOPIC, start="first", follow=False))
    return Counter()


@contextlib.contextmanager
def mixed_pair(reference, where, kinds):
    """A name server of RocketMQ, a master and a slave, such as ``ours/java``; neither of them runs."""
    made_by = {"ours": Ours, "java": lambda *arguments, **settings: Java(reference, *arguments, **settings)}
    (where / "master").mkdir(exist_ok=True)
    (where / "slave").mkdir(exist_ok=True)
    with java_name_server(reference, where) as namesrv:
        made = []
        try:
            for kind, name, settings in zip(
                kinds.split("/"), ("master", "slave"), (MASTER, SLAVE), strict=True):
                made.append(made_by[kind](where / name / "store", namesrv, **settings))
            yield namesrv, *made
        finally:
            for one in made:
                if isinstance(one, Ours):
                    print(one.said()[-3000:])
                one.kill()
