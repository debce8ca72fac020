"""A Java broker that keeps timers, queues and configuration in RocksDB leaves a directory to us."""

from __future__ import annotations

import socket
import subprocess
import time

import pytest

from tailrace import Message, MessageStore, StoreConfig
from tailrace.client import Producer
from tailrace.errors import RemotingError

pytestmark = [pytest.mark.slow, pytest.mark.interop]
COUNT, SOON = 40, 10
SIZES = {
    "mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 6000, "maxHashSlotNum": 1000,
    "maxIndexNum": 4000, "mappedFileSizeTimerLog": 65536,
}
CONFIG = StoreConfig.from_properties({name: str(size) for name, size in SIZES.items()})
BROKER = {
    **SIZES, "brokerClusterName": "DefaultCluster", "brokerName": "broker-a", "brokerId": 0,
    "brokerIP1": "127.0.0.1", "namesrvAddr": "127.0.0.1:9", "timerRocksDBEnable": "true",
    "storeType": "defaultRocksDB"}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def send_timers(port):
    """Some that are due while the broker runs, more that are not; the topic is made first."""
    until = time.monotonic() + 60
    while True:
        try:
            with Producer(broker=f"127.0.0.1:{port}") as producer:
                producer.create_topic("HT", 4)
                now = time.time_ns() // 1_000_000
                for n in range(COUNT):
                    due = now + (2000 if n < SOON else 3_600_000)
                    producer.send(Message(topic="HT", body=b"%d" % n, deliver_at=due))
                return
        except (RemotingError, OSError):
            if time.monotonic() > until:
                raise
            time.sleep(0.5)


def test_no_message_and_no_timer_is_missing(reference, tmp_path, caplog):
    root, port = tmp_path / "store", free_port()
    conf = tmp_path / "broker.conf"
    conf.write_text("".join(f"{name}={value}\n" for name, value in {
        **BROKER, "listenPort": port, "storePathRootDir": root,
        "storePathCommitLog": f"{root}/commitlog"}.items()))
    with open(tmp_path / "broker.log", "w") as log:
        broker = subprocess.Popen([reference, "broker", conf], stdout=log, stderr=log)
        try:
            send_timers(port)
            time.sleep(5)
        finally:
            broker.terminate()
            broker.wait()
    assert (root / "consumequeue/CURRENT").exists()
    assert any(file.suffix == ".sst" for file in (root / "rocksdbstore").iterdir())
    for round_ in range(2):
        caplog.clear()
        with MessageStore.open(root, config=CONFIG) as store:
            until = time.monotonic() + 20  # the log has to tell of those that were delivered
            while len(list(store.timers())) != COUNT - SOON and time.monotonic() < until:
                time.sleep(0.1)
            time.sleep(0.5)
            assert len(list(store.timers())) == COUNT - SOON
            bodies = [m.body for queue_id in range(4) for m in store.read("HT", queue_id)]
        assert sorted(bodies) == sorted(b"%d" % n for n in range(SOON))
        assert ("reason=a Java broker kept timers" in caplog.text) == (round_ == 0)
        for kind in ("topics", "subscriptionGroups"):
            assert f"is not read kind={kind} path={root}/config/{kind}" in caplog.text or round_
