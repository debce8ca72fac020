"""From the log to queues and index: what becomes a unit, and what a bad record does."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from interpreted_kernels import interpreted

from tailrace import MessageStore, StoreConfig
from tailrace.formats.commitlog import SysFlag, decode_message
from tailrace.formats.indexfile import INDEX_HEADER
from tailrace.kernels import queue_units, record
from tailrace.kernels.shared import constants as C
from tailrace.model import MessageExtBrokerInner, PutMessageStatus
from tailrace.node.store_opening import StoreParts
from tailrace.store.record_batch import RecordBatch, ShortBatch
from tailrace.testing import CrashFileSystem, SimClock

CONFIG = StoreConfig(
    mapped_file_size_commit_log=8192, mapped_file_size_consume_queue=400, max_hash_slot_num=16,
    max_index_num=64, commit_log_allocate_step=4096)


@pytest.fixture
def files():
    return CrashFileSystem()


def opened(files):
    return MessageStore.open(
        "/s", config=CONFIG, parts=StoreParts(services=False, file_system=files, clock=SimClock()))


def inner(body=b"x", topic="t", queue_id=0, **fields):
    return MessageExtBrokerInner(topic, queue_id, body, **fields)


class Listener:
    def __init__(self):
        self.heard = []

    def arriving(self, topic, queue_id, next_offset, tags_codes, size):
        self.heard.append((topic, queue_id, next_offset, list(tags_codes), size))


def test_arrivals_are_reported_after_they_can_be_read(files):
    with opened(files) as store:
        listener = Listener()
        store.set_message_arriving_listener(listener)
        puts = [
            store.put_inner(inner(**fields)) for fields in (
                {"properties": b"TAGS\x01a\x02"}, {"queue_id": 1}, {"properties": b"TAGS\x01b\x02"})
        ]
        sizes = [put.until - put.phy_offset for put in puts]
        assert listener.heard == []
        store.wait_dispatched()
        assert sorted(listener.heard) == [
            ("t", 0, 2, [97, 98], sizes[0] + sizes[2]), ("t", 1, 1, [0], sizes[1])]


def test_delayed_messages_carry_their_deliver_time_where_others_have_the_tag(files):
    with opened(files) as store:
        put = [
            store.put_inner(inner(topic="SCHEDULE_TOPIC_XXXX", properties=b"DELAY\x01%d\x02TAGS\x01a\x02" % n))
            for n in (3, 99)
        ]
        store.wait_dispatched()
        queue = store.inner.queues.get("SCHEDULE_TOPIC_XXXX", 0)
        assert queue.unit(0).tags_code == put[0].store_timestamp + 10_000
        assert queue.unit(1).tags_code == put[1].store_timestamp + 2 * 3_600_000, "the last level"


def test_prepared_messages_are_indexed_and_have_no_place_rolled_back_ones_neither(files):
    with opened(files) as store:
        for flag in (SysFlag.TRANSACTION_PREPARED, SysFlag.TRANSACTION_ROLLBACK):
            store.put_inner(inner(sys_flag=flag, properties=b"KEYS\x01k%d\x02" % flag))
        store.wait_dispatched()
        assert store.queue_of("t", 0).max == 0
        assert len(store.query_records("t", "k4")) == 1
        assert store.query_records("t", "k12") == []
        assert store.dispatch_behind_bytes == 0


def test_keys_unique_key_and_tags_are_all_found(files):
    with opened(files) as store:
        store.put_inner(inner(properties=b"KEYS\x01a  b\x02TAGS\x01tag\x02UNIQ_KEY\x01u\x02"))
        for key in ("a", "b", "u"):
            assert len(store.query_message("t", key)) == 1
        assert len(store.query_message("t", "tag", index_type="T")) == 1
        assert store.query_message("t", "tag") == []
        assert store.query_records("other", "a") == []


def test_different_keys_with_the_same_hash_are_distinguished(files):
    with opened(files) as store:
        store.put_inner(inner(b"1", properties=b"KEYS\x01Aa\x02"))
        store.put_inner(inner(b"2", properties=b"KEYS\x01BB\x02"))  # Java's classic collision
        assert [m.body for m in store.query_message("t", "Aa")] == [b"1"]
        assert [m.body for m in store.query_message("t", "BB")] == [b"2"]


def test_a_popular_key_gives_its_newest_messages_in_order(files):
    with opened(files) as store:
        for n in range(100):
            store.put_inner(inner(b"%d" % n, properties=b"KEYS\x01k\x02"))
        found = [m.body for m in store.query_message("t", "k", max_num=10)]
        assert found == [b"%d" % n for n in range(90, 100)]
        assert len(files.list("/s/index")) == 2, "the first index file was full"


def test_dispatching_a_record_twice_changes_nothing(files):
    with opened(files) as store:
        for n in range(10):
            store.put_inner(inner(b"%d" % n, queue_id=n % 2, properties=b"KEYS\x01k%d\x02" % n))
        store.wait_dispatched()
        before = [files.open(p).pread(8192, 0) for p in paths(files)]
        store.inner.reput.reput_from_offset = 0
        store.wait_dispatched()
        assert store.queues() == [("t", 0, 0, 5), ("t", 1, 0, 5)]
        index = [p for p in paths(files) if "/index/" in p]
        assert INDEX_HEADER.unpack_from(files.open(index[0]).pread(40, 0)).index_count <= 12, (
            "only the last record may be entered again")
        after = [files.open(p).pread(8192, 0) for p in paths(files) if "/index/" not in p]
        assert after == [b for p, b in zip(paths(files), before, strict=True) if "/index/" not in p]


def test_one_step_takes_the_records_of_several_files(files):
    with opened(files) as store:
        puts = [store.put_inner(inner(bytes(1000), queue_id=n % 3)) for n in range(40)]
        reput = store.inner.reput
        assert len(store.inner.commit_log.queue.files) > 4
        assert not reput.step()
        assert reput.reput_from_offset == puts[-1].until
        assert reput.position == (
            puts[0].phy_offset, puts[-1].phy_offset, puts[-1].until - puts[-1].phy_offset, puts[-1].store_timestamp)
        assert store.queues() == [("t", 0, 0, 14), ("t", 1, 0, 13), ("t", 2, 0, 13)]
        assert [m.phy_offset for m in store.read("t", 1)] == [put.phy_offset for put in puts[1::3]]


def test_a_step_ends_after_many_records(files, monkeypatch):
    monkeypatch.setattr("tailrace.store.reput._STEP_RECORDS", 15)
    with opened(files) as store:
        puts = [store.put_inner(inner(bytes(1000))) for _ in range(40)]
        ends, again = [], True
        while again:
            again = store.inner.reput.step()
            ends.append(store.inner.reput.reput_from_offset)
        assert len(ends) == 2, "the records of a file are read together, here 7"
        assert ends[-1] == puts[-1].until
        assert len(list(store.read("t", 0))) == 40


def test_a_step_that_cannot_write_is_repeated(files, monkeypatch):
    with opened(files) as store:
        puts = [store.put_inner(inner(bytes(1000), properties=b"KEYS\x01k%d\x02" % n)) for n in range(40)]
        reput, index = store.inner.reput, store.inner.index
        monkeypatch.setattr(index, "put", lambda batch: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            reput.step()
        assert (reput.reput_from_offset, reput.position) == (0, None), "units are written, keys are not"
        monkeypatch.undo()
        store.wait_dispatched()
        assert [m.phy_offset for m in store.read("t", 0)] == [put.phy_offset for put in puts]
        assert all(len(store.query_message("t", f"k{n}")) == 1 for n in range(40))


def paths(files):
    return sorted(p for p in files._files if "/consumequeue/" in p or "/index/" in p)


def test_a_bad_record_stops_dispatch_with_an_error(files, caplog):
    store = opened(files)
    put = [store.put_inner(inner(b"%d" % n)) for n in range(5)]
    log = store.inner.commit_log.queue.files[0].buffer
    log[put[2].phy_offset + 4] ^= 0xFF  # the magic
    store.wait_dispatched()
    assert store.queue_of("t", 0).max == 2
    assert store.dispatch_behind_bytes == put[4].until - put[2].phy_offset
    assert not store.is_writeable
    assert f"phy_offset={put[2].phy_offset}" in store.not_writeable_reason
    assert store.put_inner(inner()).status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    lines = [r.getMessage() for r in caplog.records if "sends are refused" not in r.getMessage()]
    assert sum("bad record" in line for line in lines) == 1
    assert not store.inner.reput.wait(put[4].until, 3_600_000), "no thread waits for records that are never dispatched"
    store.close()
    assert files.exists("/s/abort"), "not a clean stop: the next open looks at everything"


@pytest.mark.parametrize("topic", [b"../../up", b"a/b", b"..", b"a\0b"])
def test_a_record_whose_topic_is_a_path_makes_no_directory(files, topic):
    with opened(files) as store:
        store.put_inner(inner(topic="x" * len(topic)))
        log = store.inner.commit_log.queue.files[0].buffer
        at = bytes(log[:200]).index(b"x" * len(topic), 100 - 10)
        log[at : at + len(topic)] = topic
        store.put_inner(inner(b"good"))
        store.wait_dispatched()
        assert store.queues() == [("t", 0, 0, 1)]
    assert not [d for d in files._directories if "up" in d or d.endswith("b")]


def test_the_walk_ends_before_a_last_record_that_is_torn_after_its_body(files):
    store = opened(files)
    put = [
        store.put_inner(inner(b"%d" % n, properties=b"KEYS\x01k%d\x02TAGS\x01t\x02" % n))
        for n in range(4)
    ]
    store.close()
    files.open("/s/abort", writable=True, create=True)
    log = files.open("/s/commitlog/00000000000000000000", writable=True)
    torn = decode_message(log.pread(put[3].until - put[3].phy_offset, put[3].phy_offset))
    log.pwrite(bytes(6), put[3].until - 6)  # the body and its checksum still agree
    store = opened(files)
    report = store.recovery_report
    assert store.max_phy_offset == put[3].phy_offset == torn.phy_offset
    assert [m.body for m in store.read("t", 0)] == [b"0", b"1", b"2"]
    assert [c["reason"] for c in report["cut"]] == [record.REASON_NAMES[C.REASON_TORN]]
    assert store.query_message("t", "k3") == []
    assert store.put_inner(inner(b"next")).queue_offset == 3
    store.close()
    with opened(files) as store:
        assert [m.body for m in store.read("t", 0)] == [b"0", b"1", b"2", b"next"]


def test_odd_properties_in_the_middle_do_not_affect_other_records(files):
    store = opened(files)
    put = [store.put_inner(inner(b"%d" % n, properties=b"odd\0piece")) for n in range(3)]
    put.append(store.put_inner(inner(b"3", properties=b"k\x01v\x02")))
    store.close()
    files.open("/s/abort", writable=True, create=True)
    with opened(files) as store:
        assert store.max_phy_offset == put[3].until
        assert [m.body for m in store.read("t", 0)] == [b"0", b"1", b"2", b"3"]


ODD = (
    {"sys_flag": SysFlag.TRANSACTION_PREPARED}, {"sys_flag": SysFlag.TRANSACTION_ROLLBACK},
    {"sys_flag": SysFlag.TRANSACTION_COMMIT}, {"topic": "SCHEDULE_TOPIC_XXXX", "properties": b"DELAY\x013\x02"},
    {"properties": b"INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%b\x02"}, {"topic": "many"}, {"body": bytes(3000)})


def derived(files):
    return {path: files.open(path).pread(1 << 20, 0) for path in paths(files)}


@pytest.mark.parametrize("seed", range(12))
def test_a_short_step_leaves_what_a_long_one_leaves(seed):
    """Also where it must leave its records to the long one, and after a step whose files had no room."""
    stores, heard, short, random = [], [], [], Random(seed)
    for is_short in (True, False):
        files = CrashFileSystem()
        store = opened(files)
        store.set_message_arriving_listener(listener := Listener())
        stores.append((files, store, store.inner.reput))
        heard.append(listener.heard)
        if not is_short:
            store.inner.reput._short_step = lambda *_: False
    step = stores[0][2]._short_step
    stores[0][2]._short_step = lambda *arguments: short.append(step(*arguments)) or short[-1]
    for number in range(60):
        odd = random.random() < 0.1 and random.choice(ODD)
        fields = {
            "topic": f"t{random.randrange(3)}", "queue_id": random.randrange(3), "body": bytes(random.randrange(200)),
            "properties": random.choice((b"", b"TAGS\x01a\x02", b"KEYS\x01k%d k\x02UNIQ_KEY\x01u\x02" % number)),
            **(odd or {})}
        many = 80 if fields["topic"] == "many" else 1
        for _, store, _ in stores:
            for n in range(many):
                assert store.put_inner(inner(**{**fields, "queue_id": n} if many > 1 else fields)).ok
        if random.random() < 0.3:
            fails = random.random() < 0.2
            for _, store, reput in stores:
                index, put = store.inner.index, store.inner.index.put
                if fails:
                    index.put = lambda batch: 1 / 0
                    with pytest.raises(ZeroDivisionError):
                        reput.step()
                    index.put = put
                    del heard[0][:], heard[1][:]  # a step that is repeated reports what it wrote only once
                while reput.step():
                    pass
            assert derived(stores[0][0]) == derived(stores[1][0])
            assert stores[0][2].position == stores[1][2].position
            assert list(stores[0][2]._recent) == list(stores[1][2]._recent)
            assert sorted(heard[0]) == sorted(heard[1])
    assert {True, False} <= set(short)
    for _, store, _ in stores:
        store.close()


@pytest.mark.parametrize("module", [interpreted("queue_units"), queue_units], ids=["interpreted", "imported"])
def test_a_short_step_has_the_numbers_of_a_batch(module, files, monkeypatch):
    monkeypatch.setattr("tailrace.store.record_batch.queue_units", module)
    with opened(files) as store:
        for n in range(20):
            store.put_inner(inner(
                topic="tu"[n % 2], queue_id=n % 3,
                properties=(b"", b"TAGS\x01a\x02", b"KEYS\x01k%d k\x02UNIQ_KEY\x01u\x02" % n)[n % 3]))
        data = bytes(store.inner.commit_log.queue.files[0].buffer)
        rows = np.empty((20, C.COLUMNS), dtype=np.int64)
        count, stop, _ = record.scan(data, 0, len(data), 0, C.CHECK_PHY_OFFSET, rows)
        assert count == 20
        long, short = RecordBatch(), ShortBatch()
        long.add(data, rows)
        order, bounds, names = long.sorted()
        units = bytearray(20 * 20)
        for _ in range(2):  # nothing of the records before is left
            assert not short.read(data, len(data), 0), "zeros follow"
            assert not short.read(data, stop - 1, 0), "the last record is cut off"
            assert not short.read(data[:5] + b"\1" + data[6:], stop, 0), "the first one has another magic"
            assert not short.read(data, stop, 1), "they are not at that position"
            assert not len(short.rows)
            assert short.read(data, stop, 0)
            assert short.runs(True) == (names, queue_units.build_units(long.rows, order, bounds, units, True))
            assert bytes(short.units[: len(units)]) == units
            assert short.order[:20].tolist() == order.tolist()
            assert short.bounds[: len(bounds)].tolist() == bounds.tolist()
            assert short.rows[:, : long.rows.shape[1]].tolist() == long.rows.tolist()
            ends, hashes = long.key_hashes
            assert short.key_hashes[0].tolist() == ends.tolist()
            assert short.key_hashes[1][: ends[-1]].tolist() == hashes[: ends[-1]].tolist()
            assert short.positions(3) == rows[-3:, C.PHY].tolist()
            assert short.positions(65) == rows[:, C.PHY].tolist()
            assert short.last() == tuple(rows[-1, [C.PHY, C.SIZE, C.STORE_TIMESTAMP]].tolist())
            assert not any(type(number) is not int for number in (*short.last(), *short.positions(9)))
        checked = ShortBatch(check=C.CHECK_ALL)
        assert checked.read(data, stop, 0)
        at = int(rows[7, C.BODY_POS])
        flipped = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        assert short.read(flipped, stop, 0)
        assert not checked.read(flipped, stop, 0), "a bit of a body is wrong"


@pytest.mark.parametrize("last", [b"b", b"b" * (9 << 20)], ids=["short", "long"])
def test_a_record_that_is_longer_than_a_read_of_the_dispatch_is_dispatched(files, last):
    """A dispatch that stops before such a record hides every later message, although they are acknowledged."""
    config = StoreConfig(max_message_size=1 << 25, mapped_file_size_commit_log=1 << 26)
    parts = StoreParts(services=False, file_system=files, clock=SimClock())
    bodies = [b"a", b"x" * (12 << 20), last]
    with MessageStore.open("/s", config=config, parts=parts) as store:
        for body in bodies:
            store.put_inner(inner(body))
        assert store.wait_dispatched()
        assert [len(decode_message(store.get_message("t", 0, n, 1).data).body) for n in range(3)] == [
            len(body) for body in bodies]
