"""State that a released Java broker leaves is served, or named when the store opens."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time

import pytest
from java_peer import SIZES, java_broker
from releases import REFERENCE

from tailrace import Message, MessageStore, StoreConfig
from tailrace.client import Producer
from tailrace.env.clock import SystemClock
from tailrace.errors import MessageIllegalError, RemotingError
from tailrace.formats.commitlog import decode_message
from tailrace.java_settings import java_settings
from tailrace.node.subscription_group import SubscriptionGroupManager
from tailrace.remoting.client import RemotingClient

pytestmark = [pytest.mark.slow, pytest.mark.interop]
CREATE_TOPIC, FORBID, POP, ACK = 17, 353, 200050, 200051
SENT, POPPED = 5, 3
INVISIBLE_MS = 3_600_000
SINCE_5_5_1 = {
    "batchDeleteTopicMaxRate", "batchDeleteSubscriptionGroupMaxRate", "metricsExportBatchSplitEnabled",
    "metricsExportBatchMaxConcurrent", "metricsExportOtelMemoryMode", "liteEventCapacityCacheTtlMs",
    "popOrderLockTimerTickMs", "popOrderLockTimerTicksPerWheel", "maxCheckMessageReuseBufferSize",
    "correctMinOffsetMadviseEnable", "rocksdbCQSelectiveDoubleWriteEnable", "rocksdbMaxSizeAmplificationPercent",
    "popRocksdbBlockCacheSize", "popRocksdbWriteBufferSize"}
"""Settings that 5.5.0 does not have."""


def topic_ext(topic, **more):
    return {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false", **more}


async def use(address):
    """Create topics, pop three messages and acknowledge one, forbid a group."""
    client = RemotingClient()

    async def ask(code, ext, body=b""):
        answer = await client.invoke(address, code, ext, body, timeout_ms=20_000)
        assert answer.code == 0, answer.remark
        return answer

    await ask(CREATE_TOPIC, topic_ext("PT", attributes="+cleanup.policy=COMPACTION"))
    await ask(FORBID, {"group": "FG", "topic": "T", "readable": "false"})
    popped = await ask(POP, {
        "consumerGroup": "PG", "topic": "T", "queueId": "0", "maxMsgNums": str(POPPED),
        "invisibleTime": str(INVISIBLE_MS), "pollTime": "0", "bornTime": str(time.time_ns() // 1_000_000),
        "initMode": "0", "exp": "*", "expType": "TAG", "order": "false"})
    size = int.from_bytes(popped.body[:4], "big")
    first = decode_message(popped.body[:size])
    ext = popped.ext
    offset = str(first.queue_offset)
    extra = " ".join([
        offset, ext["popTime"], ext["invisibleTime"], ext["reviveQid"], "0", "broker-a", "0", offset])
    await ask(ACK, {
        "consumerGroup": "PG", "topic": "T", "queueId": "0", "extraInfo": extra,
        "offset": offset})
    await client.close()


def fill(address):
    until = time.monotonic() + 90
    while True:
        try:
            with Producer(broker=address) as producer:
                producer.create_topic("T", 1)
                for n in range(SENT):
                    producer.send(Message(topic="T", body=b"%d" % n))
            asyncio.run(use(address))
        except (RemotingError, OSError):
            if time.monotonic() > until:
                raise
            time.sleep(0.5)
        else:
            return


@pytest.fixture(scope="module")
def left(reference, tmp_path_factory):
    """A directory of a Java broker that was stopped cleanly."""
    where = tmp_path_factory.mktemp("java")
    root = where / "store"
    with java_broker(reference, root) as address:
        fill(address)
        time.sleep(3)  # acknowledgements are put by a service of the broker
    return root


@pytest.mark.long
def test_nothing_is_left_that_is_not_served(left, caplog):
    config = StoreConfig.from_properties({name: str(size) for name, size in SIZES.items()})
    for _ in range(2):
        caplog.clear()
        with MessageStore.open(left, config=config) as store:
            assert not [m for m in caplog.messages if m.startswith("a Java broker left")]
            store.put(Message(topic="PT", body=b"x", keys=["k"]))
            with pytest.raises(MessageIllegalError, match=r"PT has cleanup\.policy=COMPACTION"):
                store.put(Message(topic="PT", body=b"x"))
            groups = SubscriptionGroupManager(
                store.file_system, store.config_dir, None, SystemClock())  # type: ignore[arg-type]
            groups.load()
            assert groups.is_read_forbidden("FG", "T")
            assert not groups.is_read_forbidden("FG", "PT")


def test_the_table_of_settings_has_every_field_with_its_default(reference):
    done = subprocess.run([reference, "settings"], capture_output=True, text=True, check=True)
    table, seen = dict(java_settings()), set()
    for line in done.stdout.splitlines():
        owner, name, default = json.loads(line)
        setting = table[name]
        assert owner in setting.classes, name
        if setting.default != "*" and setting.decision != "honoured" and name not in seen:
            assert setting.default == default, name
        seen.add(name)
    newer = set() if REFERENCE != "5.5.0" else SINCE_5_5_1
    assert {name for name, s in table.items() if "TlsSystemConfig" not in s.classes} - newer == seen
