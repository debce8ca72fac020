"""A directory that was not closed is shown without its lock as the next open makes it, and nothing is written."""

import importlib.util
import pathlib
import random

import pytest
from read_there import query_there

from tailrace import Message, MessageStore, StoreConfig
from tailrace.config import RecoveryMode
from tailrace.doctor.dump import query
from tailrace.env.entropy import SeededEntropy
from tailrace.formats.consumequeue import CQ_UNIT, PRE_BLANK_SIZE
from tailrace.node.store_opening import StoreParts
from tailrace.store.directory import DirectoryState, StoreDirectory
from tailrace.store.queue_search import first_stored
from tailrace.testing import CrashFileSystem, FaultyFileSystem, SimClock, crash_filesystem

_spec = importlib.util.spec_from_file_location("faults", pathlib.Path(__file__).with_name("faults.py"))
faults = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(faults)
SEGMENT = 16384
CONFIG = StoreConfig(
    mapped_file_size_commit_log=SEGMENT, mapped_file_size_consume_queue=400, max_hash_slot_num=16,
    max_index_num=64, commit_log_allocate_step=4096, timer_wheel_enable=False)
COUNT = 400


def opened(files, config=CONFIG, clock=None):
    return MessageStore.open(
        "/store", config=config,
        parts=StoreParts(clock=clock or SimClock(), file_system=files, services=False, entropy=SeededEntropy(1)))


def filled():
    """Files of a store with ten segments that was killed; its last progress is some segments old."""
    files, clock = CrashFileSystem(), SimClock()
    store = MessageStore.open(
        "/store", config=CONFIG,
        parts=StoreParts(clock=clock, file_system=files, services=False, entropy=SeededEntropy(1)))
    for number in range(COUNT):
        if number == COUNT - 40:
            store.close()
            store = MessageStore.open(
                "/store", config=CONFIG,
                parts=StoreParts(clock=clock, file_system=files, services=False, entropy=SeededEntropy(1)))
        store.put(Message(topic=f"T{number % 3}", body=b"%d" % number * 40, keys=[f"k{number}"]), queue_id=number % 2)
    store.flush()
    return files.killed()


def segment(files, number):
    return f"/store/commitlog/{files.list('/store/commitlog')[number]}"


def write(files, path, data, at):
    file = files.open(path, writable=True)
    file.pwrite(data, at)
    file.close()


def cut(files, path, size):
    file = files.open(path, writable=True)
    file.truncate(size)
    file.close()


def remove_all(files, directory):
    for path in faults.paths(files):
        if path.startswith(f"/store/{directory}"):
            files.remove(path)


def stopped(how):
    files = filled()
    if "no queues" in how:
        remove_all(files, "consumequeue/")
    if "no progress" in how:
        remove_all(files, "tailrace/progress")
    if "no index" in how:
        remove_all(files, "index/")
    if "one queue is gone" in how:
        remove_all(files, "consumequeue/T1/1")
    if "short queue file" in how:
        cut(files, "/store/consumequeue/T0/0/00000000000000000400", 380)
    if "damage" in how:
        write(files, segment(files, -2), b"!" * 700, 3000)
    if "torn end" in how:
        write(files, segment(files, -1), b"half a record" * 20, 16000)
    if "missing segment" in how:
        files.remove(segment(files, 3))
    if "missing end" in how:
        files.remove(segment(files, -1))
        files.remove(segment(files, -1))
    if "short segment" in how:
        cut(files, segment(files, -1), 9000)
    if "long segment" in how:
        cut(files, segment(files, 2), SEGMENT + 400)
    if "no log" in how:
        remove_all(files, "commitlog/")
    return files


WAYS = (
    "killed", "no queues", "no progress", "no index, no progress", "one queue is gone", "short queue file",
    "damage", "damage, no queues", "damage, no progress", "torn end", "missing segment",
    "missing segment, no progress", "missing end", "missing end, no progress", "short segment",
    "short segment, no queues", "long segment", "no log", "no log, no progress",
    "damage, missing segment, one queue is gone, torn end, no progress",
)


def image(files):
    return {path: files.open(path).pread(1 << 20, 0) for path in faults.paths(files)}


def in_view(directory):
    """(topic, queue id): least offset, end, offset and body or None of each place that is a message's."""
    found = {}
    for queue in directory.queues():
        if queue.max_offset or queue.files:
            bodies = [
                (offset, data) for offset, _, data in directory.records(queue)]
            found[queue.topic, queue.queue_id] = queue.min_offset, queue.max_offset, bodies
    return found


def in_store(store):
    found = {}
    for key, queue in store.inner.queues.table.items():
        places = []
        for offset in range(queue.min_offset, queue.max_offset):
            unit = queue.unit(offset)
            if unit is not None and unit.size != PRE_BLANK_SIZE:
                data = store.inner.commit_log.read(unit.phy_offset, unit.size)
                places.append((offset, data if len(data) == unit.size else None))
        if queue.max_offset or queue.files.files:
            found[key] = queue.min_offset, queue.max_offset, places
    return found


@pytest.mark.parametrize("how", WAYS)
def test_it_is_shown_as_an_open_makes_it(how):
    files = stopped(how)
    before = image(files)
    directory = StoreDirectory("/store", config=CONFIG, file_system=FaultyFileSystem.read_only(files), index=True)
    assert directory.state is DirectoryState.UNCLEAN
    shown, end, damaged = in_view(directory), directory.max_phy_offset, directory.damaged
    found = {
        number: [line["message"]["physicalOffset"] for line in query(directory, f"T{number % 3}", f"k{number}")]
        for number in range(0, COUNT, 7)}
    assert image(files) == before, "something was written"
    with opened(files) as store:
        assert shown == in_store(store)
        assert end == store.max_phy_offset
        assert [(one.phy_offset, one.size, one.reason) for one in damaged] == [
            (one["physicalOffset"], one["length"], one["reason"])
            for one in store.recovery_report["steppedOver"]]
        for number, places in found.items():
            assert places == [m.phy_offset for m in query_there(store, f"T{number % 3}", f"k{number}")], number


@pytest.mark.parametrize("seed", range(12))
def test_so_it_is_after_a_power_loss(seed):
    files = filled().power_lost(SeededEntropy(seed), 50)
    rng = random.Random(seed)
    for path in faults.paths(files):
        if rng.random() < 0.05 and "/commitlog/" not in path:
            files.remove(path)
    before = image(files)
    directory = StoreDirectory("/store", config=CONFIG, file_system=FaultyFileSystem.read_only(files))
    shown = in_view(directory)
    assert image(files) == before, "something was written"
    with opened(files) as store:
        assert shown == in_store(store)


def test_a_mode_that_refuses_damage_does_not_keep_it_from_readers():
    files = stopped("damage, torn end")
    strict = StoreConfig(
        mapped_file_size_commit_log=SEGMENT, mapped_file_size_consume_queue=400,
        recovery_mode=RecoveryMode.ABSOLUTE)
    assert StoreDirectory("/store", config=strict, file_system=files).damaged


@pytest.fixture
def log_reads(monkeypatch):
    """Bytes of each read of the log; a function in ``then`` is called before the first read."""
    kind = crash_filesystem._File
    read, then = [], []
    plain = {name: getattr(kind, name) for name in ("pread", "pread_into")}

    def reading(name):
        def call(file, *arguments):
            if "/commitlog/" not in file.path:
                return plain[name](file, *arguments)
            if then:
                then.pop()()
            found = plain[name](file, *arguments)
            read.append(found if isinstance(found, int) else len(found))
            return found

        return call

    for name in plain:
        monkeypatch.setattr(kind, name, reading(name))
    return read, then


def test_only_the_log_from_the_last_progress_on_is_read(log_reads):
    files = stopped("killed")
    log_reads[0].clear()
    StoreDirectory("/store", config=CONFIG, file_system=files)
    assert 0 < sum(log_reads[0]) < len(files.list("/store/commitlog")) * SEGMENT // 2


def test_a_directory_that_is_opened_in_the_meantime_is_shown_as_a_live_one(log_reads):
    files = stopped("killed")
    owner = []
    log_reads[1].append(lambda: owner.append(opened(files)))
    directory = StoreDirectory("/store", config=CONFIG, file_system=files)
    assert directory.is_live
    owner[0].close()


def test_a_time_before_a_missing_segment_is_found_by_stores_and_directories():
    """A message of a lost segment has no store time: it is neither old nor new."""
    files, clock = CrashFileSystem(), SimClock()
    times = []
    with MessageStore.open(
        "/store", config=CONFIG,
        parts=StoreParts(clock=clock, file_system=files, services=False, entropy=SeededEntropy(1))
    ) as store:
        for number in range(100):
            times.append(clock.now_ms())
            store.put(Message(topic="T", body=b"%d" % number * 300), queue_id=0)
            clock.advance(1000)
    gone = [files.list("/store/commitlog")[number] for number in (2, 3)]
    for name in gone:
        files.remove(f"/store/commitlog/{name}")
    (queue,) = StoreDirectory("/store", config=CONFIG, file_system=files).queues()
    lost = {
        place for place in range(100)
        if int(gone[0]) <= CQ_UNIT.unpack_from(queue.units(place, 1)).phy_offset < int(gone[1]) + SEGMENT}
    assert 20 < len(lost) < 60
    assert 50 in lost, "the first place that a search looks at"
    directory = StoreDirectory("/store", config=CONFIG, file_system=files)
    with opened(files, clock=clock) as store:
        for place, wanted in ((5, 5), (min(lost) - 1, min(lost) - 1), (max(lost) + 1, min(lost)), (97, 97)):
            assert store.queue_of("T", 0).by_time(times[place]) == wanted
            assert first_stored(queue, 0, times[place], directory.store_time) == wanted
