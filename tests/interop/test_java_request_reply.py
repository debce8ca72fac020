"""Request-reply between the reference's producer and consumer, by way of `tailrace serve`."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tailrace import MessageStore
from tailrace.client import Credentials, Producer
from tailrace.node.store_opening import StoreParts
from tailrace.pytest_plugin import TailraceBroker

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
    with MessageStore.open(tailrace_broker.store_path, parts=StoreParts(services=False)) as store:
        stored = list(store.read(TOPIC, 0))
        assert [m.body for m in stored] == [b"re:%d" % n for n in range(COUNT)]
        # The names that a Java broker stores.
        assert {frozenset(m.properties) for m in stored} == {frozenset({
            "MSG_TYPE", "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL", "UNIQ_KEY", "MSG_REGION", "TRACE_ON"})}


@pytest.mark.long
def test_java_users_ask_and_reply_with_the_permissions_to_send_and_to_consume(reference, tmp_path):
    """The asker may only send to the topic, the replier may only consume it."""
    passwords = {"root": "root-password", "customer": "customer-password", "desk": "password-of-the-desk"}
    for user, password in passwords.items():
        (tmp_path / user).write_text(password + "\n")
    credentials = tmp_path / "root.credentials"
    credentials.write_text("accessKey: root\nsecretKey: root-password\n")
    credentials.chmod(0o600)
    store = str(tmp_path / "store")
    broker = TailraceBroker(tmp_path / "store", "--user", "root", "--password-file", str(tmp_path / "root"))

    def acl(*arguments):
        subprocess.run(
            [sys.executable, "-m", "tailrace.cli", "acl", *arguments], check=True, timeout=60, capture_output=True,
            env={**os.environ, "TAILRACE_CREDENTIALS": str(credentials)})

    broker.start()
    try:
        with Producer(namesrv=broker.namesrv, group="t", credentials=Credentials("root", "root-password")) as producer:
            producer.create_topic("questions", 1)
        for user in ("customer", "desk"):
            acl("user", "add", store, user, "--password-file", str(tmp_path / user))
        acl("allow", store, "customer", "--on", "Topic:questions", "--action", "Pub")
        acl("allow", store, "desk", "--on", "Topic:questions", "--action", "Sub,Get")
        acl("allow", store, "desk", "--on", "Group:answerers_c", "--action", "Sub,Get")
        done = subprocess.run(
            [reference, "request-reply", broker.namesrv, "questions", str(COUNT), "customer", passwords["customer"],
             "desk", passwords["desk"]], capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stdout + done.stderr[-2000:] + broker.log_path.read_text()[-4000:]
        refused = ("nobody 16 User:desk may not reply to client nobody: it has not asked a question on a topic that "
                   "the user may consume.")
        assert sorted(done.stdout.splitlines()) == [
            *(f"got re:{n} {TOPIC}" for n in range(COUNT)), refused, *["reply SEND_OK"] * COUNT]
    finally:
        broker.stop()
