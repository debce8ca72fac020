"""What becomes of received messages: the status of a call is that of the broker's service and of the disk."""

import asyncio
from types import SimpleNamespace

import pytest

pytest.importorskip("rocketmq.grpc_protocol")

from tailrace.broker.pop.ack import Changed
from tailrace.config import BrokerConfig
from tailrace.errors import RefusalError
from tailrace.formats.pop import ExtraInfo
from tailrace.formats.remoting import ResponseCode
from tailrace.formats.requests.message_headers import ChangeInvisibleTimeResponseHeader
from tailrace.model import PutMessageStatus
from tailrace.proxy.popped import PoppedMessages
from tailrace.proxy.protocol import Code, GrpcError
from tailrace.proxy.receipts import ReceiptHandle

NOW = 1_000_000
HANDLE = ReceiptHandle(ExtraInfo(3, NOW, 60_000, 0, "0", "b", 1, 5), 9)


class Acks:
    """A service whose effects are durable at position 7, if it waits for the disk."""

    def __init__(self, *, waits=True, refuses=None, status=PutMessageStatus.PUT_OK):
        self.headers, self.waited, self.refuses, self.synced = [], [], refuses, status
        self.durable = self if waits else None

    def status(self, until, then=None):
        self.waited.append((until, then))
        future = asyncio.get_running_loop().create_future()
        future.set_result(self.synced)
        return future

    def ack(self, header):
        if self.refuses is not None:
            raise RefusalError(self.refuses, "why")
        self.headers.append(header)
        return 7

    def change(self, header):
        self.ack(header)
        return Changed(ChangeInvisibleTimeResponseHeader(NOW + 1, header.invisible_time, 4), 7, self.change)


def run(call, acks):
    async def go():
        clock = SimpleNamespace(now_ms=lambda: NOW)
        return await call(PoppedMessages(clock, None, BrokerConfig(), None, acks, None))

    return asyncio.run(go())


def ack(popped):
    return popped.ack("g", "t", HANDLE)


def change(popped):
    return popped.change("g", "t", HANDLE, 30_000, suspend=True)


@pytest.mark.parametrize("waits", [True, False])
def test_an_acknowledgement_waits_for_the_disk_if_the_broker_does(waits):
    acks = Acks(waits=waits)
    run(ack, acks)
    (header,) = acks.headers
    assert (header.consumer_group, header.topic, header.queue_id, header.offset) == ("g", "t", 1, 5)
    assert acks.waited == ([(7, None)] if waits else [])


def test_a_change_returns_the_new_handle_after_both_syncs():
    acks = Acks()
    made = run(change, acks)
    assert acks.waited == [(7, acks.change)]
    assert acks.headers[0].suspend
    assert (made.receipt.pop_time, made.receipt.invisible_time, made.receipt.revive_queue_id) == (NOW + 1, 30_000, 4)
    assert (made.receipt.start_offset, made.phy_offset) == (5, 9)


@pytest.mark.parametrize("call", [ack, change])
@pytest.mark.parametrize(("refused", "code"), [
    (ResponseCode.NO_MESSAGE, Code.INVALID_RECEIPT_HANDLE), (ResponseCode.TOPIC_NOT_EXIST, Code.TOPIC_NOT_FOUND),
    (ResponseCode.MESSAGE_ILLEGAL, Code.INVALID_RECEIPT_HANDLE),
    (ResponseCode.SYSTEM_ERROR, Code.INTERNAL_SERVER_ERROR),
])
def test_a_refusal_is_a_status(call, refused, code):
    with pytest.raises(GrpcError) as caught:
        run(call, Acks(refuses=refused))
    assert (caught.value.code, caught.value.message) == (code, "why")


@pytest.mark.parametrize("call", [ack, change])
def test_a_sync_that_fails_is_a_status(call):
    with pytest.raises(GrpcError) as caught:
        run(call, Acks(status=PutMessageStatus.FLUSH_DISK_TIMEOUT))
    assert caught.value.code == Code.INTERNAL_SERVER_ERROR
    assert "not durable yet" in caught.value.message
