"""Messages with places in LMQ queues: what is put, what is refused, and that the log alone makes the units."""

from __future__ import annotations

import errno
import logging
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from flat_open import flat_open

from tailrace import Message, StoreConfig
from tailrace.errors import MessageIllegalError
from tailrace.formats.commitlog import decode_message, decode_properties, encode_batch
from tailrace.formats.consumequeue import CQ_UNIT
from tailrace.kernels import record
from tailrace.kernels.shared import constants as C
from tailrace.model import BoundaryType, MessageExtBrokerInner, PutMessageStatus
from tailrace.store.directory import StoreDirectory
from tailrace.store.multi_dispatch import lmq_names, rows_with_lmq, topic_allows_lmq
from tailrace.store.verification import Verification
from tailrace.testing import CrashFileSystem, FaultyFileSystem, SimClock

OFF = StoreConfig(
    mapped_file_size_commit_log=8192, mapped_file_size_consume_queue=400, max_hash_slot_num=16,
    max_index_num=64, commit_log_allocate_step=4096)
ON = replace(OFF, enable_lmq=True, enable_multi_dispatch=True)
ALL, EVEN, LITE = "%LMQ%all", "%LMQ%even", "%LMQ%$parent$child é"


@pytest.fixture
def files():
    return CrashFileSystem()


def opened(files, config=ON, clock=None, **options):
    return flat_open("/s", config=config, services=False, file_system=files, clock=clock or SimClock(), **options)


def shown(store, topic):
    """The messages of a topic; none of an LMQ that never got one, which is unknown."""
    store.wait_dispatched()
    return store.read(topic) if any(name == topic for name, *_ in store.queues()) else iter(())


def stored(names, **more):
    """Stored properties that name LMQ queues."""
    return "".join(
        f"{name}\x01{value}\x02" for name, value in {"INNER_MULTI_DISPATCH": names, **more}.items()).encode()


def inner(names="", topic="t", queue_id=0, body=b"x", **more):
    properties = stored(names, **more) if names or more else b""
    return MessageExtBrokerInner(topic, queue_id, body, properties)


def put(store, names="", topic="t", queue_id=0, body=b"x", **more):
    result = store.put_inner(inner(names, topic, queue_id, body, **more))
    assert result.status is PutMessageStatus.PUT_OK, result.remark
    return result


def fill(store, first, count):
    """Every message in one queue of its topic and in %LMQ%all; every second one in another, some in a third."""
    for n in range(first, first + count):
        names = ",".join([ALL, *([EVEN] if n % 2 == 0 else []), *([LITE] if n % 7 == 0 else [])])
        put(store, names, f"t{n % 2}", n % 3, b"%d" % n, TAGS=f"tag{n % 2}", KEYS=f"k{n}")


def bodies(store, topic):
    return [int(m.body) for m in shown(store, topic)]


def wanted(count):
    return {ALL: [*range(count)], EVEN: [*range(0, count, 2)], LITE: [*range(0, count, 7)]}


def units(files):
    """Each queue file without its unused end."""
    found = {}
    for topic in files.list("/s/consumequeue"):
        for queue in files.list(f"/s/consumequeue/{topic}"):
            for name in files.list(f"/s/consumequeue/{topic}/{queue}"):
                file = files.open(f"/s/consumequeue/{topic}/{queue}/{name}", writable=False)
                data = file.pread(400, 0).rstrip(b"\0")
                if data:
                    found[topic, queue, name] = data
                file.close()
    return found


def remove(files, path):
    if not files.stat(path).is_dir:
        files.remove(path)
        return
    for name in files.list(path):
        remove(files, f"{path}/{name}")
    files.rmdir(path)


def check(store, count):
    for name, numbers in wanted(count).items():
        assert bodies(store, name) == numbers
        assert [q for q in store.queues() if q[0] == name] == [(name, 0, 0, len(numbers))]


# -- what is put


def test_units_are_those_of_the_message_with_an_offset_of_their_own(files):
    with opened(files) as store:
        fill(store, 0, 50)
        check(store, 50)
        queue, lmq = store.inner.queues.get("t0", 1), store.inner.queues.get(EVEN, 0)
        there = {queue.unit(n) for n in range(queue.max_offset)}
        assert there <= {lmq.unit(n) for n in range(lmq.max_offset)}
        last = list(store.read(ALL))[-1]
        assert (last.topic, last.queue_id, last.queue_offset) == ("t1", 1, 8)
        assert last.properties["INNER_MULTI_QUEUE_OFFSET"] == "49,7"
        (found,) = store.query_message("t1", "k49")
        assert found.phy_offset == last.phy_offset
        assert store.query_message(ALL, "k49") == []


def test_offsets_that_a_client_sends_do_not_count(files):
    with opened(files) as store:
        put(store, ALL, INNER_MULTI_QUEUE_OFFSET="77", KEYS="k")
        result = put(store, INNER_MULTI_QUEUE_OFFSET="5", KEYS="k")
        assert bodies_of(store, ALL) == 1
        message = store.look_message_by_offset(result.phy_offset)
        assert message.properties == {"KEYS": "k"}
        (first,) = store.read(ALL)
        assert first.properties["INNER_MULTI_QUEUE_OFFSET"] == "0"


def bodies_of(store, topic):
    return len(list(shown(store, topic)))


def test_messages_put_into_an_lmq_queue_itself_share_its_offsets(files):
    with opened(files) as store:
        for n in range(9):
            put(store, topic=ALL, body=b"%d" % n) if n % 3 == 0 else put(store, ALL, body=b"%d" % n)
        assert bodies(store, ALL) == [*range(9)]
        before = units(files)
    remove(files, "/s/consumequeue")
    with opened(files) as store:
        assert bodies(store, ALL) == [*range(9)]
        assert units(files) == before


@pytest.mark.parametrize("topic", ["%RETRY%g", "%DLQ%g", "rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX"])
def test_copies_in_retry_and_system_topics_have_no_unit(files, topic):
    with opened(files) as store:
        put(store, ALL, body=b"0")
        result = put(store, ALL, topic=topic, INNER_MULTI_QUEUE_OFFSET="0", body=b"1")
        assert decode_properties(stored(ALL, INNER_MULTI_QUEUE_OFFSET="0")) == (
            store.look_message_by_offset(result.phy_offset).properties)
        put(store, ALL, body=b"2")
        assert bodies(store, ALL) == [0, 2]
    remove(files, "/s/consumequeue")
    with opened(files) as store:
        assert bodies(store, ALL) == [0, 2]


@pytest.mark.parametrize(("kind", "count"), [(0, 1), (8, 1), (4, 0), (12, 0)])
def test_half_and_rolled_back_messages_have_no_unit(files, kind, count):
    with opened(files) as store:
        result = store.put_inner(msgspec.structs.replace(inner(ALL), sys_flag=kind))
        assert result.status is PutMessageStatus.PUT_OK
        assert bodies_of(store, ALL) == count


def test_timers_get_their_places_when_they_are_delivered(files):
    clock = SimClock()
    with opened(files, clock=clock) as store:
        due = clock.now_ms() + 5000
        for n in range(40):  # this many timers of one moment are delivered in bulk, but not these
            put(store, ALL, body=b"%d" % n, TIMER_DELIVER_MS=str(due), UNIQ_KEY=f"u{n}")
        store.wait_dispatched()
        assert store.queue_of(ALL, 0).next == 0
        put(store, ALL, body=b"40")
        timers = store.timer_services.messages
        for _ in range(40):
            timers.enqueue_step()
            timers.dequeue_step()
            clock.advance(500)
            store.wait_dispatched()
        assert bodies(store, ALL) == [40, *range(40)]


# -- what is refused


@pytest.mark.parametrize(("names", "why"), [
    ("other", "does not begin with %LMQ%"),
    ("%LMQ%a,other", "'other' does not begin with %LMQ%"),
    (",%LMQ%a", "'' does not begin"),
    ("%LMQ%a, %LMQ%b", "' %LMQ%b' does not begin"),
    ("%LMQ%a/b", "must not contain /"),
    ("%LMQ%" + "x" * 251, "256 bytes, the limit is 255"),
    ("%LMQ%" + "é" * 126, "257 bytes"),
    ("%LMQ%a,%LMQ%b,%LMQ%a", "'%LMQ%a' is named twice"),
    (",", "does not begin"),
])
def test_names_that_no_queue_can_have_are_refused(files, names, why):
    with opened(files) as store:
        result = store.put_inner(inner(names))
        assert result.status is PutMessageStatus.MESSAGE_ILLEGAL
        assert "INNER_MULTI_DISPATCH" in result.remark
        assert why in result.remark
        waits = store.put_inner(inner(names, TIMER_DELAY_MS="1000"))
        assert waits.status is PutMessageStatus.MESSAGE_ILLEGAL
        with pytest.raises(MessageIllegalError, match="INNER_MULTI_DISPATCH"):
            store.put(Message(topic="t", body=b"x", properties={"INNER_MULTI_DISPATCH": names}))
        assert [q for q in store.queues() if q[3]] == []


def test_the_longest_name_is_one(files):
    names = f"%LMQ%{'x' * 250},%LMQ%{'y' * 249},,"
    with opened(files) as store:
        put(store, names)
        store.wait_dispatched()
        assert {(q[0], q[3]) for q in store.queues()} == {
            ("t", 1), ("%LMQ%" + "x" * 250, 1), ("%LMQ%" + "y" * 249, 1)}


def test_a_queue_cannot_be_its_own(files):
    with opened(files) as store:
        assert "topic of the message itself" in store.put_inner(inner(ALL, topic=ALL)).remark


def test_properties_and_record_may_become_too_long(files):
    roomy = replace(ON, mapped_file_size_commit_log=1 << 17, max_message_size=200)
    with opened(files, roomy) as store:
        result = store.put_inner(inner(ALL, body=b"x" * 150))
        assert result.status is PutMessageStatus.MESSAGE_ILLEGAL
        assert "maxMessageSize allows 200" in result.remark
        assert store.queue_of(ALL, 0).next == 0
        put(store, body=b"x" * 200)
    with opened(files, replace(roomy, max_message_size=100_000)) as store:
        rest = 32767 - len(stored(ALL)) - len("INNER_MULTI_QUEUE_OFFSET 0 ") - len("filler  ")
        put(store, ALL, filler="x" * rest)
        result = store.put_inner(inner(ALL, filler="x" * (rest + 1)))
        assert result.status is PutMessageStatus.PROPERTIES_SIZE_EXCEEDED
        assert bodies_of(store, ALL) == 1


def test_a_batch_is_refused_by_name_and_many_are_put_one_by_one(files):
    items = [(0, b"a", b""), (0, b"b", stored(ALL))]
    with opened(files) as store:
        result = store.inner.put_batch(inner(), encode_batch(items))
        assert result.status is PutMessageStatus.MESSAGE_ILLEGAL
        assert "message 1 of a batch names LMQ queues" in result.remark
        fine = encode_batch([(0, b"INNER_MULTI_DISPATCH\x01%LMQ%a\x02", b"")])
        assert store.inner.put_batch(inner(), fine).status is PutMessageStatus.PUT_OK
        messages = [Message(topic="t", body=b"%d" % n, properties={"INNER_MULTI_DISPATCH": ALL}) for n in range(3)]
        assert len(store.put_many(messages)) == 3
        assert bodies(store, ALL) == [0, 1, 2]


def test_the_quota_refuses_new_queues_only(files):
    quota = replace(ON, enable_lmq_quota=True, max_lmq_consume_queue_num=2)
    with opened(files, quota) as store:
        put(store, f"{ALL},{EVEN}")
        result = store.put_inner(inner(f"{ALL},%LMQ%third"))
        assert result.status is PutMessageStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED
        assert "'%LMQ%third' is new, there are 2 LMQ queues" in result.remark
        put(store, ALL)
    with opened(files, replace(quota, enable_lmq_quota=False)) as store:
        put(store, "%LMQ%third")


@pytest.mark.parametrize("config", [OFF, replace(OFF, enable_lmq=True), replace(OFF, enable_multi_dispatch=True)])
def test_while_it_is_off_messages_go_into_their_own_queue_and_that_is_logged_once(files, config, caplog):
    with opened(files, config) as store:
        for names in (ALL, "anything, goes", f"{ALL},{EVEN}"):
            put(store, names, INNER_MULTI_QUEUE_OFFSET="0,3")
        batch = encode_batch([(0, b"b", stored(ALL, INNER_MULTI_QUEUE_OFFSET="0"))])
        assert store.inner.put_batch(inner(), batch).status is PutMessageStatus.PUT_OK
        store.wait_dispatched()
        assert store.queues() == [("t", 0, 0, 4)]
        assert next(m.properties for m in store.read("t")) == {"INNER_MULTI_DISPATCH": ALL}
    told = [r for r in caplog.records if "multi-dispatch is off" in r.getMessage()]
    assert len(told) == 1
    assert (told[0].levelno, ALL in told[0].getMessage()) == (logging.WARNING, True)


# -- what is kept and rebuilt


@pytest.mark.parametrize("config", [OFF, ON])
def test_queues_are_kept_and_rebuilt_whatever_the_settings_say(files, config, caplog):
    with opened(files) as store:
        fill(store, 0, 150)
    before = units(files)
    assert len([key for key in before if key[0] == ALL]) == 8
    lite, last = f"/s/consumequeue/{LITE}", f"/s/consumequeue/{ALL}/0/{400 * 7:020d}"
    for lost in ("", "tailrace", "consumequeue", lite, last, "checkpoint",
                 f"/s/consumequeue/{ALL}/0/{400 * 3:020d}"):
        if lost:
            remove(files, lost if lost.startswith("/") else f"/s/{lost}")
        caplog.clear()
        with opened(files, config) as store:
            check(store, 150)
            assert not any(name.startswith("%LMQ%") for name in store.topics.table)
        assert units(files) == before, lost
        told = [r.getMessage() for r in caplog.records if "LMQ queues are kept" in r.getMessage()]
        assert told == ([] if config is ON else [
            "LMQ queues are kept and get no new messages lmq_queues=3 setting=enableLmq,enableMultiDispatch"])


def test_a_directory_of_another_broker_is_walked_from_its_start(files):
    """No sum over units tells whether the tail of an LMQ queue is missing."""
    with opened(files) as store:
        fill(store, 0, 400)
    before = units(files)
    remove(files, "/s/tailrace")
    remove(files, f"/s/consumequeue/{EVEN}/0/{400 * 9:020d}")
    with opened(files, OFF) as store:
        assert store.recovery_report["from"] == 0
        assert "only the log says which units LMQ queues must have" in store.recovery_report["why"]
        check(store, 400)
    assert units(files) == before
    with opened(files, OFF) as store:
        assert store.recovery_report["why"] == "own progress"


def test_zeroed_units_are_seen_after_a_kill_with_own_progress(files):
    with opened(files) as store:
        fill(store, 0, 400)
    before = units(files)
    file = files.open(f"/s/consumequeue/{EVEN}/0/{400 * 9:020d}", writable=True)
    file.pwrite(bytes(40), 100)
    file.sync_data()
    file.close()
    files.open("/s/abort", writable=True, create=True).close()
    with opened(files, OFF) as store:
        check(store, 400)
    assert units(files) == before


def test_offsets_go_on_after_recovery(files):
    for round_ in range(4):
        with opened(files) as store:
            fill(store, 40 * round_, 40)
            check(store, 40 * (round_ + 1))
        if round_ == 1:
            remove(files, "/s/consumequeue")
        if round_ == 2:
            remove(files, "/s/tailrace")
            files.open("/s/abort", writable=True, create=True).close()


def test_a_deleted_lmq_queue_begins_again_and_the_topic_stays(files):
    with opened(files) as store:
        fill(store, 0, 30)
        store.wait_dispatched()
        store.delete_topics({EVEN})
        put(store, EVEN, body=b"99")
        assert bodies(store, EVEN) == [99]
        assert bodies(store, ALL) == [*range(30)]
        store.delete_topics({"t0"})
        assert bodies(store, ALL) == [*range(30)]
        assert store.deletion.delete_unused().topics == ["t", "t1"]
        assert bodies(store, ALL) == [*range(30)]
    with opened(files) as store:
        assert bodies(store, ALL) == [*range(30)]
        assert bodies(store, EVEN) == [99]


def test_time_and_offsets_of_lmq_queues(files):
    clock = SimClock()
    with opened(files, clock=clock) as store:
        times = []
        for n in range(10):
            times.append(clock.now_ms())
            put(store, EVEN if n % 2 == 0 else ALL, body=b"%d" % n)
            clock.advance(1000)
        store.wait_dispatched()
        assert store.get_offset_in_queue_by_time(EVEN, 0, times[3]) == 2
        assert store.get_offset_in_queue_by_time(EVEN, 0, times[5], BoundaryType.UPPER) == 2
        assert store.get_message_store_timestamp(ALL, 0, 1) == times[3]


def test_verification_knows_the_units(files):
    with opened(files) as store:
        fill(store, 0, 100)
    directory = StoreDirectory("/s", config=OFF, file_system=files, raw=True)
    verification = Verification(directory)
    assert list(verification.findings()) == []
    assert verification.units == 100 + 100 + 50 + 15
    file = files.open(f"/s/consumequeue/{ALL}/0/{0:020d}", writable=True)
    file.pwrite(CQ_UNIT.pack(0, 99, 0) + CQ_UNIT.pack(0, 0, 0), 20)
    file.close()
    directory = StoreDirectory("/s", config=OFF, file_system=files, raw=True)
    found = list(Verification(directory).findings())
    assert {finding.kind for finding in found} == {"missing-unit", "wrong-unit"}
    assert {finding.file for finding in found} == {f"/s/consumequeue/{ALL}/0"}


def test_readers_of_a_directory_see_them(files):
    with opened(files) as store:
        fill(store, 0, 100)
    remove(files, f"/s/consumequeue/{ALL}")
    files.open("/s/abort", writable=True, create=True).close()
    directory = StoreDirectory("/s", config=OFF, file_system=files)
    (queue,) = [queue for queue in directory.queues() if queue.topic == ALL]
    assert [decode_message(data).body for _, _, data in directory.records(queue)] == [
        b"%d" % n for n in range(100)]


def test_retention_deletes_units_of_deleted_messages(files):
    with opened(files) as store:
        fill(store, 0, 200)
        store.wait_dispatched()
        log = store.inner.commit_log.queue
        for _ in range(2):
            log.delete_head(log.files[0])
        low = log.min_offset
        assert low > 0
        queue = store.inner.queues.get(ALL, 0)
        while queue.delete_expired_file(low):
            pass
        assert queue.first_offset > 0
        first = store.min_offset_in_queue(ALL, 0)
        queue.correct_min_offset(low)
        first = queue.min_offset
        assert bodies(store, ALL) == [*range(first, 200)]
        before = {key: data for key, data in units(files).items() if key[0] == ALL}
    remove(files, "/s/consumequeue")
    with opened(files, OFF) as store:
        assert store.min_offset_in_queue(ALL, 0) == first
        assert bodies(store, ALL) == [*range(first, 200)]
    after = {key: data for key, data in units(files).items() if key[0] == ALL}
    assert {k: after[k] for k in [*after][1:]} == {k: before[k] for k in [*after][1:]}


# -- rows


def rows_of(properties, topic=b"t"):
    head = bytearray(91 - 3) + bytes([len(topic)]) + topic + len(properties).to_bytes(2, "big") + properties
    head[0:4] = len(head).to_bytes(4, "big")
    head[4:8] = bytes.fromhex("daa320a7")
    rows = np.empty((1, C.COLUMNS), dtype=np.int64)
    count, _, reason = record.scan(head, 0, len(head), 0, 0, rows)
    assert (count, reason) == (1, C.REASON_END)
    found = rows_with_lmq(bytes(head), rows)
    return [
        (bytes(head[at : at + length]).decode(), offset)
        for at, length, offset in found[1:, [
            C.TOPIC_POS, C.TOPIC_LEN, C.QUEUE_OFFSET]].tolist()]


@pytest.mark.parametrize(("names", "offsets", "found"), [
    ("%LMQ%a", "0", [("%LMQ%a", 0)]),
    ("%LMQ%a,%LMQ%b", "3,4", [("%LMQ%a", 3), ("%LMQ%b", 4)]),
    ("%LMQ%a,", "3,", [("%LMQ%a", 3)]),
    ("%LMQ%a,%LMQ%b", "3", []),
    ("%LMQ%a", "3,4", []),
    ("%LMQ%a,b,%LMQ%c/d,%LMQ%e", "1,2,3,4", [("%LMQ%a", 1), ("%LMQ%e", 4)]),
    ("%LMQ%a,%LMQ%b", ",4", [("%LMQ%b", 4)]),
    ("%LMQ%a", "-1", []),
    ("%LMQ%a", "1x", []),
    ("%LMQ%a", "9" * 30, []),
    ("%LMQ%", "7", [("%LMQ%", 7)]),
    (",", ",", []),
])
def test_lists_are_read_as_the_reference_reads_them(names, offsets, found):
    pair = stored(names, INNER_MULTI_QUEUE_OFFSET=offsets)
    assert rows_of(pair) == found
    assert rows_of(b"INNER_MULTI_QUEUE_OFFSET\x01%b\x02%b" % (offsets.encode(), stored(names))) == found
    assert rows_of(pair + b"INNER_MULTI_DISPATCHE\x01%LMQ%z\x02") == found
    assert rows_of(pair, b"%RETRY%g") == rows_of(pair, b"%DLQ%g") == rows_of(pair, b"rmq_sys_x") == []
    assert rows_of(pair, b"SCHEDULE_TOPIC_XXXX") == []
    assert rows_of(pair, b"SCHEDULE_TOPIC_XXXXX") == rows_of(pair, b"RMQ_SYS_x") == found


def test_the_topics_are_those_that_the_kernel_leaves_out():
    for topic in ("%RETRY%g", "%DLQ%g", "rmq_sys_x", "SCHEDULE_TOPIC_XXXX"):
        assert not topic_allows_lmq(topic)
    for topic in ("SCHEDULE_TOPIC_XXXXX", "RMQ_SYS_x", "t", "%RETRY", "%LMQ%a"):
        assert topic_allows_lmq(topic)
    assert lmq_names(b"") == []


def test_rows_without_lmq_units_are_handed_through():
    rows = np.zeros((3, C.COLUMNS), dtype=np.int64)
    assert rows_with_lmq(b"", rows) is rows


def test_a_message_that_does_not_get_into_the_log_takes_no_offset(files):
    """Neither one that needs the next file, nor one without room for that file; RocketMQ 5.5.0 left a hole."""
    full = False
    disk = FaultyFileSystem(files, lambda _n, name, path: errno.ENOSPC if full and "commitlog" in path else 0)
    store = opened(disk)
    expected, refused = 0, 0
    for number in range(60):
        full = number % 3 == 2
        result = store.put_inner(inner(ALL, body=bytes(1500)))
        if result.status is not PutMessageStatus.PUT_OK:
            refused += 1
            continue
        properties = decode_message(bytes(store.select_record(result.phy_offset) or b"")).properties
        assert properties["INNER_MULTI_QUEUE_OFFSET"] == str(expected)
        expected += 1
    full = False
    assert refused > 3
    assert len(files.list("/s/commitlog")) > 5
    store.wait_dispatched()
    assert store.max_offset_in_queue(ALL, 0) == expected
    assert [m.queue_offset for m in store.read("t", 0)] == [*range(expected)]
    store.close()
