"""Index files newer than the recorded progress are damaged or removed, and then the store is killed.

Progress vouches for the files that it names; of later ones it knows nothing. Whatever becomes of
them, the next open answers every key as a rebuild would.
"""

import contextlib
import os
import random

import pytest
from long_runs import LONG
from read_there import query_there

from tailrace import Message, MessageStore, StoreConfig
from tailrace.env.entropy import SeededEntropy
from tailrace.node.store_opening import StoreParts
from tailrace.testing import CrashFileSystem, SimClock, SimulatedCrash

CONFIG = StoreConfig(
    mapped_file_size_commit_log=1 << 16, mapped_file_size_consume_queue=2000, max_hash_slot_num=16,
    max_index_num=48, commit_log_allocate_step=4096, timer_wheel_enable=False)
COUNT, KNOWN = 260, 70
SLOTS = slice(40, 40 + 4 * 16)
SEED = int(os.environ.get("SEED", "1"))
CASES = int(os.environ.get("CASES", "40" if LONG else "10"))


def opened(files, clock):
    return MessageStore.open(
        "/s", config=CONFIG, parts=StoreParts(services=False, clock=clock, file_system=files, entropy=SeededEntropy(2)))


@pytest.fixture(scope="module")
def killed():
    """A store that was killed with many index files after its progress."""
    clock, files = SimClock(), CrashFileSystem()
    store = opened(files, clock)
    for n in range(COUNT):
        clock.advance(7)
        keys = [] if n % 11 == 5 else [f"k{n}", f"again{n % 9}"]
        store.put(Message(topic=f"T{n % 3}", body=b"%d" % n + bytes(n % 50), keys=keys), queue_id=n % 2)
        if n == KNOWN:
            store.inner.flush()
    store.wait_dispatched()
    assert len(files.list("/s/index")) > 8
    return files, clock, look(store)


def look(store):
    return {
        (topic, key): [m.phy_offset for m in query_there(store, topic, key)]
        for topic in ("T0", "T1", "T2")
        for key in (*(f"k{n}" for n in range(1, COUNT, 4)), *(f"again{n}" for n in range(9)))}


def spoil(files, path, kind, rng):
    if kind == "gone":
        files.remove(path)
        return
    data = bytearray(files.open(path).pread(1 << 20, 0))
    if kind == "slots":
        data[SLOTS] = bytes(64)
    elif kind == "wrong slots":
        data[SLOTS] = b"".join(rng.randrange(1, 40).to_bytes(4, "big") for _ in range(16))
    elif kind == "slots and a hash":  # the chain of that entry is gone as well, so only the slots show it
        data[SLOTS.stop - 44 : SLOTS.stop + 20] = bytes(64)
        data[SLOTS.stop + 20 : SLOTS.stop + 24] = bytes(4)
    elif kind == "header":
        data[:40] = bytes(40)
    elif kind == "zero":
        data[:] = bytes(len(data))
    elif kind == "random":
        data[:] = rng.randbytes(len(data))
    elif kind == "entries":
        at = rng.randrange(SLOTS.stop + 20, len(data) - 60)
        data[at : at + 60] = bytes(60)
    elif kind == "half":
        data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
    files.open(path, writable=True).pwrite(data, 0)
    files.mtimes[path] = 1


KINDS = ("gone", "slots", "wrong slots", "slots and a hash", "header", "zero", "random", "entries", "half")


@pytest.mark.parametrize("kind", KINDS)
def test_one_of_them(killed, kind):
    source, clock, wanted = killed
    for number in range(len(source.list("/s/index"))):
        files = source.killed()
        path = f"/s/index/{files.list('/s/index')[number]}"
        spoil(files, path, kind, random.Random(number))
        for _ in range(2):
            with opened(files, clock) as store:
                found = look(store)
                report = store.recovery_report
            assert found == wanted, (number, report, {
                key: (found[key], wanted[key]) for key in wanted if found[key] != wanted[key]})


def test_several_and_a_recovery_that_is_killed_in_the_middle(killed):
    source, clock, wanted = killed
    stopped = 0
    for case in range(CASES):
        rng = random.Random(SEED * 100_003 + case)
        files = source.killed()
        names = files.list("/s/index")
        done = [(name, rng.choice(KINDS)) for name in rng.sample(names, rng.randrange(2, len(names) + 1))]
        for name, kind in done:
            spoil(files, f"/s/index/{name}", kind, rng)
        for _ in range(2):
            left = [rng.randrange(40)]

            def stop(_number, _name, _path, left=left):
                left[0] -= 1
                if left[0] < 0:
                    raise SimulatedCrash

            files.before = stop
            with contextlib.suppress(SimulatedCrash):
                opened(files, clock)
            stopped += left[0] < 0
            files = files.killed()
        for _ in range(2):
            with opened(files, clock) as store:
                found = look(store)
                report = store.recovery_report
            assert found == wanted, (SEED, case, done, report)
    assert stopped > CASES
