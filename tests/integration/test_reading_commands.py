"""Commands that only read a directory leave every byte of it, also after a crash, and show what recovery will find."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading

import pytest
from command_lists import calls, snapshot
from crashed_directories import KINDS, OF_JAVA
from patience import until

from tailrace import Message, MessageStore, StoreConfig
from tailrace.errors import StoreNotWritableError
from tailrace.formats.recall_handle import build_handle
from tailrace.node.store_opening import StoreParts
from tailrace.testing import SimClock

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module", params=[
    pytest.param(kind, marks=[] if kind == "torn" else pytest.mark.long) for kind in KINDS])
def store(request, tmp_path_factory):
    return KINDS[request.param](tmp_path_factory.mktemp("looking") / "store")


RUNNER = """
import contextlib, io, json, sys
from tailrace.cli import main
class Out(io.TextIOWrapper):
    def __init__(self): super().__init__(io.BytesIO(), write_through=True)
for words in json.loads(sys.argv[1]):
    sys.argv = ["tailrace", *words]
    out, err = Out(), Out()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try: main()
        except SystemExit as ended: code = ended.code or 0
    print(json.dumps([code, out.buffer.getvalue().decode(), err.buffer.getvalue().decode()]), flush=True)
"""


def run_all(store, commands, before=()):
    """Run commands in one process; return (exit code, stdout, stderr) of each."""
    out = store.parent / "out"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    names = {"STORE": str(store), **(OF_JAVA if (store / "consumequeue" / OF_JAVA["orders"]).exists() else {})}
    wanted = [
        [str(out / str(number)) if word == "OUT" else names.get(word, word) for word in words]
        for number, words in enumerate(commands)]
    done = subprocess.run(
        [*before, sys.executable, "-c", RUNNER, json.dumps(wanted)], capture_output=True, text=True, check=False,
        timeout=180, env={**os.environ, "TAILRACE_CONTEXTS": "/nowhere", "NAMESRV_ADDR": "127.0.0.1:1"})
    if done.stderr.startswith(("unshare:", "mount:")):
        pytest.skip(f"no mounts here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_no_byte_name_or_time_of_the_directory_changes(store):
    commands, before = calls(on_spark=False), snapshot(store)
    for words, (code, _, error) in zip(commands, run_all(store, commands), strict=True):
        assert "Traceback" not in error, (words, error)
        assert code in {0, 1}, (words, error)
    after = snapshot(store)
    assert sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name)) == []


def without_blocks(result):
    """A result without the blocks of files: the kernel allocates some of them only when it writes pages to the disk."""
    code, out, error = result
    return code, re.sub(r'"allocatedBytes":\d+', "", out), error


def test_they_work_on_a_mount_that_is_read_only_and_print_the_same(store):
    commands = [words for words in calls(on_spark=False) if words[0] != "backup"]
    mount = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
    writable = run_all(store, commands)
    for words, one, other in zip(
            commands, writable, run_all(store, commands, ("unshare", "-m", "sh", "-c", mount, str(store))),
            strict=True):
        if words[0] not in {"retention", "doctor"}:  # they have the time or the free room of the disk
            assert without_blocks(one) == without_blocks(other), words


def test_they_show_what_recovery_finds(store, tmp_path):
    recovered = tmp_path / "recovered"
    shutil.copytree(store, recovered)
    [(code, _, error)] = run_all(recovered, [("recover", "STORE")])
    assert code == 0, error
    shown = {"query", "timers", "topic", "group", "tail", "acl"}
    commands = [("dump", "STORE", "--only", "queues,messages"), *(
        words for words in calls(on_spark=False) if words[0] in shown)]
    for words, there, after in zip(commands, run_all(store, commands), run_all(recovered, commands), strict=True):
        assert there[:2] == after[:2], words
    [(_, out, _)] = run_all(store, [("topic", "stats", "STORE", "orders")])
    assert sum(json.loads(line)["messages"] for line in out.splitlines()) > 10


def test_a_store_opened_only_to_be_read_leaves_everything(store):
    before = snapshot(store)
    with MessageStore.open(store, read_only=True) as opened:
        assert "only to be read" in opened.read_only
        found = [m for topic, queue_id, low, _ in opened.queues() for m in opened.read(topic, queue_id, low)]
        with pytest.raises(StoreNotWritableError, match="only to be read"):
            opened.put(Message(topic="orders", body=b"x"))
        with pytest.raises(StoreNotWritableError, match="only to be read"):
            opened.create_topic("more")
        with MessageStore.open(store, read_only=True):  # no lock is taken
            pass
    assert len(found) > 10
    assert snapshot(store) == before


def shown_until(path):
    with MessageStore.open(path, read_only=True) as beside:
        return beside.max_phy_offset


def test_a_directory_that_is_open_is_read_up_to_what_is_synced(tmp_path):
    path = tmp_path / "s"
    with MessageStore.open(path) as store:
        for number in range(100):
            store.put(Message(
                topic="orders", body=b"%d" % number, keys=[f"k{number}"], delay=60 if number == 7 else None))
        store.flush()
        until(lambda: shown_until(path) == store.max_phy_offset)
        store.put(Message(topic="orders", body=b"not synced yet"))
        with MessageStore.open(path, read_only=True) as beside:
            assert [m.body for m in beside.read("orders")] == [b"%d" % number for number in range(100) if number != 7]
            assert beside.query_message("orders", "k99")[0].body == b"99"
            assert beside.to_arrow("orders").num_rows == 99
            assert [one.topic for one in beside.timers()] == ["orders"]
            with pytest.raises(StoreNotWritableError, match="only to be read"):
                beside.put(Message(topic="orders", body=b"x"))
        with MessageStore.open(path, read_only=True), MessageStore.open(path, read_only=True):
            pass
        store.put(Message(topic="orders", body=b"the writer goes on"))
    with MessageStore.open(path) as store:
        assert len(list(store.read("orders"))) == 101


def test_a_directory_that_is_opened_while_it_is_read_is_read_beside_its_process(tmp_path):
    path = tmp_path / "s"
    with MessageStore.open(path) as store:
        store.put(Message(topic="orders", body=b"x"))
    with contextlib.ExitStack() as opened, MessageStore.open(
        path, read_only=True, parts=StoreParts(on_lock=lambda: opened.enter_context(MessageStore.open(path)))
    ) as beside:
        assert [m.body for m in beside.read("orders")] == [b"x"]


def test_reads_beside_a_writer_are_of_what_was_put_in_order(tmp_path):
    path, numbers = tmp_path / "s", iter(range(1 << 30))
    small = StoreConfig(mapped_file_size_commit_log=1 << 18, mapped_file_size_consume_queue=20_000,
                        flush_interval_commit_log=20)
    with MessageStore.open(path, config=small) as store:
        stop = threading.Event()

        def write():
            while not stop.wait(0.002) and store.max_phy_offset < 4 << 20:
                store.put_many([
                    Message(topic="orders", body=b"%d" % next(numbers), keys=["k"], delay=60 if n == 5 else None)
                    for n in range(40)])

        writer = threading.Thread(target=write)
        writer.start()
        try:
            until(lambda: shown_until(path) > 10_000)
            seen = 0
            for _ in range(5):
                with MessageStore.open(path, read_only=True) as beside:
                    found = [int(m.body) for m in beside.read("orders")]
                    report = beside.recovery_report
                assert [number for number in range(found[-1] + 1) if number % 40 != 5] == found
                assert not report["steppedOver"]
                assert len(found) >= seen
                seen = len(found)
        finally:
            stop.set()
            writer.join()
    assert seen > 100


@pytest.fixture(scope="module")
def only_read(tmp_path_factory):
    """A store that is opened only to be read, whose directory must be the same after all tests."""
    path = tmp_path_factory.mktemp("only-read") / "s"
    small = StoreConfig(
        mapped_file_size_commit_log=1 << 18, mapped_file_size_consume_queue=20_000, max_hash_slot_num=16,
        max_index_num=64)
    with MessageStore.open(path, config=small) as store:
        store.put(Message(topic="orders", body=b"x"))
    before = snapshot(path)
    with MessageStore.open(path, read_only=True) as store:
        yield store
    assert snapshot(path) == before


@pytest.mark.parametrize("change", [
    lambda store: store.put(Message(topic="orders", body=b"x")),
    lambda store: store.put(Message(topic="other", body=b"x")),
    lambda store: store.put_many([Message(topic="orders", body=b"x")]),
    lambda store: store.put_table({"body": [b"x"]}, topic="orders"),
    lambda store: store.recall(build_handle("orders", "broker-a", 1 << 44, "k")),
    lambda store: store.create_topic("other"), lambda store: store.delete_topics(["orders"]),
    lambda store: store.deletion.delete_groups({"g"}, lambda: None), lambda store: store.deletion.delete_idle({}),
    lambda store: store.deletion.delete_unused(), lambda store: store.purge_topic("orders"),
    lambda store: store.flush(), lambda store: store.execute_delete_files_manually(),
    lambda store: store.retention.delete_now(), lambda store: store.retention.free_now(1),
])
def test_a_method_that_writes_says_why_it_does_not(only_read, change):
    with pytest.raises(StoreNotWritableError, match="it was opened only to be read; open it without read_only"):
        change(only_read)


def test_beside_a_java_broker_records_older_than_its_flush_are_read(tmp_path):
    """A process without Tailrace's hint counts as a Java broker: only its checkpoint says how much is durable."""
    path, clock = tmp_path / "s", SimClock(1_700_000_000_000)
    with MessageStore.open(path, parts=StoreParts(services=False, clock=clock)) as store:
        for number in range(8):
            store.put(Message(topic="orders", body=b"%d" % number, keys=["k"]), queue_id=number % 4)
            clock.advance(10)
        store.inner.flush()
        clock.advance(10)
        store.put(Message(topic="orders", body=b"later"))
        store.wait_dispatched()
        with MessageStore.open(path, read_only=True, parts=StoreParts(services=False)) as beside:
            found = sorted(int(m.body) for m in beside.read("orders"))
            keyed = len(beside.query_message("orders", "k"))
        assert found == list(range(7)), "the checkpoint has the time of the last flushed record, which may not be whole"
        assert keyed == 7
        [(code, out, _)] = run_all(path, [("dump", "STORE", "--only", "messages")])
        assert (code, len(out.splitlines())) == (0, 7), "as the commands show"
