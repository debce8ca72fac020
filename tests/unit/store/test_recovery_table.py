"""Every input of the decision tables matches exactly one row; recovery does what the row says.

The second half builds a store for each row that can be reached, opens it, and looks what was done.
"""

import importlib.util
import itertools
import json
import pathlib
from dataclasses import replace

import pytest

import tailrace.store.recovery.table as module
from tailrace.config import RecoveryMode
from tailrace.errors import CorruptionError
from tailrace.kernels import record
from tailrace.kernels.shared import constants as C
from tailrace.store.recovery.table import (
    START_TABLE,
    STOP_TABLE,
    StartDecision,
    StartRow,
    StopDecision,
    StopRow,
    decide_start,
    decide_stop,
)

_spec = importlib.util.spec_from_file_location(
    "faults", pathlib.Path(__file__).parents[2] / "crash" / "faults.py")
faults = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(faults)

ABSOLUTE, TAIL, ANY = (
    RecoveryMode.ABSOLUTE, RecoveryMode.TOLERATE_TAIL, RecoveryMode.TOLERATE_ANY)
STARTS, STOPS = StartRow._fields[:-1], StopRow._fields[:-2]


def inputs(names):
    return [dict(zip(names, values, strict=True))
            for values in itertools.product([False, True], repeat=len(names))]


def fits(row, values):
    return all(getattr(row, name) in {None, value} for name, value in values.items())


def test_every_way_to_start_has_one_row():
    for values in inputs(STARTS):
        (row,) = [row for row in START_TABLE if fits(row, values)]
        assert decide_start(values) is row.decision


@pytest.mark.parametrize("mode", RecoveryMode)
def test_every_place_has_one_row_in_every_mode(mode):
    for values in inputs(STOPS):
        (row,) = [row for row in STOP_TABLE if mode in row.modes and fits(row, values)]
        decision = decide_stop(mode, values)
        assert decision is row.decision
        if mode is ANY:
            assert decision is not StopDecision.REFUSE, "the default mode always opens"
        if mode is ABSOLUTE:
            assert decision not in {StopDecision.CUT, StopDecision.STEP_OVER}


def test_every_decision_has_a_row():
    assert {row.decision for row in START_TABLE} == set(StartDecision) - {StartDecision.REBUILD_PART}
    assert {row.decision for row in STOP_TABLE} == set(StopDecision)


def test_the_tables_are_the_ones_in_the_docstring():
    words = {"yes": True, "no": False, "-": None}
    lines = [line.split() for line in module.__doc__.splitlines()]
    starts = [line for line in lines if line[:1] in (["empty"], ["there"])]
    known = {"empty": False, "there": True, "right": True, "wrong": False, "sane": True, **words}
    assert [(tuple(known[word] for word in line[:4]), line[4]) for line in starts] == [
        (tuple(row[:-1]), row.decision.name) for row in START_TABLE]
    stops = [line for line in lines if len(line) == 6 and line[0] in words]
    modes = {"-": {*RecoveryMode}, "ABSOLUTE": {ABSOLUTE}, "TOLERATE_TAIL": {TAIL}, "TOLERATE_ANY": {ANY}}
    assert [(*(words[word] for word in columns), decision) for *columns, _, decision in stops] == [
        (*row[:-2], row.decision.name) for row in STOP_TABLE]
    for line, row in zip(stops, STOP_TABLE, strict=True):
        others = {ABSOLUTE, TAIL} if line[1] == "yes" else {TAIL, ANY}
        assert row.modes == modes.get(line[-2], others)


# -- what recovery does

@pytest.fixture(scope="module")
def source():
    return faults.Source(4, 150)


def open_it(source, files, mode=ANY):
    source = _with(source, replace(source.config, recovery_mode=mode))
    with source.opened(files) as store:
        return store.recovery_report


def _with(source, config):
    made = object.__new__(faults.Source)
    made.__dict__.update(source.__dict__, config=config)
    return made


def kept(files):
    """The manifest of the quarantine."""
    file = files.open("/store/tailrace/quarantine/manifest.jsonl")
    return [json.loads(line) for line in file.pread(file.size(), 0).splitlines()]


def without(files, *parts):
    for path in faults.paths(files):
        if any(part in path for part in parts):
            files.remove(path)
    return files


@pytest.mark.parametrize(("decision", "abort", "gone"), [
    ("PROGRESS", False, ()),
    ("PROGRESS", True, ()),
    ("LAST_FILES", False, ("/tailrace/progress",)),
    ("CHECKPOINT", True, ("/tailrace/progress",)),
    ("FIRST_FILE", True, ("/tailrace/progress", "/checkpoint")),
    ("REBUILD_PART", False, ("/tailrace/progress", "consumequeue/T0/0/00000000000000000000")),
    ("REBUILD_PART", True, ("/tailrace/progress", "consumequeue/T0/0/00000000000000000000")),
    ("REBUILD_PART", False, ("/tailrace/progress", "/index/")),
    ("NOTHING", False, ("commitlog/",)),
    ("NOTHING", True, ("commitlog/",)),
])
def test_a_start_is_that_of_its_row(source, decision, abort, gone):
    files = without(source.image("killed" if abort else "clean"), *gone)
    report = open_it(source, files)
    assert report["decision"] == decision, report
    if decision != "NOTHING":
        assert source.look(files) == source.wanted


SMALL = faults.SEGMENT


def broken(check, at, files, source):
    """Make one check of the record at a position fail, and none before it."""
    path, place = faults.segment_of(files, at)
    record = next(record for record in source.records if record.at == at)
    data = bytearray(record.data)
    if check == "magic":
        data[4:8] = b"\1\2\3\4"
    elif check == "length":
        data[84:88] = (1 << 20).to_bytes(4, "big")
    elif check == "position":
        data[28:36] = (at + SMALL).to_bytes(8, "big")
    elif check == "crc":
        data[90] ^= 1
    elif check == "whole":
        data[-9:] = bytes(9)
    faults.change(files, path, place, bytes(data))
    if check == "whole":  # the file system also lost the later pages
        place += len(data)
        lost = min(SMALL - place, 700)
        faults.change(files, path, place, bytes(lost))


CHECKS = ("magic", "length", "position", "crc", "whole")
REASONS = {check: {record.REASON_NAMES[reason] for reason in reasons} for check, reasons in zip(CHECKS, (
    {C.REASON_BAD_MAGIC, C.REASON_ZERO}, {C.REASON_BAD_LENGTH, C.REASON_SHORT}, {C.REASON_BAD_PHY_OFFSET},
    {C.REASON_BAD_CRC, C.REASON_BAD_PROP_CRC}, {C.REASON_TORN}), strict=True)}


def tree(files):
    return {path: files.open(path).pread(1 << 20, 0) for path in faults.paths(files)}


def names(files, path="/store"):
    found = {f"{path}/{name}" for name in files.list(path)}
    return found.union(*(names(files, name) for name in found if files.stat(name).is_dir))


@pytest.mark.parametrize("mode", RecoveryMode)
@pytest.mark.parametrize("later", [True, False])
@pytest.mark.parametrize("check", CHECKS)
def test_a_record_that_fails_a_check_is_handled_as_its_row_says(source, check, later, mode):
    files = source.image("bare")
    place = source.records[75] if later else source.records[-1]
    broken(check, place.at, files, source)
    values = {"torn": check == "whole", "later": later, "files": later, "data": True}
    wanted = decide_stop(mode, values)
    if wanted is StopDecision.REFUSE:
        before = tree(files), names(files)
        with pytest.raises(CorruptionError, match=mode.value):
            open_it(source, files, mode)
        assert (tree(files), names(files)) == before, "a refused open changed something"
        return
    report = open_it(source, files, mode)
    if wanted is StopDecision.STEP_OVER:
        (damage,) = report["steppedOver"]
        assert damage["physicalOffset"] == place.at
        assert damage["reason"] in REASONS[check]
        assert not report["cut"]
        assert report["quarantinedBytes"]
        lines = kept(files)
        assert {one["reason"] for one in lines} == {damage["reason"]}
        assert [(one["physicalOffset"], one["position"]) for one in lines[:1]] == [
            (place.at, place.at % SMALL)]
        assert all(one["file"].endswith(f"{one['physicalOffset'] - one['position']:020d}") for one in lines)
    else:
        assert (wanted.name, report["atEnd"]) == ("CUT", "CUT")
        assert report["to"] == place.at
        assert report["cut"]
        assert not report["steppedOver"]
    found = source.look(files)
    assert place.place not in found
    assert found.items() <= source.wanted.items()


@pytest.mark.parametrize("image", ["clean", "killed"])
@pytest.mark.parametrize("mode", [ABSOLUTE, TAIL])
@pytest.mark.parametrize("later", [True, False])
@pytest.mark.parametrize("check", CHECKS)
def test_a_refused_open_changes_nothing_however_the_store_was_left(source, check, later, mode, image):
    """Make a store with queues, index and checkpoint; with ``clean`` without an abort file."""
    files = without(source.image(image), "/tailrace/progress")
    broken(check, source.records[-20 if later else -1].at, files, source)
    before = tree(files), names(files)
    if not later and mode is TAIL:
        assert open_it(source, files, mode)["atEnd"] == "CUT"
        return
    for _ in range(2):
        with pytest.raises(CorruptionError, match=mode.value):
            open_it(source, files, mode)
        assert (tree(files), names(files)) == before, "a refused open changed something"


@pytest.mark.parametrize("mode", RecoveryMode)
@pytest.mark.parametrize("files_behind", [False, True])
def test_zeros_after_the_last_record_end_the_log_in_every_mode(source, mode, files_behind):
    files = source.image("killed")
    last = source.end - source.end % SMALL
    if files_behind:
        for number in (1, 2):
            file = files.open(
                f"/store/commitlog/{last + number * SMALL:020d}", writable=True, create=True)
            file.truncate(SMALL)
    report = open_it(source, files, mode)
    assert report["atEnd"] == ("DROP_FILES" if files_behind else "END")
    assert not report["cut"]
    assert not report["quarantinedBytes"]
    assert max(files.list("/store/commitlog")) == f"{last:020d}"
    assert source.look(files) == source.wanted


@pytest.mark.parametrize("mode", RecoveryMode)
def test_a_record_that_does_not_go_on_is_kept_without_a_unit(source, mode):
    """The last one is the first message of its queue again, stored before the others."""
    files = source.image("bare")
    record = source.records[-1]
    data = bytearray(record.data)
    data[20:28] = (0).to_bytes(8, "big")
    data[56:64] = (1000).to_bytes(8, "big")
    faults.change(files, *faults.segment_of(files, record.at), bytes(data))
    report = open_it(source, files, mode)
    assert (report["atEnd"], report["to"]) == ("END", source.end)
    found = source.look(files)
    assert found == {k: v for k, v in source.wanted.items() if k != record.place}


@pytest.mark.parametrize("mode", RecoveryMode)
def test_a_missing_segment_with_records_after_it_is_a_gap(source, mode):
    files = source.image("bare")
    middle = files.list("/store/commitlog")[2]
    files.remove(f"/store/commitlog/{middle}")
    if mode is not ANY:
        before = tree(files), names(files)
        with pytest.raises(CorruptionError, match=mode.value):
            open_it(source, files, mode)
        assert (tree(files), names(files)) == before, "a refused open changed something"
        return
    report = open_it(source, files, mode)
    assert [damage["reason"] for damage in report["steppedOver"]] == ["segment file is missing"]
    low, high = int(middle), int(middle) + SMALL
    left = {r.place: r.data for r in source.records if not low <= r.at < high}
    assert source.look(files) == left


def test_bytes_of_a_log_can_reach_every_row():
    """A torn record and a later one are bytes that are not zero, so ``data`` is True for them."""
    reachable = [values for values in inputs(STOPS) if values["data"] or not (values["torn"] or values["later"])]
    assert {row for row in STOP_TABLE for values in reachable if fits(row, values)} == set(STOP_TABLE)
