"""Recovery with several threads makes the same files as dispatch, whatever fails during it."""

from __future__ import annotations

import errno
import shutil
import threading

import pytest

from tailrace import Message, MessageStore, StoreConfig
from tailrace.env.filesystem import OsFileSystem
from tailrace.kernels.shared import constants as C
from tailrace.node.store_opening import StoreParts
from tailrace.store.dispatch import Dispatcher
from tailrace.store.index_service import IndexService
from tailrace.store.recovery import passes
from tailrace.store.walk import parallel
from tailrace.store.walk.parallel import ParallelWalk
from tailrace.testing import Fault, FaultyFileSystem

CONFIG = StoreConfig(
    mapped_file_size_commit_log=64 << 20, mapped_file_size_consume_queue=20_000,
    max_hash_slot_num=5000, max_index_num=4000)
PART = 1 << 20
BODY = b"b" * 4000
COUNT = 18 * PART // len(BODY)
DERIVED = ("consumequeue", "index")


def derived(path):
    return {
        str(file.relative_to(path)): file.read_bytes()
        for name in DERIVED for file in sorted((path / name).rglob("*")) if file.is_file()}


def body(number):
    return b"%d " % number + BODY


@pytest.fixture(scope="module")
def store_and_files(tmp_path_factory):
    """A store whose derived files are gone, as a kill and a careless hand leave it; what they held."""
    path = tmp_path_factory.mktemp("batches") / "store"
    with MessageStore.open(path, config=CONFIG, parts=StoreParts(services=False)) as store:
        store.topics.create_if_missing("orders", 3)
        for number in range(COUNT):
            store.put(Message(topic="orders", body=body(number), keys=[f"k{number}"]), queue_id=number % 3)
    files = derived(path)
    for name in (*DERIVED, "tailrace"):
        shutil.rmtree(path / name)
    (path / "checkpoint").unlink()
    (path / "abort").write_text("1")
    return path, files


@pytest.fixture(autouse=True, params=["index in its file", "index in memory"])
def parts(request, monkeypatch):
    """Small parts; slots of the index in memory, as a long walk has them, or not."""
    monkeypatch.setattr(parallel, "_PART", PART)
    monkeypatch.setattr(parallel, "_FIRST", PART // 4)
    monkeypatch.setattr(passes, "_SMALL", 1 << 20 if request.param == "index in memory" else 1 << 40)


@pytest.fixture
def path(store_and_files, tmp_path):
    shutil.copytree(store_and_files[0], tmp_path / "store")
    return tmp_path / "store"


def all_is_there(store):
    for queue_id in range(3):
        read = [m.body for m in store.read("orders", queue_id=queue_id, offset=0)]
        assert read == [body(n) for n in range(queue_id, COUNT, 3)]
    for number in range(0, COUNT, 97):
        found = store.query_message("orders", f"k{number}")
        assert [m.body for m in found] == [body(number)]


def test_queues_and_index_are_rebuilt_byte_for_byte(path, store_and_files):
    with MessageStore.open(path, config=CONFIG, parts=StoreParts(services=False)) as store:
        assert store.recovery_report["scanned"] == COUNT
        all_is_there(store)
    rebuilt = derived(path)
    queues = {name for name in rebuilt if name.startswith("consumequeue")}
    assert {n: rebuilt[n] for n in queues} == {
        n: data for n, data in store_and_files[1].items() if n in queues}
    index = [[data for name, data in sorted(files.items()) if name not in queues]
             for files in (rebuilt, store_and_files[1])]
    assert len(index[0]) > 2
    assert index[0] == index[1], "but for their names, which are times"


@pytest.mark.parametrize(("part", "number"), [
    ("consumequeue", 0), ("consumequeue", 7), ("consumequeue", 25), ("/index/", 0), ("/index/", 3),
    ("/index/", 6), ("/index/", 9)])
def test_a_batch_that_cannot_be_written_is_not_lost(path, part, number):
    fault = Fault(number, errno.ENOSPC, for_good=True, path=part)
    full = FaultyFileSystem.failing(OsFileSystem(), fault)
    with MessageStore.open(path, config=CONFIG, parts=StoreParts(services=False, file_system=full)) as store:
        assert "No space left" in store.recovery_report["readOnly"]
    with MessageStore.open(path, config=CONFIG, parts=StoreParts(services=False)) as store:
        all_is_there(store)


def test_memory_is_used_again(path, monkeypatch):
    made, scanned = {"rooms": 0, "batches": 0}, []
    room, new_batch, scan = parallel._room, Dispatcher.new_batch, ParallelWalk._scan

    def count(what, make):
        made[what] += 1
        return make()

    monkeypatch.setattr(parallel, "_room", lambda: count("rooms", room))
    monkeypatch.setattr(Dispatcher, "new_batch", lambda self: count("batches", lambda: new_batch(self)))
    monkeypatch.setattr(
        ParallelWalk, "_scan", lambda self, goal: (scanned.append(goal), scan(self, goal))[1])
    with MessageStore.open(path, config=CONFIG, parts=StoreParts(services=False)):
        pass
    assert len(scanned) >= 18
    assert made["rooms"] <= parallel.HELPERS + 1, "one a thread"
    assert made["batches"] <= parallel.HELPERS + 5, "begun, worked on; one of the dispatcher, one of the timers"


def test_the_index_goes_no_further_than_its_first_error(path, monkeypatch):
    """The walk and its helper threads end there, and no later record is indexed."""
    put, seen = IndexService.put, []

    def failing(self, batch):
        seen.append(len(batch))
        if len(seen) == 3:
            raise RuntimeError("broken")
        put(self, batch)

    monkeypatch.setattr(IndexService, "put", failing)
    earlier = threading.enumerate()
    with pytest.raises(RuntimeError, match="broken"):
        MessageStore.open(path, config=CONFIG, parts=StoreParts(services=False))
    assert len(seen) == 3
    assert not [t for t in threading.enumerate() if t not in earlier and t.name.startswith(("in-order", "read-ahead"))]
    monkeypatch.undo()
    with MessageStore.open(path, config=CONFIG, parts=StoreParts(services=False)) as store:
        all_is_there(store)


@pytest.mark.parametrize("number", [0, 1, 4, 9])
def test_what_cannot_be_read_ends_the_open_in_its_place(path, monkeypatch, number):
    """All that is in front of it was dispatched, in whatever thread it was to be read."""
    scan, lock, seen, taken = ParallelWalk._scan, threading.Lock(), [], []

    def failing(self, goal):
        with lock:
            seen.append(goal)
            fails = len(seen) == number + 1
        if fails:
            failed.append(goal.start)
            raise OSError(errno.EIO, "Input/output error")
        return scan(self, goal)

    failed = []
    dispatch = Dispatcher.dispatch_batch
    monkeypatch.setattr(ParallelWalk, "_scan", failing)
    monkeypatch.setattr(Dispatcher, "dispatch_batch", lambda self, batch: (
        taken.append(int(batch.rows[-1, C.PHY] + batch.rows[-1, C.SIZE])),
        dispatch(self, batch)))
    with MessageStore.open(path, config=CONFIG, parts=StoreParts(services=False)) as store:
        assert "Input/output error" in store.recovery_report["readOnly"]
        all_is_there(store)
    assert failed[0] in {0, *taken}
