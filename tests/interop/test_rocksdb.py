"""A Java broker that keeps timers, queues and configuration in RocksDB leaves a directory to us."""

from __future__ import annotations

import time

import pytest
from java_peer import SIZES, java_broker

from tailrace import Message, MessageStore, StoreConfig
from tailrace.client import Producer
from tailrace.errors import RemotingError

pytestmark = [pytest.mark.slow, pytest.mark.interop]
COUNT, SOON = 40, 10
CONFIG = StoreConfig.from_properties({name: str(size) for name, size in SIZES.items()})
BROKER = {"timerRocksDBEnable": "true", "storeType": "defaultRocksDB"}


def send_timers(address):
    """Some that are due while the broker runs, more that are not; the topic is made first."""
    until = time.monotonic() + 60
    while True:
        try:
            with Producer(broker=address) as producer:
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


@pytest.mark.long
def test_no_message_and_no_timer_is_missing(reference, tmp_path, caplog):
    root = tmp_path / "store"
    with java_broker(reference, root, BROKER) as address:
        send_timers(address)
        time.sleep(5)
    assert (root / "consumequeue/CURRENT").exists()
    assert any(file.suffix == ".sst" for file in (root / "rocksdbstore").iterdir())
    for round_ in range(2):
        caplog.clear()
        caplog.set_level("INFO", "tailrace")
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
