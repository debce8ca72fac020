"""Where a walk over a log of a killed reference begins: each release's own rule, never later."""

import dataclasses

import pytest

from tailrace import Message, MessageStore, StoreConfig
from tailrace.env.entropy import SeededEntropy
from tailrace.formats.checkpoint import CHECKPOINT, CHECKPOINT_FILE_SIZE
from tailrace.model import MessageExtBrokerInner
from tailrace.node.store_opening import StoreParts
from tailrace.testing import CrashFileSystem, SimClock

SEGMENT = 8192
CONFIG = StoreConfig(
    mapped_file_size_commit_log=SEGMENT, mapped_file_size_consume_queue=4000, max_hash_slot_num=16,
    max_index_num=5000, commit_log_allocate_step=4096, timer_wheel_enable=False)
START_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def written():
    """A closed store of twelve segments, a segment each second, and its clock."""
    files, clock = CrashFileSystem(), SimClock(START_MS)
    with opened(files, clock) as store:
        while store.max_phy_offset < 12 * SEGMENT:
            store.put(Message(topic="T", body=bytes(940), keys=["k"]))  # seven of them fill one
            clock.advance(143)
    return files, clock


def opened(files, clock, config=CONFIG):
    return MessageStore.open(
        "/s", config=config, parts=StoreParts(services=False, clock=clock, file_system=files, entropy=SeededEntropy(1)))


def start(written, *fields, config=CONFIG, missing=None):
    """Where the walk begins after a kill of a broker that left this checkpoint and nothing of ours.

    With ``missing`` compare with the numbers of the messages that are not found by their keys.
    """
    files, clock = written[0].killed(), written[1]
    for name in files.list("/s/tailrace"):
        files.remove(f"/s/tailrace/{name}")
    files.open("/s/abort", writable=True, create=True)
    file = files.open("/s/checkpoint", writable=True, create=True)
    file.pwrite(CHECKPOINT.pack(*fields).ljust(CHECKPOINT_FILE_SIZE, b"\0"), 0)
    with opened(files, clock, config) as store:
        assert not store.recovery_report["steppedOver"]
        if missing is not None:
            store.wait_dispatched()
            assert [n for n in range(84) if not store.query_message("T", f"k{n}")] == missing
        return store.recovery_report["from"]


@pytest.mark.parametrize(("seconds", "segment"), [(3, 0), (6, 3), (9, 6), (60, 12)])
def test_5_3_3_begins_at_the_last_segment_begun_three_seconds_before(written, seconds, segment):
    at = START_MS + seconds * 1001 + 30
    assert start(written, at, at + 500, 0, 0, 0, 0) == segment * SEGMENT
    assert start(written, at + 500, at, 0, 0, 0, 0) == segment * SEGMENT, "the earlier one counts"


@pytest.mark.parametrize("segment", [0, 1, 5, 11])
def test_5_5_0_begins_at_the_segment_of_the_offset_at_40(written, segment):
    late = START_MS + 60_000
    offset = segment * SEGMENT + 100
    assert start(written, late, late, 0, 0, 0, offset) == segment * SEGMENT


@pytest.mark.parametrize("fields", [
    (0, 0, 0, 0, 0, 0),
    (START_MS + 9000, START_MS + 9000, 0, 0, 0, 1 << 40),
    (-1, -1, -1, -1, -1, -1),
    (2000, 2000, 0, 0, 0, 0),
])
def test_a_checkpoint_that_cannot_be_right_means_the_whole_log(written, fields):
    assert start(written, *fields) == 0


def test_the_length_of_a_record_is_bounded_by_its_file_alone(written):
    lower = StoreConfig(
        mapped_file_size_commit_log=SEGMENT, mapped_file_size_consume_queue=4000,
        max_hash_slot_num=16, max_index_num=5000, commit_log_allocate_step=4096,
        timer_wheel_enable=False, max_message_size=100)
    assert start(written, 0, 0, 0, 0, 0, 0, config=lower) == 0


def closed(written, segments):
    """The files of a closed store that has only its first segments, and nothing of ours."""
    files, clock = CrashFileSystem(), SimClock(START_MS)
    with opened(files, clock) as store:
        while store.max_phy_offset < (segments - 1) * SEGMENT + 1000:
            store.put(Message(topic="T", body=bytes(940), keys=["k"]))
    for name in files.list("/s/tailrace"):
        files.remove(f"/s/tailrace/{name}")
    assert len(files.list("/s/commitlog")) == segments
    return files, clock


@pytest.mark.parametrize("segments", [1, 2, 3, 4, 7])
def test_a_clean_stop_begins_at_the_third_last_segment(written, segments):
    files, clock = closed(written, segments)
    with opened(files, clock) as store:
        report = store.recovery_report
    assert report["decision"] == "LAST_FILES"
    assert report["from"] == max(segments - 3, 0) * SEGMENT
    assert report["mode"] == "normal"


@pytest.mark.parametrize(("from_end", "found"), [(1, True), (2, True), (3, True), (4, False)])
def test_after_a_clean_stop_the_last_three_segments_are_checked(written, from_end, found):
    """What a power loss after a Java broker's stop may have taken is in one of them."""
    files, clock = closed(written, 7)
    at = (7 - from_end) * SEGMENT + 300
    log = files.open(f"/s/commitlog/{at - at % SEGMENT:020d}", writable=True)
    log.pwrite(bytes([log.pread(1, 300)[0] ^ 1]), 300)  # in the body of its first record
    with opened(files, clock) as store:
        report = store.recovery_report
    assert bool(report["steppedOver"] or report["cut"]) is found


def test_a_progress_that_ends_before_the_log_begins_is_not_used():
    """Retention has deleted messages after it. The queue would give their queue offsets once more."""
    files, clock = CrashFileSystem(), SimClock(START_MS)

    def put(store, queue_id):
        clock.advance(10)
        return store.put(Message(topic="T", body=bytes(940), keys=["k"]), queue_id=queue_id)

    with opened(files, clock) as store:
        put(store, 0)
        store.flush()
        clock.advance(60_000)
    old = {path: content(files, path) for path in state(files)}
    with opened(files, clock) as store:
        last = put(store, 0)
        while store.max_phy_offset < 3 * SEGMENT:
            put(store, 1)
    files.remove(f"/s/commitlog/{0:020d}")
    for path in state(files):
        files.remove(path)
    for path, data in old.items():
        files.open(path, writable=True, create=True).pwrite(data, 0)
    files.open("/s/abort", writable=True, create=True)
    with opened(files, clock) as store:
        report = store.recovery_report
        assert put(store, 0).queue_offset == last.queue_offset + 1
        assert store.min_offset_in_queue("T", 0) == last.queue_offset + 1
        assert [m.queue_offset for m in store.read("T", 0)] == [last.queue_offset + 1]
    assert "begins after it" in report["why"]


def place_of_entry(number):
    return 40 + 4 * CONFIG.max_hash_slot_num + 20 * number


@pytest.mark.parametrize(("damaged", "synced_ms"), [(2, 1 << 60), (0, 0)])
def test_entries_before_a_damaged_one_of_the_index_are_made_again(damaged, synced_ms):
    """A damaged entry ends the valid ones of its file. The walk must begin before the first record without one.

    The third file is the one that is cut where the walk begins. The first one was not synced, the checkpoint says.
    """
    files, clock = CrashFileSystem(), SimClock(START_MS)
    config = dataclasses.replace(CONFIG, max_index_num=30)
    with opened(files, clock, config) as store:
        for number in range(84):
            store.put(Message(topic="T", body=bytes(940), keys=[f"k{number}"]))
            clock.advance(143)
    late, offset = START_MS + 60_000, 5 * SEGMENT + 100
    names = files.list("/s/index")
    assert len(names) >= 6
    file = files.open(f"/s/index/{names[damaged]}", writable=True)
    at = place_of_entry(8)
    file.pwrite(bytes([file.pread(1, at + 3)[0] ^ 1]), at + 3)
    assert start((files, clock), late, late, synced_ms, 0, 0, offset, config=config, missing=[]) < 5 * SEGMENT


def last_index_header(store):
    index = store.inner.index
    return index.header(index.files[-1])


def keyless(number):
    return MessageExtBrokerInner("T", 0, bytes(100), b"", 0, 0, START_MS + number)


def test_synced_entries_of_the_last_record_with_keys_stay():
    """They are before the start of the walk, because later messages have no keys. Only others may be incomplete."""
    files, clock = CrashFileSystem(), SimClock(START_MS)
    with opened(files, clock) as store:
        store.put(Message(topic="T", body=b"first", keys=["k"]))
        for number in range(200):
            store.put_inner(keyless(number))
    with opened(files, clock):
        killed = files.killed()
    with opened(killed, clock) as store:
        report = store.recovery_report
        store.wait_dispatched()
        assert [message.body for message in store.query_message("T", "k")] == [b"first"]
    assert (report["decision"], report["scanned"]) == ("PROGRESS", 65)


def test_the_entries_of_one_record_after_the_synced_ones_are_made_again_once():
    files, clock = CrashFileSystem(), SimClock(START_MS)
    with opened(files, clock) as store:
        for number in range(200):
            store.put(Message(topic="T", body=bytes(100), keys=[f"k{number}"]))
    with opened(files, clock) as store:
        store.put(Message(topic="T", body=bytes(100), keys=["k200"]))
        store.wait_dispatched()
        killed, wanted = files.killed(), last_index_header(store)
    with opened(killed, clock) as store:
        store.wait_dispatched()
        assert last_index_header(store) == wanted


def test_damaged_entries_that_own_progress_counts_are_made_again():
    """Found by make sim, SEED=20266031: entries after the damage were dropped, also those before the start."""
    files, clock = CrashFileSystem(), SimClock(START_MS)
    with opened(files, clock) as store:
        for number in range(200):
            store.put(Message(topic="T", body=bytes(100), keys=[f"k{number}"]))
    with opened(files, clock):
        killed = files.killed()
    (name,) = killed.list("/s/index")
    file = killed.open(f"/s/index/{name}", writable=True)
    file.pwrite(bytes(20), place_of_entry(50))
    with opened(killed, clock) as store:
        report = store.recovery_report
        store.wait_dispatched()
        assert [n for n in range(200) if not store.query_message("T", f"k{n}")] == []
    assert f"entries of index file {name} are damaged" in report["why"]


def test_a_kill_while_an_index_file_is_made_does_not_make_progress_worthless():
    files, clock = CrashFileSystem(), SimClock(START_MS)
    config = dataclasses.replace(CONFIG, max_index_num=30)
    with opened(files, clock, config) as store:
        for number in range(20):
            store.put(Message(topic="T", body=bytes(100), keys=[f"k{number}"]))
    killed = []
    with opened(files, clock, config) as store:
        files.before = lambda _number, name, path: "/index/" in path and killed.append((name, files.killed()))
        for number in range(20, 80):
            store.put(Message(topic="T", body=bytes(100), keys=[f"k{number}"]))
        store.wait_dispatched()
        files.before = None
    assert len(files.list("/s/index")) > 3
    assert {"truncate", "allocate", "sync_data"} <= {name for name, _ in killed}
    for name, left in killed:
        with opened(left, clock, config) as store:
            report = store.recovery_report
            store.wait_dispatched()
            there = store.max_offset_in_queue("T", 0)
            assert [n for n in range(there) if len(store.query_message("T", f"k{n}")) != 1] == []
        assert report["decision"] == "PROGRESS", (name, report["why"])


def test_a_recovery_does_not_write_to_full_queue_files_whose_units_are_right():
    """Progress names their time of change, so a second kill would find that it does not match."""
    files, clock = CrashFileSystem(), SimClock(START_MS)
    config = dataclasses.replace(CONFIG, mapped_file_size_commit_log=1 << 17)  # one run of units crosses the files
    with opened(files, clock, config) as store:
        for _ in range(211):
            store.put(Message(topic="T", body=bytes(100)))
    with opened(files, clock, config) as store:
        for _ in range(60):
            store.put(Message(topic="T", body=bytes(100)))
        store.wait_dispatched()
        files = files.killed()
    assert len(files.list("/s/consumequeue/T/0")) == 2
    queue = files.open("/s/consumequeue/T/0/00000000000000004000", writable=True)
    queue.pwrite(bytes(60), 65 * 20)  # dispatch had not come that far, so recovery writes units
    written = []
    files.before = lambda _number, name, path: name == "pwrite" and written.append(path)
    with opened(files, clock, config) as store:
        files.before = None
        assert store.recovery_report["decision"] == "PROGRESS"
        assert store.recovery_report["from"] < 200 * store.max_phy_offset // 271, "within the first file"
    assert "/s/consumequeue/T/0/00000000000000004000" in written
    assert "/s/consumequeue/T/0/00000000000000000000" not in written


def state(files):
    return ["/s/checkpoint", *(f"/s/tailrace/{name}" for name in files.list("/s/tailrace") if "progress" in name)]


def content(files, path):
    file = files.open(path)
    return file.pread(file.size(), 0)


def test_progress_that_begins_after_the_log_is_not_used():
    """A power loss undid the deletion of segments, not that of their index files."""
    files, clock = CrashFileSystem(), SimClock(START_MS)
    config = dataclasses.replace(CONFIG, max_index_num=8)
    with opened(files, clock, config) as store:
        for number in range(28):  # seven of them fill a segment
            store.put(Message(topic="T", body=bytes(940), keys=[f"k{number}"]))
    segments = {name: content(files, f"/s/commitlog/{name}") for name in files.list("/s/commitlog")}
    with opened(files, clock, config) as store:
        clock.advance(100 * 3_600_000)
        assert store.retention.delete_now() > 0
        assert not store.query_message("T", "k0")
    deleted = segments.keys() - set(files.list("/s/commitlog"))
    assert f"{0:020d}" in deleted
    for name in deleted:
        files.open(f"/s/commitlog/{name}", writable=True, create=True).pwrite(segments[name], 0)
    files.open("/s/abort", writable=True, create=True)
    with opened(files, clock, config) as store:
        report = store.recovery_report
        store.wait_dispatched()
        assert [n for n in range(7) if not store.query_message("T", f"k{n}")] == []
    assert "deleted segments are back" in report["why"]
