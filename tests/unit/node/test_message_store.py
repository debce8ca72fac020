"""The embedded store, on real files."""

import os
import pathlib

import pytest
from flat_open import flat_open

import tailrace
from tailrace.errors import (
    MessageIllegalError,
    NotAStoreError,
    StoreClosedError,
    StoreLockedError,
    StoreNotWritableError,
)
from tailrace.model import BoundaryType, GetMessageResult, GetMessageStatus, Message
from tailrace.node.store_opening import StoreParts

SMALL = tailrace.StoreConfig(
    mapped_file_size_commit_log=16384, mapped_file_size_consume_queue=400, max_hash_slot_num=50,
    max_index_num=200)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


def small(path, **options):
    return flat_open(path, config=SMALL, **options)


def test_the_tour_of_the_package_works(path):
    with tailrace.MessageStore.open(path, config=SMALL) as store:
        store.put(Message(topic="orders", body=b"42 apples", tags="new", keys=["42"]))
        assert [m.body for m in store.read("orders", queue_id=0, offset=0)] == [b"42 apples"]
        assert [m.body for m in store.query_message("orders", "42")] == [b"42 apples"]


def test_everything_is_there_after_a_clean_close(path):
    with small(path) as store:
        results = [
            store.put(Message(topic="t", body=b"%d" % n, keys=[f"k{n}"]), queue_id=n % 4)
            for n in range(400)
        ]
        assert [r.queue_offset for r in results] == [n // 4 for n in range(400)]
    assert not (path / "abort").exists()
    for _ in range(2):
        with small(path) as store:
            assert store.recovery_report["mode"] == "normal"
            for queue_id in range(4):
                assert [m.body for m in store.read("t", queue_id, max_count=100)] == [
                    b"%d" % n for n in range(queue_id, 400, 4)]
            assert [m.body for m in store.query_message("t", "k333")] == [b"333"]
            assert store.put(Message(topic="t", body=b"next")).queue_offset >= 100


def test_put_many_equals_many_puts(path):
    messages = [Message(topic=f"t{n // 100}", body=b"x" * (n % 900), keys=[f"k{n}"]) for n in range(300)]
    with small(path) as store:
        results = store.put_many(messages)
        assert [r.queue_offset for r in results] == [n % 100 for n in range(300)]
        found = [m for topic in range(3) for m in store.read(f"t{topic}")]
        assert [(m.body, m.keys) for m in found] == [(m.body, list(m.keys)) for m in messages]
        assert [m.phy_offset for m in found] == [r.phy_offset for r in results]
        assert [m.queue_offset for m in store.query_message("t2", "k250")] == [50]


def test_look_ups(path):
    with small(path) as store:
        put = [store.put(Message(topic="t", body=b"%d" % n)) for n in range(5)]
        store.wait_dispatched()
        assert store.look_message_by_offset(put[2].phy_offset).body == b"2"
        assert store.look_message_by_id(put[3].msg_id).body == b"3"
        assert store.look_message_by_offset(put[2].phy_offset + 1) is None
        assert store.select_record(1 << 40) is None
        times = [store.get_message_store_timestamp("t", 0, n) for n in range(5)]
        assert store.get_offset_in_queue_by_time("t", 0, 0) == 0
        assert store.get_offset_in_queue_by_time("t", 0, times[-1] + 1) == 5
        assert store.get_offset_in_queue_by_time("t", 0, times[-1], BoundaryType.UPPER) == 4
        assert store.earliest_message_time() == times[0]


def test_the_status_of_a_pull(path):
    with small(path) as store:
        assert store.get_message("t", 0, 7, 1) == GetMessageResult(
            GetMessageStatus.NO_MESSAGE_IN_QUEUE, next_begin_offset=0, min_offset=0, max_offset=0)
        for n in range(10):
            store.put(Message(topic="t", body=b"%d" % n, tags="a" if n % 2 else "b"))
        store.wait_dispatched()
        ask = store.get_message
        assert ask("t", 0, 10, 1).status is GetMessageStatus.OFFSET_OVERFLOW_ONE
        assert ask("t", 0, 11, 1).status is GetMessageStatus.OFFSET_OVERFLOW_BADLY
        assert ask("t", 0, -1, 1).status is GetMessageStatus.OFFSET_TOO_SMALL
        found = ask("t", 0, 0, 3)
        assert (found.status, found.message_count, found.next_begin_offset) == (
            GetMessageStatus.FOUND, 3, 3)
        only = ask("t", 0, 0, 32, codes={ord("a")})
        assert (only.queue_offsets, only.next_begin_offset) == ([1, 3, 5, 7, 9], 10)
        none = ask("t", 0, 0, 32, codes={ord("z")})
        assert (none.status, none.next_begin_offset) == (GetMessageStatus.NO_MATCHED_MESSAGE, 10)
        assert ask("t", 0, 0, 32, max_bytes=1).message_count == 1


def changed(**fields):
    """A message that was made well and changed afterwards."""
    made = Message(topic="t", body=b"")
    for name, value in fields.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    ("message", "named"),
    [
        (Message(topic="a b", body=b""), "topic"),
        (Message(topic="", body=b""), "topic"),
        (Message(topic="t\n", body=b""), "topic"),
        (Message(topic="x" * 128, body=b""), "127"),
        (Message(topic="t", body=bytes(5 << 20)), "maxMessageSize"),
        (Message(topic="t", body=bytes(17000)), "mappedFileSizeCommitLog"),
        (Message(topic="t", body=b"", properties={"p": "v" * 33000}), "properties"),
        (Message(topic="t", body=b"", properties={"p": "\x02"}), "properties"),
        (Message(topic="t", body=b"", keys=["a b"]), "keys"),
        (changed(keys="abc"), "keys"),
        (changed(delay="soon"), "delay"),
    ],
)
def test_a_message_that_breaks_a_limit_is_refused_and_leaves_no_trace(path, message, named):
    with small(path) as store:
        with pytest.raises(MessageIllegalError, match=named):
            store.put(message)
        with pytest.raises(MessageIllegalError, match=named):
            store.put_many([Message(topic="t", body=b"good"), message])
        assert max(store.max_phy_offset, 0) == 0
        assert store.queues() == []


def test_a_queue_that_the_topic_does_not_have_is_refused(path):
    with small(path) as store:
        store.put(Message(topic="t", body=b""))
        with pytest.raises(MessageIllegalError, match="0 to 3"):
            store.put(Message(topic="t", body=b""), queue_id=4)


def test_one_writer_a_directory(path, caplog):
    with small(path), pytest.raises(StoreLockedError, match="locked"):
        small(path)
    assert not caplog.records, "the caller may go on to the server of the directory: no failure to report"
    with small(path):
        pass


def test_a_lock_of_this_process_survives_a_refused_open(path):
    with small(path):
        with pytest.raises(StoreLockedError):
            small(path)
        child = os.fork()
        if child == 0:
            try:
                small(path)
            except StoreLockedError:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_a_child_may_not_use_its_parents_store(path):
    with small(path) as store:
        child = os.fork()
        if child == 0:
            try:
                store.put(Message(topic="t", body=b""))
            except StoreClosedError:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_a_closed_store_says_so(path):
    store = small(path)
    store.close()
    store.close()
    with pytest.raises(StoreClosedError):
        store.put(Message(topic="t", body=b""))


def test_a_directory_that_is_not_a_store_is_refused_and_not_changed(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(NotAStoreError, match="commitlog"):
        small(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]
    with pytest.raises(NotAStoreError):
        small(tmp_path / "missing", create=False)
    with pytest.raises(NotAStoreError):
        small(tmp_path / "notes.txt")


def test_a_foreign_file_in_the_log_is_named_and_left_alone(path, caplog):
    with small(path) as store:
        store.put(Message(topic="t", body=b"1"))
    foreign = path / "commitlog" / "notes"
    foreign.write_text("mine")
    with small(path) as store:
        assert [m.body for m in store.read("t")] == [b"1"]
    assert "commitlog/notes" in caplog.text
    assert foreign.read_text() == "mine"


def test_a_torn_tail_is_cut_and_kept_as_evidence(path):
    with small(path) as store:
        put = [store.put(Message(topic="t", body=b"%d" % n * 50)) for n in range(10)]
    log = path / "commitlog" / "0".zfill(20)
    data = bytearray(log.read_bytes())
    data[put[-1].phy_offset + 100] ^= 1
    log.write_bytes(data)
    (path / "abort").write_text("1")
    with small(path) as store:
        assert [m.queue_offset for m in store.read("t")] == list(range(9))
        assert store.recovery_report["cut"]
        assert store.put(Message(topic="t", body=b"again")).queue_offset == 9
    kept = b"".join(p.read_bytes() for p in (path / "tailrace" / "quarantine").glob("*.bin"))
    assert bytes(data[put[-1].phy_offset : put[-1].until]) in kept
    assert (path / "tailrace" / "quarantine" / "manifest.jsonl").read_text().count("\n") == 1


def test_a_damaged_record_hides_no_other(path):
    with small(path) as store:
        put = [store.put(Message(topic="t", body=b"%d" % n * 50)) for n in range(10)]
    log = path / "commitlog" / "0".zfill(20)
    data = bytearray(log.read_bytes())
    data[put[4].phy_offset + 100] ^= 1
    log.write_bytes(data)
    (path / "abort").write_text("1")
    for _ in range(2):
        with small(path) as store:
            assert [m.queue_offset for m in store.read("t")] == [0, 1, 2, 3, 5, 6, 7, 8, 9]
        (path / "abort").write_text("1")


@pytest.mark.parametrize("gone", ["consumequeue", "index", "checkpoint"])
def test_derived_files_that_are_missing_are_rebuilt_after_a_kill(path, gone):
    with small(path) as store:
        store.put_many([Message(topic="t", body=b"%d" % n, keys=[f"k{n}"]) for n in range(500)])
    (path / "abort").write_text("1")
    target = path / gone
    if target.is_dir():
        for name in sorted(target.rglob("*"), reverse=True):
            name.rmdir() if name.is_dir() else name.unlink()
        target.rmdir()
    else:
        target.unlink()
    with small(path) as store:
        assert [m.body for m in store.read("t")] == [b"%d" % n for n in range(500)]
        assert [m.queue_offset for m in store.query_message("t", "k77")] == [77]


def test_a_queue_that_starts_above_zero_is_read_from_its_first_message(path):
    """W11: after retention, units that stand for nothing are stepped over."""
    with small(path) as store:
        store.put_many([Message(topic="t", body=b"%d" % n * 100) for n in range(300)])
    files = sorted((path / "commitlog").iterdir())
    files[0].unlink()
    import shutil

    shutil.rmtree(path / "consumequeue")
    (path / "abort").write_text("1")
    for _ in range(2):
        with small(path) as store:
            ((_, _, low, high),) = store.queues()
            assert 0 < low < high == 300
            assert [m.queue_offset for m in store.read("t")] == list(range(low, high))


def test_a_failed_sync_is_final(path, monkeypatch):
    from tailrace.env.filesystem import _OsFile

    config = tailrace.StoreConfig(
        mapped_file_size_commit_log=16384, flush_disk_type=tailrace.FlushDiskType.SYNC_FLUSH,
        max_hash_slot_num=50, max_index_num=200)
    store = tailrace.MessageStore.open(path, config=config, parts=StoreParts(services=False))
    store.put(Message(topic="t", body=b"good"))
    real = _OsFile.sync_data

    def fail(_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(_OsFile, "sync_data", fail)
    with pytest.raises(StoreNotWritableError, match="sync"):
        store.put(Message(topic="t", body=b"bad"))
    monkeypatch.setattr(_OsFile, "sync_data", real)
    with pytest.raises(StoreNotWritableError, match="sync"):
        store.put(Message(topic="t", body=b"after"))
    store.close()
    assert (path / "abort").exists()


def test_a_small_store_takes_little_disk(path):
    with tailrace.MessageStore.open(path) as store:
        store.put(Message(topic="t", body=b"1", keys=["k"]))
    taken = sum(p.stat().st_blocks * 512 for p in pathlib.Path(path).rglob("*"))
    assert taken <= 150_000_000


@pytest.mark.parametrize(("field", "value"), [
    ("delay", float("nan")), ("delay", float("inf")), ("deliver_at", float("inf"))])
def test_a_time_that_is_not_a_number_is_refused(tmp_path, field, value):
    with tailrace.MessageStore.open(tmp_path / "s", config=SMALL, parts=StoreParts(services=False)) as store:
        with pytest.raises(MessageIllegalError, match=f"{field}: .* is not a finite number"):
            store.put(tailrace.Message(topic="t", body=b"x", **{field: value}))
        with pytest.raises(MessageIllegalError, match=f"{field}: .* is not a finite number"):
            store.put_many([tailrace.Message(topic="t", body=b"x", **{field: value})])


@pytest.mark.parametrize(("queue_id", "count"), [(0, 4), (3, 4), (4, 5), (11, 12)])
def test_a_topic_without_config_gets_one_with_all_of_its_queues(path, queue_id, count):
    """A directory that was copied without ``config``: no message may be out of a consumer's reach."""
    with small(path) as store:
        store.put(Message(topic="t", body=b"1"), queue_id=queue_id)
    for name in ("topics.json", "topics.json.bak"):
        (path / "config" / name).unlink(missing_ok=True)
    for _ in range(2):
        with small(path) as store:
            config = store.topics.table.get("t")
            assert (config.read_queue_nums, config.write_queue_nums) == (count, count)
            assert [m.body for m in store.read("t", queue_id)] == [b"1"]
