"""Derived state heals by itself: any of it may be gone, empty, short, long, zeroed, random or old.

A store is damaged in every derived file at random, opened, and must show what a full rebuild shows:
queues with equal units, keys that find the same messages.
"""

from __future__ import annotations

import os
import random
import shutil

import pytest
from long_runs import LONG
from read_there import query_there

from tailrace import Message, MessageStore, StoreConfig
from tailrace.env.entropy import SeededEntropy
from tailrace.model import MessageExtBrokerInner
from tailrace.node.store_opening import StoreParts

CONFIG = StoreConfig(
    mapped_file_size_commit_log=16384, mapped_file_size_consume_queue=400, max_hash_slot_num=32,
    max_index_num=128, commit_log_allocate_step=4096)
SEED = int(os.environ.get("SEED", "1"))
CASES = int(os.environ.get("CASES", "120" if LONG else "24"))


def opened(path):
    return MessageStore.open(path, config=CONFIG, parts=StoreParts(services=False, entropy=SeededEntropy(7)))


def make(path, *, close):
    rng = random.Random(SEED)
    store = opened(path)
    for number in range(260):
        topic, queue_id = f"T{rng.randrange(4)}", rng.randrange(3)
        store.put(
            Message(topic=topic, body=b"%d" % number + bytes(rng.randrange(400)),
                    tags=f"tag{number % 5}" if number % 7 else None, keys=[f"k{number}"]),
            queue_id=queue_id)
        if number % 40 == 39:  # a prepared transaction has no unit
            store.put_inner(MessageExtBrokerInner("T0", 0, b"half", b"", sys_flag=4))
        if number in {90, 180}:
            store.inner.flush()
        if number == 120:
            shutil.copytree(path, f"{path}-older")
    store.close()
    if not close:
        (path / "abort").write_text("1")


def view(store):
    """Everything a reader can ask of derived state."""
    queues = {}
    for topic, queue_id, low, high in store.queues():
        units = store.inner.queues.get(topic, queue_id).units
        found = b"".join(units(at, 1) for at in range(low, high))
        queues[topic, queue_id] = low, high, found
    keys = {
        n: [m.phy_offset for t in range(4) for m in query_there(store, f"T{t}", f"k{n}")]
        for n in range(260)
    }
    return queues, keys


@pytest.fixture(scope="module", params=[pytest.param(True, marks=pytest.mark.long), False], ids=["clean", "killed"])
def directory(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("store") / "s"
    make(path, close=request.param)
    rebuilt = path.parent / "rebuilt"
    shutil.copytree(path, rebuilt)
    for name in ("consumequeue", "index", "tailrace"):
        shutil.rmtree(rebuilt / name)
    (rebuilt / "checkpoint").unlink()
    (rebuilt / "abort").write_text("1")
    with opened(rebuilt) as store:
        wanted = view(store)
        assert sum(high for _, high, _ in wanted[0].values()) == 260
        assert all(len(found) == 1 for found in wanted[1].values())
    return path, wanted


def derived_files(path):
    return sorted(
        p for p in path.rglob("*")
        if p.is_file() and not {"commitlog", "quarantine"} & set(p.relative_to(path).parts)
        and p.name not in {"lock", "abort"})


def spoil(rng, source, path, file):
    kind = rng.choice(
        ["gone", "empty", "short", "long", "zero", "ones", "random", "older", "queue", "hole"])
    size = file.stat().st_size
    if kind == "gone":
        file.unlink()
    elif kind == "empty":
        file.write_bytes(b"")
    elif kind == "short":
        os.truncate(file, rng.randrange(size) if size else 0)
    elif kind == "long":
        with file.open("ab") as opened_file:
            opened_file.write(rng.randbytes(rng.randrange(1, 600)))
    elif kind in {"zero", "ones", "random"}:
        data = {"zero": bytes(size), "ones": b"\xff" * size, "random": rng.randbytes(size)}[kind]
        file.write_bytes(data)
    elif kind == "older":
        older = source.with_name("s-older") / file.relative_to(path)
        if older.exists():
            shutil.copy(older, file)
    elif kind == "queue" and file.parent.parent.parent.name == "consumequeue":
        shutil.rmtree(file.parent)
    elif kind == "hole" and size:
        data = bytearray(file.read_bytes())
        at = rng.randrange(size)
        data[at : at + 60] = bytes(len(data[at : at + 60]))
        file.write_bytes(data)
    return f"{kind} {file.relative_to(path)}"


@pytest.mark.crash
def test_whatever_happens_to_derived_files_the_store_equals_a_rebuild(directory, tmp_path):
    source, wanted = directory
    for case in range(CASES):
        rng = random.Random(SEED * 100_003 + case)
        path = tmp_path / "s"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(source, path)
        files = rng.sample(derived_files(path), k=rng.choice([1, 1, 2, 4, 9]))
        done = [spoil(rng, source, path, file) for file in files if file.exists()]
        for _ in range(2):
            with opened(path) as store:
                found = view(store)
                report = store.recovery_report
            assert found[0] == wanted[0], (SEED, case, done, report)
            assert found[1] == wanted[1], (SEED, case, done, report)
