"""Opens that must not repair: stricter recovery modes, unchecked bodies, a full disk.

``store.recovery.table`` says what a mode does; a refused open changes nothing.
"""

from __future__ import annotations

import dataclasses
import errno
import importlib.util
import pathlib
import shutil

import pytest

from tailrace import StoreConfig
from tailrace.config import RecoveryMode
from tailrace.errors import CorruptionError, StoreNotWritableError
from tailrace.testing import CrashFileSystem, SimClock

_spec = importlib.util.spec_from_file_location("stores", pathlib.Path(__file__).with_name("stores.py"))
stores = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(stores)
_spec = importlib.util.spec_from_file_location("faults", pathlib.Path(__file__).with_name("faults.py"))
faults = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(faults)

pytestmark = pytest.mark.crash
COUNT = 90
ANY, TAIL, ABSOLUTE = RecoveryMode.TOLERATE_ANY, RecoveryMode.TOLERATE_TAIL, RecoveryMode.ABSOLUTE


def garbage_behind(path):
    at, size, file, place = stores.records(path)[-1]
    stores.patch(file, place + size, b"no record")
    return at + size, range(COUNT)


def torn_body(path):
    at, size, file, place = stores.records(path)[-1]
    stores.patch(file, place + size // 2, bytes(size - size // 2))
    return at, range(COUNT - 1)


def torn_properties(path):
    at, size, file, place = stores.records(path)[-1]
    stores.patch(file, place + size - 20, bytes(20))
    return at, range(COUNT - 1)


def damage_in_the_middle(path):
    at, size, file, place = stores.records(path)[-30]
    stores.flip(file, place + size // 2)
    return at, [n for n in range(COUNT) if n != COUNT - 30]


def a_segment_is_gone(path):
    file = stores.segments(path)[-2]
    at = int(file.name)
    gone = [n for n, r in enumerate(stores.records(path)) if r[2] == file]
    file.unlink()
    return at, [n for n in range(COUNT) if n not in gone]


def a_segment_is_too_long(path):
    file = stores.segments(path)[-1]
    size = file.stat().st_size
    with file.open("ab") as more:
        more.write(b"what is this")
    return int(file.name) + size, range(COUNT)


def a_segment_in_the_middle_is_too_long(path):
    file = stores.segments(path)[-2]
    size = file.stat().st_size
    with file.open("ab") as more:
        more.write(b"what is this")
    return int(file.name) + size, range(COUNT)


def zeros_make_a_segment_too_long(path):
    with stores.segments(path)[-2].open("ab") as more:
        more.write(bytes(100))
    return -1, range(COUNT)


def a_segment_is_too_short(path):
    """One of the middle, in the middle of a record that was damaged in a way of its own."""
    file = stores.segments(path)[-2]
    inside = [n for n, record in enumerate(stores.records(path)) if record[2] == file]
    at, _, _, place = stores.records(path)[inside[-3]]
    with file.open("r+b") as cut:
        cut.truncate(place + 10)
    return at, [n for n in range(COUNT) if n not in inside[-3:]]


def nothing(_path):
    return -1, range(COUNT)


CASES = [
    # what happened, modes that refuse
    (nothing, ()),
    (garbage_behind, (ABSOLUTE,)),
    (torn_body, (ABSOLUTE,)),
    (torn_properties, (ABSOLUTE,)),
    (damage_in_the_middle, (ABSOLUTE, TAIL)),
    (a_segment_is_gone, (ABSOLUTE, TAIL)),
    (a_segment_is_too_long, (ABSOLUTE,)),
    (a_segment_in_the_middle_is_too_long, (ABSOLUTE, TAIL)),
    (zeros_make_a_segment_too_long, ()),
    (a_segment_is_too_short, (ABSOLUTE, TAIL)),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path = tmp_path_factory.mktemp("made") / "s"
    stores.make(path, COUNT, size=450)
    (path / "abort").write_text("1")
    assert len(stores.segments(path)) >= 3
    return path


@pytest.mark.parametrize("derived", ["there", "gone", "bad", "after a clean stop"])
@pytest.mark.parametrize("mode", RecoveryMode)
@pytest.mark.parametrize(("harm", "refusing"), CASES, ids=[case[0].__name__ for case in CASES])
def test_a_mode_does_what_the_table_says(made, tmp_path, harm, refusing, mode, derived):
    path = tmp_path / "s"
    shutil.copytree(made, path)
    at, left = harm(path)
    if derived == "after a clean stop":
        (path / "abort").unlink()
        for file in (path / "tailrace").glob("progress.*"):
            file.unlink()
    elif derived == "gone":
        stores.as_the_reference_left_it(path, killed=True, fields=(0,) * 6)
        for name in ("consumequeue", "index"):
            shutil.rmtree(path / name)
    elif derived == "bad":
        stores.as_the_reference_left_it(path, killed=True)
        stores.patch(stores.queue_file(path, number=1), 0, bytes(200))
        stores.patch(min((path / "index").iterdir()), 40, b"\1" * 64)
    config = dataclasses.replace(stores.CONFIG, recovery_mode=mode)
    if mode in refusing:
        before = stores.tree(path)
        for _ in range(2):
            with pytest.raises(CorruptionError, match=f"recoveryMode {mode.value} refuses") as caught:
                stores.opened(path, config)
            assert caught.value.phy_offset == at
            assert "commitlog" in caught.value.path
            after = stores.tree(path)
            assert {
                n for n in before.keys() | after.keys() if before.get(n, "") != after.get(n, "")} == set()
        config = stores.CONFIG  # the default mode opens what another one refused
    for _ in range(2):
        with stores.opened(path, config) as store:
            assert stores.numbers(store) == list(left)
            assert stores.has_keys(store, list(left)[::7])


def test_unchecked_bodies_are_reported_and_yet_not_served(made, tmp_path):
    path = tmp_path / "s"
    shutil.copytree(made, path)
    _, left = damage_in_the_middle(path)
    for check, stepped_over in ((False, 0), (True, 1)):
        config = dataclasses.replace(stores.CONFIG, check_crc_on_recover=check)
        with stores.opened(path, config) as store:
            assert store.recovery_report["checkCRCOnRecover"] is check
            assert len(store.recovery_report["steppedOver"]) == stepped_over
            assert stores.numbers(store) == left
        (path / "abort").write_text("1")


def fill_disk(files, counted):
    def before(_number, name, path):
        if name in {"create", "pwrite", "allocate", "mkdir"} or (
            name == "truncate" and "commitlog" not in path
        ):
            counted.append((name, path))
            raise OSError(errno.ENOSPC, "No space left on device", path)
    files.before = before


@pytest.mark.parametrize("mode", ["killed", "bare"])
@pytest.mark.parametrize("harm", ["none", "tail", "middle"])
def test_on_a_full_disk_the_store_opens_read_only_and_cuts_nothing(harm, mode):
    source = faults.Source(3, 150)
    files = source.image(mode)
    wanted = dict(source.wanted)
    if harm == "tail":
        faults.change(files, *faults.segment_of(files, source.end), b"no record" * 20)
    elif harm == "middle":
        record = source.records[-30]
        faults.change(files, *faults.segment_of(files, record.at + 100), b"\xee\xee")
        del wanted[record.place]
    log = [p for p in faults.paths(files) if "commitlog" in p]
    before = {p: files.open(p).pread(1 << 20, 0) for p in log}
    counted: list[tuple[str, str]] = []
    fill_disk(files, counted)
    store = source.opened(files)
    assert counted
    assert store.recovery_report["readOnly"]
    assert not store.is_writeable
    assert "space" in store.not_writeable_reason
    with pytest.raises(StoreNotWritableError):
        store.put(stores.message(1, "T0"))
    if mode == "killed":  # the queues are there
        found = {
            (topic, queue_id, offset)
            for topic, queue_id, _, _ in store.queues()
            for offset, _ in stores.pulled(store, topic, queue_id)}
        assert found == set(wanted)
    store.close()
    assert {p: files.open(p).pread(1 << 20, 0) for p in log} == before, "the log was changed"
    assert not [p for p in faults.paths(files) if "quarantine" in p and files.stat(p).size]
    files.before = None
    assert files.exists("/store/abort")
    assert source.look(files, keys=True) == wanted, "with room again all is well"
    assert bool(source.report["cut"]) == (harm == "tail")
    assert bool(source.report["steppedOver"]) == (harm == "middle")


def test_a_full_disk_under_a_new_store_is_told(tmp_path):
    files = CrashFileSystem()
    config = StoreConfig(mapped_file_size_commit_log=8192, mapped_file_size_consume_queue=400)
    with stores.opened("/s", config, clock=SimClock(), file_system=files):
        pass
    fill_disk(files, [])
    store = stores.opened("/s", config, clock=SimClock(), file_system=files)
    with pytest.raises(StoreNotWritableError):
        store.put(stores.message(1))
    store.close()
