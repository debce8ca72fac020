"""The comparison of two logs through the requests of a broker, and the cut of what only the slave has."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from contextlib import closing
from functools import partial
from types import SimpleNamespace

import pytest

from tailrace import Message, MessageStore, StoreConfig
from tailrace.config import BrokerRole
from tailrace.env.entropy import SeededEntropy
from tailrace.errors import RemotingCommandError, RemotingConnectError, ReplicationError, StoreError
from tailrace.formats.names import DELAY, HALF_TOPIC, TRANSACTION_GROUP
from tailrace.formats.pop import REVIVE_GROUP, revive_topic
from tailrace.formats.remoting import RemotingCommand, RequestCode
from tailrace.ha.slave_comparison import MasterLog, SlaveComparison
from tailrace.ha.slave_repair import follow_master
from tailrace.node import timers
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.store_opening import StoreParts
from tailrace.remoting.client import RemotingClient
from tailrace.store.lives import Ended
from tailrace.store.retention.min_offsets import encode_ended
from tailrace.store.sealing import placeholder
from tailrace.store.walk.log_walk import Damage
from tailrace.testing import CrashFileSystem, SimClock, SimScheduler, SimulatedCrash
from tailrace.timer.timer_message_store import TimerMessageStore

SEGMENT = 8192
SIZES = {
    "mapped_file_size_commit_log": SEGMENT, "mapped_file_size_consume_queue": 400, "max_hash_slot_num": 16,
    "max_index_num": 64, "commit_log_allocate_step": 4096}
TIMERS = {"mapped_file_size_timer_log": 52 * 40, "timer_max_delay_sec": 400}
NAMES = "DefaultCluster", "broker-a"


def opened(files, **more):
    return MessageStore.open("/s", config=StoreConfig(**SIZES, **more), parts=StoreParts(
        services=False, file_system=files, clock=SimClock(), entropy=SeededEntropy(1)))


def slave_of(files):
    return opened(files, broker_role=BrokerRole.SLAVE)


def made(bodies):
    """The bytes of the log of a master, and the positions of its records."""
    with opened(CrashFileSystem()) as store:
        places = [store.put(Message(topic="T", body=body)).phy_offset for body in bodies]
        data = b"".join(file.read(0, file.wrote_position) for file in store.inner.commit_log.queue.files)
    return data, places


class Master:
    """Answers as the broker of a log."""

    def __init__(self, log, places, low=0, **settings):
        self.log, self.places, self.low = log, places, low
        self.settings = {"mappedFileSizeCommitLog": SEGMENT, "brokerClusterName": NAMES[0], "brokerName": NAMES[1]}
        self.settings.update(settings)
        self.asked = 0
        self.busy = False
        self.gaps, self.stepped_over = [], []
        self.ended = None
        """Deletions, as a master of Tailrace has them."""

    ask = RemotingClient.ask

    async def invoke(self, address, code, ext, *_, **__):
        self.asked += 1
        if code is RequestCode.GET_BROKER_CONFIG:
            return RemotingCommand(code=0, body="".join(f"{k}={v}\n" for k, v in self.settings.items()).encode())
        if code is RequestCode.GET_BROKER_RUNTIME_INFO:
            return RemotingCommand(code=0, body=json.dumps({"table": {
                "commitLogMinOffset": str(self.low), "commitLogMaxOffset": str(len(self.log))}}).encode())
        if code is RequestCode.GET_BROKER_HA_STATUS:
            return RemotingCommand(code=0, body=json.dumps(
                {"gapOffsets": self.gaps, "steppedOver": self.stepped_over}).encode())
        if code is RequestCode.GET_SLAVE_STATE:
            return RemotingCommand(code=3) if self.ended is None else RemotingCommand(
                code=0, body=json.dumps(encode_ended(self.ended)).encode())
        assert code is RequestCode.VIEW_MESSAGE_BY_ID
        assert ext["alsoReleased"] == "true"
        at = int(ext["offset"])
        if self.busy:
            return RemotingCommand(code=1, remark="the record cannot be read: input/output error")
        if at not in self.places:
            return RemotingCommand(code=1, remark=f"can not find message by the offset, {at}")
        return RemotingCommand(code=0, body=self.log[at : at + int.from_bytes(self.log[at : at + 4], "big")])

    async def close(self):
        pass


def bodies(count, seed=b""):
    return [seed + b"%06d" % number + bytes(number * 53 % 700) for number in range(count)]


def filled(files, log):
    with slave_of(files) as store:
        copy(store, log)


def copy(store, log, at=0):
    while at < len(log):
        size = min(1000, len(log) - at, SEGMENT - at % SEGMENT)
        at = store.inner.append_raw(at, memoryview(bytearray(log[at : at + size])))


def begin(files, master):
    with slave_of(files) as store:
        async def run(call):
            return call()

        return asyncio.run(SlaveComparison(store.inner, MasterLog(master, "m:1"), run, *NAMES).begin())


@pytest.fixture(scope="module")
def log():
    return made(bodies(60))


def test_a_slave_with_a_part_of_the_log_begins_where_it_ends(log):
    for cut in (log[1][1], log[1][30], len(log[0])):
        files = CrashFileSystem()
        filled(files, log[0][:cut])
        assert begin(files, Master(*log)) == cut


def test_an_empty_slave_begins_with_the_first_record_or_the_first_file(log):
    assert begin(CrashFileSystem(), Master(*log)) == log[1][1]
    assert begin(CrashFileSystem(), Master(*log, low=SEGMENT)) == SEGMENT
    assert begin(CrashFileSystem(), Master(b"", [])) == 0


@pytest.mark.parametrize(("settings", "kind"), [
    ({"mappedFileSizeCommitLog": 4096}, "file_size"), ({"brokerClusterName": "c"}, "other_cluster"),
    ({"brokerName": "b"}, "other_name")])
def test_a_master_that_does_not_fit_is_refused(log, settings, kind):
    with pytest.raises(ReplicationError) as refused:
        begin(CrashFileSystem(), Master(*log, **settings))
    assert refused.value.kind == kind


def test_a_slave_is_not_followed(log):
    """An old master may be named as the master for a while: its log may differ from that of the new one."""
    demoted = Master(*log, brokerRole="SLAVE")
    for size, follow in ((0, begin), (len(log[0]), begin), (len(log[0]), repaired)):
        files = CrashFileSystem()
        filled(files, log[0][:size])
        with pytest.raises(RemotingConnectError, match="m:1: the broker there is a slave, not a master"):
            follow(files := files.killed(), demoted)
        with slave_of(files) as store:
            assert store.inner.commit_log.max_offset == size


def test_a_log_that_ends_before_the_masters_begins_is_too_old(log):
    files = CrashFileSystem()
    filled(files, log[0][: log[1][3]])
    with pytest.raises(ReplicationError, match=f"deleted everything before {SEGMENT}") as refused:
        begin(files, Master(*log, low=SEGMENT))
    assert refused.value.kind == "too_old"


def test_a_log_that_ends_where_the_masters_begins_is_too_old(log):
    """The master has deleted the record with which the logs would be compared."""
    files = CrashFileSystem()
    filled(files, log[0][:SEGMENT])
    with pytest.raises(ReplicationError, match=f"deleted everything before {SEGMENT}") as refused:
        begin(files, Master(*log, low=SEGMENT))
    assert refused.value.kind == "too_old"
    assert begin(files, Master(*log)) == SEGMENT


def forked(log, place):
    """A master that has lost its records from number ``place`` on, and has got others."""
    other, places = made([*bodies(60)[:place], *bodies(40, b"other")])
    assert other[: log[1][place]] == log[0][: log[1][place]]
    return other, places


@pytest.mark.parametrize("place", [1, 5, 29, 30, 31, 58])
def test_the_first_different_record_is_named_and_cut_off_after_a_copy(log, place):
    files = CrashFileSystem()
    filled(files, log[0])
    other = forked(log, place)
    master = Master(*other)
    with pytest.raises(ReplicationError) as refused:
        begin(files, master)
    assert (refused.value.kind, refused.value.phy_offset) == ("different", log[1][place])
    before = files.open("/s/commitlog/" + "0" * 20).pread(SEGMENT, 0)
    planned = repaired(files, master, plan=True)
    assert files.open("/s/commitlog/" + "0" * 20).pread(SEGMENT, 0) == before
    done = repaired(files, master)
    assert done == planned
    assert done.phy_offset == log[1][place]
    assert done.cut_bytes > 0
    with slave_of(files) as store:
        assert store.inner.stepped_over() == [], "what is cut off is no damage in the middle of the log"
    files = files.killed()
    lines = files.open("/s/tailrace/quarantine/manifest.jsonl")
    assert json.loads(lines.pread(lines.size(), 0).splitlines()[0])["physicalOffset"] == log[1][place]
    assert begin(files, master) == log[1][place]
    with slave_of(files) as store:
        at = store.max_phy_offset
        rest = bytearray(other[0][at : min(len(other[0]), at - at % SEGMENT + SEGMENT)])
        store.inner.append_raw(at, memoryview(rest))


def test_a_log_that_is_longer_is_named_and_cut_off(log):
    files, cut = CrashFileSystem(), log[1][40]
    filled(files, log[0])
    master = Master(log[0][:cut], log[1][:40])
    with pytest.raises(ReplicationError) as refused:
        begin(files, master)
    assert (refused.value.kind, refused.value.phy_offset) == ("longer", cut)
    assert repaired(files, master).phy_offset == cut
    assert begin(files, master) == cut


def test_messages_that_the_master_has_lost_in_a_gap_are_named_although_both_end_with_the_same_record(log):
    files, at = CrashFileSystem(), log[1][40]
    filled(files, log[0])
    master = Master(log[0], [place for place in log[1] if place != at])
    assert begin(files, master) == len(log[0])
    master.gaps = [at]
    with pytest.raises(ReplicationError, match="the master had damage there, and the slave has other bytes") as refused:
        begin(files, master)
    assert (refused.value.kind, refused.value.phy_offset) == ("different", at)
    assert repaired(files, master).phy_offset == at
    assert begin(files, master) == at


def test_messages_that_were_sealed_on_the_master_are_named_although_both_end_with_the_same_record(log):
    data, places = log
    at, until = places[40], places[41]
    file = SimpleNamespace(file_from_offset=at - at % SEGMENT, size=SEGMENT)
    sealed = placeholder(Damage(at, until, "zero", ""), file, 7)
    master = Master(data[:at] + sealed + data[until:], places)
    with_messages, with_seal = CrashFileSystem(), CrashFileSystem()
    filled(with_messages, data)
    filled(with_seal, master.log)
    assert begin(with_messages, master) == len(data), "nothing but the places tells the two logs apart"
    master.stepped_over = [at]
    with pytest.raises(ReplicationError, match="the master had damage there") as refused:
        begin(with_messages, master)
    assert (refused.value.kind, refused.value.phy_offset) == ("different", at)
    assert begin(with_seal, master) == len(data)
    assert repaired(with_messages, master).phy_offset == at


def test_a_master_that_cannot_read_its_record_has_no_other_log(log):
    """Else a slave would stop, and its repair would cut off what its master has."""
    files, master = CrashFileSystem(), Master(*log)
    filled(files, log[0])
    master.busy = True
    with pytest.raises(RemotingCommandError, match="input/output error"):
        begin(files, master)


def test_a_log_without_a_common_record_stays(log):
    files = CrashFileSystem()
    filled(files, log[0])
    with pytest.raises(ReplicationError, match="no record in common"):
        repaired(files, Master(*made(bodies(60, b"x"))))
    with slave_of(files) as store:
        assert store.max_phy_offset == len(log[0])


@pytest.mark.parametrize(("place", "length"), [(60, SEGMENT - 1000), (60, SEGMENT), (3, 1 << 20)])
def test_a_repair_does_not_claim_to_have_helped_where_the_master_has_deleted_what_would_be_compared(log, place, length):
    """The slave would stop again: with a log that ends before the master's begins, or with other records there."""
    files = CrashFileSystem()
    other, places = forked(log, place) if place < 60 else log
    filled(files, log[0][:length])
    master = Master(other, [at for at in places if at >= SEGMENT], low=SEGMENT)
    for plan in (True, False):
        with pytest.raises(ReplicationError, match=r"no record in common; for a new copy .*tailrace replica reset"):
            repaired(files, master, plan=plan)
    with slave_of(files) as store:
        assert store.max_phy_offset > SEGMENT - 2000, "it stays"


def test_after_a_repair_a_power_loss_brings_no_older_hint_of_what_is_synced_back(log):
    """By that hint, bytes that came later and were never synced would be damage, and the slave would not start."""
    files, cut = CrashFileSystem(), log[1][40]
    filled(files, log[0])
    hint = files.open("/s/tailrace/flushed", writable=True, create=True)
    hint.pwrite(json.dumps({"pid": 1, "flushed": len(log[0]), "dispatched": 0}).encode().ljust(96), 0)
    hint.sync_data()
    files.sync_dir("/s/tailrace")
    repaired(files, Master(log[0][:cut], log[1][:40]))
    found = files.power_lost(SeededEntropy(1), 0).open("/s/tailrace/flushed").pread(96, 0)
    assert json.loads(found)["flushed"] == cut


def test_after_a_repair_own_progress_says_nothing_of_the_log_that_is_cut_off(log):
    """It has ends of queues, and recovery continues queues at these if a segment file is missing between two others."""
    files, cut = CrashFileSystem(), log[1][40]
    filled(files, log[0])
    repaired(files, Master(log[0][:cut], log[1][:40]))
    names = files.power_lost(SeededEntropy(1), 0).list("/s/tailrace")
    assert not [name for name in names if name.startswith("progress")]


@pytest.mark.parametrize("whole", [0, 1], ids=["nothing is left before it", "records are left before it"])
def test_a_file_that_a_power_loss_took_between_two_others_takes_no_queue_offset(log, whole):
    """The log ends before it, so the master sends these messages again, with the same queue offsets."""
    end = next(at for at in log[1] if at > 1.5 * SEGMENT)
    data, places = log[0][:end], [at for at in log[1] if at < end]
    files, cut = CrashFileSystem(), next(at for at in reversed(places) if at < SEGMENT - 64) * whole
    filled(files, data)
    files.open(f"/s/commitlog/{2 * SEGMENT:020d}", writable=True, create=True).truncate(SEGMENT)
    for name in files.list("/s/commitlog"):
        start = int(name)
        with closing(files.open(f"/s/commitlog/{name}", writable=True)) as file:
            lost_from = max(cut - start, 0)
            file.pwrite(bytes(file.size() - lost_from), lost_from)
    files.remove(f"/s/commitlog/{SEGMENT:020d}")
    for name in files.list("/s/tailrace"):
        if name.startswith(("progress", "flushed")):
            files.remove(f"/s/tailrace/{name}")
    files.open("/s/abort", writable=True, create=True)
    with slave_of(files) as store:
        assert store.max_phy_offset == cut
        copy(store, data, cut)
        store.wait_dispatched()
        assert [message.phy_offset for message in store.read("T")] == places


def test_after_a_repair_a_power_loss_brings_no_segment_back(log):
    """Its records would follow those that came later, with a gap between them."""
    files, cut = CrashFileSystem(), log[1][10]
    filled(files, log[0])
    assert len(files.list("/s/commitlog")) > 2
    repaired(files, Master(log[0][:cut], log[1][:10]))
    lost = files.power_lost(SeededEntropy(1), 0)
    assert lost.list("/s/commitlog") == ["0" * 20]
    assert begin(lost, Master(log[0][:cut], log[1][:10])) == cut


@pytest.mark.parametrize("delay", [{"delay": "2s"}, {"properties": {DELAY: "1"}}], ids=["timer", "level"])
def test_a_delivery_that_is_cut_off_is_made_again(delay, monkeypatch):
    """The progress of timers and delay levels is ahead of the log then."""
    monkeypatch.setattr(timers, "TimerMessageStore", partial(TimerMessageStore, slots_total=512))
    files, clock = CrashFileSystem(), SimClock()

    def lived(cut=0):
        """Bodies that are delivered at the end of a life of some seconds, and the log up to a position."""
        with MessageStore.open("/s", config=StoreConfig(**SIZES, **TIMERS), parts=StoreParts(
                file_system=files, clock=clock, scheduler=(scheduler := SimScheduler(clock, SeededEntropy(1))),
                entropy=SeededEntropy(2))) as store:
            if cut == 0:
                store.put(Message(topic="T", body=b"late", **delay), queue_id=0)
            end = store.max_phy_offset
            scheduler.run(15_000)
            log = b"".join(file.read(0, file.wrote_position) for file in store.inner.commit_log.queue.files)
            return [one.body for one in store.read("T")], log[: cut or end]

    bodies, log = lived()
    assert bodies == [b"late"]
    places, at = [], 0
    while at < len(log):
        places.append(at)
        at += int.from_bytes(log[at : at + 4], "big")
    assert repaired(files, Master(log, places), clock=clock).phy_offset == len(log)
    assert lived(len(log))[0] == [b"late"]


@pytest.fixture(scope="module")
def with_deletion():
    """The files of a former master that has deleted U before its last record, its log, and where the records are."""
    files = CrashFileSystem()
    with opened(files) as store:
        places = [store.put(Message(topic=topic, body=body)).phy_offset for body in bodies(40) for topic in ("T", "U")]
        store.wait_dispatched()
        store.delete_topics(["U"])
        places.append(store.put(Message(topic="T", body=b"last")).phy_offset)
        store.wait_dispatched()
        log = b"".join(file.read(0, file.wrote_position) for file in store.inner.commit_log.queue.files)
        assert store.queue_of("U", 0).bounds == (40, 40)
    return files, log, places


@pytest.mark.parametrize(("ended", "low", "wanted"), [
    ({}, 0, ["U"]), ({"U": Ended(1, {0: 20})}, 0, ["U"]), (None, 0, []), ("same", 0, []), ({}, "last", [])],
    ids=["not there", "an earlier one", "of RocketMQ", "the same", "all released"])
def test_a_deletion_is_forgotten_that_the_master_does_not_have(with_deletion, ended, low, wanted):
    """A master of RocketMQ keeps none, and one that has released all messages before a deletion has forgotten it."""
    files, log, places = with_deletion
    master = Master(log, places, places[-1] if low == "last" else low)
    master.ended = {"U": Ended(places[-1], {})} if ended == "same" else ended
    files = files.killed()
    for plan in (True, False):
        found = repaired(files, master, plan=plan)
        assert (found.undone, found.cut_bytes, found.phy_offset) == (wanted, 0, len(log))
    with slave_of(files) as store:
        store.wait_dispatched()
        assert store.queue_of("U", 0).bounds == ((0, 40) if wanted else (40, 40))
    assert repaired(files, master).undone == []


def test_a_crash_while_a_deletion_is_undone_leaves_it_or_gives_all_messages_back(with_deletion):
    """What lets the next open look for missing units is durable before the deletion is forgotten."""
    files, log, places = with_deletion
    found, crashed = set(), 0
    for crash_at in itertools.count():
        again, master = files.killed(), Master(log, places)
        master.ended = {}

        def stop(number, _name, _path, crash_at=crash_at):
            if number >= crash_at:
                raise SimulatedCrash

        again.operations, again.before = 0, stop
        with contextlib.suppress(SimulatedCrash):
            crashed += 1
            assert repaired(again, master).undone == ["U"]
            crashed -= 1
        again.before = None
        with slave_of(again.power_lost(SeededEntropy(crash_at), keep_percent=50)) as store:
            store.wait_dispatched()
            found.add(store.queue_of("U", 0).bounds)
            assert store.queue_of("T", 0).bounds == (0, 41)
        if crashed <= crash_at:
            break
    assert crashed > 10
    assert found == {(0, 40), (40, 40)}


@pytest.mark.parametrize("keeps_all", [False, True])
def test_progress_in_a_log_that_is_cut_off_is_forgotten(log, keeps_all):
    """What settled half messages, and the copies of popped ones, may be in the part that is cut off."""
    data, places = log
    files = CrashFileSystem()
    filled(files, data)
    groups = {TRANSACTION_GROUP: HALF_TOPIC, REVIVE_GROUP: revive_topic(NAMES[0]), "readers": "T"}

    def offsets():
        found = ConsumerOffsetManager.of_stopped(files, "/s/config", SimClock())
        found.load()
        return found

    found = offsets()
    for group, topic in groups.items():
        found.commit(group, topic, 0, 5)
    found.persist()
    cut = len(data) if keeps_all else places[10]
    assert repaired(files, Master(data[:cut], places if keeps_all else places[:10])).phy_offset == cut
    left = {group for group, topic in groups.items() if offsets().query(group, topic, 0) == 5}
    assert left == (set(groups) if keeps_all else {"readers"})


def test_a_file_that_is_deleted_during_the_comparison_lets_it_be_tried_again(monkeypatch):
    """A full disk deletes files of a slave at any time; the slave waits and compares again."""
    log, places = made(bodies(40))
    files, real = CrashFileSystem(), SlaveComparison._records_of
    filled(files, log)
    calls = itertools.count()
    monkeypatch.setattr(
        SlaveComparison, "_records_of", lambda self, start: real(self, start)[: 0 if next(calls) > 1 else None])
    with pytest.raises(StoreError, match="was deleted while"):
        begin(files, Master(log[: places[-1]], places[:-1]))


def repaired(files, master, *, plan=False, clock=None):
    return follow_master(
        clock or SimClock(), files, "/s", StoreConfig(**SIZES), NAMES, lambda: master, "m:1", plan=plan)
