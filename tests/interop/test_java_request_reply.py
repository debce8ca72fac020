"""Request-reply between the reference's producer and consumer, by way of `tailrace serve`."""

from __future__ import annotations

import subprocess

import pytest

from tailrace import MessageStore

pytestmark = [pytest.mark.slow, pytest.mark.interop, pytest.mark.integration]
COUNT = 5
TOPIC = "DefaultCluster_REPLY_TOPIC"


def test_a_java_producer_gets_the_replies_of_a_java_consumer(reference, tailrace_broker):
    done = subprocess.run(
        [reference, "request-reply", tailrace_broker.namesrv, "questions", str(COUNT)],
        capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert sorted(done.stdout.splitlines()) == [
        *(f"got re:{n} {TOPIC}" for n in range(COUNT)),
        "nobody 1 push reply message fail, channel of <nobody> not found.",
        *["reply SEND_OK"] * COUNT,
    ]
    tailrace_broker.stop()
    with MessageStore.open(tailrace_broker.store_path, services=False) as store:
        stored = list(store.read(TOPIC, 0))
        assert [m.body for m in stored] == [b"re:%d" % n for n in range(COUNT)]
        # The names that a Java broker stores.
        assert {frozenset(m.properties) for m in stored} == {frozenset({
            "MSG_TYPE", "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL", "UNIQ_KEY", "MSG_REGION", "TRACE_ON"})}
