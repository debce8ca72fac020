"""Requests that name an old record do not make the event loop read the disk."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest
import served_broker

from tailrace.env.filesystem import OsFileSystem
from tailrace.formats.commitlog import decode_message
from tailrace.formats.remoting import RequestCode as Code
from tailrace.formats.remoting import ResponseCode
from tailrace.model import Message, create_message_id

pytestmark = pytest.mark.integration


class ColdFile:
    """A file of the log of which nothing is in the page cache; it knows which threads have read it."""

    def __init__(self, file, readers):
        self._file, self._readers = file, readers

    def __getattr__(self, name):
        return getattr(self._file, name)

    def pread(self, n, pos):
        self._readers.append(threading.current_thread().name)
        return self._file.pread(n, pos)

    def pread_cached(self, n, pos):
        return None

    def map(self, size, *, writable, private=False):
        return ColdMapping(self._file.map(size, writable=writable, private=private))


class ColdMapping:
    def __init__(self, mapping):
        self._mapping = mapping

    def __getattr__(self, name):
        return getattr(self._mapping, name)

    def in_memory(self, start, length):
        return False


class ColdLog:
    """The files of this machine; those of the log are cold."""

    def __init__(self):
        self._files, self.readers = OsFileSystem(), []

    def __getattr__(self, name):
        return getattr(self._files, name)

    def open(self, path, **options):
        file = self._files.open(path, **options)
        return ColdFile(file, self.readers) if "/commitlog/" in path else file


@contextlib.asynccontextmanager
async def cold_broker(path):
    """A broker with a cold message at a position of its log, a client, and the threads that read the log."""
    files = ColdLog()
    async with served_broker.serving(path, file_system=files) as served:
        offset = served.store.put(Message(topic="orders", body=b"old", keys=["k"]), queue_id=0).phy_offset
        served.store.wait_dispatched()
        files.readers.clear()
        yield served, await served.connect(), offset, files.readers


def cases(offset, group):
    return {
        Code.VIEW_MESSAGE_BY_ID: {"offset": str(offset), "topic": "orders"},
        Code.CONSUMER_SEND_MSG_BACK: {
            "offset": str(offset), "group": group, "delayLevel": "0", "originMsgId": "x", "originTopic": "orders"},
        Code.CONSUME_MESSAGE_DIRECTLY: {
            "consumerGroup": group, "clientId": "none", "msgId": create_message_id(bytes(8), offset)},
        Code.GET_EARLIEST_MSG_STORETIME: {"topic": "orders", "queueId": "0"},
        Code.QUERY_MESSAGE: {
            "topic": "orders", "key": "k", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": "9999999999999"},
        Code.SEARCH_OFFSET_BY_TIMESTAMP: {"topic": "orders", "queueId": "0", "timestamp": "1"},
        Code.RESUME_CHECK_HALF_MESSAGE: {"topic": "orders", "msgId": create_message_id(bytes(8), offset)},
        Code.GET_BROKER_RUNTIME_INFO: {},
        Code.GET_TOPIC_STATS_INFO: {"topic": "orders"},
    }


@pytest.mark.parametrize("code", list(cases(0, "")), ids=lambda code: code.name)
def test_an_old_record_is_read_in_a_thread(tmp_path, code):
    async def test():
        async with cold_broker(tmp_path) as (served, client, offset, readers):
            mine = threading.current_thread().name
            request = cases(offset, "group")[code]
            answer = await client.ask(code, request)
            assert readers, f"{code.name} did not read the record"
            assert mine not in readers
            if code == Code.VIEW_MESSAGE_BY_ID:
                assert decode_message(answer.body).body == b"old"
            if code == Code.CONSUMER_SEND_MSG_BACK:
                assert answer.code == ResponseCode.SUCCESS, answer.remark
            assert served.controller.broker.cold_reads.pending == 0

    asyncio.run(test())


def test_a_record_that_does_not_exist_is_answered(tmp_path):
    async def test():
        async with cold_broker(tmp_path) as (_, client, offset, readers):
            for wrong in (offset + 1, offset + (1 << 40), -1):
                answer = await client.ask(Code.VIEW_MESSAGE_BY_ID, {"offset": str(wrong)})
                assert answer.code == ResponseCode.SYSTEM_ERROR
            assert (await client.ask(Code.VIEW_MESSAGE_BY_ID, {"offset": "x"})).code != 0
            assert threading.current_thread().name not in readers

    asyncio.run(test())
