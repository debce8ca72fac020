"""Requests that make no sense: each is answered or refused, and no wrong value of it is stored."""

from __future__ import annotations

import asyncio
import itertools
import json
import random

import msgspec
import pytest
from broker_kit import admin_of, wired
from long_runs import LONG

from tailrace.broker.controller import BrokerController
from tailrace.broker.messages.query import QueryProcessor
from tailrace.env import OsFileSystem
from tailrace.errors import StoreError
from tailrace.formats import fastjson
from tailrace.formats.commitlog import decode_message
from tailrace.formats.remoting import RequestCode, decode_frame, encode
from tailrace.formats.requests.table import REQUESTS
from tailrace.model import Message, MessageExtBrokerInner
from tailrace.node.message_store import MessageStore
from tailrace.node.subscription_group import SubscriptionGroupManager

FIELDS = {
    field.encode_name: "int" in str(field.type)
    for request in REQUESTS.values() if request.header is not None
    for field in msgspec.structs.fields(request.header)}
"""Fields of all requests by name, and whether they are numbers."""
VALUES = (
    "", "0", "1", "-1", "-2", "7", "x", "orders", "g", "TBW102", "%RETRY%g", "%DLQ%g", "a b", "*",
    "a || b", "||", "2147483647", "2147483648", "-2147483649", "9223372036854775807",
    "9223372036854775808", "-9223372036854775809", "1e3", "true", "false", "SQL92", "TAG",
    "SINGLE_TAG", "UPPER", "\x01", "\x02", "UNIQ_KEY\x01", "WAIT\x01false", "é" * 200, "t" * 300,
    "TRAN_MSG\x01true\x02", "+a=b", "-a", "=", "0" * 5000, "../x", "7F00000100002A9F",
)
NUMBERS = tuple(value for value in VALUES if value.lstrip("-").isdecimal() and len(value) < 20)
FLAGS = ("isForce", "isOrder", "k", "m", "unitMode", "compressed", "cleanOffset", "committed", "order")
BODIES = (
    b"", b"x", b"{}", b"[]", b"null", b"{", b"\xff\xfe", b"[" * 5000, b'{"a":' * 5000, bytes(100),
    b'{"clientID":"c","consumerDataSet":[{}]}', b'{"clientID":"c","consumerDataSet":7}',
    b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":1}]}]}',
    (b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":'
     b'[{"topic":"orders","subString":"||"}]}],"heartbeatFingerprint":"x"}'),
    b'{"consumerGroup":"g","clientId":"c","mqSet":[{}]}',
    b'{"consumerGroup":"g","clientId":"c","mqSet":{"a":1}}',
    b'{"topicConfigList":[{"topicName":"ok","readQueueNums":1,"writeQueueNums":1},{}]}',
    b'{"topicConfigList":[{"topicName":"r","more":{"$ref":"$"}}]}',
    b'{"groupName":"r","more":{"$ref":".."}}', b'{"groupName":"g2","retryMaxTimes":"x"}',
    b'{"groupName":"g3","retryMaxTimes":99999999999999999999}',
    b'{"groupConfigList":[{"groupName":"a b"},{"groupName":"g4"}]}',
    b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"t":7}}}', b"\x78\x9c" + bytes(30),
    b'{"topicConfigList":[7,null,"x",[]]}', b'{"topicConfigList":"x"}', b'{"topicConfigList":{"a":1}}',
    b'{"groupConfigList":[7]}', b'{"groupConfigList":7}', b'{"groupConfigList":[null]}',
    b'{"clientID":7,"consumerDataSet":[]}', b'{"clientID":"c","consumerDataSet":[7]}',
    b'{"clientID":"c","producerDataSet":[{"groupName":{}}]}', b'{"clientID":"c","producerDataSet":"x"}',
    (b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":'
     b'[{"topic":"t","tagsSet":7,"codeSet":["x"]}]}]}'),
    (b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":'
     b'[{"topic":"t","subVersion":[],"subString":7}]}],"heartbeatFingerprint":{}}'),
    b'{"consumerGroup":[],"clientId":"c","mqSet":[7]}', b'{"consumerGroup":"g","clientId":"c","mqSet":[7]}',
    b'{"consumerGroup":"g","clientId":"c","mqSet":[{"topic":1,"brokerName":"b","queueId":"x"}]}',
    b'{"queueDatas":7}', b'{"queueDatas":[7]}', b'{"queueDatas":[{"brokerName":[]}]}',
    b'{"topicConfigSerializeWrapper":7}', b'{"topicConfigSerializeWrapper":{"topicConfigTable":7}}',
    b'{"topicConfigSerializeWrapper":{"dataVersion":7}}', b'{"counter":"x"}', b"7", b'"x"',
    b'{"subscriptionData":7}', b'{"subscriptionData":{"expressionType":"SQL92"}}',
)


def requests(kit, seed):
    """Requests with known codes whose fields are mostly there and mostly wrong."""
    chance = random.Random(seed)
    codes = [int(code) for code in RequestCode]
    while True:
        fields = {
            name: chance.choice(NUMBERS if number and chance.random() < 0.9 else VALUES)
            for name, number in FIELDS.items() if chance.random() < 0.95}
        for name in FLAGS:
            fields[name] = chance.choice(("true", "false", "false", "x"))
        if chance.random() < 0.7:
            fields["topic"] = fields["b"] = "orders"
        yield kit.request(
            chance.choice(codes), fields, chance.choice(BODIES),
            opaque=chance.randrange(1 << 31), flag=chance.choice((0, 0, 0, 2)),
            serialize_type=chance.randrange(2))


def serve(server, channel, request):
    """As the server does it: an exception is also an answer."""
    processor = server.processors.get(request.code)
    if processor is None:
        return
    try:
        answer = processor(channel, request)
    except Exception as error:
        # A traceback in the log of a server is a bug of ours; these are logged with one line.
        assert isinstance(error, StoreError | ValueError), (request, repr(error))
        return
    if answer is not None and not isinstance(answer, bytes):
        answer = encode(answer)
    if answer is not None:
        decoded, end = decode_frame(answer, 0, len(answer))
        assert decoded.opaque == request.opaque
        assert end == len(answer)


def strict_numbers(value, path=""):
    """Numbers of a file, for a look whether Java could hold them."""
    if isinstance(value, dict):
        for name, member in value.items():
            yield from strict_numbers(member, f"{path}.{name}")
    elif isinstance(value, list):
        for member in value:
            yield from strict_numbers(member, path)
    elif isinstance(value, int):
        yield path, value


@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_asked_the_broker_goes_on_and_its_files_stay_readable(tmp_path, kit, seed):
    async def test():
        with MessageStore.open(tmp_path / "store") as store:
            controller = BrokerController(store)
            await controller.start(("127.0.0.1", 0), ("127.0.0.1", 0))
            store.put(Message(topic="orders", body=b"good", keys=["k"], tags="a"))
            store.wait_dispatched()
            broker, names = controller.servers
            channel = kit.FakeChannel()
            channel.request = None
            for request in itertools.islice(requests(kit, seed), 2500 if LONG else 1000):
                serve(broker, channel, request)
                serve(names, channel, request)
                await asyncio.sleep(0)
            result = store.put(Message(topic="later", body=b"fine"))
            assert store.look_message_by_offset(result.phy_offset).body == b"fine"
            controller.broker.offsets.persist()
            await controller.stop()

    asyncio.run(test())
    for path in (tmp_path / "store" / "config").glob("*.json"):
        for place, number in strict_numbers(json.loads(path.read_text())):
            assert -(1 << 63) <= number < 1 << 63, (path.name, place)
            if any(word in place for word in ("QueueNums", "perm", "SysFlag", "retryMaxTimes")):
                assert -(1 << 31) <= number < 1 << 31, (path.name, place)
    with MessageStore.open(tmp_path / "store") as store:  # what was stored is read again
        bodies = [m.body for q in store.queues() for m in store.read(q[0], q[1])]
        assert b"fine" in bodies


@pytest.mark.parametrize(
    "member",
    ['"retryMaxTimes":2147483648', f'"more":{"[" * 300}{"]" * 300}', f'"more":{"[" * 40}{"]" * 40}',
     '"groupSysFlag":-2147483649', '"groupName":"a@b"', '"groupName":""'],
)
def test_a_group_that_could_not_be_read_again_is_refused_and_spoils_no_other(
    broker, kit, channel, member
):
    topics = kit.served(admin_of(broker))
    body = f'{{"groupName":"bad",{member}}}'.encode()
    assert topics.update_group(channel, kit.request(200, {}, body)).code == 29
    assert topics.update_group(channel, kit.request(200, {}, b'{"groupName":"good"}')).code == 0
    again = SubscriptionGroupManager(
        OsFileSystem(), broker.store.config_dir, broker.config, broker.clock)
    assert again.load()
    assert (again.select("bad"), again.select("good").group_name) == (None, "good")


@pytest.mark.parametrize(
    "member", ['"topicFilterType":"ANY"', '"topicSysFlag":4294967296', '"perm":77',
               f'"more":{"[" * 300}{"]" * 300}'],
)
def test_so_is_a_topic_and_none_of_its_list_is_created(broker, kit, channel, member):
    topics = kit.served(admin_of(broker))
    body = f'{{"topicConfigList":[{{"topicName":"first"}},{{"topicName":"bad",{member}}}]}}'
    assert topics.update_topics(channel, kit.request(18, {}, body.encode())).code == 29
    assert broker.topics.select("first") is None
    broker.topics.create_if_missing("good", 1)


def test_messages_by_key_come_as_many_as_fit_into_a_frame(broker, kit, channel, store):
    sent = [bytes([n]) * (4 << 20) for n in range(6)]
    for body in sent:
        store.put_inner(MessageExtBrokerInner("orders", 0, body, b"KEYS\x01k\x02"))
    answer = kit.served(wired(QueryProcessor, broker)).query_message(channel, kit.request(12, {
        "topic": "orders", "key": "k", "maxNum": "64", "beginTimestamp": "0", "endTimestamp": "-1"}))
    assert answer.code == 0
    assert len(encode(answer)) < 16 << 20
    records = [r for r in store.log if r in answer.body]
    assert [decode_message(r).body for r in records] == sent[-3:]


def test_references_that_make_a_short_text_huge_are_refused():
    levels = ",".join(
        f'"l{n}":[{{"$ref":"$.l{n - 1}"}},{{"$ref":"$.l{n - 1}"}}]' for n in range(1, 60))
    with pytest.raises(ValueError, match="references make more than"):
        fastjson.loads(f'{{"l0":["x"],{levels}}}')
    with pytest.raises(ValueError, match="references make more than"):
        fastjson.loads('{"a":{"b":{"$ref":"$"}}}')
    assert fastjson.loads('{"a":{"x":1},"b":{"$ref":"$.a"}}') == {"a": {"x": 1}, "b": {"x": 1}}
