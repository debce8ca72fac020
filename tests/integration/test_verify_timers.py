"""`tailrace verify` and timers: undamaged timer files give no findings, and each damage gives one."""

from __future__ import annotations

import json
import pathlib
import shutil
import struct
import tarfile
import time

import commands
import pytest
from releases import CLEAN

from tailrace import Message, MessageStore
from tailrace.doctor.timers import pending_timers
from tailrace.doctor.verify import verify
from tailrace.formats.timerlog import TIMER_UNIT
from tailrace.formats.timerwheel import SLOT
from tailrace.store.directory import StoreDirectory
from tailrace.timer.verification import check_timer_file, timer_files

pytestmark = pytest.mark.integration
FIXTURES = pathlib.Path(__file__).parents[1] / "interop" / "fixtures"
LOG, WHEEL, CHECK = "timerlog/00000000000000000000", "timerwheel", "config/timercheck"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A directory that a Java broker closed, with timers to come."""
    where = tmp_path_factory.mktemp("timers")
    with tarfile.open(FIXTURES / f"{CLEAN}.tar.xz") as archive:
        archive.extractall(where, filter="data")
    return where / CLEAN


@pytest.fixture
def store_path(made, tmp_path):
    return shutil.copytree(made, tmp_path / "store")


def poke(path, at, data):
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def found(path):
    *findings, summary = verify(str(path))
    assert summary["summary"]["timers"]["units"] >= 0
    return [(line["finding"]["kind"], line["finding"]["position"]) for line in findings]


def coming(path):
    directory = StoreDirectory(str(path), raw=True)
    (file,), _ = timer_files(directory)
    return check_timer_file(directory, file, last=True).rows


def test_the_reference_s_timers_are_sound(made):
    assert found(made) == []
    assert len(coming(made)) > 100
    *_, summary = verify(str(made))
    assert summary["summary"]["timers"] == {"pending": 151, "overdue": 151, "delivered": 137, "units": 288}
    assert len(pending_timers(StoreDirectory(str(made)))) == 151


def test_timers_that_we_went_on_with_are_sound(store_path):
    """Even where a list was begun again: the slot of a stop is listed again."""
    with MessageStore.open(store_path) as store:
        for number in range(20):
            store.put(Message(topic="T", body=b"x", delay=0.2 + number / 7, keys=[str(number)]))
            store.put(Message(topic="T", body=b"x", delay=3600 + number // 5))
        taken = store.put(Message(topic="T", body=b"x", delay=3000))
        store.recall(taken.recall_handle)
        for _ in range(1500):  # until every one has its unit
            if store.wait_dispatched() and not store.stats()["timerOffsetBehind"]:
                break
            time.sleep(0.02)
    assert found(store_path) == []
    assert len(coming(store_path)) > 20


def test_each_kind_of_damage_is_named(made, store_path):
    rows = coming(made)
    at = int(rows[5, 1])
    wheel = int(rows[0, 0]) // 1000 % (2 * 7 * 86_400) * SLOT.size
    end = (store_path / LOG).read_bytes().rstrip(b"\0")
    behind = -(-len(end) // TIMER_UNIT.size) * TIMER_UNIT.size
    cases = [
        (LOG, at + TIMER_UNIT.offsets["phy_offset"] + 7, b"\x01", {("foreign-timer", at)}),
        (LOG, at + TIMER_UNIT.offsets["topic_hash"], b"\x01", {("wrong-timer", at)}),
        (LOG, at + TIMER_UNIT.offsets["delay_ms"], b"\0\0\0\1", {("wrong-timer", at)}),
        (LOG, behind + 3, b"\x01", {("timer-log-damaged", behind)}),
        (LOG, at, bytes(52), {("timer-log-damaged", at), ("missing-timer", int(rows[9, 3]))}),
        (WHEEL, wheel + SLOT.offsets["num"], b"\0\0\0\x09", {("timer-slot", wheel)}),
        (LOG, at + TIMER_UNIT.offsets["prev_pos"], struct.pack(">q", 52), {("timer-chain", at)}),
        (CHECK, 16, struct.pack(">q", 9999), {("timercheck-ahead", 16)}),
    ]
    for name, place, data, wanted in cases:
        kept = (store_path / name).read_bytes()
        poke(store_path / name, place, data)
        assert wanted <= set(found(store_path)), (name, place)
        (store_path / name).write_bytes(kept)
    (store_path / "timerlog" / f"{65536:020d}").write_bytes(b"short")
    assert ("timer-log-length", 0) in found(store_path)


def test_the_commands_agree_on_pending_overdue_and_delivered_timers(store_path):
    with MessageStore.open(store_path) as store:
        for number in range(3):
            store.put(Message(topic="later", body=b"x", delay=3600 + number))
        recalled = store.put(Message(topic="later", body=b"x", delay=3000))
        store.recall(recalled.recall_handle)
        for _ in range(1500):
            stats = store.stats()
            if store.wait_dispatched() and not stats["timerOffsetBehind"] and not stats["timerOverdue"]:
                break
            time.sleep(0.02)
        assert stats["timerPending"] == 3

    def run(*words):
        done = commands.run(*words)
        return [json.loads(line) for line in done.stdout.splitlines()]

    counts = run("verify", str(store_path))[-1]["summary"]["timers"]
    assert (counts["pending"], counts["overdue"]) == (3, 0)
    assert counts["delivered"] == 288
    listed = [line["timer"] for line in run("timers", str(store_path)) if line["timer"]["state"] != "parked"]
    assert [timer["state"] for timer in listed] == ["pending"] * 3
    [later] = [line for line in run("timers", str(store_path), "--summary") if line["pending"]]
    assert (later["topic"], later["pending"], later["overdue"]) == ("later", 3, 0)


def test_timers_whose_time_passed_while_nothing_served_them_are_overdue(store_path):
    done = commands.run("timers", store_path)
    states = [json.loads(line)["timer"]["state"] for line in done.stdout.splitlines()]
    assert states == ["overdue"] * 151
