"""One crash case: a workload, a crash at an operation, a recovery, a check."""

from collections import Counter

from read_there import read_there

from tailrace.config import FlushDiskType, StoreConfig
from tailrace.env.entropy import SeededEntropy
from tailrace.errors import FatalStorageError, StoreError
from tailrace.model import Message
from tailrace.node.message_store import MessageStore
from tailrace.node.store_opening import StoreParts
from tailrace.testing import CrashFileSystem, SimClock, SimulatedCrash

ROOT = "/store"
CONFIG = StoreConfig(
    mapped_file_size_commit_log=8192, mapped_file_size_consume_queue=400, max_hash_slot_num=16,
    max_index_num=64, commit_log_allocate_step=4096, flush_disk_type=FlushDiskType.SYNC_FLUSH,
    enable_lmq=True, enable_multi_dispatch=True,
    max_open_files=6,  # fewer than there are: files are closed and opened again all the time
)


def lmq_names(number, seed):
    """The LMQ queues of a message; every second seed has none, and so no walk over the whole log."""
    if seed % 2:
        return []
    return [*(["%LMQ%all"] if number % 3 else []), *([f"%LMQ%q{number % 4}"] if number % 2 else [])]


def open_store(files, clock, seed=1):
    return MessageStore.open(
        ROOT, config=CONFIG,
        parts=StoreParts(services=False, clock=clock, file_system=files, entropy=SeededEntropy(seed)))


def workload(files, clock, sent, acknowledged, *, puts=24, seed=1):
    """Put, flush, dispatch, roll, close, open again; notes what was sent and acknowledged."""
    entropy = SeededEntropy(seed)
    number = 0
    for _ in range(2):
        store = open_store(files, clock, seed)
        for _ in range(puts):
            clock.advance(7)
            body = b"%06d" % number + entropy.bytes(entropy.randrange(700))
            topic, queue_id = f"T{number % 2}", number % 3
            number += 1
            names = lmq_names(number, seed)
            places = [(topic, queue_id, body), *((name, 0, body) for name in names)]
            sent += places
            store.put(
                Message(topic=topic, body=body, tags="tag", keys=[f"k{number}"],
                        properties={"INNER_MULTI_DISPATCH": ",".join(names)} if names else {}),
                queue_id=queue_id)
            acknowledged += places
        store.wait_dispatched()
        store.close()


def contents(files, clock):
    with open_store(files, clock) as store:
        return {
            (topic, queue_id): [m.body for m in read_there(store, topic, queue_id)]
            for topic, queue_id, _, _ in store.queues()
        }


def check(found, sent, acknowledged):
    """Acknowledged is part of recovered, recovered of sent, each queue in order, nothing twice."""
    for key in {(topic, queue_id) for topic, queue_id, _ in sent}:
        want = [b for t, q, b in sent if (t, q) == key]
        sure = [b for t, q, b in acknowledged if (t, q) == key]
        have = found.get(key, [])
        assert not Counter(sure) - Counter(have), f"{key}: acknowledged and lost"
        assert not Counter(have) - Counter(want), f"{key}: never sent, or twice"
        assert have == want[: len(have)], f"{key}: out of order"


def operations(seed=1):
    files = CrashFileSystem()
    workload(files, SimClock(), [], [], seed=seed)
    return files.operations


def crash_at(place, keep, seed=1):
    """Crash at operation ``place``; keep is a percentage, or None for a kill."""
    clock = SimClock()
    sent, acknowledged = [], []

    def before(number, _name, _path):
        if number == place:
            raise SimulatedCrash

    files = CrashFileSystem(before)
    try:
        workload(files, clock, sent, acknowledged, seed=seed)
    except SimulatedCrash:
        pass
    entropy = SeededEntropy(seed * 1_000_003 + place)
    after = files.killed() if keep is None else files.power_lost(entropy, keep)
    first = contents(after, clock)
    check(first, sent, acknowledged)
    assert contents(after, clock) == first, "opening twice changed something"


def fail_at(place, error_number, *, sticky, seed=1):
    """Operation ``place`` fails; then the store is opened again on a sound disk."""
    clock = SimClock()
    sent, acknowledged = [], []

    def before(number, _name, path):
        if number == place or (sticky and number > place):
            raise OSError(error_number, "injected", path)

    files = CrashFileSystem(before)
    try:
        workload(files, clock, sent, acknowledged, seed=seed)
    except (StoreError, FatalStorageError, OSError):
        pass
    files.before = None
    found = contents(files.killed(), clock)
    check(found, sent, acknowledged)
