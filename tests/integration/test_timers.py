"""Timers of real stores: in an embedded store, in messages of clients, and in a directory of the reference."""

import json
import pathlib
import tarfile
import time

import commands
import pytest
from patience import until
from releases import CLEAN, CRASHED

from tailrace.doctor.timers import pending_timers
from tailrace.env.clock import SystemClock
from tailrace.errors import MessageIllegalError
from tailrace.model import Message
from tailrace.node.message_store import MessageStore
from tailrace.node.store_opening import StoreParts
from tailrace.store.directory import StoreDirectory

FIXTURES = pathlib.Path(__file__).parents[1] / "interop" / "fixtures"


class LaterClock(SystemClock):
    """The machine's clock, hours ahead."""

    def now_ms(self):
        return super().now_ms() + 12 * 3_600_000


@pytest.mark.integration
def test_embedded_timers_arrive_on_time_and_can_be_taken_back(tmp_path):
    with MessageStore.open(tmp_path / "s") as store:
        now = int(time.time() * 1000)
        store.put(Message(topic="T", body=b"at", deliver_at=now + 1234))
        results = store.put_many([
            Message(topic="T", body=b"after", delay=1.1), Message(topic="T", body=b"gone", delay=1.2)])
        assert [r.queue_id for r in results] == [0, 0]
        store.recall(results[1].recall_handle)
        with pytest.raises(MessageIllegalError):
            store.recall("nonsense")
        with pytest.raises(MessageIllegalError):
            store.put(Message(topic="T", body=b"x", delay=99 * 86_400))
        until(lambda: len(list(store.read("T"))) == 2)
        time.sleep(0.2)
        found = {m.body: m for m in store.read("T")}
        assert set(found) == {b"at", b"after"}
        late = found[b"at"].store_timestamp - (now + 1234)
        assert 0 <= late < 500
        assert store.stats()["timerRecalled"] == 1


@pytest.mark.integration
@pytest.mark.parametrize("name", [CLEAN, CRASHED])
def test_pending_timers_of_the_reference_are_listed_and_arrive(tmp_path, name):
    with tarfile.open(FIXTURES / f"{name}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    listed = pending_timers(StoreDirectory(str(tmp_path / name)))
    assert len(listed) == 151
    with MessageStore.open(tmp_path / name, parts=StoreParts(clock=LaterClock()), create=False) as store:
        wanted = {timer.uniq_key for timer in listed}
        topics = {timer.topic for timer in listed}

        def arrived():
            return [
                m for topic in topics for t, queue_id, _, _ in store.queues() if t == topic
                for m in store.read(topic, queue_id)
                if m.unique_key in wanted and "TIMER_DEQUEUE_MS" in m.properties]

        until(lambda: len(arrived()) >= 151)
        time.sleep(0.2)
        found = arrived()
        assert {m.unique_key for m in found} == wanted
        assert len(found) == 151
        assert all(m.store_timestamp >= int(m.properties["TIMER_DELIVER_MS"]) for m in found)
    assert pending_timers(StoreDirectory(str(tmp_path / name))) == []


@pytest.mark.integration
def test_the_command_lists_what_is_to_come(tmp_path):
    def tailrace(*args):
        return commands.run(*args)

    store = str(tmp_path / "s")
    assert tailrace(
        "send", store, "hello", "--create", "--topic", "T", "--delay", "1h").returncode == 0
    assert tailrace("send", store, "hello", "--topic", "T").returncode == 0
    (line,) = tailrace("timers", store, "--json").stdout.splitlines()
    timer = json.loads(line)["timer"]
    assert (timer["topic"], timer["queueId"], timer["state"]) == ("T", 0, "pending")
    assert timer["dueMs"] > time.time() * 1000 + 3_000_000
    (dumped,) = tailrace("dump", store, "--only", "timers").stdout.splitlines()
    assert timer.pop("dueTime")[:2] == "20"  # beside the milliseconds, for people
    assert json.loads(dumped)["timer"] == timer
    assert timer["timerLogPos"] == 0
    assert tailrace("dump", store, "--only", "timers", "--topic", "U").stdout == ""
    assert tailrace("dump", store).stdout.count('"timer"') == 0
    summary = json.loads(tailrace("timers", store, "--summary").stdout)
    assert summary.pop("nextDueTime")
    assert summary == {"topic": "T", "pending": 1, "overdue": 0, "nextDueMs": timer["dueMs"]}
    assert tailrace(
        "send", store, "x", "--topic", "T", "--delay", "1s", "--deliver-at", "5").returncode == 2
