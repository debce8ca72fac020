"""Store times that step back, as a Java broker writes them after a clock correction, hide nothing after damage."""

from __future__ import annotations

import dataclasses
import importlib.util
import pathlib
import shutil

import pytest
from segmented_store import CONFIG, SEGMENT, overwrite, plain, sound_store

from tailrace import MessageStore
from tailrace.config import RecoveryMode
from tailrace.errors import CorruptionError
from tailrace.node.store_opening import StoreParts
from tailrace.store.directory import StoreDirectory
from tailrace.store.verification import Verification
from tailrace.store.walk import parallel as parallel_walk

FIELDS = {
    "size": 3, "size, high byte": 0, "magic": 5, "body checksum": 9, "position": 35, "body length": 87, "body": 95}
STORE_TIME = 56


def module_of(name):
    spec = importlib.util.spec_from_file_location(name, pathlib.Path(__file__).with_name(f"{name}.py"))
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


parallel, stitched = module_of("test_parallel_walk").parallel, module_of("test_stitched_walk").stitched


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return sound_store(tmp_path_factory.mktemp("clock") / "store")


def byte_of(path, phy_offset):
    return (path / "commitlog" / f"{phy_offset // SEGMENT * SEGMENT:020d}").read_bytes()[phy_offset % SEGMENT]


def stepped_back(made, path, number, back_ms):
    """A copy whose store times are set back from record ``number`` onwards."""
    shutil.copytree(made[0], path)
    for at in made[1][number:]:
        data = (path / "commitlog" / f"{at // SEGMENT * SEGMENT:020d}").read_bytes()
        time = int.from_bytes(data[at % SEGMENT + STORE_TIME :][:8], "big")
        overwrite(path, at + STORE_TIME, (time - back_ms).to_bytes(8, "big"))
    return path


def forget_progress(path):
    shutil.rmtree(path / "tailrace")
    (path / "checkpoint").unlink()
    (path / "abort").touch()


def first_and_last_of_a_segment(made):
    places = made[1]
    first = next(n for n, at in enumerate(places) if n and at % SEGMENT == 0)
    return first, first - 1


@pytest.mark.parametrize("back_ms", [1000, 3_600_000])
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("which", ["in the middle", "first of a segment", "last of a segment"])
def test_one_damaged_record_costs_one_record(made, tmp_path, monkeypatch, field, back_ms, which):
    for name, value in {"_PART": 2500, "_FIRST": 600, "_LOOK": (300, 5000), "_MANY": 9}.items():
        monkeypatch.setattr(parallel_walk, name, value)
    first, last = first_and_last_of_a_segment(made)
    number = {"in the middle": 70, "first of a segment": first, "last of a segment": last}[which]
    path = stepped_back(made, tmp_path / "store", number + 1, back_ms)
    damaged = made[1][number]
    at = damaged + FIELDS[field]
    overwrite(path, at, bytes([byte_of(path, at) ^ 1]))
    directory = StoreDirectory(str(path), raw=True)
    found = plain(directory)
    assert found[0] == [place for place in made[1] if place != damaged]
    assert [damage.phy_offset for damage in found[1]] == [damaged]
    assert parallel(directory) == found
    assert stitched(directory)[0] == found
    kinds = [one.kind for one in Verification(directory).findings()]
    assert kinds.count("damaged-record") == 1, kinds
    assert not {"torn-end", "data-behind-end", "foreign-unit"}.intersection(kinds)
    forget_progress(path)
    shown = StoreDirectory(str(path))  # what readers without the lock see
    assert plain(shown)[2].phy_offset == made_end(made)
    assert sum(queue.max_offset for queue in shown.queues()) == 150
    with pytest.raises(CorruptionError, match="damage in the middle"):
        MessageStore.open(path, config=strict(), parts=StoreParts(services=False))
    with MessageStore.open(path, config=CONFIG, parts=StoreParts(services=False)) as store:
        report = store.recovery_report
        assert (report["scanned"], report["cut"], len(report["steppedOver"])) == (149, [], 1)


def strict():
    return dataclasses.replace(CONFIG, recovery_mode=RecoveryMode.TOLERATE_TAIL)


def made_end(made):
    directory = StoreDirectory(str(made[0]), raw=True)
    return plain(directory)[2].phy_offset


def test_a_step_back_at_a_damaged_blank_record_hides_nothing(made, tmp_path):
    first, last = first_and_last_of_a_segment(made)
    path = stepped_back(made, tmp_path / "store", first, 1000)
    blank = made[1][last] + int.from_bytes(bytes(byte_of(path, made[1][last] + n) for n in range(4)), "big")
    overwrite(path, blank, b"\xff")
    directory = StoreDirectory(str(path), raw=True)
    found = plain(directory)
    assert found[0] == made[1]
    assert [damage.until for damage in found[1]] == [made[1][first]]
    assert stitched(directory)[0] == found


def test_a_queue_that_does_not_continue_is_stale(made, tmp_path):
    """The bytes of an older life whose queues had other offsets."""
    path = stepped_back(made, tmp_path / "store", 71, 1000)
    overwrite(path, made[1][70] + 95, b"~")
    for at in made[1][71:]:
        overwrite(path, at + 20, (500).to_bytes(8, "big"))  # more are missing than one record could be
    directory = StoreDirectory(str(path), raw=True)
    found = plain(directory)
    assert found[0] == made[1][:70]
    assert found[1] == []
    assert found[3] >= 79
    assert stitched(directory)[0] == found
