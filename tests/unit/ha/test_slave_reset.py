"""tailrace replica reset: whatever moment it is killed at, the rest is a log that the next start or reset takes."""

from __future__ import annotations

import shutil

import pytest

from tailrace import Message, MessageStore, StoreConfig
from tailrace.config import BrokerRole
from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import StoreError
from tailrace.ha.slave_reset import reset_slave
from tailrace.node.store_opening import StoreParts
from tailrace.testing import SimulatedCrash

FILE = 1 << 12


def config(tmp_path, role=BrokerRole.ASYNC_MASTER, read_only=()):
    disks = [str(tmp_path / name) for name in ("disk1", "disk2")]
    return StoreConfig(
        mapped_file_size_commit_log=FILE, mapped_file_size_consume_queue=4000, max_hash_slot_num=64,
        max_index_num=4096, commit_log_allocate_step=FILE, max_message_size=2000, broker_role=role,
        timer_wheel_enable=False, store_path_commit_log=",".join(disk for disk in disks if disk not in read_only),
        read_only_commit_log_store_paths=",".join(read_only))


class Files:
    """The files of the system; the process is killed before a rename."""

    def __init__(self, renames=1 << 30):
        self._files, self._left = OsFileSystem(), renames

    def __getattr__(self, name):
        return getattr(self._files, name)

    def rename(self, old, new):
        if not self._left:
            raise SimulatedCrash
        self._left -= 1
        self._files.rename(old, new)


@pytest.fixture
def home(tmp_path):
    store = MessageStore.open(tmp_path / "s", config=config(tmp_path), parts=StoreParts(services=False))
    for _ in range(20):
        store.put(Message(topic="t", body=b"x" * 700))
    store.close()
    return tmp_path


def segments(home):
    return sorted(path.name for disk in ("disk1", "disk2") for path in (home / disk).iterdir() if path.is_file())


def reset(home, files=None, name="7", **changes):
    return reset_slave(files or Files(), str(home / "s"), config(home, BrokerRole.SLAVE, **changes), name)


def test_the_files_of_each_disk_go_to_a_directory_on_it(home):
    before = segments(home)
    assert len(before) > 3
    aside, moved = reset(home)
    places = [home / "disk1" / "replaced-7", home / "disk2" / "replaced-7"]
    assert aside == str(home / "s" / "tailrace" / "replaced" / "7")
    assert moved[-2:] == [str(place) for place in places]
    assert segments(home) == []
    assert sorted(path.name for place in places for path in place.iterdir()) == before


def test_a_kill_at_any_move_leaves_the_first_part_of_the_log(home, tmp_path_factory):
    number, left = 0, set()
    while True:
        place = tmp_path_factory.mktemp("copy")
        shutil.copytree(home, place, dirs_exist_ok=True)
        try:
            reset(place, Files(number))
        except SimulatedCrash:
            pass
        else:
            break
        found = segments(place)
        assert [int(name) for name in found] == [FILE * at for at in range(len(found))]
        left.add(len(found))
        if found:
            reset(place, name="8")
            assert segments(place) == []
        number += 1
    assert len(left) > 3, "kills between the moves of segments are among them"


def test_files_that_are_only_read_are_named_and_nothing_is_moved(home):
    before = sorted(path for path in home.rglob("*") if path.is_file())
    with pytest.raises(StoreError, match=f"move {home}/disk2/0"):
        reset(home, read_only=(str(home / "disk2"),))
    assert sorted(path for path in home.rglob("*") if path.is_file()) == before
