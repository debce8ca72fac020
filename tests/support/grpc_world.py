"""A broker with a gRPC endpoint, and the topics and groups that clients of gRPC do not create themselves."""

import asyncio
import contextlib
import json

from tailrace.client import Producer
from tailrace.formats.remoting import RequestCode
from tailrace.pytest_plugin import TailraceBroker
from tailrace.remoting.client import RemotingClient

TOPICS = {
    "normal": "NORMAL", "filtered": "NORMAL", "ordered": "FIFO", "later": "DELAY", "half": "TRANSACTION",
    "orphans": "TRANSACTION", "dead": "NORMAL", "shared": "NORMAL", "killed": "NORMAL"}
SETTINGS = {
    "mappedFileSizeCommitLog": 16 << 20, "mappedFileSizeConsumeQueue": 120_000, "mappedFileSizeTimerLog": 1 << 20,
    "maxHashSlotNum": 10_000, "maxIndexNum": 40_000, "brokerName": "broker-a", "transactionTimeOut": 1000,
    "transactionCheckInterval": 1000, "transactionOpBatchInterval": 500, "enablePropertyFilter": True,
}


class GrpcBroker:
    """A running broker; what is not here is that of `TailraceBroker`."""

    def __init__(self, broker):
        self._broker = broker

    def __getattr__(self, name):
        return getattr(self._broker, name)

    def create_topic(self, topic, kind="NORMAL", queues=4):
        with Producer(namesrv=self.namesrv, group="topics") as producer:
            producer.create_topic(topic, queues, {"message.type": kind})

    def create_group(self, name, **values):
        """As an administrator does, with request 200."""
        async def ask():
            client = RemotingClient()
            try:
                answer = await client.invoke(
                    self.broker, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {},
                    json.dumps({"groupName": name, **values}).encode(), timeout_ms=20_000)
            finally:
                await client.close()
            assert answer.code == 0, answer.remark

        asyncio.run(ask())


@contextlib.contextmanager
def grpc_broker(path, *options, **settings):
    broker = TailraceBroker(
        path / "store", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", *options,
        settings={**SETTINGS, **settings})
    broker.start()
    try:
        made = GrpcBroker(broker)
        with Producer(namesrv=broker.namesrv, group="topics") as producer:
            for topic, kind in TOPICS.items():
                producer.create_topic(topic, 4, {"message.type": kind})
        yield made
    finally:
        broker.stop()
