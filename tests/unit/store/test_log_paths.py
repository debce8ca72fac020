"""A CommitLog in several directories: where files go, what is read, what the disks say."""

from __future__ import annotations

import dataclasses
import errno
import logging

import pytest
from retention_place import HOUR, SIZE, Place

from tailrace import Message, MessageStore, StoreConfig
from tailrace.errors import ConfigError, CorruptionError, NotAStoreError, StoreNotWritableError
from tailrace.node.store_opening import StoreParts
from tailrace.store.directory import StoreDirectory
from tailrace.store.log_paths import LogPaths, log_paths

PATHS = "/disk1/log,/disk2/log,/disk3/log"


def config(**values):
    return StoreConfig.from_properties(values)


@pytest.fixture
def place():
    made = Place(store_path_commit_log=PATHS)
    yield made
    made.store.close()


class Disks:
    """A use in percent for each path's first directory; the rest is half full."""

    def __init__(self, place, monkeypatch):
        self.percent = {}
        self.broken = set()
        monkeypatch.setattr(place.files, "disk_usage", self.usage)

    def usage(self, path):
        disk = path.split("/")[1]
        if disk in self.broken:
            raise OSError(errno.EIO, "broken")
        free = (1 << 40) - (1 << 40) * self.percent.get(disk, 50) // 100
        return type("Usage", (), {"total": 1 << 40, "free": free, "usable": free})()


def where(place):
    return [name.split("/")[1] for name in place.names()]


# -- settings


def test_paths_as_the_reference_reads_them():
    assert log_paths(config(), "/s") == LogPaths(("/s/commitlog",))
    assert log_paths(config(storePathCommitLog=" /a/x/ , /b"), "/s").writable == ("/a/x", "/b")
    assert log_paths(config(
        storePathCommitLog="/a,/b", readOnlyCommitLogStorePaths="/b,/c"), "/s") == LogPaths(
            ("/a",), ("/b", "/c"))
    assert log_paths(config(**{
        "storePathCommitLog": "/a;/b", "rocketmq.broker.multiPathSplitter": ";"}), "/s").all == ("/a", "/b")
    assert log_paths(config(
        storePathRootDir="/data/store", storePathCommitLog="/data/store/commitlog,/b"), "/s").all == (
            "/s/commitlog", "/b"), "the settings of a broker fit a copy of its store"
    for wrong in ({"storePathCommitLog": "/a", "readOnlyCommitLogStorePaths": "/a"},
                  {"storePathCommitLog": "here/log"}):
        with pytest.raises(ConfigError):
            log_paths(config(**wrong), "/s")


# -- files


def test_files_go_in_turn_and_come_back_as_one_log(place):
    place.fill(5)
    assert where(place) == ["disk1", "disk2", "disk3"] * 2
    bodies = [m.queue_offset for m in place.store.read("t")]
    place.store.close()
    place.open()
    assert place.store.recovery_report["mode"] == "normal"
    assert [m.queue_offset for m in place.store.read("t")] == bodies == list(range(len(bodies)))
    assert where(place) == ["disk1", "disk2", "disk3"] * 2
    place.store.close()
    [queue] = StoreDirectory("/s", config=place.config, file_system=place.files).queues()
    assert (queue.min_offset, queue.max_offset) == (0, len(bodies))
    place.open()


def test_a_full_path_is_avoided_and_used_again_when_all_are_full(place, monkeypatch):
    disks = Disks(place, monkeypatch)
    disks.percent = {"disk2": 86}
    place.store.retention.disk.check()
    place.fill(4)
    assert set(where(place)) == {"disk1", "disk3"}
    disks.percent = {"disk1": 86, "disk2": 87, "disk3": 88}
    place.store.retention.disk.check()
    place.fill(6)
    assert set(where(place)[-3:]) == {"disk1", "disk2", "disk3"}


def test_the_path_with_most_room_decides_and_queues_are_looked_at_too(place, monkeypatch):
    disks = Disks(place, monkeypatch)
    disks.percent = {"disk1": 95, "disk2": 99, "disk3": 60}
    assert not place.store.retention.disk.check().clean
    assert place.store.is_writeable
    disks.percent["disk3"] = 91
    assert place.store.retention.disk.check().full
    with pytest.raises(StoreNotWritableError, match="/disk3/log is 91 % used"):
        place.store.put(Message(topic="t", body=b"x"))
    disks.percent["disk3"] = 60
    disks.percent["s"] = 95
    verdict = place.store.retention.disk.check()
    assert verdict.full, "one verdict: the flag is not cleared by the log and set by the queues"
    assert "/s/consumequeue" in verdict.reason or "/s is" in verdict.reason
    disks.percent["s"] = 50
    place.store.retention.disk.check()
    assert place.store.is_writeable


def test_a_path_without_room_is_passed_over(place, monkeypatch, caplog):
    real = place.files.open

    def full(path, **how):
        if path.startswith("/disk2") and how.get("create"):
            raise OSError(errno.ENOSPC, "no room", path)
        return real(path, **how)

    monkeypatch.setattr(place.files, "open", full)
    with caplog.at_level(logging.WARNING):
        place.fill(4)
    assert set(where(place)) == {"disk1", "disk3"}
    assert "made in another directory" in caplog.text
    assert [m.queue_offset for m in place.store.read("t")] == list(
        range(place.store.max_offset_in_queue("t", 0)))


def test_read_only_paths_are_read_expire_and_get_no_file(place):
    place.fill(3)
    old = place.names()
    place.store.close()
    place.config = dataclasses.replace(
        place.config, store_path_commit_log="/disk4/log",
        read_only_commit_log_store_paths=PATHS)
    place.open()
    assert [m.queue_offset for m in place.store.read("t")] == list(
        range(place.store.max_offset_in_queue("t", 0)))
    place.fill(2)
    assert place.names()[: len(old)] == old
    assert set(where(place)[len(old):]) == {"disk4"}
    place.clock.advance(100 * HOUR)
    assert place.store.retention.delete_now() == 5
    assert where(place) == ["disk4"]
    assert place.files.list("/disk1/log") == []


def test_a_directory_on_a_read_only_device_can_be_read(place, monkeypatch):
    place.fill(3)
    place.store.close()
    real = place.files.open

    def mounted_read_only(path, **how):
        if path.startswith("/disk1") and how.get("writable"):
            raise OSError(errno.EROFS, "read-only", path)
        return real(path, **how)

    place.config = dataclasses.replace(
        place.config, store_path_commit_log="/disk2/log,/disk3/log",
        read_only_commit_log_store_paths="/disk1/log")
    with monkeypatch.context() as patch:
        patch.setattr(place.files, "open", mounted_read_only)
        place.open()
        assert where(place)[0] == "disk1"
        assert [m.queue_offset for m in place.store.read("t")] == list(
            range(place.store.max_offset_in_queue("t", 0)))
        place.store.close()
    place.open()


def test_expired_files_go_oldest_first_whatever_their_directory(place):
    place.fill(5)
    place.clock.advance(100 * HOUR)
    place.clean._config = dataclasses.replace(place.config, delete_file_batch_max=2)
    assert place.store.retention.delete_now() == 2
    assert where(place) == ["disk3", "disk1", "disk2", "disk3"]
    assert place.store.min_phy_offset == 2 * SIZE


# -- mistakes


def test_a_part_of_the_log_that_settings_leave_out_is_noticed(place):
    place.fill(3)
    place.store.close()
    for wrong, error, words in (
        ("", NotAStoreError, "storePathCommitLog"),
        ("/disk1/log,/disk2/log", ConfigError, "the CommitLog is also in /disk3/log"),
    ):
        # A default counts only if it is given, and `replace` gives every setting.
        settings = dataclasses.replace(place.config, store_path_commit_log=wrong) if wrong else StoreConfig(
            mapped_file_size_commit_log=SIZE, store_path_commit_log=wrong)
        with pytest.raises(error, match=words):
            MessageStore.open("/s", config=settings, parts=StoreParts(file_system=place.files, clock=place.clock))
        with pytest.raises(error, match=words):
            StoreDirectory("/s", config=settings, file_system=place.files)
    place.open()
    assert place.store.recovery_report["mode"] == "normal"


def test_files_of_the_store_itself_are_not_left_out():
    place = Place()
    place.fill(2)
    place.store.close()
    settings = dataclasses.replace(place.config, store_path_commit_log="/disk1/log")
    with pytest.raises(ConfigError, match="/s/commitlog"):
        MessageStore.open("/s", config=settings, parts=StoreParts(file_system=place.files, clock=place.clock))


def test_the_same_segment_in_two_places_opens_nothing(place):
    place.fill(3)
    place.store.close()
    name = f"{0:020d}"
    file = place.files.open(f"/disk3/log/{name}", writable=True, create=True)
    file.truncate(SIZE)
    file.close()
    with pytest.raises(CorruptionError, match="is also"):
        place.open()
    place.files.remove(f"/disk3/log/{name}")
    place.open()
