"""A broker whose disk fails a sync: what producers, operators and the next start see."""

import asyncio
import errno
import threading
from dataclasses import replace

import pytest

from tailrace import Message, MessageStore, StoreConfig
from tailrace.broker import BrokerController
from tailrace.client import Producer
from tailrace.config import BrokerConfig
from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import RemotingError
from tailrace.node.store_opening import StoreParts
from tailrace.observe.http_status import HttpStatusServer
from tailrace.testing import FaultyFileSystem

CONFIG = StoreConfig(
    mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=2000,
    max_hash_slot_num=64, max_index_num=256, timer_flush_interval_ms=50)


async def ask(address, target):
    reader, writer = await asyncio.open_connection(*address)
    writer.write(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    return int(answer.split()[1]), answer.partition("\r\n\r\n")[2]


@pytest.mark.parametrize("kind", ["/timerlog/", "/timerwheel", "/timercheck"])
def test_a_failed_sync_of_the_timer_files_ends_acknowledgements_and_is_told(tmp_path, kind):
    failing, failed = threading.Event(), threading.Event()

    def error_of(_number, name, path):
        if failing.is_set() and name == "sync_data" and kind in path:
            failed.set()
            return errno.EIO
        return 0

    files = FaultyFileSystem(OsFileSystem(), error_of)
    broker_config = BrokerConfig()
    acked = []

    async def life(store):
        controller = BrokerController(store, broker_config)
        await controller.start(("127.0.0.1", 0), ("127.0.0.1", 0))
        server = HttpStatusServer(broker_config)
        address = await server.start("127.0.0.1", 0)
        server.serving(controller.broker)
        assert (await ask(address, "/ready"))[0] == 200

        def produce():
            with Producer(broker=controller.broker_address) as producer:
                result = producer.send(Message(topic="T", body=b"before", delay=1.0))
                acked.append(result)
                failing.set()
                while True:  # until the flush service has met the failure
                    try:
                        producer.send(Message(topic="T", body=b"x", delay=60.0))
                    except RemotingError as error:
                        return str(error)

        told = await asyncio.wait_for(asyncio.to_thread(produce), 60)
        assert failed.is_set()
        assert "sync of" in told
        assert kind.strip("/") in told
        status, text = await ask(address, "/ready")
        assert status == 503
        assert text.startswith("the store takes no writes: sync of")
        metrics = (await ask(address, "/metrics"))[1]
        assert "tailrace_store_writeable{" in metrics
        assert [line.rpartition(" ")[2] for line in metrics.splitlines()
                if line.startswith("tailrace_store_writeable{")] == ["0.0"]
        await server.stop()
        await controller.stop()

    store = MessageStore.open(tmp_path, config=CONFIG, parts=StoreParts(file_system=files))
    try:
        asyncio.run(life(store))
    finally:
        store.close()
    assert (tmp_path / "abort").exists()
    failing.clear()
    with MessageStore.open(tmp_path, config=CONFIG) as again:
        assert again.is_writeable
        assert again.is_writeable
        (before,) = acked
        waiting = {timer.uniq_key for timer in again.timers()}
        delivered = {m.unique_key for topic, queue_id, *_ in again.queues() if topic == "T"
                     for m in again.read(topic, queue_id)}
        assert before.msg_id in waiting | delivered


@pytest.mark.parametrize("lmq", [False, True])
def test_consumer_offsets_are_a_hint_in_either_of_their_files(tmp_path, lmq):
    name = "lmqConsumerOffset.json" if lmq else "consumerOffset.json"
    failing = threading.Event()

    def error_of(_number, call, path):
        return errno.EIO if failing.is_set() and call == "sync_data" and f"/{name}" in path else 0

    async def life(store):
        controller = BrokerController(store)
        await controller.start(("127.0.0.1", 0), None)
        controller.broker.offsets.commit("g", "T", 0, 5)
        failing.set()
        with pytest.raises(OSError, match="Input/output error"):
            controller.broker.offsets.persist_if_changed()
        assert store.is_writeable
        failing.clear()
        await controller.stop()

    with MessageStore.open(
        tmp_path, config=replace(CONFIG, enable_lmq=lmq),
        parts=StoreParts(file_system=FaultyFileSystem(OsFileSystem(), error_of)),
    ) as store:
        asyncio.run(life(store))
    assert '"T@g"' in (tmp_path / "config" / name).read_text()
