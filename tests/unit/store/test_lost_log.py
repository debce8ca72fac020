"""The CommitLog is gone and the queues are there: offsets continue, and nothing old is shown."""

import pytest
from flat_open import flat_open

from tailrace import Message, StoreConfig
from tailrace.env.entropy import SeededEntropy
from tailrace.formats.consumequeue import CQ_UNIT, PRE_BLANK_SIZE
from tailrace.model import GetMessageStatus
from tailrace.testing import CrashFileSystem, SimClock, SimulatedCrash

CONFIG = StoreConfig(
    mapped_file_size_commit_log=8192, mapped_file_size_consume_queue=400, max_hash_slot_num=16,
    max_index_num=64, commit_log_allocate_step=4096, timer_wheel_enable=False)
COUNTS = {("A", 0): 47, ("A", 1): 20, ("B", 0): 1}
"""Messages of each queue; a queue file has 20 units, so one of them ends with a file."""


def opened(files, clock, **given):
    return flat_open(
        "/s", config=CONFIG, services=False, clock=clock, file_system=files, entropy=SeededEntropy(1), **given)


def body(topic, queue_id, offset):
    return b"%s %d %d" % (topic.encode(), queue_id, offset)


@pytest.fixture(params=["closed", "killed", "killed, own progress gone", "repaired"])
def lost(request):
    """A store whose log was removed, and its clock."""
    files, clock = CrashFileSystem(), SimClock()
    with opened(files, clock) as store:
        for (topic, queue_id), count in COUNTS.items():
            for offset in range(count):
                store.put(Message(topic=topic, body=body(topic, queue_id, offset), keys=["k"]),
                          queue_id=queue_id)
    for name in files.list("/s/commitlog"):
        files.remove(f"/s/commitlog/{name}")
    files.sync_dir("/s/commitlog")  # or a power loss brings the log back
    if request.param.startswith("killed"):
        files.open("/s/abort", writable=True, create=True)
    if request.param.endswith("gone"):
        for name in files.list("/s/tailrace"):
            files.remove(f"/s/tailrace/{name}")
        files.sync_dir("/s/tailrace")
    return files, clock, {"rebuild": True} if request.param == "repaired" else {}


def test_queue_offsets_go_on_where_the_queues_ended(lost):
    files, clock, given = lost
    for _ in range(3):  # an open that finds what an earlier one left decides the same
        with opened(files, clock, **given) as store:
            assert {(t, q): (low, high) for t, q, low, high in store.queues()} == {
                key: (count, count) for key, count in COUNTS.items()}
            assert store.query_message("A", "k") == []
    with opened(files, clock) as store:
        for (topic, queue_id), count in COUNTS.items():
            result = store.put(Message(topic=topic, body=body(topic, queue_id, count)), queue_id=queue_id)
            assert result.queue_offset == count, "an offset that was given before is given again"
        store.wait_dispatched()
        for (topic, queue_id), count in COUNTS.items():
            # A group that had consumed everything gets the new message; another one gets OFFSET_TOO_SMALL.
            found = store.get_message(topic, queue_id, count, 32)
            assert found.status is GetMessageStatus.FOUND
            assert [m.body for m in store.read(topic, queue_id)] == [body(topic, queue_id, count)]
            behind = store.get_message(topic, queue_id, 0, 32)
            assert behind.status is GetMessageStatus.OFFSET_TOO_SMALL
            assert behind.next_begin_offset == count
    files.open("/s/abort", writable=True, create=True)
    with opened(files, clock) as store:
        for (topic, queue_id), count in COUNTS.items():
            assert [m.queue_offset for m in store.read(topic, queue_id)] == [count]


def test_the_units_are_kept_as_evidence_and_leave_the_queue(lost):
    """Only pre-blank units are left: a unit of a lost message must not name a byte of the new log."""
    files, clock, given = lost
    with opened(files, clock, **given):
        pass
    for (topic, queue_id), count in COUNTS.items():
        root = f"/s/consumequeue/{topic}/{queue_id}"
        units = b"".join(files.open(f"{root}/{name}").pread(400, 0) for name in files.list(root))
        first = int(files.list(root)[0]) // CQ_UNIT.size
        sizes = CQ_UNIT.view(units)["size"].tolist()
        assert sizes[: count - first] == [PRE_BLANK_SIZE] * (count - first)
        assert not any(sizes[count - first :])
    where = "/s/tailrace/quarantine"
    kept = [files.open(f"{where}/{n}").pread(400, 0) for n in files.list(where) if n.endswith(".bin")]
    evidence = b"".join(data.ljust(400, b"\0") for data in kept)  # zeros at the end are not kept
    sizes = CQ_UNIT.view(evidence)["size"]
    assert int(((sizes > 0) & (sizes < PRE_BLANK_SIZE)).sum()) == sum(COUNTS.values())
    assert files.list("/s/index") == [], "entries would name places of the next log"
    with opened(files, clock, **given):
        pass
    assert len([n for n in files.list(where) if n.endswith(".bin")]) == len(kept), "kept once"


@pytest.mark.parametrize("stop", ["closed", "killed"])
def test_a_power_loss_afterwards_does_not_begin_the_queues_again(lost, stop):
    files, clock, given = lost
    store = opened(files, clock, **given)
    store.flush()
    if stop == "closed":
        store.close()
    for seed, percent in [(3, 0), *((seed, 50) for seed in range(30))]:
        after = files.power_lost(SeededEntropy(seed), keep_percent=percent)
        with opened(after, clock) as again:
            assert {(t, q): high for t, q, _, high in again.queues()} == COUNTS, (seed, percent)


@pytest.mark.parametrize("seed", range(6))
def test_messages_of_the_next_log_are_not_those_of_units_that_a_power_loss_left(lost, seed):
    """The log is synced before any queue: what a unit said of the old log must be gone by then."""
    files, clock, given = lost
    store = opened(files, clock, **given)
    for number in range(70):
        store.put(Message(topic="C", body=body("C", 0, number), keys=["k"]))
    store.flush()
    files = files.power_lost(SeededEntropy(seed), keep_percent=50 if seed else 0)
    with opened(files, clock) as store:
        assert {(t, q): high for t, q, _, high in store.queues()} == {**COUNTS, ("C", 0): 70}
        assert [m.body for m in store.read("C", 0)] == [body("C", 0, n) for n in range(70)]
        for topic, queue_id in COUNTS:
            assert list(store.read(topic, queue_id)) == []


def test_a_power_loss_at_any_operation_of_the_open_leaves_the_ends_known(lost):
    files, clock, given = lost
    crashed = 0
    while True:
        here = files.power_lost(SeededEntropy(1), keep_percent=100)
        left = crashed

        def stop(_number, _name, _path):
            nonlocal left
            if not left:
                raise SimulatedCrash
            left -= 1

        here.before = stop
        try:
            opened(here, clock, **given)
        except SimulatedCrash:
            here.before = None
        else:
            break
        after = here.power_lost(SeededEntropy(crashed), keep_percent=50)
        with opened(after, clock) as store:
            assert {(t, q): high for t, q, _, high in store.queues()} == COUNTS, crashed
        crashed += 1
    assert crashed > 20
