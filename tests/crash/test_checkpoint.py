"""Our checkpoint is right for every release: everything up to it is on the disk, at any moment.

5.5.0 replays from the segment of the record at 40, 5.3.3 from the last segment that begins 3 s
before the lesser of the times at 0 and 8. Both are right when the log is there up to the record at
40, every record up to it has its unit, and no field is ahead of that.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import struct

import pytest
from long_runs import LONG

from tailrace.env.entropy import SeededEntropy
from tailrace.formats.checkpoint import CHECKPOINT
from tailrace.formats.commitlog import BLANK_MAGIC, decode_message
from tailrace.formats.consumequeue import CQ_UNIT
from tailrace.store.store_checkpoint import read_checkpoint
from tailrace.store.walk.scan import is_record
from tailrace.testing import CrashFileSystem, SimClock, SimulatedCrash

_spec = importlib.util.spec_from_file_location("sweep", pathlib.Path(__file__).with_name("sweep.py"))
sweep = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(sweep)

pytestmark = pytest.mark.crash
SEED = int(os.environ.get("SEED", "1"))
ROOT = sweep.ROOT


def content(files, path):
    return files.open(path).pread(1 << 30, 0)


def records_on(files):
    """Position and message of every whole record, including those after damage."""
    found = {}
    for name in files.list(f"{ROOT}/commitlog"):
        base, data, at = int(name), content(files, f"{ROOT}/commitlog/{name}"), 0
        while at + 8 <= len(data):
            size, magic = struct.unpack_from(">iI", data, at)
            if magic == BLANK_MAGIC:
                break
            record = data[at : at + size] if size > 0 else b""
            if is_record(record, base + at):
                found[base + at] = decode_message(record)
                at += size
            else:
                at += 1
    return found


def has_unit(files, phy_offset, message):
    size = sweep.CONFIG.mapped_file_size_consume_queue
    at = message.queue_offset * CQ_UNIT.size
    path = f"{ROOT}/consumequeue/{message.topic}/{message.queue_id}/{at - at % size:020d}"
    if not files.exists(path):
        return False
    data = content(files, path)[at % size : at % size + CQ_UNIT.size]
    return len(data) == CQ_UNIT.size and (
        CQ_UNIT.unpack_from(data)[:2] == (phy_offset, message.store_size))


def check(files, what):
    """All six fields against the files; whether there was something to check."""
    fields = read_checkpoint(files, f"{ROOT}/checkpoint")
    found = records_on(files)
    newest = max((m.store_timestamp for m in found.values()), default=0)
    assert fields.master_flushed_offset == 0, what
    assert 0 <= fields.confirm_phy_offset <= max(found, default=0), (what, fields)
    assert fields.physic_msg_timestamp <= newest, (what, "the log is behind it", fields)
    assert fields.index_msg_timestamp <= newest, (what, fields)
    at = fields.logics_physical_offset
    if not at:
        assert fields.logics_msg_timestamp <= min(
            (m.store_timestamp for m in found.values()), default=0), (what, fields)
        return False
    assert at in found, (what, "no record starts there", fields)
    assert fields.logics_msg_timestamp <= found[at].store_timestamp, (what, fields)
    missing = [p for p, m in found.items() if p <= at and not has_unit(files, p, m)]
    assert not missing, (what, "records without a unit", missing[:3])
    return True


def crashed(place):
    def before(number, _name, _path):
        if number == place:
            raise SimulatedCrash

    files, clock = CrashFileSystem(before), SimClock()
    try:
        sweep.workload(files, clock, [], [], seed=SEED)
    except SimulatedCrash:
        pass
    files.before = None
    return files, clock


@pytest.mark.slow
@pytest.mark.parametrize("keep", [None, 0, 50])
def test_at_any_moment_the_checkpoint_claims_what_is_there(keep):
    checked = 0
    for place in range(0, sweep.operations(SEED) + 1, 2 if LONG else 5):
        files, clock = crashed(place)
        entropy = SeededEntropy(SEED * 7919 + place)
        left = files.killed() if keep is None else files.power_lost(entropy, keep)
        checked += check(left, f"SEED={SEED} place={place} keep={keep}")
        sweep.contents(left, clock)
        checked += check(left, f"SEED={SEED} place={place} keep={keep}, opened and closed")
    assert checked > 20


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 0.99])
def test_a_checkpoint_goes_down_with_the_log(share):
    files, clock = crashed(-1)
    places = sorted(records_on(files))
    cut = places[int(share * len(places))]
    size = sweep.CONFIG.mapped_file_size_commit_log
    for name in files.list(f"{ROOT}/commitlog"):
        keep = min(max(cut - int(name), 0), size)
        files.open(f"{ROOT}/commitlog/{name}", writable=True).pwrite(bytes(size - keep), keep)
    with sweep.open_store(files, clock) as store:
        assert store.max_phy_offset == cut
        check(files, "right after the open")
    check(files, "after the close")
    before = read_checkpoint(files, f"{ROOT}/checkpoint")
    assert before.logics_physical_offset == (places[places.index(cut) - 1] if cut else 0)


@pytest.mark.parametrize("field", ["logics_physical_offset", "physic_msg_timestamp",
                                   "logics_msg_timestamp", "index_msg_timestamp",
                                   "master_flushed_offset", "confirm_phy_offset"])
def test_a_field_that_claims_more_is_caught(field):
    files, _ = crashed(-1)
    assert check(files, "as it is")
    path = f"{ROOT}/checkpoint"
    fields = read_checkpoint(files, path)
    more = fields._replace(**{field: getattr(fields, field) + (1 << 42)})
    files.open(path, writable=True).pwrite(CHECKPOINT.pack(*more), 0)
    with pytest.raises(AssertionError):
        check(files, "claims more")


def test_a_unit_that_is_missing_is_caught():
    files, _ = crashed(-1)
    queue = f"{ROOT}/consumequeue/T0/0/{0:020d}"
    files.open(queue, writable=True).pwrite(bytes(CQ_UNIT.size), CQ_UNIT.size)
    with pytest.raises(AssertionError, match="without a unit"):
        check(files, "a unit is gone")
