"""The queue of a message group, and lists of messages."""

import asyncio
from types import SimpleNamespace

import pytest

pytest.importorskip("rocketmq.grpc_protocol")

from tailrace.broker.messages.service import Sent
from tailrace.broker.statistics.traffic import Traffic
from tailrace.errors import RefusalError
from tailrace.formats.commitlog import java_string_hash
from tailrace.formats.lite import consistent_hash
from tailrace.model import PutMessageResult, PutMessageStatus
from tailrace.node.topic_config import TopicConfig
from tailrace.proxy.protocol import definition, service
from tailrace.proxy.send import SendMessageActivity
from tailrace.requests.config_changes import MissingConfigError


# What Guava's Hashing.consistentHash(long, int) returns.
@pytest.mark.parametrize(("value", "buckets", "bucket"), [
    (97, 1, 0), (97, 8, 0), (97, 1000, 346), (98, 4, 0), (98, 8, 5), (98, 1000, 184), (103, 4, 1), (103, 1000, 223),
    (1234255109, 4, 3), (1234255109, 1000, 380), (0, 1000, 0), (-685785664, 1, 0), (-685785664, 8, 3),
    (-685785664, 1000, 901), (1055301514, 8, 6), (1055301514, 1000, 227)])
def test_buckets_are_those_of_guava(value, buckets, bucket):
    assert consistent_hash(value, buckets) == bucket


def test_few_groups_move_when_a_queue_is_added():
    before = [consistent_hash(java_string_hash(f"group-{n}"), 8) for n in range(1000)]
    after = [consistent_hash(java_string_hash(f"group-{n}"), 9) for n in range(1000)]
    assert set(before) == set(range(8))
    assert {new for old, new in zip(before, after, strict=True) if old != new} == {8}


class Broker:
    """A broker that stores what it gets, and refuses bodies in ``refused``."""

    def __init__(self, queues=8, message_type="FIFO"):
        config = TopicConfig(
            topic_name="t", read_queue_nums=queues, write_queue_nums=queues, attributes={"message.type": message_type})
        self.store = SimpleNamespace(
            config=SimpleNamespace(max_message_size=1000), topics=SimpleNamespace(select=lambda name: config))
        self.clock = SimpleNamespace(now_ms=lambda: 1)
        self.traffic = Traffic()
        self.stored = []
        self.refused = set()
        self.later = {}
        self.missing = set()
        self.broken = set()
        self.counted = 0
        self.not_made = []
        self.durable = self.changes = self

    def find(self, client_id):
        return SimpleNamespace(connection=SimpleNamespace(channel=SimpleNamespace(peer="127.0.0.1:1")))

    def send(self, header, body, sender):
        if body in self.missing:
            raise MissingConfigError
        if body in self.broken:
            raise OSError("disk")
        if body in self.refused:
            raise RefusalError(2, "busy")
        assert sender.born_host == b"\x7f\0\0\1\0\0\0\1"
        self.stored.append((body, header.queue_id))
        return Sent(
            PutMessageResult(PutMessageStatus.PUT_OK, queue_offset=len(self.stored)), "key", self.later.get(body, 0),
            is_inner_batch=False, topic="t", queue_id=0, begun_ns=0)

    def took(self, sent):
        self.counted += 1

    def status(self, until):
        future = asyncio.get_running_loop().create_future()
        self._answer(future, PutMessageStatus.FLUSH_DISK_TIMEOUT if until == 99 else PutMessageStatus.PUT_OK, until)
        return future

    def _answer(self, future, status, turns):
        if turns:  # as an answer that waits for the disk
            asyncio.get_running_loop().call_soon(self._answer, future, status, turns - 1)
        else:
            future.set_result(status)

    def serve(self, call, step):
        """Serve a send again after what it lacks was created, as `ConfigChanges` does."""
        try:
            return step()
        except MissingConfigError:
            self.missing.clear()
            asyncio.get_running_loop().call_soon(call.reply().finish, step)

    def not_created(self, error):
        self.not_made.append(error)


def send(broker, *messages):
    activity = SendMessageActivity(
        broker.clock, broker.store, broker.changes, broker.traffic, broker, broker, SimpleNamespace())
    request = service.SendMessageRequest(messages=[
        definition.Message(
            topic=definition.Resource(name="t"), body=body,
            system_properties=definition.SystemProperties(message_id=body.hex(), **system))
        for body, system in messages])
    return asyncio.run(activity.send(request, SimpleNamespace(
        peer=("127.0.0.1", 1), client_id="c", user="", language=0)))


@pytest.mark.parametrize(("field", "kind"), [("message_group", "FIFO"), ("lite_topic", "LITE")])
def test_a_list_lies_where_single_sends_of_its_keys_lie_in_order(field, kind):
    alone, together = Broker(message_type=kind), Broker(message_type=kind)
    messages = [(b"%s%02d" % (key.encode(), n), {field: key}) for n in range(16) for key in ("a", "b", "c")]
    for one in messages:
        send(alone, one)
    together.later = {body: n % 5 for n, (body, _) in enumerate(messages)}
    answer = send(together, *messages)
    assert together.stored == alone.stored
    assert {queue for body, queue in alone.stored if body[:1] == b"b"} == {
        consistent_hash(java_string_hash("b"), 8)}
    assert [entry.message_id for entry in answer.entries] == [body.hex() for body, _ in messages]


def test_after_a_message_that_is_not_stored_none_of_its_group_is():
    broker = Broker()
    broker.refused = {b"a2"}
    answer = send(broker, *((body, {"message_group": body[:1].decode()}) for body in (
        b"a1", b"b1", b"a2", b"b2", b"a3", b"a4")))
    assert [body for body, _ in broker.stored] == [b"a1", b"b1", b"b2"]
    codes = [entry.status.code for entry in answer.entries]
    assert codes[:2] == codes[3:4] * 2
    assert codes[2] == codes[4] == codes[5] != codes[0]
    assert "an earlier message of its group was not: busy" in answer.entries[5].status.message
    assert answer.status.code not in codes[:1]


def test_messages_without_a_group_are_stored_in_spite_of_another_one():
    broker = Broker(message_type="NORMAL")
    broker.refused = {b"1"}
    send(broker, *((b"%d" % n, {}) for n in range(3)))
    assert broker.stored == [(b"0", -1), (b"2", -1)]


def test_an_error_of_one_message_leaves_the_others_stored():
    broker = Broker(message_type="NORMAL")
    broker.broken = {b"1"}
    answer = send(broker, *((b"%d" % n, {}) for n in range(3)))
    codes = [entry.status.code for entry in answer.entries]
    assert codes[0] == codes[2] == definition.Code.OK
    assert codes[1] == definition.Code.INTERNAL_SERVER_ERROR
    assert "OSError: disk" in answer.entries[1].status.message
    assert broker.stored == [(b"0", -1), (b"2", -1)]
    assert broker.traffic.sends["ordinary"] == 3


def test_a_message_whose_sync_is_late_has_a_status_of_its_own():
    broker = Broker(message_type="NORMAL")
    broker.later = {b"1": 99}
    answer = send(broker, *((b"%d" % n, {}) for n in range(2)))
    assert [entry.status.code for entry in answer.entries] == [
        definition.Code.OK, definition.Code.MASTER_PERSISTENCE_TIMEOUT]
    assert broker.counted == 2


def test_a_message_that_needs_a_new_topic_is_stored_once_it_exists():
    broker = Broker(message_type="NORMAL")
    broker.missing = {b"1"}
    answer = send(broker, (b"1", {}))
    assert broker.stored == [(b"1", -1)]
    assert (answer.entries[0].status.code, answer.entries[0].offset) == (definition.Code.OK, 1)
    assert broker.traffic.sends["ordinary"] == 1


def test_a_message_whose_topic_cannot_be_created_is_refused_and_counted():
    broker = Broker(message_type="NORMAL")
    broker.missing, broker.broken = {b"1"}, {b"1"}
    answer = send(broker, (b"0", {}), (b"1", {}))
    assert [entry.status.code for entry in answer.entries] == [
        definition.Code.OK, definition.Code.INTERNAL_SERVER_ERROR]
    assert [type(error) for error in broker.not_made] == [OSError]
