"""States of half messages, operations that are written together, and the producers that a check asks."""

from __future__ import annotations

import json

import pytest
from broker_kit import clients_of, use_control
from hypothesis import given
from hypothesis import strategies as st
from people import People, sent_by

from tailrace.broker import wiring
from tailrace.broker.messages.transaction_checks import TransactionChecks, Verdict
from tailrace.broker.transactions.half_messages import (
    committed_message,
    make_half,
    settled_offsets,
    transactional_properties,
)
from tailrace.broker.transactions.half_queue import (
    COMMITTED,
    ENDED,
    FRESH,
    PASSED,
    ROLLED_BACK,
    UNKNOWN,
    HalfQueue,
    OperationBatch,
)
from tailrace.formats.commitlog import SysFlag, decode_message, decode_properties
from tailrace.formats.remoting import RemotingCommand
from tailrace.kernels.properties import encode_properties
from tailrace.model import MessageExt, MessageExtBrokerInner, PutMessageResult, PutMessageStatus
from tailrace.requests.durable_answers import DurableAnswers

HOUR_MS = 3_600_000


@given(st.lists(st.tuples(st.sampled_from(["put", "end", "operation", "advance"]), st.integers(0, 30))))
def test_states_are_those_of_a_table(actions):
    queue, table, operations, written = HalfQueue(), {}, {}, 0
    for action, number in actions:
        if action == "put":
            queue.put(queue.until, FRESH)
            table[len(table)] = FRESH
        elif action == "end" and table:
            offset = number % len(table)
            if queue.is_pending(offset):
                queue.put(offset, COMMITTED)
                table[offset] = COMMITTED
        elif action == "operation" and table:
            settled = [number % len(table), number // 2 % len(table)]
            queue.add_operation(written, settled)
            operations[written] = settled
            written += 1
            table |= {offset: ENDED for offset in settled if table[offset] <= FRESH}
        elif action == "advance":
            queue.advance(queue.next_pending(queue.base))
            first = next((o for o in table if table[o] <= FRESH), len(table))
            assert queue.base == first
            needed = [o for o, settled in operations.items() if max(settled) >= first]
            assert queue.op_progress <= min(needed, default=written)
        assert queue.until == len(table)
        assert queue.pending == sum(state <= FRESH for state in table.values())
        for offset, state in table.items():
            assert queue.state(offset) == (state if offset >= queue.base else PASSED)


def test_a_pending_half_message_is_not_passed():
    queue = HalfQueue(5)
    for state in (ROLLED_BACK, FRESH, COMMITTED):
        queue.put(queue.until, state)
    with pytest.raises(AssertionError, match="forgotten"):
        queue.advance(8)
    queue.advance(6)
    assert (queue.base, queue.state(5), queue.state(6), queue.state(99)) == (6, PASSED, FRESH, UNKNOWN)
    assert not queue.is_pending(99)


def test_operations_are_written_when_they_are_enough_or_old_enough():
    batch = OperationBatch(3000, 12)
    assert not batch.is_due(0, 0)
    for offset in (7, 100):
        batch.add(offset, 0, 1000)
    assert not batch.is_due(3999, 0)
    assert batch.is_due(4000, 0)
    assert batch.is_due(500, 0)  # the clock was set back
    for offset in range(1000, 1003):
        batch.add(offset, 0, 1500)
    assert batch.is_due(1500, 0)
    assert batch.next_part(0) == [7, 100, 1000, 1001]
    batch.written(batch.next_part(0))
    assert len(batch) == 1
    assert not batch.is_due(1500, 0)


def test_operations_wait_until_the_committed_message_is_durable():
    batch = OperationBatch(3000, 1000)
    for offset, until in ((1, 0), (2, 500), (3, 0), (4, 700)):
        batch.add(offset, until, 0)
    assert batch.is_due(3000, 0)
    assert batch.next_part(499) == [1]
    batch.written([1])
    assert not batch.is_due(3000, 499)
    assert batch.is_due(3000, 500)
    assert batch.next_part(699) == [2, 3]
    assert batch.next_part(700) == [2, 3, 4]


def half(stored_ms, born_ms=5, **properties):
    made = MessageExt.__new__(MessageExt)
    made.phy_offset = 0
    made.store_timestamp, made.born_timestamp, made.properties = stored_ms, born_ms, properties
    return made


@pytest.mark.parametrize(("age_ms", "properties", "verdict"), [
    (0, {}, Verdict.YOUNG), (6000, {}, Verdict.YOUNG), (6001, {}, Verdict.ASK), (-1, {}, Verdict.YOUNG),
    (100, {"TRANSACTION_CHECK_TIMES": "1", "CHECK_IMMUNITY_TIME_IN_SECONDS": "60"}, Verdict.ASK),  # a copy
    (6001, {"TRANSACTION_CHECK_TIMES": "14"}, Verdict.ASK),
    (6001, {"TRANSACTION_CHECK_TIMES": "15"}, Verdict.GIVE_UP),
    (6001, {"TRANSACTION_CHECK_TIMES": "many"}, Verdict.ASK),
    (72 * HOUR_MS, {}, Verdict.ASK), (72 * HOUR_MS + 1, {}, Verdict.GIVE_UP),
    (60_000, {"CHECK_IMMUNITY_TIME_IN_SECONDS": "60"}, Verdict.IMMUNE),
    (60_001, {"CHECK_IMMUNITY_TIME_IN_SECONDS": "60"}, Verdict.ASK),
    (6000, {"CHECK_IMMUNITY_TIME_IN_SECONDS": "1"}, Verdict.IMMUNE),  # never less than transactionTimeOut
    (6001, {"CHECK_IMMUNITY_TIME_IN_SECONDS": "x"}, Verdict.ASK),
])
@pytest.mark.parametrize("born_ms", [0, -1, (1 << 63) - 1])
def test_age_and_number_of_checks_say_what_becomes_of_a_half_message(broker, age_ms, properties, verdict, born_ms):
    """The age counts from the time at which the broker stored the message, whatever the producer says."""
    checks = broker.make(TransactionChecks)
    assert checks._verdict(half(broker.clock.ms - age_ms, born_ms, **properties)) is verdict


def test_producers_of_a_group_are_asked_in_turn(broker, kit):
    channels = [kit.FakeChannel(f"10.0.0.{n}:1") for n in range(3)]
    for channel in channels:
        channel.paused = False
        broker.clients.producers.register(channel, kit.request(34), channel.peer, "tellers")
    asked = [broker.clients.producers.available_channel("tellers") for _ in range(6)]
    assert sorted(c.peer for c in asked) == sorted(2 * [c.peer for c in channels])
    channels[0].paused, channels[1].closed = True, True
    assert {broker.clients.producers.available_channel("tellers") for _ in range(4)} == {channels[2]}
    assert broker.clients.producers.available_channel("others") is None


def test_only_a_producer_whose_user_may_send_to_the_topic_gets_a_half_message(broker, kit):
    """Whatever producer group it names in its heartbeat; what counts is the permission at the time of the check."""
    people = People(victim=[("Topic:secret", "Pub")], mallory=[("Topic:own", "Pub,Sub")], nobody=[],
                    reader=[("Topic:secret", "Sub,Get")])
    use_control(broker, people.control)
    broker.transactions.load()
    channels, clients = {}, kit.served(clients_of(broker))
    for number, user in enumerate(("victim", "mallory", "nobody", "reader")):
        channel = channels[user] = kit.FakeChannel(f"10.0.0.{number}:1")
        channel.paused = False
        beat = {"clientID": f"client of {user}", "producerDataSet": [{"groupName": "tellers"}]}
        assert clients.heartbeat(channel, sent_by(user, kit.request(34, {}, json.dumps(beat).encode()))).code == 0
    checks = broker.make(TransactionChecks)

    def ask(times):
        for _ in range(times):
            properties = {"REAL_TOPIC": "secret", "REAL_QID": "0", "PGROUP": "tellers", "UNIQ_KEY": "K"}
            broker.store.put_inner(MessageExtBrokerInner(
                "RMQ_SYS_TRANS_HALF_TOPIC", 0, b"1M to IBAN", encode_properties(properties)))
            assert checks._ask(decode_message(broker.store.log[-1]))
        return {user: sum(command.code == 39 for command in channel.sent) for user, channel in channels.items()}

    assert ask(30) == {"victim": 30, "mallory": 0, "nobody": 0, "reader": 0}
    people.add("mallory", ("Topic:*", "Pub"))
    del people.acls["victim"]
    people.control.changed()
    assert ask(4) == {"victim": 30, "mallory": 4, "nobody": 0, "reader": 0}
    people.remove("mallory")
    assert ask(4) == {"victim": 30, "mallory": 4, "nobody": 0, "reader": 0}


@pytest.mark.parametrize(("properties", "times", "expected"), [
    ({"TRAN_MSG": "true"}, 0, True), ({"TRAN_MSG": "TRUE"}, 0, True), ({"TRAN_MSG": "yes"}, 0, False),
    ({"XTRAN_MSG": "true"}, 0, False), ({"TRAN_MSG": "true", "DELAY": "3"}, 0, True),
    ({"TRAN_MSG": "true", "DELAY": "3"}, 1, False), ({"TRAN_MSG": "true"}, 1, True),
])
def test_what_a_producer_sends_and_what_a_consumer_sends_back(properties, times, expected):
    assert (transactional_properties(encode_properties(properties), times) is not None) is expected


@pytest.mark.parametrize(("tags", "body", "offsets"), [
    ("d", b"3,4,", [3, 4]), ("d", b"7", [7]), ("d", b",x,-1,\xb2,9" + b"9" * 30 + b",5", [5]), ("e", b"3,", []),
])
def test_an_operation_of_any_bytes_settles_what_is_a_number(tags, body, offsets):
    made = half(0, TAGS=tags)
    made.body = body
    assert list(settled_offsets(made)) == offsets


def test_half_messages_are_refused_before_those_of_the_log_are_known(broker, channel, kit):
    send = wiring.sends(
        broker, DurableAnswers(broker.loop, broker.store), wait_durable=False)
    request = RemotingCommand(310, {
        "a": "G", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "4", "g": "1", "h": "0",
        "i": "TRAN_MSG\x01true\x02PGROUP\x01G\x02"}, b"x")
    broker.topics.create_if_missing("orders", 4)
    assert send.send_v2(channel, request).code == 2
    assert broker.store.log == []


@pytest.mark.parametrize("stored", [
    b"TRAN_MSG\1true\2PGROUP\1G\2UNIQ_KEY\1K\2", b"PGROUP\1G\2TRAN_MSG\1true\2", b"TRAN_MSG\1true\2PGROUP\1G",
    b"REAL_TOPIC\1x\2TRAN_MSG\1true\2PGROUP\1G\2", b"TRAN_MSG\1true\2REAL_QID\0017\2PGROUP\1G\2UNIQ_KEY\1K\2",
    b"__transactionId__\1other\2TRAN_MSG\1true\2PGROUP\1G\2UNIQ_KEY\1K\2",
    b"TRAN_MSG\1true\2\2PGROUP\1G\2UNIQ_KEY\1K\2", b"TRAN_MSG\1true\2odd\2PGROUP\1G\2",
    b"PGROUP\1F\2TRAN_MSG\1true\2PGROUP\1G\2",
    b"TRAN_MSG\1true\2empty\1\2PGROUP\1G\2", b"a\1b\1c\2TRAN_MSG\1true\2PGROUP\1G\2",
    "TRAN_MSG\1true\2PGROUP\1\u00e4\2".encode(),
])
def test_a_message_committed_from_memory_is_the_one_that_the_log_would_give(stored):
    message = MessageExtBrokerInner(
        "T", 3, b"body", stored, 7, SysFlag.TRANSACTION_PREPARED, 5, b"\x7f\0\0\1\0\0\0\x50")
    fresh = make_half(message, transactional_properties(stored, 0), multi_dispatch=False)
    assert message.properties == encode_properties(decode_properties(message.properties))
    read = MessageExt(
        topic=message.topic, queue_id=message.queue_id, queue_offset=9, phy_offset=1000, body=message.body,
        flag=message.flag, sys_flag=message.sys_flag, born_timestamp=5, born_host=("127.0.0.1", 80),
        store_size=200, body_crc=0, store_timestamp=6, store_host=("127.0.0.1", 90), reconsume_times=0,
        prepared_transaction_offset=0, properties=decode_properties(message.properties))
    fresh.committed.prepared_transaction_offset = 1000
    assert fresh.committed == committed_message(read)
    assert (fresh.group, fresh.unique_key) == (read.properties["PGROUP"], read.properties.get("UNIQ_KEY"))


def test_half_messages_in_memory_are_bounded_and_leave_it_once_settled(broker, monkeypatch):
    service = broker.transactions
    service.is_loaded = True
    monkeypatch.setattr("tailrace.broker.transactions.service.FRESH_MAX", 3)

    def put(offset):
        stored = b"TRAN_MSG\1true\2PGROUP\1G\2"
        half = service.prepare(MessageExtBrokerInner("T", 0, b"body", stored), decode_properties(stored))
        service.prepared(half, PutMessageResult(PutMessageStatus.PUT_OK, 100 * offset, 100 * offset + 90, 0, offset))

    for offset in range(5):
        put(offset)
    kept = [offset for offset in range(5) if service.in_memory(offset, 100 * offset)]
    assert kept == [2, 3, 4]
    assert service.in_memory(3, 999) is None, "the request names another position"
    service.settle(3, COMMITTED)
    assert service.in_memory(3, 300) is None
    monkeypatch.setattr("tailrace.broker.transactions.service.FRESH_BYTES_MAX", 1)
    put(5)
    assert service.in_memory(5, 500) is None
    assert service._fresh_bytes == 0
