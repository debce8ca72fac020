"""Where the reference loses or shows wrong messages: the same directories, opened by us.

A test is named after its weakness. Its docstring says what the reference does; the test sets the
files up as the reference would have left them and asserts what is right.
"""

from __future__ import annotations

import dataclasses
import errno
import importlib.util
import pathlib
import shutil
import struct
import subprocess
import sys

import pytest
from read_there import query_there, read_there

from tailrace import Message, MessageStore, StoreConfig
from tailrace.errors import (
    FatalStorageError,
    MessageIllegalError,
    NotAStoreError,
    StoreError,
    StoreLockedError,
)
from tailrace.formats.consumequeue import PRE_BLANK_SIZE
from tailrace.model import MessageExtBrokerInner, PutMessageStatus
from tailrace.node.store_opening import StoreParts
from tailrace.testing import CrashFileSystem, SimClock

_spec = importlib.util.spec_from_file_location("stores", pathlib.Path(__file__).with_name("stores.py"))
stores = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(stores)

pytestmark = pytest.mark.crash
opened, fill, make, numbers = stores.opened, stores.fill, stores.make, stores.numbers
left_by_reference = stores.as_the_reference_left_it
NOTHING = (0, 0, 0, 0, 0, 0)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "s"


def store_times(path):
    """Store time of each record, in ms."""
    found = []
    for _, size, file, at in stores.records(path):
        data = file.read_bytes()[at : at + size]
        found.append(struct.unpack_from(">q", data, 56)[0])
    return found


def is_right(store, wanted, topic="T", queue_id=0):
    """A queue holds these numbers at offsets from its first one on, and the index finds each."""
    found = stores.pulled(store, topic, queue_id)
    assert [int(m.body[:6]) for _, m in found] == list(wanted)
    assert [offset for offset, _ in found] == [m.queue_offset for _, m in found]
    assert stores.has_keys(store, wanted, topic)
    return True


@pytest.mark.parametrize("ours", [True, False], ids=["own-progress", "no-progress"])
@pytest.mark.parametrize("left", [0, 2, 4])
def test_w1_a_queue_behind_the_log_after_a_clean_stop(path, left, ours):
    """The first missing message is never dispatched, the next ones get wrong places."""
    make(path, 5)
    if not ours:
        left_by_reference(path, killed=False)
    stores.patch(stores.queue_file(path), left * 20, bytes(stores.QUEUE_FILE - left * 20))
    for _ in range(2):
        with opened(path) as store:
            assert is_right(store, range(5))
    with opened(path) as store:
        assert store.put(stores.message(5)).queue_offset == 5


@pytest.mark.parametrize("killed", [True, False])
@pytest.mark.parametrize("fields", [None, NOTHING], ids=["checkpoint", "no-checkpoint"])
def test_w2_one_bad_record_costs_one_message(path, killed, fields):
    """Everything after a bad record is discarded, even whole files."""
    make(path, 60, size=600)
    assert len(stores.segments(path)) >= 3
    _, size, file, at = stores.records(path)[2]
    left_by_reference(path, killed=killed, fields=fields)
    stores.patch(file, at + size // 2, b"\xff")
    shutil.rmtree(path / "consumequeue")  # so that the whole log is walked
    for _ in range(2):
        with opened(path) as store:
            assert numbers(store) == [0, 1, *range(3, 60)]
            assert store.queue_of("T", 0).max == 60
            assert stores.has_keys(store, [0, 1, *range(3, 60)])


def test_w3_units_behind_a_truncation_stay_dead(path, tmp_path):
    """A truncation moves positions only: the old units reappear when the log has grown again."""
    other = tmp_path / "other"
    make(other, 12, size=200)
    stale = stores.queue_file(other).read_bytes()
    with opened(path) as store:
        fill(store, range(5), size=200)
        fill(store, range(100, 130), queue_id=1, size=333)
    left_by_reference(path, killed=False)
    file = stores.queue_file(path)
    stores.patch(file, 5 * 20, stale[5 * 20 : 12 * 20])
    for _ in range(2):
        with opened(path) as store:
            assert is_right(store, range(5))
            assert is_right(store, range(100, 130), queue_id=1)
    assert not any(file.read_bytes()[5 * 20 :]), "the bytes are still there"


def test_w3_our_own_truncation_leaves_no_units(path):
    """As above; here the log is cut under a store of ours."""
    make(path, 20, size=200)
    stores.cut(path, stores.records(path)[7][0])
    with opened(path) as store:
        assert is_right(store, range(7))
        fill(store, range(7, 11), size=1000)
    assert not any(stores.queue_file(path).read_bytes()[11 * 20 :])
    left_by_reference(path, killed=True, fields=NOTHING)
    with opened(path) as store:
        assert is_right(store, range(11))


def cut_and_go_on(path, tmp_path, old, new, size, later_ms=60_000):
    """A log of ``old`` messages, cut at the sixth, continued with ``new`` ones, not cleared after it.

    Both are (number, queue id). Returns where the new ones end.
    """
    clock = SimClock()
    with opened(path, clock=clock) as store:
        for number, queue_id in old:
            fill(store, [number], queue_id=queue_id, size=300)
    stale = tmp_path / "stale"
    shutil.copytree(path, stale)
    stores.cut(path, stores.records(path)[5][0])
    left_by_reference(path, killed=True, fields=NOTHING)
    for name in ("consumequeue", "index"):
        shutil.rmtree(path / name)
    clock.advance(later_ms)
    with opened(path, clock=clock) as store:
        for number, queue_id in new:
            fill(store, [number], queue_id=queue_id, size=size)
        end = store.max_phy_offset
    left_by_reference(path, killed=True)
    stores.patch(stores.segments(path)[0], end, stores.segments(stale)[0].read_bytes()[end:])
    assert (end in [at for at, *_ in stores.records(stale)]) == (size == 300)
    return end


@pytest.mark.parametrize("killed", [True, False])
def test_w4_records_behind_an_old_end_of_the_log(path, tmp_path, killed):
    """Whole records that an earlier truncation left after the end are taken for messages."""
    end = cut_and_go_on(
        path, tmp_path, [(n, 0) for n in range(100, 110)], [(205, 0), (206, 0)], 411)
    if not killed:
        (path / "abort").unlink()
    for _ in range(2):
        with opened(path) as store:
            assert is_right(store, [*range(100, 105), 205, 206])
            assert store.max_phy_offset == end
    assert not any(stores.segments(path)[0].read_bytes()[end:]), "the bytes are still there"


def test_w4_records_after_an_old_end_that_are_too_near_for_a_record(path, tmp_path):
    """The bytes between the new end and an old record are fewer than a record has, so they are no damage.

    The store times do not say so: they are equal, because the clock of the second life was set back.
    """
    make(tmp_path / "sizes", 1, size=300)
    size = stores.records(tmp_path / "sizes")[0][1]
    end = cut_and_go_on(
        path, tmp_path, [(n, 0) for n in range(100, 110)], [(205, 0), (206, 0)], 300 + size // 2 - 20, later_ms=0)
    (old,) = [at for at, *_ in stores.records(tmp_path / "stale") if end < at < end + 60]
    assert 0 < old - end < 60
    with opened(path) as store:
        assert is_right(store, [*range(100, 105), 205, 206])
        assert store.max_phy_offset == end


@pytest.mark.parametrize("torn_at", [100, 200, 400])
def test_w4_records_after_a_torn_record_of_another_size(path, tmp_path, torn_at):
    """The last record was torn: its first bytes name its place, and the bytes of an older life follow them."""
    cut_and_go_on(path, tmp_path, [(n, 0) for n in range(100, 110)], [(205, 0), (206, 0)], 411)
    last = stores.records(path)[6][0]
    old = stores.segments(tmp_path / "stale")[0].read_bytes()
    stores.patch(stores.segments(path)[0], last + torn_at, old[last + torn_at :])
    for name in ("consumequeue", "index"):
        shutil.rmtree(path / name)
    left_by_reference(path, killed=True, fields=NOTHING)
    for _ in range(2):
        with opened(path) as store:
            assert is_right(store, [*range(100, 105), 205])
            assert store.max_phy_offset == last


def test_w4_old_records_that_follow_without_a_gap(path, tmp_path):
    """With equal sizes an old record follows a new one directly, and takes its place in the queue.

    Where it does not continue its queue, its unit must not push out that of a newer message. Where
    it does, it looks like any message stored after the clock was set back, and is shown.
    """
    old = [*((n, 0) for n in range(100, 105)), (105, 1), (106, 1), (107, 0), (108, 0), (109, 1)]
    cut_and_go_on(path, tmp_path, old, [(205, 0), (206, 0)], 300)
    for _ in range(2):
        with opened(path) as store:
            assert numbers(store) == [*range(100, 105), 205, 206]
            assert stores.has_keys(store, [*range(100, 105), 205, 206])
            for message in read_there(store, "T", 1):
                assert message.body.startswith(b"000109")
        (path / "abort").write_text("1")
    goes_on = tmp_path / "goes-on"
    cut_and_go_on(
        goes_on, tmp_path / "x", [(n, 0) for n in range(100, 110)], [(205, 0), (206, 0)], 300)
    for _ in range(2):
        with opened(goes_on) as store:
            assert numbers(store) == [*range(100, 105), 205, 206, 107, 108, 109]


def test_w4_a_record_of_another_place(path):
    """PHYSICALOFFSET is never compared with where the record is."""
    make(path, 6, size=200)
    data = stores.segments(path)[0].read_bytes()
    (first, size, file, _), end = stores.records(path)[3], stores.records(path)[-1]
    stores.patch(file, end[0] + end[1], data[first : first + size])
    left_by_reference(path, killed=True)
    with opened(path) as store:
        assert is_right(store, range(6))
        assert store.max_phy_offset == end[0] + end[1]
        assert store.recovery_report["quarantinedBytes"]


@pytest.mark.parametrize("release", ["5.3.3", "5.5.0"])
def test_w5_a_checkpoint_that_is_ahead_of_the_queues(path, release):
    """5.3.3 notes a unit when it is appended: after a power cut replay starts after lost units."""
    make(path, 100, size=600)
    assert len(stores.segments(path)) >= 4
    times = store_times(path)
    last = stores.records(path)[-1][0]
    at = last if release == "5.5.0" else 0
    left_by_reference(
        path, killed=True, fields=(times[-1] + 60_000, times[-1] + 60_000, 0, 0, last, at))
    for number in (1, 2):  # units 30 to 59 never reached the disk
        file = stores.queue_file(path, number=number)
        start = 10 * 20 if number == 1 else 0
        stores.patch(file, start, bytes(stores.QUEUE_FILE - start))
    for _ in range(2):
        with opened(path) as store:
            assert is_right(store, range(100))


def test_w6_a_kill_does_not_cost_the_index(path):
    """The current index file is deleted; only keys of the replayed part are indexed again."""
    config = dataclasses.replace(stores.CONFIG, max_index_num=2000)  # one file has them all
    with opened(path, config) as store:
        fill(store, range(100), size=600)
    times, last = store_times(path), stores.records(path)[-1][0]
    left_by_reference(path, killed=True, fields=(times[-1], times[-1], 0, 0, last, last))
    assert len(list((path / "index").iterdir())) == 1
    with opened(path, config) as store:
        assert store.recovery_report["from"] > 0, "not the whole log was walked"
        assert is_right(store, range(100))


@pytest.mark.parametrize("killed", [True, False])
def test_w7_keys_of_messages_behind_a_truncation(path, killed):
    """The index is not truncated: keys of new records below its old end are not indexed."""
    make(path, 30, size=300)
    stores.cut(path, stores.records(path)[10][0])
    left_by_reference(path, killed=killed)
    with opened(path) as store:
        fill(store, range(200, 210), size=300)
    with opened(path) as store:
        assert is_right(store, [*range(10), *range(200, 210)])
        for gone in range(10, 30):
            assert not query_there(store, "T", f"k{gone}")


def test_w8_a_record_that_dispatch_cannot_read(path):
    """A master drops all that is readable after it in the file and then reports no lag."""
    store = opened(path)
    fill(store, range(10), size=100)
    _, size, file, at = stores.records(path)[3]
    stores.patch(file, at + 4, b"\0\0\0\0")  # no magic any more
    store.wait_dispatched(10)
    assert [int(m.body[:6]) for _, m in stores.pulled(store, "T", 0)] == [0, 1, 2]
    assert store.dispatch_behind_bytes >= size, "the lag is hidden"
    assert not store.is_writeable
    assert "bad record" in store.not_writeable_reason
    store.close()
    assert (path / "abort").exists()
    with opened(path) as store:
        assert numbers(store) == [0, 1, 2, *range(4, 10)]
        assert store.recovery_report["steppedOver"]
        assert store.is_writeable


def test_w9_a_record_that_fits_no_file_is_refused(path):
    """PUT_OK is answered, with an append status of END_OF_FILE."""
    with opened(path) as store:
        with pytest.raises(MessageIllegalError, match="mappedFileSizeCommitLog"):
            store.put(Message(topic="T", body=bytes(stores.SEGMENT)))
        result = store.put_inner(MessageExtBrokerInner("T", 0, bytes(stores.SEGMENT)))
        assert result.status is PutMessageStatus.MESSAGE_ILLEGAL
        assert store.put(stores.message(0)).queue_offset == 0
        assert numbers(store) == [0]
    assert len(stores.segments(path)) == 1


@pytest.mark.parametrize("killed", [True, False])
def test_w10_no_phantom_in_an_empty_queue_file(path, killed):
    """Unit 0 of the last file is taken unchecked: (0, 0, 0) becomes a message."""
    per_file = stores.QUEUE_FILE // 20
    make(path, per_file, size=200)
    first = stores.queue_file(path)
    (first.parent / f"{stores.QUEUE_FILE:020d}").write_bytes(bytes(stores.QUEUE_FILE))
    end = stores.records(path)[-1]
    stores.patch(end[2], end[3] + end[1], b"torn by a power cut")
    left_by_reference(path, killed=killed)
    for _ in range(2):
        with opened(path) as store:
            assert store.queue_of("T", 0).max == per_file
            assert is_right(store, range(per_file))


@pytest.mark.parametrize("killed", [True, False])
@pytest.mark.parametrize("ours", [True, False], ids=["own-progress", "no-progress"])
def test_w11_the_least_offset_of_a_queue_that_began_above_0(path, killed, ours):
    """It falls back to 0 after a start, and a reader at 0 is moved past real messages."""
    with opened(path) as store:
        store.inner.commit_log.queue_offsets["T", 0] = 7
        fill(store, range(7, 12))
        assert store.wait_dispatched()
        assert store.queue_of("T", 0).min == 7
    if not ours:
        left_by_reference(path, killed=killed)
    elif killed:
        (path / "abort").write_text("1")
    assert stores.queue_file(path).read_bytes()[:20] == stores.units((0, PRE_BLANK_SIZE, 0))
    for _ in range(2):
        with opened(path) as store:
            assert store.queues() == [("T", 0, 7, 12)]
            assert [offset for offset, _ in stores.pulled(store, "T", 0)] == list(range(7, 12))
            at_0 = store.get_message("T", 0, 0, 32)
            assert (at_0.status.name, at_0.next_begin_offset) == ("OFFSET_TOO_SMALL", 7)


def test_w12_one_unreadable_unit_costs_one_message(path):
    """getMessage skips every unit up to the next segment."""
    make(path, 10, size=200)
    store = opened(path)
    stores.patch(stores.queue_file(path), 3 * 20, stores.units((1 << 40, 200, 1)))
    assert [offset for offset, _ in stores.pulled(store, "T", 0)] == [0, 1, 2, *range(4, 10)]
    store.close()
    with opened(path) as store:
        assert is_right(store, range(10))


def test_w13_a_second_store_changes_nothing(path):
    """The lock is taken after load and recovery have changed files."""
    store = opened(path)
    fill(store, range(10), size=200)
    store.wait_dispatched()
    # Reading the lock file and closing it would give up the lock, as POSIX has it.
    before = stores.tree(path, but=["lock"])
    with pytest.raises(StoreLockedError):
        opened(path)
    code = f"import tailrace; tailrace.MessageStore.open({str(path)!r})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert "StoreLockedError" in done.stderr
    assert stores.tree(path, but=["lock"]) == before
    fill(store, range(10, 12), size=200)
    assert store.wait_dispatched()
    assert is_right(store, range(12))
    store.close()


def test_w14_a_record_that_rots_before_the_part_that_recovery_reads(path):
    """Checksums are looked at by recovery only: what rots elsewhere is served."""
    make(path, 100, size=300)
    _, size, file, at = stores.records(path)[5]
    stores.flip(file, at + size // 2)
    with opened(path) as store:
        assert store.recovery_report["from"] > at, "it was not walked"
        assert [int(m.body[:6]) for _, m in stores.pulled(store, "T", 0)] == [
            *range(5), *range(6, 100)]


def fail_on(files, name, code, counted):
    def before(_number, operation, _path):
        if operation == name:
            counted.append(operation)
            raise OSError(code, "made to fail")
    files.before = before


def test_w29_a_stop_on_a_full_disk_costs_no_replay():
    """It is noted as a kill: the next start replays from the checkpoint and drops the index."""
    files, clock, config = CrashFileSystem(), SimClock(), stores.CONFIG

    def start():
        return opened("/s", config, clock=clock, file_system=files)

    with start() as store:
        fill(store, range(200), size=600)
    store = start()
    fill(store, range(200, 203), size=600)
    store.wait_dispatched()
    counted: list[str] = []
    fail_on(files, "sync_data", errno.ENOSPC, counted)
    try:
        store.close()
    except FatalStorageError:
        pass
    assert counted
    files.before = None
    assert files.exists("/s/abort")
    with start() as store:
        assert store.recovery_report["mode"] == "abnormal"
        assert store.recovery_report["decision"] == "PROGRESS"
        assert store.recovery_report["scanned"] <= 70, store.recovery_report
        assert is_right(store, range(203))


@pytest.mark.parametrize("name", ["consumequeue_ext"])
def test_w30_queues_of_a_kind_that_we_do_not_read_are_refused(path, name):
    """Truncation usually forgets the extension files. Ours has none, and does not half-read them."""
    make(path, 3)
    (path / name / "T" / "0").mkdir(parents=True)
    (path / name / "T" / "0" / f"{0:020d}").write_bytes(bytes(400))
    before = stores.tree(path)
    with pytest.raises(NotAStoreError, match=name):
        opened(path)
    assert stores.tree(path) == before, "refused, and changed"


@pytest.mark.parametrize("killed", [True, False])
@pytest.mark.parametrize("what", ["queues", "queues-and-checkpoint", "all"])
def test_n1_queues_are_rebuilt_from_all_files_of_the_log(path, killed, what):
    """5.5.0 looks back ten files: entries of older ones are lost for good."""
    make(path, 20 * 24, size=550)
    assert len(stores.segments(path)) >= 20
    times, last = store_times(path), stores.records(path)[-1][0]
    fields = NOTHING if what != "queues" else (times[-1], times[-1], 0, 0, last, last)
    left_by_reference(path, killed=killed, fields=fields)
    shutil.rmtree(path / "consumequeue")
    if what == "all":
        shutil.rmtree(path / "index")
    with opened(path) as store:
        assert store.queues() == [("T", 0, 0, 480)]
        assert is_right(store, range(480))


def test_n2_snapshots_of_a_timer_wheel_that_cannot_be_right_are_not_believed(path):
    """One of a wrong length keeps 5.5.0 from starting, a stale one hides pending timers.

    Ours opens, believes neither, and leaves none that 5.5.0 would adopt.
    """
    make(path, 5)
    for name, data in (("timerwheel.4096", b"short"), ("timerwheel.99999", bytes(64))):
        (path / name).write_bytes(data)
    with opened(path) as store:
        assert is_right(store, range(5))
    assert not list(path.glob("timerwheel.*"))


@pytest.mark.parametrize("killed", [True, False])
def test_n3_ghosts_of_writes_without_mmap(path, killed):
    """Left-over buffer bytes after a record are taken for messages of another place."""
    make(path, 6, size=150)
    data = stores.segments(path)[0].read_bytes()
    where = stores.records(path)
    end = where[-1][0] + where[-1][1]
    left_by_reference(path, killed=killed)
    stores.patch(where[0][2], end, data[where[1][0] : where[3][0]])  # padding of a 4 KiB write
    with opened(path) as store:
        assert is_right(store, range(6))
        assert store.max_phy_offset == end
        fill(store, range(6, 9), size=150)
    with opened(path) as store:
        assert is_right(store, range(9))


@pytest.mark.parametrize("at", ["off-boundary", "beyond-end", "zero", "negative"])
def test_n4_a_checkpoint_whose_offset_is_no_record(path, at):
    """With accelerated recovery the log is truncated at @40, or the load fails."""
    make(path, 100, size=600)
    times, where = store_times(path), stores.records(path)
    offset = {
        "off-boundary": where[50][0] + 13, "beyond-end": 1 << 40, "zero": 0, "negative": -5}[at]
    left_by_reference(path, killed=True, fields=(times[-1], times[-1], 0, 0, 0, offset))
    for _ in range(2):
        with opened(path) as store:
            assert store.max_phy_offset == where[-1][0] + where[-1][1]
            assert is_right(store, range(100))
        (path / "abort").write_text("1")


@pytest.mark.parametrize("count", [0, 3])
def test_n5_a_second_start_leaves_the_abort_file_of_the_first(path, count):
    """A second instance that fails on the lock removes abort while the log is empty."""
    store = opened(path)
    fill(store, range(count))
    before = (path / "abort").read_bytes()
    with pytest.raises(StoreLockedError):
        opened(path)
    assert (path / "abort").read_bytes() == before
    code = f"import tailrace; tailrace.MessageStore.open({str(path)!r})"
    subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
    assert (path / "abort").read_bytes() == before
    store.close()
    assert not (path / "abort").exists()


def test_a_record_over_a_limit_that_was_lowered_since_is_kept(path):
    """Recovery bounds a record by its file, never by maxMessageSize of today."""
    make(path, 4, size=4000)
    left_by_reference(path, killed=True, fields=NOTHING)
    config = StoreConfig(
        mapped_file_size_commit_log=stores.SEGMENT, mapped_file_size_consume_queue=400,
        max_hash_slot_num=32, max_index_num=128, max_message_size=1024)
    with MessageStore.open(path, config=config, parts=StoreParts(services=False)) as store:
        assert is_right(store, range(4))
        with pytest.raises(StoreError):
            store.put(stores.message(4, size=4000))
