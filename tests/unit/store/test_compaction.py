"""Topics with compaction: what is served, what a compaction keeps, and what an open finds."""

from __future__ import annotations

import dataclasses
import errno
import itertools
import json

import pytest

from tailrace import Message, MessageStore, StoreConfig
from tailrace.doctor.backup import back_up
from tailrace.doctor.verify import verify
from tailrace.env.whole_files import read_file, write_file
from tailrace.errors import ConfigError, MessageIllegalError, StoreError
from tailrace.formats.commitlog import tags_code
from tailrace.formats.consumequeue import BATCH_CQ_UNIT
from tailrace.model import GetMessageStatus
from tailrace.node.store_opening import StoreParts
from tailrace.store.compaction.file_pair import Sizes
from tailrace.store.compaction.replacement import RULES
from tailrace.testing import CrashFileSystem, SimClock

UNIT = BATCH_CQ_UNIT.size
CONFIG = StoreConfig(
    mapped_file_size_commit_log=1 << 13, mapped_file_size_consume_queue=400, max_hash_slot_num=50, max_index_num=400,
    compaction_cq_mapped_file_size=UNIT * 7, compaction_mapped_file_size=2000, max_message_size=800,
    timer_wheel_enable=False)


def opened(files, config=CONFIG, clock=None) -> MessageStore:
    store = MessageStore.open(
        "/s", config=config, parts=StoreParts(services=False, file_system=files, clock=clock or SimClock()))
    if store.topics.select("C") is None:
        store.create_topic("C", 2, {"cleanup.policy": "COMPACTION"})
    return store


def put(store, number, key, body=None, **more):
    body = b"%d" % number if body is None else body
    return store.put(Message(topic="C", body=body, keys=[key], **more))


def fill(store, count=60, keys=5, start=0):
    for number in range(start, start + count):
        put(store, number, f"k{number % keys}", tags=f"t{number % 3}")


def flush(store):
    store.wait_dispatched()
    store.inner.flush()


def compact(store):
    flush(store)
    store.inner.compaction.step()


def seen(store, queue_id=0):
    return [(m.queue_offset, m.keys[0], m.body) for m in store.read("C", queue_id) if m.keys]


def last_of_each(found):
    return {key: body for _, key, body in found}


def names(files, *, queue="C/0"):
    return [f"{kind}/{name}" for kind in ("compactionLog", "compactionCq")
            for name in files.list(f"/s/compaction/{kind}/{queue}")]


@pytest.fixture
def files():
    return CrashFileSystem()


def test_a_pull_shows_everything_before_and_the_last_of_each_key_after(files):
    with opened(files) as store:
        fill(store)
        store.wait_dispatched()
        assert [offset for offset, _, _ in seen(store)] == list(range(60)), "from the CommitLog"
        flush(store)
        everything = seen(store)
        assert [offset for offset, _, _ in everything] == list(range(60)), "from the compaction log"
        compact(store)
        after = seen(store)
        assert len(after) < 20
        assert last_of_each(after) == last_of_each(everything)
        assert set(after) <= set(everything)
        assert [offset for offset, _, _ in after] == sorted(offset for offset, _, _ in after)
        fill(store, 3, start=60)
        store.wait_dispatched()
        assert seen(store)[-3:] == [(60, "k0", b"60"), (61, "k1", b"61"), (62, "k2", b"62")]
        assert store.inner.compaction.stats()["compactionDropped"] > 40
    with opened(files) as store:
        assert seen(store)[:-3] == after


def test_a_message_without_a_body_removes_its_key(files):
    with opened(files) as store:
        put(store, 0, "gone")
        put(store, 1, "gone", b"")
        fill(store, 40)
        compact(store)
        assert "gone" not in last_of_each(seen(store))


def test_a_message_without_keys_is_refused(files):
    with opened(files) as store:
        for keys in ([], [" "]):
            with pytest.raises(MessageIllegalError, match="Required message key is missing"):
                store.put(Message(topic="C", body=b"x", keys=keys))
            with pytest.raises(MessageIllegalError, match="Required message key is missing"):
                store.put_many([Message(topic="C", body=b"x", keys=["a"]), Message(topic="C", body=b"x", keys=keys)])
        with pytest.raises(MessageIllegalError, match="use put or put_many"):
            store.put_table({"body": [b"x"]}, topic="C")
        assert store.put_many([Message(topic="C", body=b"x", keys=["a"])])[0].queue_offset == 0


def test_what_does_not_fit_is_refused_by_name(files):
    with opened(files) as store:
        with pytest.raises(ConfigError, match=r"unchangeable attribute. key: cleanup\.policy"):
            store.create_topic("C", 2, {"cleanup.policy": "DELETE"})
        for other in ("retention.ms", "retention.bytes", "reserve.time"):
            with pytest.raises(ConfigError, match="exclude each other"):
                store.create_topic("D", 2, {"cleanup.policy": "COMPACTION", other: "100000"})
        with pytest.raises(ConfigError, match="exclude each other"):
            store.create_topic("D", 2, {"cleanup.policy": "COMPACTION", "queue.type": "BatchCQ"})
        with pytest.raises(StoreError, match="cannot be purged"):
            store.purge_topic("C")
        with pytest.raises(StoreError, match="to_arrow does not read"):
            store.to_arrow("C", 0)


def test_reads_outside_the_queue_and_with_a_filter(files):
    with opened(files) as store:
        assert store.get_message("C", 0, 0, 32).status is GetMessageStatus.NO_MESSAGE_IN_QUEUE
        fill(store)
        compact(store)
        first = seen(store)[0][0]
        assert first > 0, "or the test shows nothing"
        found = store.get_message("C", 0, 0, 3)
        assert (found.status, found.queue_offsets[0], found.min_offset, found.max_offset) == (
            GetMessageStatus.FOUND, first, first, 60)
        assert len(found.records) == 3
        assert store.get_message("C", 0, 60, 32).status is GetMessageStatus.OFFSET_OVERFLOW_ONE
        over = store.get_message("C", 0, 70, 32)
        assert (over.status, over.next_begin_offset) == (GetMessageStatus.OFFSET_OVERFLOW_BADLY, 60)
        at, chosen = 0, []
        while at < 60:
            result = store.get_message("C", 0, at, 32, codes=[tags_code("t1")])
            chosen += result.queue_offsets
            assert result.next_begin_offset > at
            at = result.next_begin_offset
        assert chosen == [offset for offset, _, _ in seen(store) if offset % 3 == 1]


def test_the_key_map_may_be_smaller_than_the_keys(files):
    config = dataclasses.replace(CONFIG, max_offset_map_size=1024)
    with opened(files, config) as store:
        fill(store, 500, keys=220)
        everything = seen(store)
        compact(store)
        assert store.inner.compaction.stats()["compactionPasses"] > 2
        after = seen(store)
        assert last_of_each(after) == last_of_each(everything)
        assert len(after) < 260


def test_messages_only_in_the_compaction_log_outlive_the_commit_log(files):
    with opened(files) as store:
        put(store, 0, "old")
        fill(store, 300)
        flush(store)
        while store.min_phy_offset < 3 * (1 << 13):
            log = store.inner.commit_log.queue
            log.delete_head(log.files[0])
        for queue in store.inner.queues.table.values():
            queue.correct_min_offset(store.min_phy_offset)
        assert store.inner.queues.table["C", 0].min_offset > 0, "or the test shows nothing"
        assert store.queue_of("C", 0).min == 0
        assert last_of_each(seen(store))["old"] == b"0"
        assert store.queue_of("C", 0).by_time(0) == 0
    with opened(files) as store:
        assert last_of_each(seen(store))["old"] == b"0"


def test_retention_keeps_what_is_not_copied(files):
    with opened(files) as store:
        fill(store, 100)
        store.wait_dispatched()
        store.inner.compaction._copy = lambda *_: False
        store.inner.flush()
        until = store.retention._dispatched_until(store.max_phy_offset)
        assert until <= 0
        del store.inner.compaction._copy
        store.inner.flush()
        assert store.retention._dispatched_until(store.max_phy_offset) == store.max_phy_offset


def test_deleting_the_topic_removes_its_files(files):
    with opened(files) as store:
        fill(store)
        compact(store)
        assert names(files)
        store.delete_topics({"C"})
        assert not names(files)
        assert json.loads(read_file(files, "/s/compaction/position-checkpoint")) == {"queueOffsetMap": {}}
        store.create_topic("C", 2, {"cleanup.policy": "COMPACTION"})
        put(store, 0, "new")
        compact(store)
        assert seen(store) == [(store.queue_of("C", 0).begin_of_life, "new", b"0")] != [(0, "new", b"0")]


def test_a_lost_consume_queue_continues_after_the_compaction_log(files):
    with opened(files) as store:
        fill(store, 300)
        compact(store)
        before = last_of_each(seen(store))
    for name in files.list("/s/consumequeue/C/0"):
        files.remove(f"/s/consumequeue/C/0/{name}")
    for name in files.list("/s/commitlog")[:-1]:
        files.remove(f"/s/commitlog/{name}")
    with opened(files) as store:
        assert last_of_each(seen(store)) == before
        assert put(store, 300, "k0").queue_offset == 300
    with opened(files) as store:
        assert last_of_each(seen(store)) == {**before, "k0": b"300"}


LOG, QUEUE = "/s/compaction/compactionLog/C/0", "/s/compaction/compactionCq/C/0"


def not_compacted(files, count=60, keys=5):
    with opened(files) as store:
        fill(store, count, keys)
        flush(store)
        return seen(store)


def java_replaces(files, *, moved, removed):
    """What a Java broker leaves that is killed while it replaces files: the first ``moved`` of two new ones have
    their names, the first ``removed`` old ones are gone. Returns the messages of the new set."""
    old = files.list(LOG)[:-1]
    with opened(files.killed()) as copy:
        compact(copy)
        new_files = copy.file_system
        new_seen = seen(copy)
        new = [name for name in new_files.list(LOG) if name in old]
        contents = {directory: {name: read_file(new_files, f"{directory}/{name}") for name in new}
                    for directory in (LOG, QUEUE)}
    assert len(new) > 1, "or a part cannot be moved"
    for directory in (LOG, QUEUE):
        files.makedirs(f"{directory}/compacting")
        for name, data in contents[directory].items():
            write_file(files, f"{directory}/compacting/{name}", data)
    for name in old:
        files.rename(f"{LOG}/{name}", f"{LOG}/{name}.delete")
    for name in new[:len(new) if moved is None else moved]:
        files.rename(f"{LOG}/compacting/{name}", f"{LOG}/{name}")
    for name in old[:removed]:
        files.remove(f"{LOG}/{name}.delete")
    return new_seen


@pytest.mark.parametrize(("moved", "removed"), [(0, 0), (1, 0), (None, 0), (None, 2)])
def test_a_java_broker_that_was_killed_while_it_replaced_files(files, moved, removed):
    before = not_compacted(files, keys=17)
    after = java_replaces(files, moved=moved, removed=removed)
    wanted = after if moved is None else before
    for _ in range(2):
        with opened(files) as store:
            assert seen(store) == wanted
        assert not [name for name in files.list(LOG) if not name.isdigit()]
        assert files.list(LOG) == files.list(QUEUE)


def test_a_compaction_that_was_not_complete_is_dropped(files):
    before = not_compacted(files)
    for directory in (LOG, QUEUE):
        files.makedirs(f"{directory}/compacting")
        write_file(files, f"{directory}/compacting/{0:020d}", b"old" * 500)
    with opened(files) as store:
        assert seen(store) == before
    assert "compacting" not in files.list(LOG) + files.list(QUEUE)


def test_every_state_of_a_replacement_has_one_rule():
    assert set(RULES) == set(itertools.product((False, True), repeat=3))


def test_units_are_built_again_from_the_records(files):
    before = not_compacted(files)
    names_before = files.list(QUEUE)
    units = {name: read_file(files, f"{QUEUE}/{name}") for name in names_before}
    for name, how in zip(names_before, ("gone", "zero", "torn", "other"), strict=False):
        path = f"{QUEUE}/{name}"
        if how == "gone":
            files.remove(path)
        elif how == "other":
            write_file(files, path, units[names_before[0]])
        else:
            write_file(files, path, bytes(UNIT * 7) if how == "zero" else units[name][:100], UNIT * 7)
    with opened(files) as store:
        assert seen(store) == before
    assert files.list(QUEUE) == names_before
    for name in names_before:
        count = read_file(files, f"{QUEUE}/{name}").count(b"\xff\xff\xff\xff\0\0\0\0") or 1
        assert read_file(files, f"{QUEUE}/{name}")[:UNIT * (count - 1)] == units[name][:UNIT * (count - 1)]


@pytest.mark.parametrize("text", [
    None, b"", b"{}", b'{"queueOffsetMap":{"C_0":"x"}}', b'{"queueOffsetMap":{"C_0":99}}'])
def test_positions_are_a_hint(files, text):
    with opened(files) as store:
        fill(store)
        compact(store)
    files.remove("/s/compaction/position-checkpoint")
    if text is not None:
        write_file(files, "/s/compaction/position-checkpoint", text)
    with opened(files) as store:
        fill(store, 60, start=60)
        everything = last_of_each(seen(store))
        compact(store)
        assert last_of_each(seen(store)) == everything
        assert len(seen(store)) < 40


HEAD = {"size": 0, "magic": 4, "queue offset": 20, "position": 28}
DAMAGE = [*HEAD, "body", "name of keys", "all bytes"]


def units_of(files, name):
    """The units of a file of queue 0."""
    data = read_file(files, f"{QUEUE}/{name}")
    found = (BATCH_CQ_UNIT.unpack_from(data, at) for at in range(0, len(data), UNIT))
    return list(itertools.takewhile(lambda unit: unit.size > 0 and unit.msg_base_offset < 1 << 32, found))


def damage(files, name, unit, where):
    """Damage the record of a unit; return the damaged bytes."""
    data = bytearray(read_file(files, f"{LOG}/{name}"))
    low = unit.phy_offset - int(name)
    high = low + unit.size
    if where == "all bytes":
        data[low:high] = bytes(unit.size - 1) + b"x"
    else:
        at = data.index(b"\x01C", low) - 1 if where == "body" else (
            data.index(b"KEYS\x01", low) if where == "name of keys" else low + HEAD[where] + 3)
        assert at < high
        data[at] ^= 1
    write_file(files, f"{LOG}/{name}", bytes(data), len(data))
    return bytes(data[low:high])


def lines_about(caplog, text):
    return [line.getMessage() for line in caplog.records if text in line.getMessage()]


@pytest.mark.parametrize("where", DAMAGE)
@pytest.mark.parametrize("which", [1, 0, -1], ids=["middle", "first", "last"])
@pytest.mark.parametrize("reopened", [False, True])
def test_a_compaction_leaves_a_damaged_message_out_and_no_other(files, caplog, where, which, reopened):
    with opened(files) as store:
        fill(store)
        flush(store)
        before = seen(store)
        name = files.list(LOG)[1]
        unit = units_of(files, name)[which]
        damaged = damage(files, name, unit, where)
        good = [one for one in before if one[0] != unit.msg_base_offset]
        if not reopened:
            assert seen(store) == seen(store) == good
            compact(store)
            check_compacted(files, store, good, unit, damaged, where, caplog)
    if reopened:
        with opened(files) as store:
            assert seen(store) == good, "an open loses no other message"
            compact(store)
            check_compacted(files, store, good, unit, damaged, where, caplog)
    with opened(files) as store:
        assert last_of_each(seen(store)) == last_of_each(good)


def check_compacted(files, store, good, unit, damaged, where, caplog):
    after = seen(store)
    assert last_of_each(after) == last_of_each(good)
    assert set(after) <= set(good)
    assert len(after) < 20, "the rest is compacted"
    stats, offset = store.inner.compaction.stats(), unit.msg_base_offset
    assert (stats["compactionPasses"], stats["compactionFailures"]) == (1, 0)
    if where == "name of keys":  # no checksum covers properties: it is a message without keys
        return
    assert offset not in [one.msg_base_offset for name in files.list(QUEUE) for one in units_of(files, name)]
    assert stats["compactionDamaged"] == 1
    lines = lines_about(caplog, "is damaged, it is not served")
    assert len(lines) == 1
    assert f"phy_offset={unit.phy_offset} " in lines[0]
    assert f"{LOG}/" in lines[0]
    assert lines[0].endswith(f"queue_offset={offset}")
    copies = [read_file(files, f"/s/tailrace/quarantine/{name}")
              for name in files.list("/s/tailrace/quarantine") if name.endswith(".bin")]
    assert any(copy.startswith(damaged.rstrip(b"\0")) for copy in copies)


@pytest.mark.parametrize("reopened", [False, True])
def test_a_file_without_a_good_message_is_left_out(files, reopened):
    with opened(files) as store:
        fill(store)
        flush(store)
        before = seen(store)
        name = files.list(LOG)[1]
        units = units_of(files, name)
        write_file(files, f"{LOG}/{name}", b"\xee" * len(read_file(files, f"{LOG}/{name}")))
        gone = {unit.msg_base_offset for unit in units}
        good = [one for one in before if one[0] not in gone]
        assert seen(store) == good
        if not reopened:
            compact(store)
            assert last_of_each(seen(store)) == last_of_each(good)
            assert store.inner.compaction.stats()["compactionDamaged"] == len(units)
            assert len(files.list("/s/tailrace/quarantine")) == 2, "one copy, and the manifest"
    with opened(files) as store:
        compact(store)
        assert last_of_each(seen(store)) == last_of_each(good)
        assert len(seen(store)) < 20


def test_an_earlier_value_stays_if_the_last_one_is_damaged(files):
    with opened(files) as store:
        put(store, 0, "once")
        put(store, 1, "once")
        fill(store, 60)
        flush(store)
        name = files.list(LOG)[0]
        damage(files, name, units_of(files, name)[1], "body")
        compact(store)
        assert last_of_each(seen(store))["once"] == b"0"


def test_a_damaged_message_is_kept_in_the_file_if_its_copy_fails(files, caplog):
    with opened(files) as store:
        fill(store)
        flush(store)
        before = seen(store)
        name = files.list(LOG)[1]
        unit = units_of(files, name)[1]
        damaged = damage(files, name, unit, "body")

        def full(_number, operation, path):
            if operation == "create" and "quarantine" in path:
                raise OSError(errno.ENOSPC, "no space", path)
        files.before = full
        compact(store)
        files.before = None
        assert "a queue cannot be compacted" in caplog.text
        assert damaged in read_file(files, f"{LOG}/{name}")
        assert len(seen(store)) == len(before) - 1
        compact(store)
        assert len(seen(store)) < 20


@pytest.mark.parametrize("has_commit_log", [True, False])
def test_the_last_file_with_damage_is_copied_again_if_it_can_be(files, has_commit_log):
    with opened(files) as store:
        fill(store, 64)
        flush(store)
        before = seen(store)
        name = files.list(LOG)[-1]
        units = units_of(files, name)
        assert len(units) > 2
    damage(files, name, units[1], "body")
    files.remove(f"{QUEUE}/{name}")
    if not has_commit_log:
        for directory in ("/s/consumequeue/C/0", "/s/commitlog"):
            for one in files.list(directory):
                files.remove(f"{directory}/{one}")
    with opened(files) as store:
        flush(store)
        missing = set() if has_commit_log else {units[1].msg_base_offset}
        assert seen(store) == [one for one in before if one[0] not in missing]


def test_without_compaction_the_topic_is_served_as_others(files):
    not_compacted(files)
    with opened(files, dataclasses.replace(CONFIG, enable_compaction=False)) as store:
        assert len(seen(store)) == 60
        assert store.inner.compaction.stats()["compactionQueues"] == 0


def test_a_full_disk_stops_the_compaction_and_nothing_else(files, caplog):
    before = not_compacted(files)
    with opened(files) as store:
        def full(_number, name, path):
            if name in {"create", "truncate"} and "compacting" in path:
                raise OSError(errno.ENOSPC, "no space", path)
        files.before = full
        compact(store)
        assert "a queue cannot be compacted" in caplog.text
        assert seen(store) == before
        files.before = None
        compact(store)
        assert last_of_each(seen(store)) == last_of_each(before)
        assert len(seen(store)) < 20


def test_the_files_have_the_lengths_that_a_java_broker_computes():
    for log, queue, wanted in (
        (100 << 20, 10 << 20, (10485746 * 10, 10485746)), (9200, 46 * 30, (46 * 30 * 7, 46 * 30)),
        (1000, 460, (2300, 460)), (46 * 53, 460, (460 * 5, 460)),
    ):
        sizes = Sizes.of_settings(log, queue)
        assert (sizes.log, sizes.queue) == wanted


def test_verify_finds_damage_in_a_compaction_log(files):
    not_compacted(files)

    def kinds():
        found = [line["finding"]["kind"] for line in verify("/s", CONFIG, files) if "finding" in line]
        return sorted(set(found))

    assert kinds() == []
    name = files.list(LOG)[0]
    records, units = read_file(files, f"{LOG}/{name}"), read_file(files, f"{QUEUE}/{name}")
    damaged = bytearray(records)
    damaged[records.index(b"\x01C", BATCH_CQ_UNIT.unpack_from(units, UNIT).phy_offset) - 1] ^= 1  # the body
    write_file(files, f"{LOG}/{name}", bytes(damaged), len(damaged))
    assert kinds() == ["compaction-record"]
    write_file(files, f"{LOG}/{name}", records, len(records))
    write_file(files, f"{QUEUE}/{name}", bytes(len(units)), len(units))
    assert kinds() == ["compaction-units"]
    write_file(files, f"{QUEUE}/{name}", units, len(units))
    files.rename(f"{LOG}/{name}", f"{LOG}/{name}.delete")
    assert kinds() == ["compaction-interrupted"]


def test_offsets_by_time_reach_messages_that_only_the_compaction_log_has(files):
    clock = SimClock()
    with opened(files, clock=clock) as store:
        put(store, 0, "old")
        first = clock.now_ms()
        clock.advance(1000)
        fill(store, 300)
        flush(store)
        while store.min_phy_offset < 1 << 14:
            log = store.inner.commit_log.queue
            log.delete_head(log.files[0])
        for queue in store.inner.queues.table.values():
            queue.correct_min_offset(store.min_phy_offset)
        assert store.inner.queues.table["C", 0].min_offset > 1
        assert store.queue_of("C", 0).by_time(first) == 0
        assert store.queue_of("C", 0).by_time(first + 1) == 1


def test_only_durable_messages_are_copied(files):
    with opened(files) as store:
        fill(store, 10)
        store.wait_dispatched()
        compaction = store.inner.compaction
        assert store.flushed_where < store.max_phy_offset, "or the test shows nothing"
        assert not compaction.flush(False)
        assert compaction.stats()["compactionCopied"] == 0
        assert compaction.flush(True)
        assert compaction.stats()["compactionCopied"] == 10
        assert store.flushed_where == store.max_phy_offset


def test_a_compaction_may_leave_nothing(files):
    with opened(files) as store:
        for number in range(12):
            put(store, number, f"k{number % 6}", b"" if number > 5 else None)
        flush(store)
        fill(store, 1, start=12)
        compact(store)
        last = store.inner.compaction.logs["C", 0]._pairs
        assert len(last) == 1, "the other files are gone"
    with opened(files) as store:
        assert [body for _, _, body in seen(store)][-1] == b"12"


def test_a_backup_is_refused_if_it_would_lose_messages(files):
    with opened(files) as store:
        put(store, 0, "old")
        fill(store, 300)
        flush(store)
    back_up("/s", "/good", config=CONFIG, file_system=files)
    for directory in (LOG, QUEUE):  # what a restore has not
        for name in files.list(directory):
            files.remove(f"{directory}/{name}")
    with opened(files) as store:
        flush(store)
        assert store.inner.compaction.stats()["compactionCopied"] == 301
        assert len(seen(store)) == 301
        while store.min_phy_offset < 1 << 14:
            log = store.inner.commit_log.queue
            log.delete_head(log.files[0])
    with pytest.raises(StoreError, match=r"queue 0 of C .* has messages that the CommitLog does not have"):
        back_up("/s", "/bad", config=CONFIG, file_system=files)
