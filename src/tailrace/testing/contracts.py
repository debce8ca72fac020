"""Test classes for what every file system and every store must do. Subclass one and define how to make the object.

The rest of Tailrace relies on nothing else, so a fake that passes can replace the real object.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator
from typing import Any

from tailrace.env.filesystem import File, FileSystem, LockState
from tailrace.errors import (
    MessageIllegalError,
    NotAStoreError,
    StoreClosedError,
    StoreLockedError,
)
from tailrace.model import GetMessageStatus, Message
from tailrace.node.message_store import MessageStore

__all__ = ["FileSystemContract", "StoreContract", "raises"]


@contextlib.contextmanager
def raises(kind: type[BaseException], error_number: int = 0) -> Iterator[None]:
    """The block raises an exception of that kind, with that errno."""
    try:
        yield
    except kind as error:
        found = getattr(error, "errno", 0)
        assert not error_number or found == error_number, f"errno {found}, not {error_number}"
        return
    raise AssertionError(f"{kind.__name__} was not raised")


class FileSystemContract:
    """Names, bytes, mappings and locks, as ``env.FileSystem`` promises them."""

    def make(self, root: str) -> FileSystem:
        """A file system in which the directory ``root`` exists and is empty."""
        raise NotImplementedError

    @contextlib.contextmanager
    def _file(self, root: str, size: int = 0) -> Iterator[tuple[FileSystem, File]]:
        files = self.make(root)
        file = files.open(f"{root}/f", writable=True, create=True)
        try:
            if size:
                file.truncate(size)
            yield files, file
        finally:
            file.close()

    def test_what_was_written_is_read(self, root: str) -> None:
        """Written bytes are read back; a read across the end is short, a read after it is empty."""
        with self._file(root) as (files, file):
            file.pwrite(b"abc", 2)
            assert (file.size(), file.pread(10, 0)) == (5, b"\0\0abc")
            assert (file.pread(2, 3), file.pread(2, 5), file.pread(0, 0)) == (b"bc", b"", b"")
            assert file.pread_cached(2, 3) == b"bc"  # it was written a moment ago
            other = files.open(f"{root}/f")
            assert other.pread(3, 2) == b"abc"
            other.close()

    def test_an_exclusive_open_makes_a_new_file_only(self, root: str) -> None:
        """A name that exists is refused, a file and a directory, and its bytes stay."""
        with self._file(root) as (files, file):
            file.pwrite(b"abc", 0)
            files.makedirs(f"{root}/d")
            for name in ("f", "d"):
                with raises(FileExistsError, errno.EEXIST):
                    files.open(f"{root}/{name}", writable=True, create=True, exclusive=True)
            assert file.pread(3, 0) == b"abc"
            made = files.open(f"{root}/new", writable=True, create=True, exclusive=True)
            assert made.size() == 0
            made.close()
            files.remove(f"{root}/new")
            files.open(f"{root}/new", writable=True, create=True, exclusive=True).close()

    def test_a_length_can_change(self, root: str) -> None:
        """Growth reads as zero; bytes that were cut off stay removed."""
        with self._file(root) as (_, file):
            file.pwrite(b"abcdef", 0)
            file.truncate(3)
            file.truncate(6)
            assert file.pread(9, 0) == b"abc\0\0\0"

    def test_allocation_never_shrinks(self, root: str) -> None:
        """Allocation after the end makes the file longer; before the end it changes nothing."""
        with self._file(root) as (_, file):
            file.pwrite(b"abc", 0)
            file.allocate(0, 2)
            assert file.pread(9, 0) == b"abc"
            file.allocate(2, 4)
            assert file.pread(9, 0) == b"abc\0\0\0"

    def test_a_mapping_and_the_file_are_one(self, root: str) -> None:
        """Stores through a mapping are read from the file and the other way round."""
        with self._file(root, 4096) as (_, file):
            mapping = file.map(4096, writable=True)
            mapping.view[10:13] = b"xyz"
            assert file.pread(3, 10) == b"xyz"
            file.pwrite(b"123", 20)
            file.pwrite_with_lock(memoryview(bytearray(b"45")), 23)
            assert bytes(mapping.view[20:25]) == b"12345"
            file.sync_data()
            mapping.close()
            assert file.pread(3, 10) == b"xyz"

    def test_pages_brought_into_memory_keep_their_bytes(self, root: str) -> None:
        """Bytes stay as they are, written or not, and a mapping can be closed afterwards."""
        with self._file(root, 1 << 20) as (_, file):
            file.pwrite(b"abc", 8190)
            mapping = file.map(1 << 20, writable=True)
            assert mapping.populate(4096, 1 << 19) in {True, False}
            assert bytes(mapping.view[8188:8195]) == b"\0\0abc\0\0"
            mapping.view[4096:4099] = b"xyz"
            mapping.close()
            assert file.pread(3, 4096) == b"xyz"

    def test_stores_through_a_private_mapping_are_its_own(self, root: str) -> None:
        """The file and other mappings do not see them."""
        with self._file(root, 4096) as (_, file):
            file.pwrite(b"abc", 10)
            mapping = file.map(4096, writable=True, private=True)
            mapping.view[10:12] = b"xy"
            assert bytes(mapping.view[10:13]) == b"xyc"
            assert file.pread(3, 10) == b"abc"
            mapping.close()
            assert file.pread(3, 10) == b"abc"

    def test_a_hole_reads_as_zero(self, root: str) -> None:
        """The length stays and so do the bytes around it."""
        with self._file(root) as (_, file):
            file.pwrite(b"x" * 12288, 0)
            try:
                file.punch_hole(4096, 4096)
            except OSError as error:
                if error.errno != errno.EOPNOTSUPP:
                    raise
                return
            assert file.pread(12288, 0) == b"x" * 4096 + bytes(4096) + b"x" * 4096

    def test_outside_of_data_ranges_every_byte_is_zero(self, root: str) -> None:
        """The ranges cover all bytes that are not zero, are in order, and are inside the requested range."""
        with self._file(root, 1 << 20) as (_, file):
            file.pwrite(b"abc", 500_000)
            found = file.data_ranges(0, 1 << 20)
            assert any(low <= 500_000 and high >= 500_003 for low, high in found)
            assert found == sorted(found)
            assert all(0 <= low < high <= 1 << 20 for low, high in found)
            assert file.data_ranges(1 << 20, 1 << 21) == []

    def test_names(self, root: str) -> None:
        """Made, listed in order, renamed over another one, removed."""
        files = self.make(root)
        assert files.list(root) == []
        for name in ("b", "a"):
            file = files.open(f"{root}/{name}", writable=True, create=True)
            file.pwrite(name.encode(), 0)
            file.close()
        files.makedirs(f"{root}/d/e")
        files.makedirs(f"{root}/d/e")
        assert files.list(root) == ["a", "b", "d"]
        assert files.list(f"{root}/none") == files.list(f"{root}/a") == []
        assert files.exists(f"{root}/a")
        assert files.exists(f"{root}/d/e")
        assert not files.exists(f"{root}/none")
        files.rename(f"{root}/a", f"{root}/b")
        files.sync_dir(root)
        file = files.open(f"{root}/b")
        assert file.pread(5, 0) == b"a"
        file.close()
        files.remove(f"{root}/b")
        files.rmdir(f"{root}/d/e")
        assert files.list(root) == ["d"]
        assert files.list(f"{root}/d") == []

    def test_a_reader_keeps_its_bytes_when_the_name_goes(self, root: str) -> None:
        """Removal and replacement leave an open file and its mapping as they are."""
        with self._file(root, 4096) as (files, file):
            file.pwrite(b"old", 0)
            mapping = file.map(4096, writable=False)
            other = files.open(f"{root}/g", writable=True, create=True)
            other.pwrite(b"new", 0)
            other.close()
            files.rename(f"{root}/g", f"{root}/f")
            assert (file.pread(3, 0), bytes(mapping.view[:3])) == (b"old", b"old")
            files.remove(f"{root}/f")
            assert (file.pread(3, 0), bytes(mapping.view[:3])) == (b"old", b"old")
            mapping.close()

    def test_what_is_not_there_is_an_error_with_its_number(self, root: str) -> None:
        """Each OSError has the errno of its kind."""
        files = self.make(root)
        missing = f"{root}/none"
        calls: list[Callable[[], Any]] = [
            lambda: files.open(missing),
            lambda: files.open(f"{root}/none/f", writable=True, create=True),
            lambda: files.stat(missing),
            lambda: files.rename(missing, f"{root}/f"),
            lambda: files.remove(missing),
            lambda: files.rmdir(missing),
            lambda: files.sync_dir(missing),
        ]
        for call in calls:
            with raises(FileNotFoundError, errno.ENOENT):
                call()
        files.makedirs(f"{root}/d")
        files.open(f"{root}/d/f", writable=True, create=True).close()
        with raises(OSError, errno.ENOTEMPTY):
            files.rmdir(f"{root}/d")
        with raises(OSError, errno.EISDIR):
            files.open(f"{root}/d", writable=True)

    def test_stat_tells_files_from_directories(self, root: str) -> None:
        """And how long a file is."""
        with self._file(root, 5000) as (files, file):
            found = files.stat(file.path)
            assert (found.size, found.is_dir) == (5000, False)
            assert found.allocated >= 0
            assert files.stat(root).is_dir

    def test_a_lock_is_held_once(self, root: str) -> None:
        """This process cannot lock it twice, its holder is reported, and it can be released."""
        files = self.make(root)
        path = f"{root}/lock"
        assert files.lock_holder(path) is None
        handle = files.lock(path)
        assert handle is not None
        assert files.lock(path) is None
        assert files.lock_holder(path) is not None
        handle.release()
        handle.release()
        assert files.lock_holder(path) is None
        again = files.lock(path)
        assert again is not None
        again.release()

    def test_a_lock_whose_name_is_gone_is_made_again(self, root: str) -> None:
        """The lock stays held: another caller cannot take it."""
        files = self.make(root)
        path = f"{root}/lock"
        handle = files.lock(path)
        assert handle is not None
        assert handle.check() is LockState.HELD
        files.remove(path)
        assert handle.check() is LockState.MADE_AGAIN
        assert handle.check() is LockState.HELD
        assert files.exists(path)
        assert files.lock(path) is None
        handle.release()
        again = files.lock(path)
        assert again is not None
        again.release()

    def test_the_disk_has_room(self, root: str) -> None:
        """Usable is part of free, free of all."""
        found = self.make(root).disk_usage(root)
        assert 0 <= found.usable <= found.free <= found.total


class StoreContract:
    """Behaviour that a program may expect of every MessageStore."""

    def open(self, root: str, **options: Any) -> MessageStore:
        """Open the store in ``root``; a second call after a close opens the same one."""
        raise NotImplementedError

    def settle(self, store: MessageStore) -> None:
        """Let the services run until everything that was put can be read."""
        store.wait_dispatched()

    def test_what_was_put_is_read_in_order(self, root: str) -> None:
        """By queue, from any offset, each message with all of its parts."""
        with self.open(root) as store:
            for n in range(70):
                put = store.put(
                    Message(topic="T", body=b"%d" % n, tags="even" if n % 2 == 0 else "odd",
                            keys=[f"k{n}"], properties={"n": str(n)}, flag=n), queue_id=n % 2)
                assert (put.queue_id, put.queue_offset) == (n % 2, n // 2)
            self.settle(store)
            found = list(store.read("T", 1))
            assert [m.body for m in found] == [b"%d" % n for n in range(1, 70, 2)]
            last = found[-1]
            assert (last.tags, last.keys, last.properties["n"], last.flag) == ("odd", ["k69"], "69", 69)
            assert [m.queue_offset for m in store.read("T", 0, 30)] == list(range(30, 35))
            assert [m.body for m in store.read("T", 0, 0, max_count=1)] == [b"0"]

    def test_many_at_once_are_as_one_by_one(self, root: str) -> None:
        """``put_many`` gives the offsets and bytes that ``put`` gives."""
        with self.open(root) as store:
            batch = [Message(topic=f"T{n // 20}", body=b"%d" % n, keys=[f"k{n}"]) for n in range(40)]
            results = store.put_many(batch)
            assert [r.queue_offset for r in results] == [*range(20), *range(20)]
            self.settle(store)
            assert [m.body for m in store.read("T1")] == [b"%d" % n for n in range(20, 40)]
            assert [m.body for m in store.query_message("T0", "k7")] == [b"7"]

    def test_a_pull_says_where_to_go_on(self, root: str) -> None:
        """Every status that an offset can have."""
        with self.open(root) as store:
            for n in range(5):
                store.put(Message(topic="T", body=b"%d" % n))
            self.settle(store)
            for offset, status, go_on in (
                (0, GetMessageStatus.FOUND, 5), (3, GetMessageStatus.FOUND, 5),
                (5, GetMessageStatus.OFFSET_OVERFLOW_ONE, 5),
                (9, GetMessageStatus.OFFSET_OVERFLOW_BADLY, 5),
            ):
                found = store.get_message("T", 0, offset, 32)
                assert (found.status, found.next_begin_offset) == (status, go_on)
            nothing = store.get_message("none", 0, 0, 32)
            assert nothing.status is GetMessageStatus.NO_MESSAGE_IN_QUEUE

    def test_keys_offsets_and_times_lead_to_a_message(self, root: str) -> None:
        """Query by key, by position, by id and by store time."""
        with self.open(root) as store:
            puts = [store.put(Message(topic="T", body=b"%d" % n, keys=["both", f"k{n}"]))
                    for n in range(4)]
            self.settle(store)
            assert [m.body for m in store.query_message("T", "both")] == [b"0", b"1", b"2", b"3"]
            assert [m.body for m in store.query_message("T", "k2")] == [b"2"]
            assert store.query_message("T", "none") == []
            for number, put in enumerate(puts):
                by_place = store.look_message_by_offset(put.phy_offset)
                by_id = store.look_message_by_id(put.msg_id)
                assert by_place is not None
                assert by_id is not None
                assert by_place.body == by_id.body == b"%d" % number
            assert store.look_message_by_offset(puts[-1].phy_offset + 1) is None
            assert store.get_offset_in_queue_by_time("T", 0, 0) == 0

    def test_a_store_is_the_same_when_it_is_opened_again(self, root: str) -> None:
        """Messages, offsets and topics are the same; new messages follow the old ones."""
        with self.open(root) as store:
            for n in range(30):
                store.put(Message(topic="T", body=b"%d" % n, keys=["k"]))
            self.settle(store)
            before = store.queues()
        with self.open(root) as store:
            assert store.queues() == before
            assert store.put(Message(topic="T", body=b"30")).queue_offset == 30
            self.settle(store)
            assert [m.body for m in store.read("T")] == [b"%d" % n for n in range(31)]
            assert len(store.query_message("T", "k")) == 30

    def test_a_refused_message_leaves_nothing_behind(self, root: str) -> None:
        """Neither a record nor a topic is left; a valid message is accepted afterwards."""
        with self.open(root) as store:
            for bad in (
                Message(topic="a b", body=b""), Message(topic="", body=b""),
                Message(topic="T", body=bytes(store.config.max_message_size + 1)),
                Message(topic="T", body=b"", properties={"p": "x" * 40_000}),
            ):
                with raises(MessageIllegalError):
                    store.put(bad)
            with raises(MessageIllegalError):
                store.put(Message(topic="T", body=b""), queue_id=-1)
            assert store.put(Message(topic="T", body=b"right")).queue_offset == 0
            self.settle(store)
            assert [q[:2] for q in store.queues()] == [("T", 0)]

    def test_one_directory_has_one_store(self, root: str) -> None:
        """A second open is refused, an open after the close is not; a closed store raises StoreClosedError."""
        store = self.open(root)
        with raises(StoreLockedError):
            self.open(root)
        store.close()
        store.close()
        with raises(StoreClosedError):
            store.put(Message(topic="T", body=b""))
        self.open(root).close()

    def test_a_directory_that_is_not_a_store_is_refused_and_not_changed(self, root: str) -> None:
        """With ``create=False`` nothing is made."""
        with raises(NotAStoreError):
            self.open(f"{root}/none", create=False)
        with raises(NotAStoreError):
            self.open(f"{root}/none", create=False)
