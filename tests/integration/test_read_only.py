"""A directory on a read-only mount is read and served; a command that would write reports why it cannot."""

import json
import re
import shutil
import subprocess
import sys
import urllib.request

import pytest

from tailrace import Message, MessageStore
from tailrace.client import Producer, PullConsumer
from tailrace.errors import RemotingCommandError

pytestmark = pytest.mark.integration
MOUNT = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'


@pytest.fixture(scope="module", params=["clean", "killed"])
def read_only(request, tmp_path_factory):
    """Run the command on a store that is mounted read-only for it alone."""
    path = tmp_path_factory.mktemp("store") / "s"
    if shutil.which("unshare") is None:
        pytest.skip("no unshare")
    with MessageStore.open(path) as store:
        for n in range(30):
            store.put(Message(topic="orders", body=b"%d" % n, keys=[f"k{n}"]), queue_id=n % 2)
    if request.param == "killed":
        (path / "abort").write_text("1")

    def command(*arguments):
        words = [sys.executable, "-m", "tailrace.cli", *arguments]
        return ["unshare", "-m", "sh", "-c", MOUNT, path,
                *[str(path) if word == "STORE" else word for word in words]]

    def run(*arguments):
        done = subprocess.run(
            command(*arguments), capture_output=True, text=True, check=False, timeout=60)
        if done.stderr.startswith(("unshare:", "mount:")):
            pytest.skip(f"no mounts here: {done.stderr.strip()}")
        return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr

    run.command = command
    return run


def test_it_can_be_dumped_verified_and_queried(read_only):
    code, lines, _ = read_only("dump", "STORE")
    assert code == 0
    assert sum("message" in line for line in lines) == 30
    code, lines, _ = read_only("verify", "STORE")
    assert (code, lines[-1]["summary"]["records"]) == (0, 30)
    code, lines, _ = read_only("query", "STORE", "--topic", "orders", "--key", "k7")
    assert (code, [line["message"]["queueOffset"] for line in lines]) == (0, [3])
    code, lines, _ = read_only("topic", "list", "STORE")
    assert code == 0
    assert "orders" in {line["topicName"] for line in lines}


def test_what_would_write_says_why_it_cannot(read_only):
    for command in (("recover", "STORE"), ("repair", "STORE"), ("send", "STORE", "--topic", "T", "x"),
                    ("topic", "create", "STORE", "T"), ("topic", "purge", "STORE", "orders", "--yes")):
        code, lines, error = read_only(*command)
        assert (code, lines) == (1, []), command
        last = error.strip().splitlines()[-1]
        assert "lock: Read-only file system" in last, error
        assert "dump, query, verify, serve and Spark" in last
        assert "Traceback" not in error


def test_it_is_served(read_only):
    command = read_only.command(
        "serve", "STORE", "--listen", "127.0.0.1:0", "--namesrv-listen", "127.0.0.1:0",
        "--http", "127.0.0.1:0")
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        ready = server.stdout.readline()
        assert "read-only" in ready, server.stderr.read()
        broker = re.search(r"broker=(\S+)", ready)[1]
        with PullConsumer(broker=broker, group="g") as consumer:
            found = sorted(int(m.body) for m in consumer.messages("orders", start="first", follow=False))
        assert found == list(range(30))
        with Producer(broker=broker, group="p") as producer:
            with pytest.raises(RemotingCommandError, match="lock: Read-only file system"):
                producer.send(Message(topic="orders", body=b"x"))
            with pytest.raises(RemotingCommandError, match="read-only since it was opened"):
                producer.create_topic("more", 4, {})
        http = re.search(r"http=(\S+)", server.stderr.readline())[1]
        with urllib.request.urlopen(f"http://{http}/ready") as answer:
            assert re.match("ready, read-only .*/lock: Read-only file system", answer.read().decode())
        with urllib.request.urlopen(f"http://{http}/metrics") as answer:
            assert re.search(r"\ntailrace_store_read_only\{.*\} 1.0\n", answer.read().decode())
    finally:
        server.terminate()
        _, error = server.communicate(timeout=20)
    assert server.returncode == 0
    assert "Traceback" not in error
