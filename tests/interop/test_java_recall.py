"""A recall of the reference's producer deletes the timer that it names, of its own topic only."""

from __future__ import annotations

import subprocess
import time

import pytest

from tailrace import MessageStore
from tailrace.client import PullConsumer
from tailrace.node.store_opening import StoreParts

pytestmark = [pytest.mark.slow, pytest.mark.interop, pytest.mark.integration]
SECONDS = 8


@pytest.mark.parametrize("killed", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_java_producer_takes_back_a_timer_of_its_topic_only(reference, tailrace_broker, killed):
    done = subprocess.run(
        [reference, "recall", tailrace_broker.namesrv, "orders", "others", str(SECONDS)],
        capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert done.stdout.split("\n")[:-1] == [
        "sent SEND_OK", "sent SEND_OK", "recalled 7F0000010001000000000000000000AA", "other refused"]
    if killed:
        tailrace_broker.kill()
        tailrace_broker.start()
    with PullConsumer(broker=tailrace_broker.broker) as consumer:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not sum(
            consumer.max_offset(queue) for queue in consumer.queues("others")
        ):
            time.sleep(0.2)
    time.sleep(1.5)  # an open in the second of its slot lists a timer that was delivered just before
    tailrace_broker.stop()
    with MessageStore.open(tailrace_broker.store_path, parts=StoreParts(services=False)) as store:
        found = [m.body for topic, queue_id, *_ in store.queues() if topic in {"orders", "others"}
                 for m in store.read(topic, queue_id)]
        assert found == [b"others"]
        assert list(store.timers()) == []
