"""PyPI rocketmq-python-client, unmodified, with `tailrace serve --grpc` that checks users and permissions."""

import os
import subprocess
import sys
from pathlib import Path

import commands
import pytest

pytest.importorskip("rocketmq.grpc_protocol")

from tailrace.client import Credentials, Producer
from tailrace.pytest_plugin import TailraceBroker

pytestmark = [pytest.mark.slow, pytest.mark.integration]
PROGRAM = Path(__file__).parents[1] / "support" / "grpc_users.py"


@pytest.fixture
def broker(tmp_path):
    (tmp_path / "root.password").write_text("root-secret\n")
    (tmp_path / "shop.password").write_text("shop-secret-of-16\n")
    credentials = tmp_path / "root.credentials"
    credentials.write_text("accessKey: root\nsecretKey: root-secret\n")
    credentials.chmod(0o600)
    made = TailraceBroker(
        tmp_path / "store", "--grpc", "127.0.0.1:0", "--user", "root", "--password-file",
        str(tmp_path / "root.password"))
    made.start()

    def acl(*arguments):
        commands.run("acl", *arguments, env={"TAILRACE_CREDENTIALS": str(credentials)}).check_returncode()

    try:
        with Producer(namesrv=made.namesrv, group="topics", credentials=Credentials("root", "root-secret")) as producer:
            for topic in ("orders", "bills"):
                producer.create_topic(topic, 1, {"message.type": "NORMAL"})
        store = str(tmp_path / "store")
        acl("user", "add", store, "shop", "--password-file", str(tmp_path / "shop.password"))
        acl("allow", store, "shop", "--on", "Topic:orders", "--action", "Pub,Sub")
        acl("allow", store, "shop", "--on", "Topic:bills", "--action", "Sub")
        acl("allow", store, "shop", "--on", "Group:stock", "--action", "Sub")
        yield made
    finally:
        made.stop()


def test_users_do_what_they_may(broker, tmp_path):
    done = subprocess.run(
        [sys.executable, str(PROGRAM), broker.grpc_endpoint], capture_output=True, text=True, timeout=200, check=False,
        env={**os.environ, "HOME": str(tmp_path)})  # it logs below its home
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert lines[:3] == ["admin sent orders", "admin sent bills", "shop sent orders"]
    denied = "User:shop has no permission to access Topic:bills from 127.0.0.1, no matched policies."
    assert lines[3] == f"shop not sent bills ForbiddenException({denied!r})"
    assert lines[4:6] == ["admin received bills [b'x']", "shop received orders [b'x']"]
    assert lines[6].startswith("stranger not sent orders")
    assert lines[7].startswith("liar not sent orders")
    assert lines[8:] == [
        "stranger route orders 40100 username cannot be null.", "liar route orders 40100 check signature failed.",
        f"shop route others 40300 {denied.replace('bills', 'others')}"]
    log = broker.log_path.read_text()
    assert "access denied" in log
    assert "secret" not in log
