"""What properties of a message may name: queues, topics, groups and clients of others."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from broker_kit import use_control, wired
from people import People, sent_by

from tailrace.broker import wiring
from tailrace.broker.messages.reply import ReplyMessageProcessor
from tailrace.broker.messages.send_back import SendBackProcessor
from tailrace.formats.commitlog import decode_message
from tailrace.formats.remoting import RemotingCommand
from tailrace.kernels.properties import encode_properties
from tailrace.model import MessageExtBrokerInner
from tailrace.requests.durable_answers import DurableAnswers

HALF = {"TRAN_MSG": "true"}
FOREIGN = [
    {"INNER_MULTI_DISPATCH": "%LMQ%secretq"},
    {"INNER_MULTI_DISPATCH": "%LMQ%mineq,%LMQ%secretq"},
    {"INNER_MULTI_DISPATCH": "%LMQ%$own$a,%LMQ%$secret$a"},
    {"INNER_MULTI_DISPATCH": "%LMQ%$secret"},
    {"INNER_MULTI_DISPATCH": "%LMQ%mineq,%LMQ%secretq", "__LITE_TOPIC": "a"},
    {"RETRY_TOPIC": "secret"},
    {"RETRY_TOPIC": "%RETRY%vgroup"},
    {**HALF, "PGROUP": "vproducers"},
    {"REPLY_TO_CLIENT": "victim's client", "CORRELATION_ID": "1", "TTL": "3000"},
]
"""Properties of a message to `own` that lead to something of the victim."""
OWN = [
    {}, {"INNER_MULTI_DISPATCH": "%LMQ%mineq,%LMQ%$own$a"}, {"INNER_MULTI_DISPATCH": ""}, {"RETRY_TOPIC": "own"},
    {"RETRY_TOPIC": "read"}, {**HALF, "PGROUP": "mine"}, {**HALF, "PGROUP": "nobody has it"}, {**HALF, "PGROUP": "own"},
    {"REPLY_TO_CLIENT": "mallory's client", "CORRELATION_ID": "1", "TTL": "3000"}, {"__LITE_TOPIC": "a"},
    {"NOT_RETRY_TOPIC": "secret"}, {"XINNER_MULTI_DISPATCH": "%LMQ%secretq"}, {"ORIGIN_GROUP": "vgroup"},
    {"TEXT": "RETRY_TOPIC and INNER_MULTI_DISPATCH=%LMQ%secretq"},
]


@pytest.fixture
def people():
    return People(
        victim=[("Topic:secret*", "Pub,Sub"), ("Topic:%LMQ%secret*", "Pub,Sub"), ("Group:vgroup*", "Sub")],
        mallory=[("Topic:own*", "Pub,Sub"), ("Topic:read", "Sub"), ("Topic:%LMQ%mine*", "Pub,Sub"),
                 ("Group:mine*", "Sub"), ("Group:v_mine", "Sub")])


@pytest.fixture
def send(broker, kit, people, store):
    use_control(broker, people.control)
    broker.transactions.load()
    processor = wiring.sends(
        broker, DurableAnswers(broker.loop, store), wait_durable=False)
    reply = broker.make(ReplyMessageProcessor, messages=processor.messages)
    for topic in ("own", "%RETRY%mine", "%RETRY%v_mine", "DefaultCluster_REPLY_TOPIC"):
        broker.topics.create_if_missing(topic, 1)
    for group in ("mine", "v_mine"):
        broker.groups.find_or_create(group)
    for user, group in (("victim", "vproducers"), ("victim", "own"), ("mallory", "mine")):
        channel, beat = kit.FakeChannel(f"10.0.0.{len(group)}:1"), sent_by(user, RemotingCommand(34))
        broker.clients.ids.claim(channel, beat, f"{user}'s client")
        broker.clients.producers.register(channel, beat, f"{user}'s client", group)

    def call(properties, user="mallory", topic="own", code=310, body=b"x", text=None):
        text = encode_properties(properties).decode() if text is None else text
        names = ("abcdefghi" if code in {310, 320, 325} else [
            "producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp",
            "flag", "properties"])
        values = ["g", topic, "TBW102", "4", "0", "4" if "TRAN_MSG" in text else "0", "0", "0", text]
        serve = {10: processor.send, 310: processor.send_v2, 320: processor.send_v2, 324: reply.reply,
                 325: reply.reply_v2}[code]
        return kit.decoded(serve(kit.FakeChannel(), sent_by(user, RemotingCommand(
            code, dict(zip(names, values, strict=True)), body))))

    return call


@pytest.mark.parametrize("code", [10, 310])
@pytest.mark.parametrize("properties", FOREIGN, ids=str)
def test_a_message_may_not_name_what_its_user_may_not_use(send, store, people, properties, code):
    answer = send(properties, code=code)
    assert (answer.code, answer.body) == (16, b"")
    assert people.control.denied["permission"] == 1
    assert store.log == []
    assert send(properties, "root", code=code).code == 0 or "REPLY_TO_CLIENT" in properties


@pytest.mark.parametrize("properties", OWN, ids=str)
def test_a_message_may_name_what_its_user_may_use(send, store, people, properties):
    answer = send(properties)
    assert (answer.code, answer.remark) == (0, None)
    assert not people.control.denied["permission"]
    assert len(store.log) == 1


@pytest.mark.parametrize("text", [
    "INNER_MULTI_DISPATCH\x01%LMQ%mineq\x02INNER_MULTI_DISPATCH\x01%LMQ%secretq\x02",
    "INNER_MULTI_DISPATCH\x01%LMQ%secretq\x02INNER_MULTI_DISPATCH\x01%LMQ%mineq\x02",
    "a\x01b\x02INNER_MULTI_DISPATCH\x01%LMQ%secretq",
    "INNER_MULTI_DISPATCH\x01%LMQ%mineq,,%LMQ%secretq,\x02",
])
def test_a_property_that_is_there_twice_counts_twice(send, store, text):
    assert send({}, text=text).code == 16
    assert store.log == []


@pytest.mark.parametrize("code", [324, 325])
def test_a_reply_may_not_name_queues_of_others(send, store, code):
    properties = {"REPLY_TO_CLIENT": "mallory's client", "INNER_MULTI_DISPATCH": "%LMQ%secretq"}
    answer = send(properties, code=code, topic="DefaultCluster_REPLY_TOPIC")
    assert (answer.code, answer.remark) == (16, (
        "User:mallory has no permission to access Topic:%LMQ%secretq from 127.0.0.1, no matched policies."))
    assert store.log == []


def test_the_properties_of_a_whole_batch_count_as_those_of_a_message(send, store):
    assert send({"RETRY_TOPIC": "secret"}, code=320, body=item({})).code == 16
    assert store.log == []


def item(properties):
    stored = encode_properties(properties)
    size = 22 + 1 + len(stored)
    return b"".join((
        size.to_bytes(4, "big"), bytes(12), (1).to_bytes(4, "big"), b"x", len(stored).to_bytes(2, "big"), stored))


def test_an_inner_batch_may_not_name_queues_of_others(send, broker, store):
    config = broker.topics.table["own"]
    config.attributes = {"queue.type": "BatchCQ"}
    answer = send({"UNIQ_KEY": "K", "INNER_MULTI_DISPATCH": "%LMQ%secretq"}, code=320, body=item({}))
    assert (answer.code, store.log) == (16, [])


def test_a_member_of_a_batch_leads_nowhere(send, broker, store, kit):
    """Its properties are stored, and neither a reply nor a retry follows them; LMQ queues are refused by the store."""
    assert send({}, code=320, body=item({"RETRY_TOPIC": "secret", "REPLY_TO_CLIENT": "victim's client"})).code == 0
    assert len(broker.asked) == 0
    back = wired(SendBackProcessor, broker).send_back(kit.FakeChannel(), sent_by("mallory", RemotingCommand(
        36, {"group": "mine", "offset": "0", "delayLevel": "1"})))
    assert back.code == 0
    assert decode_message(store.log[-1]).properties["RETRY_TOPIC"] == "own"


@pytest.mark.parametrize(("properties", "code", "owner"), [
    ({}, 0, "v_mine"), ({"ORIGIN_GROUP": "v_mine"}, 0, "v_mine"), ({"ORIGIN_GROUP": "v"}, 16, None),
    ({"RETRY_TOPIC": "own"}, 0, None), ({"RETRY_TOPIC": "secret"}, 16, None)])
def test_a_message_to_a_shared_retry_topic_belongs_to_a_group_of_its_user(send, store, properties, code, owner):
    """`%RETRY%v_mine` is also the POP retry topic of group `v` and topic `mine`."""
    assert send(properties, topic="%RETRY%v_mine").code == code
    assert [decode_message(record).properties.get("ORIGIN_GROUP") for record in store.log] == [owner] * (code == 0)


def test_a_consumer_may_send_a_question_of_another_user_to_its_retry_topic(send):
    asked = {"RETRY_TOPIC": "read", "REPLY_TO_CLIENT": "victim's client", "CORRELATION_ID": "1", "TTL": "3000"}
    assert send(asked, topic="%RETRY%mine").code == 0


@pytest.mark.parametrize("people", [SimpleNamespace(control=None)])
def test_without_users_nothing_is_checked(send, store):
    for properties in FOREIGN:
        assert send(properties, "").code == 0
    assert "ORIGIN_GROUP" not in decode_message(store.log[-1]).properties


def test_a_retried_message_keeps_its_topic_and_no_other_one(broker, kit, store):
    """A property of a producer does not change the topic that a consumer sees after a retry."""
    broker.groups.find_or_create("mine")
    back = wired(SendBackProcessor, broker)
    for topic, named, expected in (("own", "secret", "own"), ("%RETRY%mine", "read", "read"), ("own", None, "own")):
        at = store.put_inner(MessageExtBrokerInner(
            topic, 0, b"x", encode_properties({} if named is None else {"RETRY_TOPIC": named}))).phy_offset
        kit.served(back).send_back(kit.FakeChannel(), RemotingCommand(
            36, {"group": "mine", "offset": str(at), "delayLevel": "1"}))
        assert decode_message(store.log[-1]).properties["RETRY_TOPIC"] == expected
