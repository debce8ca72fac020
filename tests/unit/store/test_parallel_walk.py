"""A walk by several threads equals the walk of one: the same records, damage and end, whatever was guessed."""

from __future__ import annotations

import itertools
import random
import shutil
import threading

import pytest
from segmented_store import CONFIG, SEGMENT, Seen, damaged_copy, overwrite, plain, sound_store

from tailrace import Message, MessageStore
from tailrace.kernels.shared import constants as C
from tailrace.node.store_opening import StoreParts
from tailrace.store.directory import StoreDirectory
from tailrace.store.dispatch import Dispatcher, parse_delay_levels
from tailrace.store.lives import EndedLives
from tailrace.store.walk import parallel as parallel_walk
from tailrace.store.walk.parallel import ParallelWalk


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Several parts a segment, a few records a part."""
    for name, value in {"_PART": 2500, "_FIRST": 600, "_LOOK": (300, 5000), "_MANY": 9}.items():
        monkeypatch.setattr(parallel_walk, name, value)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return sound_store(tmp_path_factory.mktemp("parallel") / "store")


def parallel(directory, check=C.CHECK_ALL):
    seen = Seen()
    return seen.walk(ParallelWalk(
        directory.log_files, directory.min_phy_offset, directory.readable_until, check, seen.next_of,
        Dispatcher(None, None, parse_delay_levels(), EndedLives(5), [])))


def scans(monkeypatch):
    """Ranges that are scanned, as they are asked for."""
    asked, scan = [], ParallelWalk._scan
    monkeypatch.setattr(ParallelWalk, "_scan", lambda self, goal: (asked.append(goal), scan(self, goal))[1])
    return asked


def test_without_damage_no_guess_is_wrong_and_nothing_is_scanned_twice(made, monkeypatch):
    monkeypatch.setattr(parallel_walk, "_MANY", 1 << 19)
    asked = scans(monkeypatch)
    directory = StoreDirectory(str(made[0]), raw=True)
    assert parallel(directory) == plain(directory)
    asked.sort()
    segments = len(directory.log_files)
    assert len(asked) > 4 * segments
    for before, goal in itertools.pairwise(asked):
        assert before.until == goal.start
        assert goal.start in made[1]


def test_random_damage_is_decided_alike(made, tmp_path):
    rnd = random.Random(21)
    kinds = set()
    for _ in range(80):
        kinds |= damaged_copy(rnd, made, tmp_path / "store")
        directory = StoreDirectory(str(tmp_path / "store"), raw=True)
        assert parallel(directory) == plain(directory)
    assert len(kinds) == 5


def test_messages_that_look_like_records_are_messages(tmp_path, monkeypatch):
    """Bodies full of records that were made for just these places, so that guesses are wrong."""
    path, put = tmp_path / "store", []
    with MessageStore.open(path, config=CONFIG, parts=StoreParts(services=False)) as store:
        put = [
            store.put(Message(topic="T", body=b"%04d" % n * 400), queue_id=0).phy_offset for n in range(90)]
    check = C.CHECK_ALL & ~C.CHECK_BODY_CRC  # the checksums of these bodies do not fit
    wanted = plain(StoreDirectory(str(path), raw=True), check)
    assert len(wanted[0]) == 90
    fakes = set()
    for at in put:
        rest = at % SEGMENT
        head = (path / "commitlog" / f"{at - rest:020d}").read_bytes()[rest : rest + 88]
        for inside in range(88, 88 + 1600 - 130, 130):
            fake = bytearray(head) + bytes(42)
            fake[:4], fake[28:36] = (130).to_bytes(4, "big"), (at + inside).to_bytes(8, "big")
            fake[84:88] = (130 - 91).to_bytes(4, "big")
            overwrite(path, at + inside, bytes(fake))
            fakes.add(at + inside)
    asked = scans(monkeypatch)
    directory = StoreDirectory(str(path), raw=True)
    assert parallel(directory, check) == plain(directory, check) == wanted
    assert len({goal.start for goal in asked} & fakes) > 20


def test_a_range_without_a_head_nearby_is_scanned_in_pieces(tmp_path, monkeypatch):
    """Long records: few guesses hit, and what is between them has no end to a batch."""
    path = tmp_path / "store"
    with MessageStore.open(path, config=CONFIG, parts=StoreParts(services=False)) as store:
        for number in range(400):
            store.put(Message(topic="T", body=b"x" * (12_000 if number % 40 == 7 else 30)), queue_id=0)
    monkeypatch.setattr(parallel_walk, "_LOOK", (50,))
    asked = scans(monkeypatch)
    directory = StoreDirectory(str(path), raw=True)
    assert parallel(directory) == plain(directory)
    assert len(asked) > len({goal.until for goal in asked}), "some in more than one piece"


def odd_store(path, count, *, follows=False):
    """Records of which each may be torn, by its properties; perhaps one that cannot be."""
    with MessageStore.open(path, config=CONFIG, parts=StoreParts(services=False)) as store:
        put = [
            store.put(Message(topic="T", body=b"%02d" % n * 30, properties={"odd": "a\0b"}), queue_id=0)
            for n in range(count)]
        if follows:
            store.put(Message(topic="T", body=b"sound"), queue_id=0)
    return path, put


@pytest.mark.parametrize("follows", [False, True])
def test_the_last_record_of_a_part_waits_for_what_follows(tmp_path, follows):
    """Every record may be torn, by its properties; only a last one is."""
    path, put = odd_store(tmp_path / "store", 60, follows=follows)
    directory = StoreDirectory(str(path), raw=True)
    found = parallel(directory)
    assert found == plain(directory)
    records, damage, end, _ = found
    assert damage == []
    assert len(records) == (61 if follows else 59)
    assert (end.phy_offset == put[-1].phy_offset) != follows


def test_a_last_record_is_torn_also_where_a_part_ends_after_it(tmp_path, monkeypatch):
    """The following bytes look like a record but are not one, and a part starts there."""
    path, put = odd_store(tmp_path / "store", 9)
    overwrite(path, put[-1].phy_offset + 100, b"~")
    directory = StoreDirectory(str(path), raw=True)
    wanted = plain(directory)
    assert wanted[2].phy_offset == put[-2].phy_offset
    asked = scans(monkeypatch)
    for first in range(100, put[-1].phy_offset, 60):
        monkeypatch.setattr(parallel_walk, "_FIRST", first)
        assert parallel(directory) == wanted
    assert put[-1].phy_offset in {goal.start for goal in asked}


def test_what_is_older_than_the_last_record_is_stale(made, tmp_path):
    path = tmp_path / "store"
    shutil.copytree(made[0], path)
    overwrite(path, made[1][20], bytes(40))
    overwrite(path, made[1][21] + 56, bytes(8))  # its store time
    directory = StoreDirectory(str(path), raw=True)
    found = parallel(directory)
    assert found == plain(directory)
    assert [damage.until for damage in found[1]] == [made[1][22]]
    assert found[3] == 1


def test_other_threads_scan_while_one_has_a_part(made, monkeypatch):
    scan, helped, mine = ParallelWalk._scan, threading.Event(), threading.current_thread()
    order = []

    def waiting(self, goal):
        order.append(goal.start)
        if threading.current_thread() is not mine:
            helped.set()
        elif len(order) > 1:
            assert helped.wait(30)
        return scan(self, goal)

    monkeypatch.setattr(ParallelWalk, "_scan", waiting)
    directory = StoreDirectory(str(made[0]), raw=True)
    assert parallel(directory) == plain(directory)
    assert helped.is_set()


def test_much_damage_costs_no_scans_ahead(made, tmp_path, monkeypatch):
    """Extents between damage are shorter than what is scanned before other threads help."""
    path = tmp_path / "store"
    shutil.copytree(made[0], path)
    for at in made[1][1::3]:
        overwrite(path, at + 50, b"\xff\xff")
        overwrite(path, at + 95, b"~")
    monkeypatch.setattr(parallel_walk, "_MANY", 1 << 19)
    monkeypatch.setattr(parallel_walk, "_FIRST", 2000)
    asked = scans(monkeypatch)
    directory = StoreDirectory(str(path), raw=True)
    found = parallel(directory)
    assert found == plain(directory)
    assert len(found[1]) > 40
    assert len(asked) < 2 * len(found[1]), "on any number of processors"
