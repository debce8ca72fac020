"""Fault cases: a store on simulated files, one fault, an open, and what may be served then.

Used by the tests beside it, which run a seeded part, and by tools/fault_matrix.py, which runs all.
"""

from __future__ import annotations

import random
import struct
from typing import NamedTuple

from tailrace import Message, MessageStore, StoreConfig
from tailrace.env.entropy import SeededEntropy
from tailrace.errors import StoreError
from tailrace.node.store_opening import StoreParts
from tailrace.testing import CrashFileSystem, SimClock

ROOT = "/store"
SEGMENT = 8192
PLAIN = StoreConfig(
    mapped_file_size_commit_log=SEGMENT, mapped_file_size_consume_queue=400, max_hash_slot_num=16,
    max_index_num=64, commit_log_allocate_step=4096)
CHECKED = StoreConfig(
    mapped_file_size_commit_log=SEGMENT, mapped_file_size_consume_queue=400, max_hash_slot_num=16,
    max_index_num=64, commit_log_allocate_step=4096, enabled_append_prop_crc=True)
MODES = ("clean", "killed", "bare")
"""Stopped in order; with an abort file; with that and without anything that is derived."""
HEAD = {  # the fixed part of a record of two IPv4 hosts
    "size": (0, 4), "magic": (4, 8), "body CRC": (8, 12), "queue id": (12, 16), "flag": (16, 20),
    "queue offset": (20, 28), "physical offset": (28, 36), "system flag": (36, 40),
    "born time": (40, 48), "born host": (48, 56), "store time": (56, 64), "store host": (64, 72),
    "reconsume times": (72, 76), "prepared offset": (76, 84), "body length": (84, 88),
}
NEVER = {"size", "magic", "body CRC", "physical offset", "body length", "body"}
"""Fields whose flips are found by length, position and body checksum."""
PLACE = {"topic", "queue id", "queue offset"}
"""Fields that the unit also has."""


class Record(NamedTuple):
    """One record: where it is and whose."""

    at: int
    size: int
    place: tuple[str, int, int]
    data: bytes
    key: str

    def field(self, at: int) -> str:
        """The name of the field that has a byte."""
        for name, (low, high) in HEAD.items():
            if low <= at < high:
                return name
        body_end = 88 + struct.unpack_from(">i", self.data, 84)[0]
        topic_end = body_end + 1 + self.data[body_end]
        properties = topic_end + 2
        if at < body_end:
            return "body"
        if at < body_end + 1:
            return "topic length"
        if at < topic_end:
            return "topic"
        if at < properties:
            return "properties length"
        crc = self.data[-20:-12] == b"__CRC32#" and at >= self.size - 20
        return "checksum property" if crc else "properties"


class Source:
    """A store that was closed, its files and its records."""

    def __init__(
        self, seed: int = 1, count: int = 120, config: StoreConfig = PLAIN, body: int = 90, *,
        steps: bool = False,
    ):
        """With ``steps`` the store times step back now and then, as those of a Java broker do."""
        rng = random.Random(seed)
        self.config = config
        self.clock = SimClock()
        self.files = CrashFileSystem()
        self.records: list[Record] = []
        with self.opened(self.files) as store:
            places = []
            for number in range(count):
                self.clock.advance(rng.randrange(3))
                topic, queue_id = f"T{rng.randrange(2)}", rng.randrange(2)
                message = Message(
                    topic=topic, body=b"%06d" % number + bytes(rng.randrange(body)),
                    tags="tag" if number % 5 else None, keys=[f"k{number}"])
                result = store.put(message, queue_id=queue_id)
                places.append((result, (topic, queue_id, result.queue_offset), f"k{number}"))
            for result, place, key in places:
                data = store.select_record(result.phy_offset)
                assert data is not None
                self.records.append(Record(result.phy_offset, len(data), place, data, key))
            store.wait_dispatched()
        if steps:
            self._step_back(rng)
        self.wanted = {record.place: record.data for record in self.records}
        self.end = self.records[-1].at + self.records[-1].size

    def _step_back(self, rng: random.Random) -> None:
        low, high = HEAD["store time"]
        back_ms = 0
        for number, record in enumerate(self.records):
            if rng.randrange(4) == 0:
                back_ms += rng.choice((1, 1000, 3_600_000))
            time = struct.unpack_from(">q", record.data, low)[0] - back_ms
            data = record.data[:low] + struct.pack(">q", time) + record.data[high:]
            self.records[number] = record._replace(data=data)
            path, at = segment_of(self.files, record.at)
            change(self.files, path, at, data)
        self.opened(self.files).close()  # so that progress has the checksum of the last record

    def opened(self, files: CrashFileSystem) -> MessageStore:
        """Open it on such files."""
        return MessageStore.open(
            ROOT, config=self.config,
            parts=StoreParts(services=False, clock=self.clock, file_system=files, entropy=SeededEntropy(5)))

    def image(self, mode: str) -> CrashFileSystem:
        """A copy of the files, as a stop of that kind leaves them."""
        files = self.files.killed()
        if mode != "clean":
            files.open(f"{ROOT}/abort", writable=True, create=True)
        if mode == "bare":
            for path in derived(files):
                files.remove(path)
        return files

    def look(self, files: CrashFileSystem, *, keys: bool = False) -> dict[tuple[str, int, int], bytes]:
        """Open and pull everything: place and record. With ``keys``, each is also found by key."""
        found = {}
        with self.opened(files) as store:
            for topic, queue_id, low, high in store.queues():
                at = low
                while at < high:
                    result = store.get_message(topic, queue_id, at, 32)
                    for offset, data in zip(result.queue_offsets, result.records, strict=True):
                        assert (topic, queue_id, offset) not in found, "served twice"
                        found[topic, queue_id, offset] = data
                    assert result.next_begin_offset > at
                    at = result.next_begin_offset
            for record in self.records if keys else ():
                there = [record.data] if record.place in found else []
                assert store.query_records(record.place[0], record.key) == there, record.key
            self.report = store.recovery_report
        return found


def paths(files: CrashFileSystem, root: str = ROOT) -> list[str]:
    """Every file but ``lock``."""
    found = []
    for name in files.list(root):
        path = f"{root}/{name}"
        if files.stat(path).is_dir:
            found += paths(files, path)
        elif name != "lock":
            found.append(path)
    return found


def derived(files: CrashFileSystem) -> list[str]:
    """Files that can be made again from the log."""
    return [path for path in paths(files)
            if not path.startswith((f"{ROOT}/commitlog/", f"{ROOT}/config/", f"{ROOT}/abort"))]


def segment_of(files: CrashFileSystem, phy_offset: int) -> tuple[str, int]:
    """Path and position in it."""
    return f"{ROOT}/commitlog/{phy_offset - phy_offset % SEGMENT:020d}", phy_offset % SEGMENT


def change(files: CrashFileSystem, path: str, at: int, data: bytes) -> None:
    """Overwrite bytes."""
    files.open(path, writable=True).pwrite(data, at)


def cut_log(source: Source, phy_offset: int, mode: str, how: str) -> None:
    """The log ends at a byte: later bytes are zero, or gone with the file's length."""
    files = source.image(mode)
    for name in files.list(f"{ROOT}/commitlog"):
        path = f"{ROOT}/commitlog/{name}"
        keep = min(max(phy_offset - int(name), 0), SEGMENT)
        if keep == SEGMENT:
            continue
        if how == "short":
            files.open(path, writable=True).truncate(keep)
        else:
            change(files, path, keep, bytes(SEGMENT - keep))
        files.mtimes[path] = 1
    left = {r.place: r.data for r in source.records if r.at + r.size <= phy_offset}
    for number in (1, 2):
        found = source.look(files, keys=True)
        assert found.keys() >= left.keys(), (number, sorted(left.keys() - found.keys()))
        assert found == left, (number, sorted(found.keys() - left.keys()))


def cut_derived(source: Source, path: str, length: int, mode: str) -> None:
    """A derived file is cut to a length: it heals."""
    files = source.image(mode)
    files.open(path, writable=True).truncate(length)
    files.mtimes[path] = 1
    for number in (1, 2):
        assert source.look(files, keys=True) == source.wanted, (number, source.report)


def flip_record(source: Source, number: int, bit: int, mode: str) -> tuple[str, str]:
    """One bit of a record is flipped: its field, and lost, served (wrong) or same.

    All other messages are served; opening twice changes nothing.
    """
    record = source.records[number]
    files = source.image(mode)
    path, at = segment_of(files, record.at)
    byte = record.data[bit // 8] ^ 1 << bit % 8
    change(files, path, at + bit // 8, bytes([byte]))
    found = source.look(files)
    missing = source.wanted.keys() - found.keys() - {record.place}
    assert not missing, f"others are lost: {sorted(missing)[:3]} of {len(missing)}"
    assert source.look(files) == found, "opening twice changed something"
    wrong = [place for place, data in found.items() if source.wanted.get(place) != data]
    assert len(wrong) <= 1, "more than the flipped record is wrong"
    what = "served" if wrong else "same" if record.place in found else "lost"
    return record.field(bit // 8), what


def random_flip(source: Source, seed: int) -> str:
    """A random bit of a random file, after a random kind of stop; what became of it."""
    rng = random.Random(seed)
    files = source.image(rng.choice(MODES))
    path = rng.choice([path for path in paths(files) if files.stat(path).size])
    size = files.stat(path).size
    at, bit = rng.randrange(size), rng.randrange(8)
    data = files.open(path).pread(size, 0)
    change(files, path, at, bytes([data[at] ^ 1 << bit]))
    try:
        found = source.look(files)
    except StoreError as error:
        assert "/" in str(error), f"no place is named: {error!r}"
        return "refused"
    unprotected = [
        record.place for record in source.records
        if segment_of(files, record.at)[0] == path and record.at % SEGMENT <= at < (
            record.at % SEGMENT + record.size)
        and record.field(at - record.at % SEGMENT) == "checksum property"]
    wrong = [place for place, data in found.items() if source.wanted.get(place) != data]
    assert wrong in ([], unprotected), f"{path} {at}: served wrong: {wrong[:3]}"
    missing = source.wanted.keys() - found.keys()
    assert len(missing) <= 1, f"{path} {at}: lost {sorted(missing)[:3]} of {len(missing)}"
    assert source.look(files) == found, f"{path} {at}: opening twice changed something"
    return "lost one" if missing else "nothing lost"


def all_log_cuts(source: Source) -> list[tuple[int, str, str]]:
    """Every byte of the last 64 records, after the kinds of stop in turn, both ways in turn."""
    ways = [(mode, how) for mode in MODES for how in ("zero", "short")]
    return [(at, *ways[at % len(ways)]) for at in range(source.records[-64].at, source.end + 1)]


def all_derived_cuts(source: Source) -> list[tuple[str, int, str]]:
    """Every length of every derived file; of the long ones of zeros as far as they say something."""
    found = []
    for path in derived(source.files):
        data = source.files.open(path).pread(1 << 30, 0)
        until = min(len(data.rstrip(b"\0")) + 2, len(data))
        found += [(path, at, mode) for at in range(until) for mode in MODES[:2]]
    return found


def all_flips(source: Source, first: int, last: int) -> list[tuple[int, int, str]]:
    """Every bit of some records, after the kinds of stop in turn."""
    return [(number, bit, MODES[(number + bit) % len(MODES)]) for number in range(first, last)
            for bit in range(8 * source.records[number].size)]


def must_be_found(field: str, mode: str, config: StoreConfig, number: int, count: int) -> bool:
    """Whether a flip must never be served.

    By the checksum of the body, by position and lengths always; by the unit where the walk does
    not come, which is the last 65 records; else by the checksum over the whole record. That one
    is looked for by its name, so that its own bytes are not protected.
    """
    if field in NEVER or (field in PLACE and mode == "clean" and number < count - 65):
        return True
    return config.enabled_append_prop_crc and field != "checksum property"
