"""Stores of several small segments, and what two ways to recover one have to agree about."""

import json
import shutil

from flat_open import flat_open

from tailrace import Message, MessageStore, StoreConfig
from tailrace.kernels.shared import constants as C
from tailrace.model import MessageExtBrokerInner
from tailrace.node.store_opening import StoreParts
from tailrace.store.record_batch import RecordBatch
from tailrace.store.verification import queue_ends
from tailrace.store.walk.log_walk import Damage, LogWalk

SEGMENT = 16384
CONFIG = StoreConfig(
    mapped_file_size_commit_log=SEGMENT, mapped_file_size_consume_queue=400, max_hash_slot_num=50,
    max_index_num=200, commit_log_allocate_step=4096)
QUIET = ("tailrace", "checkpoint", "config", "lock", "abort")  # times and numbers of processes


def files(path):
    """Every file that a recovery derives from the log, and the log."""
    return {
        str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*"))
        if file.is_file() and file.relative_to(path).parts[0] not in QUIET
    }


def same_recovery(spark, path, tmp_path, **given):
    """The report, after a comparison of all files with those of a local recovery."""
    from tailrace.spark.pipeline.recover import recover

    local, here = tmp_path / "local", tmp_path / "spark"
    for copy in (local, here):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(path, copy, copy_function=shutil.copy2)
    with flat_open(local, services=False, create=False, **given) as store:
        wanted = store.recovery_report
    report = recover(spark, str(here), **given)
    told = [
        {**json.loads(json.dumps(one).replace(str(root), "ROOT")), "ms": 0}
        for one, root in ((report, here), (wanted, local))
    ]
    assert told[0] == told[1]
    assert files(here) == files(local)
    assert sorted(f.name for f in (here / "tailrace" / "quarantine").glob("*.bin")) == sorted(
        f.name for f in (local / "tailrace" / "quarantine").glob("*.bin"))
    assert not (here / "tailrace" / "staging").exists()
    return report


def sound_store(path):
    """A store that was closed, and where its messages are in the log."""
    with MessageStore.open(path, config=CONFIG, parts=StoreParts(services=False)) as store:
        put = [
            store.put(Message(topic=f"T{n % 2}", body=b"%d" % n * 90, keys=[f"k{n}"]), queue_id=n % 3)
            for n in range(150)
        ]
    return path, [result.phy_offset for result in put]


def killed_store(path):
    """The same after a kill, with other kinds of records, and nothing that recovery would continue from."""
    with MessageStore.open(path, config=CONFIG, parts=StoreParts(services=False)) as store:
        put = [
            store.put(Message(topic=f"T{n % 2}", body=b"%d" % n * 90, tags="t" if n % 3 else None,
                              keys=[f"k{n}", "same"] if n % 5 else []), queue_id=n % 3)
            for n in range(150)
        ]
        store.put_inner(MessageExtBrokerInner("T0", 0, b"half", b"UNIQ_KEY\x01u\x02", sys_flag=4))
        store.put_inner(MessageExtBrokerInner(
            "SCHEDULE_TOPIC_XXXX", 2, b"late", b"DELAY\x013\x02"))
    (path / "abort").write_text("1")
    shutil.rmtree(path / "tailrace")
    return path, [result.phy_offset for result in put]


def poke(path, at, data):
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def poke_log(path, phy_offset, data):
    poke(path / "commitlog" / f"{phy_offset // SEGMENT * SEGMENT:020d}", phy_offset % SEGMENT, data)


def batch_ends(batch):
    """What ``queue_ends`` says of a chunk."""
    order, bounds, queues = batch.sorted()
    return {
        (topic.decode("utf-8", "replace"), queue_id): int(batch.rows[order[end - 1], C.QUEUE_OFFSET]) + 1
        for (topic, queue_id), end in zip(queues, bounds[1:], strict=True)}


class Seen:
    """What a walk yields, and the queues' ends that decide what is stale."""

    def __init__(self):
        self.next = {}
        self.records = []
        self.damage = []

    def next_of(self, topic, queue_id):
        return self.next.get((topic, queue_id), -1)

    def walk(self, walk):
        for item in walk.items():
            if isinstance(item, Damage):
                self.damage.append(item)
            else:
                self.next |= batch_ends(item) if isinstance(item, RecordBatch) else queue_ends(item)
                self.records += item.rows[:, C.PHY].tolist()
        return self.records, self.damage, walk.end, walk.stale


def plain(directory, check=C.CHECK_ALL):
    """What a walk of one thread sees."""
    seen = Seen()
    return seen.walk(LogWalk(
        directory.log_files, directory.min_phy_offset, directory.readable_until, check,
        seen.next_of))


def overwrite(path, phy_offset, data):
    """Bytes of the log, as far as they are in one segment that exists."""
    segment = path / "commitlog" / f"{phy_offset // SEGMENT * SEGMENT:020d}"
    if segment.exists():
        poke(segment, phy_offset % SEGMENT, data[: SEGMENT - phy_offset % SEGMENT])


def damaged_copy(rnd, made, path):
    """A store at ``path``, damaged in a few places; the kinds of damage."""
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(made[0], path)
    kinds = [rnd.choice(["flip", "zero", "garbage", "gone", "stale"]) for _ in range(rnd.randint(1, 3))]
    for kind in kinds:
        at = rnd.choice(made[1])
        if kind == "flip":
            overwrite(path, at + rnd.randint(0, 120), bytes([rnd.randint(0, 255)]))
        elif kind in {"zero", "garbage"}:
            n = rnd.choice([1, 40, 700, 5000, SEGMENT])
            overwrite(path, at + rnd.randint(0, 90), bytes(n) if kind == "zero" else rnd.randbytes(n))
        elif kind == "gone":
            segments = sorted((path / "commitlog").glob("0*"))
            rnd.choice(segments[1:] or segments).unlink()
        else:  # bytes of an older segment where a newer one was
            segments = sorted((path / "commitlog").glob("0*"))
            old, new = rnd.choice(segments), rnd.choice(segments)
            new.write_bytes(old.read_bytes())
    return set(kinds)
