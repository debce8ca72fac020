"""A log with more segments than the process may open files is written, read, recovered and audited."""

import json
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SEGMENTS = 1100
_HEAD = """
import dataclasses, json, os, random, resource, sys
path, limit, wanted = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
from tailrace import Message, MessageStore, StoreConfig
from tailrace.config import RecoveryMode
from tailrace.node.store_opening import StoreParts
CONFIG = StoreConfig(
    mapped_file_size_commit_log=4096, mapped_file_size_consume_queue=400, max_hash_slot_num=50,
    max_index_num=100, commit_log_allocate_step=4096)
most = 0
def note():
    global most
    most = max(most, len(os.listdir("/proc/self/fd")))
def body(n):
    return (b"%06d" % n) * 150
def read(store, n):
    found = next(store.read(f"T{n % 3}", 0, n // 3, max_count=1))
    assert found.body == body(n), n
    note()
def told(**more):
    print(json.dumps({"most": most, **more}))
"""
_WRITE = """
with MessageStore.open(path, config=CONFIG, parts=StoreParts(services=False)) as store:
    n = 0
    while len(store.inner.commit_log.queue.files) < wanted:
        store.put(Message(topic=f"T{n % 3}", body=body(n), keys=[f"k{n}"]))
        n += 1
        if n % 100 == 0:
            note()
    store.flush()
    for at in random.Random(1).sample(range(n), 500):
        read(store, at)
    segments = len(store.inner.commit_log.queue.files)
told(messages=n, segments=segments)
"""
_USE = """
n = int(sys.argv[4])
strict = dataclasses.replace(CONFIG, recovery_mode=RecoveryMode.ABSOLUTE)
with MessageStore.open(path, config=strict, parts=StoreParts(services=False)) as store:
    report = store.recovery_report
    for at in random.Random(2).sample(range(n), 800):
        read(store, at)
    for at in range(0, n, 97):
        assert len(store.query_message(f"T{at % 3}", f"k{at}")) == 1
        note()
    for more in range(n, n + 30):
        store.put(Message(topic=f"T{more % 3}", body=body(more), keys=[f"k{more}"]))
    for more in range(n, n + 30):
        read(store, more)
told(decision=report["decision"], scanned=report["scanned"], messages=n + 30)
"""


def audit(command, path, limit):
    """What a command of ours prints, at that soft limit."""
    done = subprocess.run(
        [sys.executable, "-m", "tailrace.cli", command, str(path)], capture_output=True, text=True,
        timeout=300, check=False, preexec_fn=lambda: resource.setrlimit(
            resource.RLIMIT_NOFILE, (limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1])))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def run(script, path, limit, *more):
    done = subprocess.run(
        [sys.executable, "-c", _HEAD + script, str(path), str(limit), str(SEGMENTS), *map(str, more)],
        capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("many") / "store"
    made = run(_WRITE, path, 4096)
    assert made["segments"] >= SEGMENTS
    return path, made["messages"]


@pytest.mark.parametrize("limit", [1024, 256])
def test_a_log_of_many_segments_is_written_by_one_process(tmp_path: Path, limit):
    made = run(_WRITE, tmp_path / "store", limit)
    assert made["segments"] >= SEGMENTS
    assert made["most"] < limit


@pytest.mark.parametrize("limit", [1024, pytest.param(256, marks=pytest.mark.long)])
@pytest.mark.parametrize("killed", [False, True], ids=["closed", "killed, own progress gone"])
def test_a_log_of_many_segments_is_used(written, tmp_path: Path, limit, killed):
    path = tmp_path / "store"
    shutil.copytree(written[0], path)
    if killed:
        (path / "abort").write_text("1")
        (path / "checkpoint").unlink()
        shutil.rmtree(path / "tailrace")
    used = run(_USE, path, limit, written[1])
    assert used["most"] < limit
    if killed:
        assert used["decision"] == "FIRST_FILE"
        assert used["scanned"] == written[1]
    summary = audit("verify", path, limit)[-1]["summary"]
    assert (summary["findings"], summary["records"]) == (0, used["messages"])
    assert len(audit("dump", path, limit)) >= used["messages"]
