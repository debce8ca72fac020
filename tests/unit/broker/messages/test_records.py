"""Requests that name a message by its position or id: what a user gets who may not have the message."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest
from broker_kit import use_control, wired
from people import People, sent_by

from tailrace.broker import wiring
from tailrace.broker.messages.query import QueryProcessor
from tailrace.broker.messages.records import Records, owners_of
from tailrace.broker.messages.send_back import SendBackProcessor
from tailrace.broker.transactions.half_queue import PASSED, UNKNOWN
from tailrace.errors import RefusalError
from tailrace.formats.commitlog import decode_message
from tailrace.formats.remoting import RemotingCommand, RequestCode
from tailrace.formats.requests.table import Action
from tailrace.kernels.properties import encode_properties
from tailrace.model import MessageExtBrokerInner

VICTIM = ("Topic:secret*", "Pub,Sub,Get,Update"), ("Group:vgroup*", "Sub,Get,Update")
MALLORY = ("Topic:own*", "Pub,Sub,Get,Update"), ("Group:mine*", "Sub,Get,Update")
HALF = {"REAL_TOPIC": "secret", "REAL_QID": "0", "PGROUP": "vproducers", "UNIQ_KEY": "K", "TRAN_MSG": "true"}
RECORDS = {
    "plain": ("secret", {}),
    "plain with a forged retry topic": ("secret", {"RETRY_TOPIC": "own", "REAL_TOPIC": "own", "ORIGIN_GROUP": "mine"}),
    "of a retry topic": ("%RETRY%vgroup", {"RETRY_TOPIC": "secret", "REAL_TOPIC": "%RETRY%vgroup"}),
    "popped": ("%RETRY%vgroup_secret", {"ORIGIN_GROUP": "vgroup", "RETRY_TOPIC": "secret"}),
    "popped, second form": ("%RETRY%vgroup+secret", {"ORIGIN_GROUP": "vgroup"}),
    "dead letter": ("%DLQ%vgroup", {}),
    "delayed": ("SCHEDULE_TOPIC_XXXX", {"REAL_TOPIC": "secret", "REAL_QID": "0"}),
    "delayed retry": ("SCHEDULE_TOPIC_XXXX", {"REAL_TOPIC": "%RETRY%vgroup"}),
    "timer": ("rmq_sys_wheel_timer", {"REAL_TOPIC": "secret"}),
    "half": ("RMQ_SYS_TRANS_HALF_TOPIC", HALF),
    "given up": ("TRANS_CHECK_MAX_TIME_TOPIC", HALF),
    "checkpoint": ("rmq_sys_REVIVE_LOG_DefaultCluster", {}),
}
CODES = [RequestCode.VIEW_MESSAGE_BY_ID, RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.CONSUME_MESSAGE_DIRECTLY,
         RequestCode.RESUME_CHECK_HALF_MESSAGE, RequestCode.END_TRANSACTION]
REMARK = "User:{} may not access this message, or it does not exist."
MISSING = 999_999


@pytest.fixture
def people():
    return People(victim=VICTIM, mallory=MALLORY, nobody=())


@pytest.fixture
def ask(broker, kit, channel, people, store):
    """Send a request by a user about the message at a position."""
    use_control(broker, people.control)
    broker.transactions.load()
    broker.groups.find_or_create("mine")
    store.topics.create_if_missing("%RETRY%mine", 1)
    query, back = wired(QueryProcessor, broker), wired(SendBackProcessor, broker)
    ends, admin = wiring.ends_of_transactions(broker), wiring.admin(broker)
    serve = dict(zip(CODES, (query.view_message, back.send_back, admin.consume_directly, ends.resume_check,
                             ends.end_transaction), strict=True))

    def call(user, code, at, **more):
        message_id = f"7F00000100002A9F{at:016X}"
        ext = {"topic": "own", "offset": str(at), "group": "mine", "delayLevel": "1", "msgId": message_id,
               "offsetMsgId": message_id, "consumerGroup": "mine", "clientId": "none", "originTopic": "own",
               "producerGroup": "vproducers", "tranStateTableOffset": str(at), "commitLogOffset": str(at),
               "commitOrRollback": "8", **more}
        request = sent_by(user, RemotingCommand(code, ext))
        sent = len(channel.sent)
        try:
            answer = serve[code](channel, request)
        except RefusalError as refusal:
            return request.refused(refusal)
        if answer is None:
            broker.loop.run_until_complete(ends.service._task)
            (answer,) = channel.sent[sent:]
        return kit.decoded(answer)

    return call


def put(store, topic, properties, body=b"SALARY 90000"):
    return store.put_inner(MessageExtBrokerInner(
        topic, 0, body, encode_properties(properties), 0, 0, 1, b"\x01\2\3\4\0\0\0\5")).phy_offset


@pytest.mark.parametrize("user", ["mallory", "nobody"])
@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
@pytest.mark.parametrize("kind", RECORDS)
def test_a_foreign_message_is_answered_as_a_missing_one(ask, store, people, user, code, kind):
    at = put(store, *RECORDS[kind])
    before, offsets = list(store.log), dict(store.topics.table)
    for place in (at, MISSING):
        answer = ask(user, code, place)
        assert (answer.code, answer.remark, answer.ext, answer.body) == (16, REMARK.format(user), {}, b"")
    assert store.log == before
    assert store.topics.table == offsets
    assert people.control.denied["permission"] == 2


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
def test_a_deleted_user_gets_nothing_more(ask, store, people, code):
    at = put(store, "own", {})
    people.remove("mallory")
    answer = ask("mallory", code, at)
    assert (answer.code, answer.body) == (16, b"")
    assert len(store.log) == 1


@pytest.mark.parametrize(("user", "kind"), [
    *(("victim", kind) for kind in RECORDS if kind != "checkpoint"), *(("root", kind) for kind in RECORDS)])
def test_the_owner_of_a_message_and_a_super_user_get_it(ask, store, user, kind):
    topic, properties = RECORDS[kind]
    at = put(store, topic, properties)
    named = "" if user == "root" else properties["REAL_TOPIC"] if topic in {
        "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "RMQ_SYS_TRANS_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"
    } else topic
    answer = ask(user, RequestCode.VIEW_MESSAGE_BY_ID, at, topic=named)
    assert (answer.code, decode_message(answer.body).body) == (0, b"SALARY 90000")
    assert ask(user, RequestCode.CONSUMER_SEND_MSG_BACK, at).code == 0
    assert "not online" in ask(user, RequestCode.CONSUME_MESSAGE_DIRECTLY, at).remark


def test_a_missing_message_is_named_to_a_super_user(ask):
    assert "can not find message by the offset" in ask("root", RequestCode.VIEW_MESSAGE_BY_ID, MISSING).remark
    assert "look message by offset failed" in ask("root", RequestCode.CONSUMER_SEND_MSG_BACK, MISSING).remark
    assert "no message with the id" in ask("root", RequestCode.CONSUME_MESSAGE_DIRECTLY, MISSING).remark
    assert "there is no message" in ask("root", RequestCode.RESUME_CHECK_HALF_MESSAGE, MISSING).remark
    assert "Find prepared" in ask("root", RequestCode.END_TRANSACTION, MISSING).remark


def test_a_view_still_needs_the_topic_that_it_names(ask, store):
    at = put(store, "secret", {})
    assert ask("victim", RequestCode.VIEW_MESSAGE_BY_ID, at, topic="secret2").remark == (
        "The topic does not match the message")


def test_the_producer_ends_its_transaction_without_naming_the_topic(ask, broker, store):
    at = put(store, "RMQ_SYS_TRANS_HALF_TOPIC", HALF)
    store.topics.create_if_missing("secret", 1)
    broker.transactions.queue.put(0, UNKNOWN)
    assert ask("victim", RequestCode.END_TRANSACTION, at, tranStateTableOffset="0", topic="").code == 0
    committed = decode_message(store.log[-1])
    assert (committed.topic, committed.body) == ("secret", b"SALARY 90000")


def test_a_copy_of_another_topic_with_the_same_unique_key_is_not_ended(ask, broker, store):
    """A half message that was checked is ended by the request about its first copy."""
    own = put(store, "RMQ_SYS_TRANS_HALF_TOPIC", {**HALF, "REAL_TOPIC": "own"})
    put(store, "RMQ_SYS_TRANS_HALF_TOPIC", HALF)
    for topic in ("own", "secret"):
        store.topics.create_if_missing(topic, 1)
    for offset, state in enumerate((PASSED, UNKNOWN)):
        broker.transactions.queue.put(offset, state)
    for state in ("8", "12"):
        answer = ask("mallory", RequestCode.END_TRANSACTION, own, tranStateTableOffset="0", commitOrRollback=state)
        assert (answer.code, broker.transactions.queue.is_pending(1)) == (604, True)
    assert [decode_message(record).topic for record in store.log] == ["RMQ_SYS_TRANS_HALF_TOPIC"] * 2


def test_a_consumer_of_an_lmq_queue_may_send_its_messages_back(ask, store, people):
    people.add("device", ("Topic:%LMQ%dev1", "Sub,Get"), ("Group:mine", "Sub"))
    at = put(store, "secret", {"INNER_MULTI_DISPATCH": "%LMQ%dev1,%LMQ%dev2"})
    assert ask("device", RequestCode.CONSUMER_SEND_MSG_BACK, at).code == 0
    assert ask("device", RequestCode.VIEW_MESSAGE_BY_ID, at, topic="%LMQ%dev1").code == 0
    assert ask("device", RequestCode.CONSUMER_SEND_MSG_BACK, put(store, "secret", {})).code == 16


def test_only_who_may_read_a_deleted_topic_is_told_that_a_message_went_with_it(ask, store):
    store.inner.lives.deleted_up_to = lambda topic: MISSING + 1 if topic in {"own", "secret"} else 0
    back = RequestCode.CONSUMER_SEND_MSG_BACK
    assert ask("mallory", back, MISSING, originTopic="own").code == 0
    assert ask("mallory", back, MISSING, originTopic="secret").remark == REMARK.format("mallory")


@pytest.mark.parametrize("people", [SimpleNamespace(control=None)])
def test_without_users_nothing_is_checked(ask, store):
    at = put(store, "secret", {})
    assert ask("", RequestCode.VIEW_MESSAGE_BY_ID, at, topic="").code == 0
    assert ask("", RequestCode.CONSUMER_SEND_MSG_BACK, at).code == 0


def test_a_message_of_a_shared_retry_topic_belongs_to_the_group_that_it_names(store):
    owner = {name: owners_of(decode_message(store.log[-1]), Action.PUB) for name, properties in {
        "g_a": {"ORIGIN_GROUP": "g_a"}, "g": {"ORIGIN_GROUP": "g"}, "g_a_x": {"REAL_TOPIC": "%RETRY%g_a_x"},
        "g_a_x ": {}}.items() if put(store, "%RETRY%g_a_x", properties) >= 0}
    assert owner == {name: [("Group", name.strip(), Action.SUB)] for name in owner}


def test_a_thread_has_a_record_checked_on_the_event_loop(broker, store, channel, people):
    """Access control is used on the event loop alone."""
    at, seen = put(store, "secret", {}), []
    message, request = store.look_message_by_offset(at), sent_by("mallory", RemotingCommand(323))

    async def scenario():
        broker.loop, broker.control = asyncio.get_running_loop(), people.control
        records = wired(Records, broker)
        people.control.require_record = lambda *_: seen.append(threading.get_ident())
        await broker.loop.run_in_executor(None, records.require_record, channel, request, message, Action.UPDATE)
        records.require_record(channel, request, message, Action.UPDATE)

    # The control is final and has no slots, so a test may replace a method of one object.
    asyncio.run(scenario())
    assert seen == [threading.get_ident()] * 2
