"""`tailrace retention` on real directories, served and not."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import time

import commands
import pytest

from tailrace import Message, MessageStore, StoreConfig
from tailrace.client import Producer
from tailrace.errors import RemotingError
from tailrace.node.store_opening import StoreParts
from tailrace.store.directory import StoreDirectory

pytestmark = pytest.mark.integration

SIZE = 64 * 1024
SETTINGS = f"mappedFileSizeCommitLog={SIZE}\n"


def tailrace(*arguments):
    return commands.run(*arguments)


def answered(answer, *arguments):
    """Run a command that asks on a terminal; return the finished process."""
    leader, follower = pty.openpty()
    try:
        os.write(leader, answer)
        return commands.run(*arguments, stdin=follower)
    finally:
        os.close(leader)
        os.close(follower)


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "store"
    config = StoreConfig(
        mapped_file_size_commit_log=SIZE, mapped_file_size_consume_queue=200,
        max_hash_slot_num=100, max_index_num=400)
    with MessageStore.open(path, config=config, parts=StoreParts(services=False)) as store:
        for _ in range(80):
            store.put(Message(topic="t", body=bytes(4000)))
    return path


@pytest.fixture
def settings(tmp_path):
    def write(text):
        path = tmp_path / "broker.conf"
        path.write_text(SETTINGS + text)
        return path
    return write


def segments(store):
    return sorted(p.name for p in (store / "commitlog").iterdir())


def test_it_reads_like_an_answer_and_changes_nothing(store, settings):
    before = segments(store)
    kept = tailrace("retention", store, "--config", settings("diskMaxUsedSpaceRatio=95\n"))
    assert kept.returncode == 0, kept.stderr
    lines = kept.stdout.splitlines()
    assert f"{len(before)} files of the CommitLog, " in lines[0]
    assert "kept for 72 h (fileReservedTime), deleted between 04:00 and 05:00 (deleteWhen)" in lines[0]
    assert "puts are refused above 90 %" in lines[1]
    assert re.search(r"\na pass now would delete nothing: the oldest file is kept until \d{4}-", kept.stdout)
    assert re.search(r"kept until \d{4}-\d\d-\d\d \d\d:\d\d:\d\d \(storeTimestamp .* \+ 72 h\)", lines[-len(before)])
    assert lines[-1].endswith("kept, it is the last file")
    may_go = tailrace("retention", store, "--config", settings("fileReservedTime=0\n"), "--json")
    shown = [json.loads(line) for line in may_go.stdout.splitlines()]
    assert [f["rule"] for f in shown[1:]] == ["EXPIRED"] * (len(before) - 1) + ["LAST_FILE"]
    assert segments(store) == before


def test_delete_now_makes_one_pass_under_the_lock_and_says_what_went(store, settings):
    before = segments(store)
    done = tailrace("retention", store, "--delete-now", "--config", settings(
        "fileReservedTime=0\ndeleteFileBatchMax=3\n"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == (
        f"deleted by one pass under the lock: {' '.join(before[:3])}")
    assert segments(store) == before[3:]
    assert not (store / "abort").exists()
    assert list((store / "tailrace" / "trash").iterdir()) == []
    with MessageStore.open(store, parts=StoreParts(services=False)) as opened:
        assert opened.recovery_report["mode"] == "normal"
        assert opened.min_phy_offset == 3 * SIZE
        found = list(opened.read("t"))
        assert found[0].queue_offset == opened.min_offset_in_queue("t", 0) > 0
        assert found[-1].queue_offset == 79


def test_delete_now_asks_the_server_of_a_served_directory(store, settings):
    # At another hour: else the first pass of the server itself, at its start, deletes them.
    config = settings(f"fileReservedTime=0\ndeleteWhen={(time.localtime().tm_hour + 12) % 24}\n")
    server = subprocess.Popen(
        [sys.executable, "-m", "tailrace.cli", "serve", str(store), "--listen", "127.0.0.1:0",
         "--namesrv-listen", "127.0.0.1:0", "--config", str(config)],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert server.stdout.readline().startswith("ready ")
        before = segments(store)
        done = tailrace("retention", store, "--delete-now", "--config", config)
        assert done.returncode == 0, done.stderr
        first = done.stdout.splitlines()[0]
        assert re.match(r"deleted by the server at 127\.0\.0\.1:\d+: \d{20}", first)
        assert done.stderr == ""
        gone = [name for name in before if name not in segments(store)]
        assert len(gone) > 2, "with a pause behind each"
        assert first.endswith(": " + " ".join(gone)), "all that went are named"
    finally:
        server.terminate()
        assert server.wait(20) == 0
        server.stdout.close()


def test_free_deletes_young_files_and_says_what_went_and_why_it_stopped(store, settings):
    config, before = settings("diskMaxUsedSpaceRatio=95\n"), segments(store)
    plan = tailrace("retention", store, "--config", config, "--free", f"{2 * SIZE}", "--dry-run")
    assert plan.stdout == (
        f"128.0 KiB of 128.0 KiB would be freed by one pass under the lock, 2 files: {' '.join(before[:2])}\n")
    assert segments(store) == before
    asked = tailrace("retention", store, "--config", config, "--free", "128KiB")
    assert (asked.returncode, asked.stdout) == (2, "")
    assert asked.stderr == (
        f"tailrace: delete the oldest files of {store}, expired or not, until 128KiB is freed: there is no terminal to "
        "ask for confirmation; add --yes if you mean it\n")
    assert segments(store) == before
    done = tailrace("retention", store, "--config", config, "--free", "128KiB", "--yes")
    assert done.stdout == plan.stdout.replace("would be freed", "freed")
    assert (done.returncode, segments(store)) == (0, before[2:])
    assert list((store / "tailrace" / "trash").iterdir()) == []
    rest = tailrace("retention", store, "--config", config, "--free", "1TiB", "--json", "--yes")
    assert rest.returncode == 1, "less than requested"
    shown = json.loads(rest.stdout)
    assert (shown["kind"], shown["by"], shown["dryRun"]) == ("freed", "one pass under the lock", False)
    assert shown["files"] == before[2:-1]
    assert (shown["requestedBytes"], shown["freedBytes"]) == (1 << 40, SIZE * (len(before) - 3))
    assert shown["stopped"] == f"{store}/commitlog/{before[-1]} stays, it is the last file"


@pytest.mark.parametrize(("answer", "code", "gone"), [(b"n\n", 1, 0), (b"\n", 1, 0), (b"y\n", 0, 2)])
def test_free_asks_on_a_terminal(store, settings, answer, code, gone):
    config, before = settings("diskMaxUsedSpaceRatio=95\n"), segments(store)
    done = answered(answer, "retention", store, "--config", config, "--free", "128KiB")
    assert (done.returncode, segments(store)) == (code, before[gone:])
    assert done.stderr.startswith(f"delete the oldest files of {store}, expired or not, until 128KiB is freed? [y/N]:")


@pytest.mark.parametrize(("arguments", "error"), [
    (("--free", "10GB"), "--free: '10GB' is not a size above 0, such as 10GiB, 500MiB or a number of bytes"),
    (("--free", "0"), "--free: '0' is not a size above 0, such as 10GiB, 500MiB or a number of bytes"),
    (("--free", "1GiB", "--delete-now"), "--free and --delete-now exclude each other"),
    (("--dry-run",), "--dry-run needs --free"),
    (("--yes",), "--yes needs --free"),
])
def test_wrong_arguments_of_free_are_refused(store, arguments, error):
    done = tailrace("retention", store, *arguments)
    assert (done.returncode, done.stderr, done.stdout) == (2, f"tailrace: {error}\n", "")


def test_free_does_not_ask_about_what_is_not_a_store(tmp_path):
    for path, why in ((tmp_path / "nothing", "it does not exist"), (tmp_path, "it has no commitlog")):
        done = answered(b"y\n", "retention", path, "--free", "128KiB")
        assert done.returncode == 1
        assert "[y/N]" not in done.stderr
        assert f"{path} is not a store directory: {why}" in done.stderr


def test_free_is_served_by_the_server_of_a_directory(store, settings):
    config = settings(f"deleteWhen={(time.localtime().tm_hour + 12) % 24}\ndiskMaxUsedSpaceRatio=95\n")
    server = subprocess.Popen(
        [sys.executable, "-m", "tailrace.cli", "serve", str(store), "--listen", "127.0.0.1:0",
         "--namesrv-listen", "127.0.0.1:0", "--config", str(config)],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert server.stdout.readline().startswith("ready ")
        before = segments(store)
        plan = tailrace("retention", store, "--free", "192KiB", "--dry-run", "--json")
        assert (json.loads(plan.stdout)["files"], segments(store)) == (before[:3], before)
        done = tailrace("retention", store, "--free", "192KiB", "--yes")
        assert done.returncode == 0, done.stderr
        assert re.fullmatch(
            r"192\.0 KiB of 192\.0 KiB freed by the server at 127\.0\.0\.1:\d+, 3 files: "
            + " ".join(before[:3]) + "\n", done.stdout), done.stdout
        assert segments(store) == before[3:]
    finally:
        server.terminate()
        assert server.wait(20) == 0
        server.stdout.close()


def test_a_full_disk_is_told_to_producers_with_path_use_limit_option_and_the_way_back(store, settings):
    config = settings(f"diskFreeBytesWarningLevel={1 << 60}\ncleanFileForciblyEnable=false\n")
    server = subprocess.Popen(
        [sys.executable, "-m", "tailrace.cli", "serve", str(store), "--listen", "127.0.0.1:0",
         "--namesrv-listen", "127.0.0.1:0", "--config", str(config)],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        address = re.search(r"broker=(\S+)", server.stdout.readline())[1]
        with Producer(broker=address, group="g") as producer, pytest.raises(RemotingError) as refused:
            producer.send(Message(topic="t", body=b"x"))
        assert re.search(
            rf"disk full: {store}/commitlog has [0-9.]+ [KMGT]iB free, diskFreeBytesWarningLevel asks for "
            r"1\.0 EiB; writes return at 1\.1 EiB free", str(refused.value)), refused.value
        assert refused.value.code == 14
    finally:
        server.terminate()
        assert server.wait(20) == 0
        server.stdout.close()


def test_a_delayed_message_and_a_shared_disk_are_explained(store, settings):
    with MessageStore.open(store, parts=StoreParts(services=False)) as opened:
        place = opened.put(Message(topic="later", body=b"x", delay_level=18)).phy_offset
        for _ in range(40):
            opened.put(Message(topic="t", body=bytes(4000)))
        opened.wait_dispatched()
    name, later = f"{place // SIZE * SIZE:020d}", f"deleteWhen={(time.localtime().tm_hour + 12) % 24}\n"
    found = tailrace("retention", store, "--config", settings(
        f"fileReservedTime=0\n{later}deleteFileBatchMax=2\ndiskMaxUsedSpaceRatio=95\n"))
    assert re.search(
        name + r"  kept, it expired and is pinned; needed by timer of delay level 18 due \d{4}-",
        found.stdout), found.stdout
    assert re.search(r"\n\d+ files may go, 2 in a pass \(deleteFileBatchMax\), and will ", found.stdout)
    idle = tailrace("retention", store, "--config", settings("pinGroups=billnig\n"))
    assert "\ngroup billnig of pinGroups has committed no offset here: nothing is kept for it\n" in idle.stdout
    shared = tailrace("retention", store, "--config", settings(
        f"{later}diskMaxUsedSpaceRatio=95\nreplicasPerDiskPartition=100000000\n"))
    assert "of its part of the partition" in shared.stdout
    assert re.search(name + r"  deletable, space is short, .*; needed by timer of delay level", shared.stdout)


def test_delete_now_does_not_wait_for_a_holder_that_serves_nobody(store, settings):
    with MessageStore.open(store, parts=StoreParts(services=False)):
        done = tailrace("retention", store, "--delete-now", "--config", settings(""))
    assert done.returncode == 1
    assert done.stderr.startswith("tailrace: ")
    assert "mqadmin deleteExpiredCommitLog" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_disk_usage_names_trash_and_quarantine(store):
    for place, size in (("tailrace/trash/0", 70_000), ("tailrace/quarantine/0.bin", 5_000),
                        ("commitlog/.tailrace-trash/1", 8_000)):
        (store / place).parent.mkdir(parents=True, exist_ok=True)
        (store / place).write_bytes(b"x" * size)
    shown = [json.loads(line) for line in tailrace("disk-usage", store, "--json").stdout.splitlines()]
    kinds = {line["kind"]: (line["files"], line["apparentBytes"]) for line in shown}
    assert kinds["trash"] == (2, 78_000)
    assert kinds["quarantine"] == (1, 5_000)
    assert kinds["commitlog"] == (len(list(store.glob("commitlog/0*"))),
                                  sum(path.stat().st_size for path in store.glob("commitlog/0*")))


def test_what_is_no_store_is_one_line(tmp_path):
    done = tailrace("retention", tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("tailrace: ")


def test_readers_without_the_lock_see_expired_messages_as_gone_never_as_garbage(store):
    config = StoreConfig(file_reserved_time=0.0, delete_file_batch_max=2, delete_rate=SIZE)
    with MessageStore.open(store, config=config, parts=StoreParts(services=False)) as opened:
        opened.put(Message(topic="t", body=b"last"))
        opened.wait_dispatched()
        opened.flush()
        opened.inner._write_flushed()
        before = StoreDirectory(str(store))
        want = {
            offset: data for queue in before.queues() for offset, _, data in before.records(queue)}
        assert None not in want.values()
        clean = opened.retention.clean_commit_log
        clean.execute_delete_files_manually()
        clean.step()
        clean.step()
        assert opened.min_phy_offset == 2 * SIZE
        for _ in range(4):  # while the bytes are cut off slice by slice
            found = {
                offset: data for queue in before.queues()
                for offset, _, data in before.records(queue)}
            gone = [offset for offset, data in found.items() if data is None]
            assert gone == list(range(len(gone)))
            assert gone
            assert all(data == want[offset] for offset, data in found.items() if data is not None)
            opened.retention.trash.step()
        opened.retention.clean_consume_queue.run_pass()
        queues = opened.inner.queues.get("t", 0).files.files
        assert queues[0].file_from_offset > 0, "a queue file went, too"
        found = {
            offset: data for queue in before.queues() for offset, _, data in before.records(queue)}
        assert max(found) == max(want), "what is behind a gone queue file is still shown"
        assert all(data == want[offset] for offset, data in found.items() if data is not None)
        assert {offset for offset, data in found.items() if data} == set(want) - set(gone)
        after = StoreDirectory(str(store))
        assert after.min_phy_offset == 2 * SIZE
        [queue] = [q for q in after.queues() if q.max_offset]
        assert queue.min_offset == len(gone)


def test_an_empty_store_is_explained(tmp_path):
    with MessageStore.open(tmp_path / "empty", parts=StoreParts(services=False)):
        pass
    done = tailrace("retention", tmp_path / "empty", "--delete-now")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "deleted by one pass under the lock: nothing"
    assert "0 files of the CommitLog" in done.stdout
    assert "a pass now would delete nothing: there is no file" in done.stdout
