"""A directory on a read-only mount: it is read as it is, and an open says why it cannot."""

import json
import shutil
import subprocess
import sys

import pytest

from tailrace import Message, MessageStore

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

    def run(*arguments):
        command = [sys.executable, "-m", "tailrace.cli", arguments[0], *arguments[1:]]
        done = subprocess.run(
            ["unshare", "-m", "sh", "-c", MOUNT, path,
             *[str(path) if word == "STORE" else word for word in command]],
            capture_output=True, text=True, check=False, timeout=60)
        if done.stderr.startswith(("unshare:", "mount:")):
            pytest.skip(f"no mounts here: {done.stderr.strip()}")
        return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr

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
                    ("serve", "STORE", "--listen", "127.0.0.1:0", "--namesrv-listen", "127.0.0.1:0")):
        code, lines, error = read_only(*command)
        assert (code, lines) == (1, [])
        last = error.strip().splitlines()[-1]
        assert "lock: Read-only file system" in last, error
        assert "dump, query, verify and Spark" in last
        assert "Traceback" not in error
