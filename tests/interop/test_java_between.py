"""The reference runs between two of our opens: its changes are noticed, and no message is missing.

It puts and stops, puts and is killed, truncates. Its counts of our directories tell that our
checkpoint does not mislead it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tailrace import Message, MessageStore, StoreConfig
from tailrace.node.store_opening import StoreParts

pytestmark = [pytest.mark.slow, pytest.mark.interop]
SEGMENT = 1 << 20
CONFIG = StoreConfig(mapped_file_size_commit_log=SEGMENT)
OURS, THEIRS = 400, 300


def run(reference: Path, *arguments: object, killed: bool = False) -> str:
    done = subprocess.run(
        [reference, "store-bench", *map(str, arguments)], capture_output=True, text=True,
        timeout=120, check=False)
    assert done.returncode == (9 if killed else 0), done.stdout + done.stderr[-2000:]
    return done.stdout


def java_put(reference, path, *, kill):
    run(reference, "put", path, SEGMENT, THEIRS, 700, 2, 1, *(["kill"] if kill else []), killed=kill)


def java_count(reference, path):
    """How many messages the reference sees."""
    found = re.search(r"get (\d+) in", run(reference, "get", path, SEGMENT, 1, "refer"))
    assert found is not None
    return int(found[1])


def put_ours(path, first=0, count=OURS):
    with MessageStore.open(path, config=CONFIG, parts=StoreParts(services=False)) as store:
        for n in range(first, first + count):
            store.put(
                Message(topic=f"Topic{n % 8}", body=b"x" * 600, tags="t", keys=[f"ours{n}"]),
                queue_id=n // 8 % 4)


def keys_of(store):
    found = []
    for topic, queue_id, low, high in store.queues():
        messages = list(store.read(topic, queue_id))
        assert [m.queue_offset for m in messages] == list(range(low, high))
        found += [m.keys[0] for m in messages]
        for m in messages[::9]:
            assert m.phy_offset in [f.phy_offset for f in store.query_message(topic, m.keys[0])]
    return sorted(found)


def wanted(ours, theirs):
    return sorted([f"ours{n}" for n in ours] + [f"key{n}" for n in theirs])


@pytest.mark.long
@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_what_java_puts_between_is_there(reference, tmp_path, kill):
    path = tmp_path / "s"
    put_ours(path)
    java_put(reference, path, kill=kill)
    assert (path / "abort").exists() == kill
    with MessageStore.open(path, config=CONFIG, parts=StoreParts(services=False)) as store:
        # A broker that is killed within its first second leaves our checkpoint as it was: then what
        # it appended is walked from our progress on, which is as right.
        if not kill:
            assert "own progress does not match" in store.recovery_report["why"]
        assert keys_of(store) == wanted(range(OURS), range(THEIRS))
    put_ours(path, OURS, 50)
    assert java_count(reference, path) == OURS + THEIRS + 50
    with MessageStore.open(path, config=CONFIG, parts=StoreParts(services=False)) as store:
        assert keys_of(store) == wanted(range(OURS + 50), range(THEIRS))


def test_what_java_truncates_between_stays_away(reference, tmp_path):
    path = tmp_path / "s"
    put_ours(path)
    with MessageStore.open(path, config=CONFIG, parts=StoreParts(services=False)) as store:
        last = store.query_message(f"Topic{(OURS - 1) % 8}", f"ours{OURS - 1}")
    log = path / "commitlog" / f"{0:020d}"
    data = bytearray(log.read_bytes())
    data[last[0].phy_offset + 200] ^= 1
    log.write_bytes(data)
    (path / "abort").write_text("1")
    java_put(reference, path, kill=True)  # it cuts the damaged record and continues in its place
    with MessageStore.open(path, config=CONFIG, parts=StoreParts(services=False)) as store:
        assert "own progress does not match" in store.recovery_report["why"]
        assert keys_of(store) == wanted(range(OURS - 1), range(THEIRS))
        assert not store.query_message(f"Topic{(OURS - 1) % 8}", f"ours{OURS - 1}")


@pytest.mark.parametrize("what", [
    pytest.param("stopped", marks=pytest.mark.long), "killed", pytest.param("cut", marks=pytest.mark.long)])
def test_java_is_not_misled_by_our_checkpoint(reference, tmp_path, what):
    path = tmp_path / "s"
    put_ours(path)
    left = OURS + 100
    if what != "stopped":
        with MessageStore.open(path, config=CONFIG, parts=StoreParts(services=False)) as store:
            for n in range(OURS, left):
                store.put(Message(topic=f"Topic{n % 8}", body=b"x" * 600, keys=[f"ours{n}"]),
                          queue_id=n // 8 % 4)
            if what == "cut":
                last = store.put(Message(topic="Topic0", body=b"y" * 600))
            copy = tmp_path / "copy"
            shutil.copytree(path, copy, ignore=shutil.ignore_patterns("lock"))
        if what == "cut":
            log = copy / "commitlog" / f"{0:020d}"
            data = bytearray(log.read_bytes())
            data[last.phy_offset + 200] ^= 1
            log.write_bytes(data)
            with MessageStore.open(copy, config=CONFIG, parts=StoreParts(services=False)) as store:
                assert store.max_phy_offset == last.phy_offset
            (copy / "abort").write_text("1")
        path = copy
    else:
        left = OURS
    assert java_count(reference, path) == left
