"""A slave's connection to a scripted master: frames in pieces, lies, silence, and what it reports."""

from __future__ import annotations

import asyncio
import errno
import struct
import tracemalloc
from types import SimpleNamespace

import pytest

from tailrace import Message, MessageStore, StoreConfig
from tailrace.config import BrokerRole, FlushDiskType
from tailrace.errors import DiskFullError, RemotingFrameError, ReplicationError, StoreError
from tailrace.formats.ha import BODY_MAX
from tailrace.ha.frames import encode_frame_header
from tailrace.ha.receiver import FrameReader, HaReceiver
from tailrace.node.store_opening import StoreParts
from tailrace.testing import CrashFileSystem, SimClock

SEGMENT = 8192
SIZES = {
    "mapped_file_size_commit_log": SEGMENT, "mapped_file_size_consume_queue": 400, "max_hash_slot_num": 16,
    "max_index_num": 64, "commit_log_allocate_step": 4096}


def opened(**more):
    return MessageStore.open("/s", config=StoreConfig(**SIZES, **more), parts=StoreParts(
        services=False, file_system=CrashFileSystem(), clock=SimClock()))


@pytest.fixture(scope="module")
def log():
    with opened() as store:
        for number in range(30):
            store.put(Message(topic="T", body=bytes([number]) * (number * 41 % 700)))
        return b"".join(file.read(0, file.wrote_position) for file in store.inner.commit_log.queue.files)


def frames(log, size, start=0):
    made, at = b"", start
    while at < len(log):
        part = log[at : min(at + size, at - at % SEGMENT + SEGMENT)]
        made += encode_frame_header(at, len(part)) + part
        at += len(part)
    return made + encode_frame_header(at, 0)


@pytest.mark.parametrize("piece", [1, 5, 12, 13, 100, 1 << 20])
@pytest.mark.parametrize("size", [1, 50, 4000, 1 << 20])
def test_frames_in_pieces_of_any_size_are_appended(log, piece, size):
    taken = bytearray()

    def append(at, data):
        assert at == len(taken)
        taken.extend(data)
        return len(taken)

    reader, data = FrameReader(append, 0, SEGMENT), bytearray(frames(log, size))
    for at in range(0, len(data), piece):
        reader.feed(memoryview(data)[at : at + piece])
    assert taken == log
    assert reader.next_offset == len(log)


@pytest.mark.parametrize(("header", "said"), [
    (struct.pack(">qi", 0, -1), "a frame of -1 bytes"), (struct.pack(">qi", 0, 1 << 30), f"0 to {BODY_MAX}"),
    (struct.pack(">qi", 100, 5), "position 100, the log of this slave ends at 0"),
    (struct.pack(">qi", -8, 0), "position -8"), (struct.pack(">qi", 0, SEGMENT + 1), "more than its file"),
])
def test_a_frame_that_no_master_sends_is_refused_before_its_bytes(header, said):
    reader = FrameReader(lambda *_: pytest.fail("appended"), 0, SEGMENT)
    with pytest.raises(RemotingFrameError, match=said):
        reader.feed(memoryview(bytearray(header + bytes(50))))


async def served(answer, store, begin=0, file_size=SEGMENT, **more):
    """Run a receiver at a scripted master. Return the reports, and the error that ended the receiver."""
    reports = []

    async def master(reader, writer):
        try:
            reports.append(int.from_bytes(await reader.readexactly(8), "big"))
            task = asyncio.get_running_loop().create_task(answer(reports, writer))
            while True:
                reports.append(int.from_bytes(await reader.readexactly(8), "big"))
        except (asyncio.IncompleteReadError, ConnectionError):
            task.cancel()
        finally:
            writer.close()

    server = await asyncio.start_server(master, "127.0.0.1", 0)
    receiver = HaReceiver(store.inner, begin, file_size, **{"heartbeat_s": 5, "housekeeping_s": 5, **more})
    try:
        async with asyncio.timeout(20):
            await receiver.run(*server.sockets[0].getsockname())
    except (StoreError, OSError) as error:
        return reports, error
    finally:
        server.close()


def test_a_slave_reports_where_it_is_and_what_it_has(log):
    async def answer(reports, writer):
        for at in range(0, len(data := frames(log, 500)), 333):
            writer.write(data[at : at + 333])
            await asyncio.sleep(0)
        while reports[-1] < len(log):
            await asyncio.sleep(0.01)
        writer.close()

    with opened(broker_role=BrokerRole.SLAVE) as store:
        reports, error = asyncio.run(served(answer, store))
        assert (reports[0], reports[-1]) == (0, len(log))
        assert reports == sorted(reports)
        assert isinstance(error, ConnectionError)
        store.wait_dispatched()
        assert store.queue_of("T", 0).max == 30


def test_under_sync_flush_a_slave_reports_only_what_is_synced(log):
    async def answer(reports, writer):
        writer.write(frames(log, 500))
        while reports[-1] < len(log):
            await asyncio.sleep(0.01)
            assert reports[-1] <= store.inner.commit_log.queue.flushed_where
        writer.close()

    with opened(broker_role=BrokerRole.SLAVE, flush_disk_type=FlushDiskType.SYNC_FLUSH) as store:
        reports, _ = asyncio.run(served(answer, store))
        assert reports[-1] == len(log) == store.inner.commit_log.queue.flushed_where


def test_a_slave_sends_heartbeats_and_leaves_a_silent_master():
    async def answer(reports, writer):
        await asyncio.sleep(10)

    with opened(broker_role=BrokerRole.SLAVE) as store:
        reports, error = asyncio.run(served(answer, store, heartbeat_s=0.1, housekeeping_s=0.5))
        assert 3 <= len(reports) <= 8
        assert set(reports) == {0}
        assert "has sent nothing for 0.5 s" in str(error)


def test_a_slave_leaves_a_master_that_sends_another_position(log):
    async def answer(reports, writer):
        writer.write(frames(log, 500)[:512] + encode_frame_header(9, 5))
        await asyncio.sleep(5)

    with opened(broker_role=BrokerRole.SLAVE) as store:
        reports, error = asyncio.run(served(answer, store))
        assert "ends at" in str(error)
        assert store.max_phy_offset == 500


def test_a_connection_takes_less_than_8_mib_whatever_the_master_sends():
    """Its bodies go to the log, and the log is no memory of the connection; frames of a byte cost no more."""
    count, piece = 5_000, bytes(BODY_MAX // 4)
    assert len(piece) * 4 == BODY_MAX

    async def answer(reports, writer):
        tracemalloc.start()
        for at in range(count):
            writer.write(encode_frame_header(at, 1) + b"x" + encode_frame_header(at + 1, 0))
            if at % 500 == 0:
                await writer.drain()
                await asyncio.sleep(0)
        for at in range(count, count + 3 * BODY_MAX, BODY_MAX):
            writer.write(encode_frame_header(at, BODY_MAX))
            for _ in range(0, BODY_MAX, len(piece)):
                writer.write(piece)
                await writer.drain()
        writer.write(struct.pack(">qi", count + 3 * BODY_MAX, (1 << 31) - 1) + piece)

    taken = 0

    class Log:
        def append_raw(self, at, data):
            nonlocal taken
            assert at == taken
            taken += len(data)
            return taken

        def acknowledged_until(self):
            return taken

        def when_durable(self, *_):
            pass

        def behind_bytes(self):
            return 0

    try:
        _, error = asyncio.run(served(answer, SimpleNamespace(inner=Log()), file_size=1 << 30))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken == count + 3 * BODY_MAX
    assert "0 to" in str(error)
    assert peak < 8 << 20


def test_a_slave_leaves_a_master_that_reads_no_reports():
    """Or the reports that wait would be kept for ever."""
    async def test():
        receiver = HaReceiver(SimpleNamespace(append_raw=None), 0, SEGMENT, heartbeat_s=5, housekeeping_s=5)
        written = bytearray()
        receiver._transport = SimpleNamespace(
            is_closing=lambda: False, write=written.extend, get_write_buffer_size=lambda: len(written))
        for position in range(1 << 20):
            receiver._report(position)
            if receiver._ended.done():
                break
        assert len(written) <= (64 << 10) + 8
        assert "does not read" in str(receiver._ended.result())

    asyncio.run(test())


@pytest.mark.parametrize(("raised", "kind"), [
    (OSError(errno.EROFS, "Read-only file system"), ReplicationError),
    (OSError(errno.EIO, "Input/output error"), ReplicationError),
    (DiskFullError("/s/commitlog/0", "No space left on device"), DiskFullError)])
def test_bytes_that_cannot_be_written_end_the_connection_with_their_cause(log, monkeypatch, raised, kind):
    async def answer(reports, writer):
        writer.write(frames(log, 500))
        await asyncio.sleep(5)

    def refuse(self, phy_offset, data):
        raise raised

    with opened(broker_role=BrokerRole.SLAVE) as store:
        monkeypatch.setattr(type(store.inner), "append_raw", refuse)
        reports, error = asyncio.run(served(answer, store))
        assert type(error) is kind
        assert str(raised) in str(error)
        assert reports == [0], "nothing is acknowledged"
        assert getattr(error, "kind", "disk") == "disk"
