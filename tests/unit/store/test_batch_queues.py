"""Batch queues: one unit for the messages of one record, read as if each message had its own."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path

import pytest
from flat_open import flat_open

from tailrace import Message, MessageStore, StoreConfig
from tailrace.doctor.verify import verify
from tailrace.errors import NotAStoreError
from tailrace.formats.commitlog import encode_batch, tags_code
from tailrace.formats.consumequeue import BATCH_CQ_UNIT, CQ_UNIT, PRE_BLANK_SIZE
from tailrace.kernels.properties import encode_properties
from tailrace.model import BoundaryType, GetMessageStatus, MessageExtBrokerInner, PutMessageStatus
from tailrace.node.store_opening import StoreParts
from tailrace.node.topic_config import TopicConfig
from tailrace.testing import CrashFileSystem, SimClock

UNIT = BATCH_CQ_UNIT.size
CONFIG = StoreConfig(
    mapped_file_size_commit_log=1 << 13, mapped_file_size_consume_queue=400, max_hash_slot_num=50,
    max_index_num=400, mapper_file_size_batch_consume_queue=UNIT * 7)
SIZES = [1, 3, 1, 5, 2, 1, 8, 1, 1, 4] * 6


def opened(path, **options) -> MessageStore:
    return flat_open(path, config=CONFIG, services=False, **options)


def put(store, number: int, count: int, *, topic="B", queue_id=0, tags="", **properties):
    """One record: a single message, or an inner batch; each has its number and place as body."""
    if count == 1 and not properties:
        return store.put(Message(topic=topic, body=f"{number}-0".encode(), tags=tags or None, keys=[f"k{number}"]),
                         queue_id=queue_id)
    body = encode_batch([(0, f"{number}-{at}".encode(), b"TAGS\x01in\x02") for at in range(count)])
    names = {"UNIQ_KEY": f"u{number}", "KEYS": f"k{number}", "INNER_NUM": str(count), **properties}
    if tags:
        names["TAGS"] = tags
    return store.put_inner(
        MessageExtBrokerInner(topic, queue_id, body, encode_properties(names), 0, 0xC0, 1))


def create(store, topic="B") -> None:
    store.topics.update(TopicConfig(topic_name=topic, attributes={"queue.type": "BatchCQ"}))


def bodies(sizes=SIZES) -> list[bytes]:
    return [f"{number}-{at}".encode() for number, count in enumerate(sizes) for at in range(count)]


def make(path, sizes=SIZES) -> None:
    with opened(path) as store:
        create(store)
        for number, count in enumerate(sizes):
            assert put(store, number, count, tags=f"t{number % 3}").ok
        store.wait_dispatched()


def tree(path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes()
            for file in sorted(Path(path).glob("batchconsumequeue/*/*/*"))}


@pytest.fixture
def path(tmp_path):
    make(tmp_path / "s")
    return tmp_path / "s"


def is_right(store, sizes=SIZES) -> bool:
    found = list(store.read("B", 0))
    return [one.body for one in found] == bodies(sizes) and (
        [one.queue_offset for one in found] == list(range(sum(sizes))))


def test_a_record_has_one_unit_and_the_next_offset_comes_after_its_messages(path):
    with opened(path) as store:
        assert is_right(store)
        assert store.queues() == [("B", 0, 0, sum(SIZES))]
    data = b"".join(tree(path).values())
    units = BATCH_CQ_UNIT.view(data[: UNIT * len(SIZES)])
    assert units["batch_size"].tolist() == SIZES
    assert units["msg_base_offset"].tolist() == [sum(SIZES[:n]) for n in range(len(SIZES))]
    assert units["compacted_offset"].tolist() == [-1] * len(SIZES)
    assert units["tags_code"].tolist() == [tags_code(f"t{n % 3}") for n in range(len(SIZES))]
    assert not any(data[UNIT * len(SIZES) :])
    assert not (path / "consumequeue" / "B").exists()


def test_a_pull_inside_a_batch_gets_that_batch_and_counts_messages(path):
    with opened(path) as store:
        starts = [sum(SIZES[:n]) for n in range(len(SIZES))]
        for offset in range(sum(SIZES)):
            begin = max(start for start in starts if start <= offset)
            for most in (1, 4, 32):
                found = store.get_message("B", 0, offset, most)
                assert found.status is GetMessageStatus.FOUND
                assert found.queue_offsets[0] == begin
                assert found.next_begin_offset in [*starts, sum(SIZES)]
                assert found.message_count == found.next_begin_offset - begin
                assert found.message_count <= most or len(found.ends) == 1
        end = store.get_message("B", 0, sum(SIZES), 1)
        assert end.status is GetMessageStatus.OFFSET_OVERFLOW_ONE


def test_tags_choose_records_and_no_message_is_passed_twice(path):
    with opened(path) as store:
        offset, got = 0, []
        while offset < sum(SIZES):
            found = store.get_message("B", 0, offset, 6, codes=[tags_code("t1")])
            got += found.queue_offsets
            assert found.next_begin_offset > offset
            offset = found.next_begin_offset
        assert got == [sum(SIZES[:n]) for n in range(1, len(SIZES), 3)]


def test_units_look_like_those_of_a_consume_queue(path):
    with opened(path) as store:
        queue = store.inner.queues.get("B", 0)
        units = CQ_UNIT.view(b"".join(queue.units(at, 1) for at in range(queue.max_offset)))
        assert [at for at in range(len(units)) if units["size"][at] != PRE_BLANK_SIZE] == [
            sum(SIZES[:n]) for n in range(len(SIZES))]
        for at in range(queue.max_offset):
            assert queue.unit(at).size != PRE_BLANK_SIZE, "the record of any message"


def test_offsets_by_time_are_those_of_records(tmp_path):
    clock = SimClock()
    with MessageStore.open(tmp_path / "s", config=CONFIG, parts=StoreParts(services=False, clock=clock)) as store:
        create(store)
        times = []
        for number, count in enumerate(SIZES):
            clock.advance(10)
            put(store, number, count)
            times.append(clock.now_ms())
        store.wait_dispatched()
        for number, at in enumerate(times):
            start = sum(SIZES[:number])
            assert store.queue_of("B", 0).by_time(at) == start
            assert store.queue_of("B", 0).by_time(at + 5, BoundaryType.UPPER) == start
            assert store.queue_of("B", 0).store_timestamp(start + SIZES[number] - 1) == at


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("lost", ["all", "hints", "first", "middle", "last", "zeros", "noise", "older end"])
def test_units_are_rebuilt(path, lost, killed):
    before = tree(path)
    queue = path / "batchconsumequeue" / "B" / "0"
    files = sorted(queue.iterdir())
    shutil.rmtree(path / "tailrace")
    if lost == "all":
        shutil.rmtree(path / "batchconsumequeue")
    elif lost in {"first", "middle", "last"}:
        files[{"first": 0, "middle": 4, "last": -1}[lost]].unlink()
    elif lost != "hints":
        at, data = {"zeros": (UNIT, bytes(UNIT)), "noise": (UNIT, os.urandom(2 * UNIT)),
                    "older end": (0, bytes(7 * UNIT))}[lost]
        with files[-2].open("r+b") as file:
            file.seek(at)
            file.write(data)
    if killed:
        (path / "abort").write_text("1")
    for _ in range(2):
        with opened(path) as store:
            assert is_right(store)
            assert put(store, 0, 3, queue_id=1).ok
        assert {name: data for name, data in tree(path).items() if "/0/" in name} == before


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("bit", [3, 20, 39, 41, 62])
def test_a_flipped_bit_of_a_queue_offset_neither_ends_a_read_nor_makes_it_endless(path, bit, killed):
    """The queue offset of the last unit: whatever it says, a read ends and the messages before it are there."""
    file = max((path / "batchconsumequeue" / "B" / "0").iterdir())
    data = bytearray(file.read_bytes())
    last = len(bytes(data).rstrip(b"\0")) // UNIT
    base = last * UNIT + 28
    data[base : base + 8] = (int.from_bytes(data[base : base + 8], "big") ^ 1 << bit).to_bytes(8, "big")
    file.write_bytes(data)
    shutil.rmtree(path / "tailrace")
    if killed:
        (path / "abort").write_text("1")
    with opened(path) as store:
        found = [one.body for one in store.read("B", 0)]
    assert found[: sum(SIZES[:-1])] == bodies(SIZES[:-1])


def test_a_rebuild_makes_the_same_files(path):
    before = tree(path)
    with opened(path, rebuild=True) as store:
        assert is_right(store)
    assert tree(path) == before


def test_without_topics_the_directory_says_the_type(path):
    for file in (path / "config").glob("topics.json*"):
        file.unlink()
    with opened(path) as store:
        assert store.topics.has_batch_queues("B")
        assert is_right(store)
        assert put(store, 99, 2).queue_offset == sum(SIZES)


def test_a_directory_whose_files_are_of_another_type_is_refused(path, tmp_path):
    text = (path / "config" / "topics.json").read_text()
    (path / "config" / "topics.json").write_text(text.replace("BatchCQ", "SimpleCQ"))
    with pytest.raises(NotAStoreError, match=r"topic B has queues in batchconsumequeue and its queue.type is not"):
        opened(path)
    (path / "config" / "topics.json").write_text(text)
    (path / "batchconsumequeue").rename(path / "consumequeue")
    with pytest.raises(NotAStoreError, match=r"topic B is one of queue.type=BatchCQ and has queues in consumequeue"):
        opened(path)


def test_verify_finds_nothing_and_then_what_is_wrong(path):
    def kinds():
        return [line["finding"]["kind"] for line in verify(str(path), config=CONFIG) if "finding" in line]

    assert kinds() == []
    file = sorted((path / "batchconsumequeue" / "B" / "0").iterdir())[2]
    unit = BATCH_CQ_UNIT.unpack_from(file.read_bytes(), UNIT)
    with file.open("r+b") as changed:
        changed.seek(UNIT)
        changed.write(BATCH_CQ_UNIT.pack(*unit._replace(tags_code=5)))
    assert kinds() == ["wrong-unit"]


def test_the_index_has_the_keys_of_the_record(path):
    with opened(path) as store:
        assert [m.queue_offset for m in store.query_message("B", "k3")] == [sum(SIZES[:3])]
        assert [m.queue_offset for m in store.query_message("B", "u3")] == [sum(SIZES[:3])]


@pytest.mark.parametrize(("change", "remark"), [
    ({"INNER_NUM": "4"}, "INNER_NUM is 4, the body has 3 messages"),
    ({"DELAY": "2"}, "an inner batch cannot have DELAY"),
    ({"TIMER_DELAY_MS": "2000"}, "an inner batch cannot have TIMER_DELAY_MS"),
    ({"INNER_MULTI_DISPATCH": "%LMQ%a"}, "an inner batch cannot have INNER_MULTI_DISPATCH"),
])
def test_what_an_inner_batch_cannot_be_is_refused(path, change, remark):
    with opened(path) as store:
        result = put(store, 5, 3, **change)
        assert result.status is PutMessageStatus.MESSAGE_ILLEGAL
        assert remark in result.remark
        assert put(store, 5, 3).queue_offset == sum(SIZES)


def test_a_table_has_the_messages_of_inner_batches(path):
    pytest.importorskip("pyarrow")
    names = ["queueOffset", "body", "tags", "uniqKey", "flag", "bodyCRC", "commitLogOffset"]
    with opened(path) as store:
        every = [(m.queue_offset, m.body, m.tags, m.unique_key, m.flag, m.body_crc, m.phy_offset)
                 for m in store.read("B", 0)]
        assert {tags for _, _, tags, *_ in every} == {"t0", "t1", "t2", "in"}
        for offset, count in ((0, None), (7, 5), (6, 1), (40, 1000), (sum(SIZES), None), (3, 0)):
            table = store.to_arrow("B", 0, offset=offset, count=count, columns=names)
            wanted = every[offset:] if count is None else every[offset : offset + count]
            assert [tuple(row.values()) for row in table.to_pylist()] == wanted, (offset, count)


def test_another_topic_takes_no_inner_batch(path):
    with opened(path) as store:
        result = put(store, 5, 3, topic="Plain")
        assert result.status is PutMessageStatus.MESSAGE_ILLEGAL
        assert "an inner batch needs a topic with queue.type=BatchCQ, Plain does not have it" in result.remark


def test_retention_deletes_files_and_the_offsets_stay():
    clock = SimClock()
    files = CrashFileSystem(clock=clock)
    config = dataclasses.replace(
        CONFIG, file_reserved_time=1.0, delete_when=";".join(map(str, range(24))), timer_wheel_enable=False)

    def open_it():
        return MessageStore.open("/s", config=config, parts=StoreParts(clock=clock, file_system=files, services=False))

    def queue_files():
        return files.list("/s/batchconsumequeue/B/0")

    with open_it() as store:
        create(store)
        for number in range(120):
            put(store, number, number % 5 + 1)
        store.wait_dispatched()
        count, end = len(queue_files()), store.queue_of("B", 0).max
        assert store.retention.delete_now() == 0
        clock.advance(2 * 3_600_000)
        assert store.retention.delete_now() >= 2
        assert len(queue_files()) < count
        low = store.queue_of("B", 0).min
        assert 0 < low < end
        assert [one.queue_offset for one in store.read("B", 0)] == list(range(low, end))
        assert store.get_message("B", 0, low - 1, 5).status is GetMessageStatus.OFFSET_TOO_SMALL
        assert store.inner.queues.get("B", 0).begin_of(low) == low
    before = {name: files.open(f"/s/batchconsumequeue/B/0/{name}").pread(UNIT * 7, 0) for name in queue_files()}
    for lost in (False, True):
        if lost:
            for name in queue_files():
                files.remove(f"/s/batchconsumequeue/B/0/{name}")
        with open_it() as store:
            assert store.queues() == [("B", 0, low, end)]
            assert [one.queue_offset for one in store.read("B", 0)] == list(range(low, end))
    assert len(queue_files()) <= len(before)


def test_queues_go_on_after_the_log_was_lost(path):
    shutil.rmtree(path / "commitlog")
    (path / "commitlog").mkdir()
    for _ in range(2):
        with opened(path) as store:
            assert store.queues() == [("B", 0, sum(SIZES), sum(SIZES))]
            assert list(store.read("B", 0)) == []
    with opened(path) as store:
        assert put(store, 7, 3).queue_offset == sum(SIZES)
        store.wait_dispatched()
        assert [one.body for one in store.read("B", 0)] == [b"7-0", b"7-1", b"7-2"]


def test_a_topic_that_was_deleted_comes_back_with_another_type(path):
    with opened(path) as store:
        store.delete_topics({"B"})
        assert not (path / "batchconsumequeue" / "B").exists()
        store.put(Message(topic="B", body=b"plain"))
        store.wait_dispatched()
        assert [one.body for one in store.read("B", 0)] == [b"plain"]
    with opened(path) as store:
        assert [one.body for one in store.read("B", 0)] == [b"plain"]
        assert (path / "consumequeue" / "B").exists()


@pytest.mark.parametrize("number", [6, 36, len(SIZES) - 1], ids=["first segment", "later", "last of its queue"])
@pytest.mark.parametrize("part", ["head", "body"])
def test_a_damaged_record_keeps_the_places_of_its_messages(path, number, part):
    with opened(path) as store:
        put(store, 0, 2, queue_id=1)  # a record after the damage, so that it is not the end of the log
        put(store, 1, 2, queue_id=1)
        store.wait_dispatched()
        at = store.inner.queues.get("B", 0).unit(sum(SIZES[:number])).phy_offset
        file = store.inner.commit_log.queue.find(at)
        name, inside = file.path, at - file.file_from_offset
    with open(name, "r+b") as changed:
        changed.seek(inside + (20 if part == "head" else 95))
        changed.write(b"\xff\xfe")
    shutil.rmtree(path / "tailrace")
    shutil.rmtree(path / "batchconsumequeue")
    (path / "abort").write_text("1")
    lost = range(sum(SIZES[:number]), sum(SIZES[: number + 1]))
    is_known = part == "body" or number < len(SIZES) - 1  # a later record of the queue tells, or the record itself
    for _ in range(2):
        with opened(path) as store:
            found = list(store.read("B", 0))
            assert [one.queue_offset for one in found] == [n for n in range(sum(SIZES)) if n not in lost]
            assert [one.body for one in found] == [body for n, body in enumerate(bodies()) if n not in lost]
            if is_known:
                assert store.queue_of("B", 0).max == sum(SIZES)


@pytest.mark.parametrize("killed", [False, True])
def test_without_topics_and_queues_messages_stay_where_they_are(path, killed):
    """Nothing says the type then: the queue is a plain one with the same places, as for a Java broker."""
    for file in (path / "config").glob("topics.json*"):
        file.unlink()
    shutil.rmtree(path / "batchconsumequeue")
    shutil.rmtree(path / "tailrace")
    if killed:
        (path / "abort").write_text("1")
    sizes = [*SIZES, 1]
    for round_ in range(3):
        with opened(path, rebuild=round_ == 2) as store:
            assert not store.topics.has_batch_queues("B")
            if not round_:
                assert put(store, len(SIZES), 1).queue_offset == sum(SIZES)
            store.wait_dispatched()
            records = [
                offset for at in range(sum(sizes)) for offset in store.get_message("B", 0, at, 1).queue_offsets[:1]]
            assert sorted(set(records)) == [sum(sizes[:n]) for n in range(len(sizes))]
            assert store.queue_of("B", 0).max == sum(sizes)
    assert [line for line in verify(str(path), config=CONFIG) if "finding" in line] == []
