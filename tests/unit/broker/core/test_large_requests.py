"""Requests that need much work: the work is bounded, shared by several requests, or done in a thread."""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import re
import struct
import threading
import tracemalloc
import zlib

import pytest
from broker_kit import admin_of, clients_of
from flat_open import flat_open

from tailrace.broker import wiring
from tailrace.broker.controller import BrokerController
from tailrace.broker.messages.service import BATCH_MAX
from tailrace.config import NameServerConfig
from tailrace.env import OsFileSystem
from tailrace.errors import MessageIllegalError, StoreError
from tailrace.formats import fastjson
from tailrace.formats.commitlog import encode_batch
from tailrace.formats.remoting import RemotingCommand, decode_frame, encode
from tailrace.namesrv.name_server import KVConfigManager, NameServer
from tailrace.namesrv.registration_body import REGISTRATION_MAX
from tailrace.node.topic_config import TopicConfig
from tailrace.remoting.server import HEADER_MAX
from tailrace.requests import config_changes, worker


class Peer:
    """A connection to a server that is not a client of ours."""

    async def open(self, address):
        host, _, port = address.rpartition(":")
        self.reader, self.writer = await asyncio.open_connection(host, int(port))
        self.buffer = b""
        return self

    def send(self, code, ext, body=b"", opaque=0, flag=0):
        self.writer.write(encode(RemotingCommand(code, ext, body, opaque=opaque, flag=flag)))

    async def receive(self):
        while True:
            answer, end = decode_frame(self.buffer, 0, len(self.buffer))
            if answer is not None:
                self.buffer = self.buffer[end:]
                if answer.is_response:  # a broker also sends requests, such as 40
                    return answer
                continue
            try:
                data = await asyncio.wait_for(self.reader.read(1 << 16), 20)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self.buffer += data

    async def ask(self, code, ext=None, body=b""):
        self.send(code, ext or {}, body)
        return await self.receive()


def served(tmp_path, test, **options):
    async def run():
        with flat_open(tmp_path / "store", **options) as store:
            controller = BrokerController(store)
            await controller.start(("127.0.0.1", 0), ("127.0.0.1", 0))
            peer = await Peer().open(controller.broker_address)
            try:
                await test(controller, store, peer)
            finally:
                peer.writer.close()
                await controller.stop()

    asyncio.run(run())


def topic(name):
    return {"topic": name, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
            "topicFilterType": "SINGLE_TAG"}


class SlowSyncs(OsFileSystem):
    """Files whose directory syncs wait until the gate is open."""

    def __init__(self):
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.error = 0
        self.entered = 0

    def sync_dir(self, path):
        self.entered += not self.gate.is_set()
        assert self.gate.wait(20)
        super().sync_dir(path)

    def rename(self, old, new):
        if self.error and new.endswith(("topics.json", "subscriptionGroup.json")):
            raise OSError(self.error, "no room", new)
        super().rename(old, new)


def test_many_changes_share_a_write_and_hold_nobody_up_while_the_disk_works(tmp_path):
    files = SlowSyncs()

    async def test(controller, store, peer):
        other = await Peer().open(controller.broker_address)
        written = store.topics.writes
        files.gate.clear()
        for number in range(300):
            peer.send(17, topic(f"t{number}"), opaque=number)
        await peer.writer.drain()
        for _ in range(5):  # another client is served while the disk does not answer
            assert (await other.ask(30, {"topic": "t0", "queueId": "0"})).code == 0
        assert store.topics.select("t0") is None
        assert (await other.ask(351, {"topic": "t0"})).code == 17
        files.gate.set()
        answers = [await peer.receive() for _ in range(300)]
        assert [a.opaque for a in answers] == list(range(300))
        assert {a.code for a in answers} == {0}
        assert len(store.topics.table) > 300
        assert store.topics.writes - written <= 30, "the requests are served in several slices of time"
        other.writer.close()

    served(tmp_path, test, file_system=files)


def test_requests_that_wait_are_counted_with_their_headers(tmp_path, monkeypatch):
    for module in (config_changes, worker):
        monkeypatch.setattr(module, "WAITING_BYTES_MAX", 1 << 20)
    files, long = SlowSyncs(), "x" * 100_000

    async def test(controller, store, peer):
        first, second = [await Peer().open(controller.broker_address) for _ in range(2)]
        files.gate.clear()
        peer.send(17, {**topic("t"), "more": long})  # waits for the disk
        peer.send(215, {"topic": "nothing"})  # holds the worker
        for number in range(15):
            first.send(202, {"topic": "TBW102", "more": long}, opaque=number)
            second.send(17, {**topic(f"t{number}"), "more": long}, opaque=number)
        refused = [[await one.receive() for _ in range(n)] for one, n in ((first, 5), (second, 6))]
        assert {answer.code for answers in refused for answer in answers} == {2}
        assert "try again later" in refused[0][0].remark
        files.gate.set()
        served = [[await one.receive() for _ in range(n)] for one, n in ((first, 10), (second, 9))]
        assert {answer.code for answers in served for answer in answers} == {0}
        assert [a.opaque for a in served[1] + refused[1]] == list(range(15))
        assert (await second.ask(17, topic("later"))).code == 0
        first.writer.close()
        second.writer.close()

    served(tmp_path, test, file_system=files)


def test_a_disk_that_does_not_answer_takes_one_thread_of_those_that_serve_requests(tmp_path):
    files = SlowSyncs()

    async def test(controller, store, peer):
        other = await Peer().open(controller.broker_address)
        files.gate.clear()
        for number in range(40):
            peer.send(17, topic(f"t{number}"), opaque=number)
            assert (await other.ask(30, {"topic": "TBW102", "queueId": "0"})).code == 0
        assert (await asyncio.wait_for(other.ask(202, {"topic": "TBW102"}), 10)).code == 0
        files.gate.set()
        assert {(await peer.receive()).code for _ in range(40)} == {0}
        other.writer.close()

    served(tmp_path, test, file_system=files)


@pytest.mark.parametrize(("named", "code", "ext"), [
    (False, 215, {"topic": "t"}), (False, 17, topic("u")),
    (True, 100, {"namespace": "n", "key": "k", "value": "v"}),
])
def test_a_stop_waits_for_a_file_that_is_being_written(tmp_path, monkeypatch, named, code, ext):
    monkeypatch.setattr("tailrace.broker.controller.PATIENCE_S", 0.05)
    files = SlowSyncs()

    async def test(controller, store, peer):
        one = await Peer().open(controller.namesrv_address if named else controller.broker_address)
        assert (await peer.ask(17, topic("t"))).code == 0
        files.gate.clear()
        one.send(code, ext)
        while not files.entered:
            await asyncio.sleep(0.01)
        stopping = asyncio.create_task(controller.stop())
        await asyncio.wait([stopping], timeout=1.5)
        assert not stopping.done()
        files.gate.set()
        await stopping
        one.writer.close()

    served(tmp_path, test, file_system=files)


def test_a_change_that_the_disk_refuses_is_answered_and_shown_to_nobody(tmp_path):
    files = SlowSyncs()

    async def test(controller, store, peer):
        assert (await peer.ask(17, topic("old"))).code == 0
        version = store.topics.data_version.to_json()
        files.error = errno.ENOSPC
        for code, ext, body in (
            (17, topic("new"), b""), (215, {"topic": "old"}, b""), (352, {"group": "g"}, b""),
            (310, {"a": "p", "b": "new", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1",
                   "h": "0", "i": ""}, b"x"),
            (36, {"group": "g", "offset": "0", "delayLevel": "0"}, b""),
            (11, {"consumerGroup": "g", "topic": "old", "queueId": "0", "queueOffset": "0",
                  "maxMsgNums": "1", "sysFlag": "4", "subscription": "*", "commitOffset": "0",
                  "suspendTimeoutMillis": "0", "subVersion": "0"}, b""),
            (34, {}, b'{"clientID":"c","consumerDataSet":[{"groupName":"g"}]}'),
        ):
            answer = await peer.ask(code, ext, body)
            assert (answer.code, "no room" in answer.remark) == (1, True), (code, answer)
        assert store.topics.select("new") is None
        assert store.topics.select("old") is not None
        assert store.topics.data_version.to_json() == version
        assert controller.broker.groups.select("g") is None
        assert controller.broker.clients.consumers.find("g") is None
        files.error = 0
        assert (await peer.ask(34, {}, b'{"clientID":"c","consumerDataSet":[{"groupName":"g"}]}')).code == 0
        assert controller.broker.clients.consumers.find("g") is not None
        assert store.topics.select("%RETRY%g") is not None
        assert (await peer.ask(215, {"topic": "old"})).code == 0
        assert store.topics.select("old") is None

    served(tmp_path, test, file_system=files)


def test_two_requests_that_change_the_attributes_of_a_topic_together_both_count(tmp_path):
    async def test(controller, store, peer):
        await peer.ask(17, topic("t"))
        peer.send(17, {**topic("t"), "attributes": "+retention.ms=5"}, opaque=1)
        peer.send(17, {**topic("t"), "attributes": "+message.type=FIFO"}, opaque=2)
        assert [(await peer.receive()).code, (await peer.receive()).code] == [0, 0]
        assert store.topics.select("t").attributes == {"retention.ms": "5", "message.type": "FIFO"}

    served(tmp_path, test)


def test_a_heartbeat_of_a_thousand_new_groups_writes_two_files_once(broker, kit, channel):
    body = {"clientID": "c", "consumerDataSet": [{"groupName": f"g{i}"} for i in range(1000)]}
    before = broker.groups.writes, broker.topics.writes
    processor = kit.served(clients_of(broker))
    answer = processor.heartbeat(channel, kit.request(34, {}, json.dumps(body).encode()))
    assert answer.code == 0
    assert (broker.groups.writes - before[0], broker.topics.writes - before[1]) == (1, 1)
    assert len(broker.clients.consumers.groups()) == 1000
    more = {"clientID": "c", "consumerDataSet": [{"groupName": "one more"}, {"groupName": "more"}]}
    with pytest.raises(StoreError, match="in 1000 groups, the limit is 1000; use another connection"):
        kit.served(clients_of(broker)).heartbeat(channel, kit.request(34, {}, json.dumps(more).encode()))
    broker.clients.consumers.closed(channel)
    assert broker.clients.consumers.groups() == []
    with pytest.raises(MessageIllegalError, match="consumerDataSet has 1001 members, over the limit of 1000"):
        kit.served(clients_of(broker)).heartbeat(channel, kit.request(34, {}, json.dumps(
            {"clientID": "c", "consumerDataSet": [{"groupName": "g"}] * 1001}).encode()))


def test_a_large_heartbeat_over_the_wire_lets_others_have_their_turn(tmp_path):
    async def test(controller, store, peer):
        other = await Peer().open(controller.broker_address)
        tags = "||".join(f"t{i}" for i in range(1000))
        peer.send(34, {}, json.dumps({"clientID": "c", "consumerDataSet": [
            {"groupName": f"g{i}", "subscriptionDataSet": [{"topic": "t", "subString": tags}]}
            for i in range(200)]}).encode())
        answered = asyncio.ensure_future(peer.receive())
        served_between = 0
        while not answered.done():
            assert (await other.ask(30, {"topic": "t", "queueId": "0"})).code == 0
            served_between += 1
        assert (await answered).ext["IS_SUPPORT_HEART_BEAT_V2"] == "true"
        assert served_between >= 3
        assert len(controller.broker.clients.consumers.groups()) == 200
        other.writer.close()

    served(tmp_path, test)


def test_a_topic_that_is_named_often_is_looked_at_once(broker, kit, channel, store):
    broker.topics.update(TopicConfig(topic_name="wide", read_queue_nums=50, write_queue_nums=50))
    asked = []
    queue_of = store.queue_of
    store.queue_of = lambda topic, queue_id: asked.append(queue_id) or queue_of(topic, queue_id)
    answer = kit.served(admin_of(broker)).consume_stats(channel, kit.request(
        208, {"consumerGroup": "g", "topicList": ";".join(["wide"] * 1000)}))
    assert answer.code == 0
    assert len(asked) == 50


@pytest.mark.parametrize(("text", "why"), [
    (b"[" + b"[]," * 50_000 + b"1]", "more than 1000 values; send several requests"),
    (b'{"a":"' + b"x" * (3 << 20) + b'"}', "over the limit of 2097152; send several requests"),
    (b'{"a":"' + b"x" * 20_000, "fastjson's own forms are read in texts of up to 16384 bytes"),
    (b'{1:1,"a":"' + b"x" * 20_000 + b'"}', "fastjson's own forms are read in texts of up to 16384"),
    (b'{"a":"' + b"x" * 20_000 + b'","b":{"$ref":"$.a"}}', "references .* up to 16384 bytes"),
])
def test_texts_of_unauthenticated_connections_have_limits_that_are_named(text, why):
    with pytest.raises(ValueError, match=why):
        fastjson.loads_bounded(text, 1000)
    assert fastjson.loads_bounded(b'{1:1,"a":{"x":2},"b":{"$ref":"$.a"}}', 1000) == {
        "1": 1, "a": {"x": 2}, "b": {"x": 2}}


def test_an_unclosed_text_of_the_tolerant_form_takes_no_memory_by_its_length():
    text = '{1:"' + "\\a" * 2_000_000
    tracemalloc.start()
    with pytest.raises(ValueError, match="text without an end at position 3"):
        fastjson.loads(text)
    assert tracemalloc.get_traced_memory()[1] < 100 << 20  # orjson takes 12 bytes a character
    tracemalloc.stop()


def test_long_expressions_batches_headers_and_properties_are_refused(tmp_path, kit, broker, channel):
    broker.groups.find_or_create("g")
    broker.topics.create_if_missing("t", 1)
    pull = kit.served(wiring.pulls(broker)).pull(channel, kit.request(11, {
        "consumerGroup": "g", "topic": "t", "queueId": "0", "queueOffset": "0", "maxMsgNums": "1",
        "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0",
        "subscription": "a||" * 10_000}))
    assert (pull.code, pull.remark) == (
        23, "the subscription has 30000 characters, over the limit of 8192")

    async def test(controller, store, peer):
        send = {"a": "p", "b": "new", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": ""}
        batch = encode_batch([(0, b"x", b"")] * (BATCH_MAX + 1))
        assert (await peer.ask(310, send, b"x")).code == 0
        answer = await peer.ask(320, {**send, "m": "true"}, batch)
        assert (answer.code, answer.remark) == (
            13, f"the batch has more than {BATCH_MAX} messages; send several")
        fits = batch[: len(batch) // (BATCH_MAX + 1) * BATCH_MAX]
        assert (await peer.ask(320, {**send, "m": "true"}, fits)).code == 0
        answer = await peer.ask(310, {**send, "i": "a\x01b\x02" * 9000}, b"x")
        assert answer.code == 13
        assert "have 36104 bytes with those of the broker, over the limit of 31743" in answer.remark
        peer.send(310, {**send, "i": "x" * HEADER_MAX}, b"x")
        assert await peer.receive() is None

    served(tmp_path / "another", test)


def test_registrations_of_other_brokers_are_bounded(kit, channel, clock, tmp_path):
    kv = KVConfigManager(OsFileSystem(), str(tmp_path))
    names = kit.served(NameServer(clock, kv, NameServerConfig()))
    ext = {"brokerName": "b", "brokerAddr": "x:1", "clusterName": "c", "brokerId": "0", "haServerAddr": ""}

    def register(raw, **more):
        return names.register_broker(channel, kit.request(103, {**ext, **more}, raw))

    def packed(*parts, count):
        texts = [struct.pack(">i", len(p)) + p for p in parts]
        return zlib.compress(texts[0] + struct.pack(">i", count) + b"".join(texts[1:]))

    one = packed(b'{"counter":1}', b"t 4 4 6 SINGLE_TAG {}", b"u 4 4 6 SINGLE_TAG {}", count=2)
    for raw, why in (
        (packed(b"{}", count=REGISTRATION_MAX + 1), "enableSplitRegistration=true on that broker"),
        (zlib.compress(bytes(17 << 20)), "longer than 16777216 bytes"),
        (packed(b"{}", b"a/b 4 4 6 SINGLE_TAG {}", count=1), "contains illegal characters"),
        (packed(b"{}", b"short", count=1), "too few words"),
    ):
        with pytest.raises(ValueError, match=why):
            register(raw, compressed="true")
    assert names.cluster_info(channel, kit.request(106)).body == b'{"brokerAddrTable":{},"clusterAddrTable":{}}'
    with pytest.raises(StoreError, match="longer than 255 characters"):
        register(one, compressed="true", brokerName="b" * 256)
    assert register(one, compressed="true").code == 0


def test_consumer_offsets_are_kept_only_for_what_exists(broker, kit, channel):
    clients = kit.served(clients_of(broker))

    def commit(group, topic, queue_id):
        answer = clients.update_offset(channel, kit.request(15, {
            "consumerGroup": group, "topic": topic, "queueId": str(queue_id), "commitOffset": "0"}))
        return answer.code, answer.remark

    broker.topics.create_if_missing("t", 4)
    assert commit("g", "t", 0) == (26, "Group g not exist!")
    broker.groups.find_or_create("g")
    assert commit("g", "u" * 10_000, 0) == (17, f"Topic {'u' * 255} not exist!")
    assert commit("g", "t", 4) == (29, "topic t has no queue 4")
    assert commit("g", "t", 3) == (0, None)
    assert broker.offsets.entries() == [("t", "g", 3, 0)]


@pytest.mark.parametrize(("code", "body", "why"), [
    (18, {"topicConfigList": [7]}, r"topicConfigList\[0\] is a number, not an object"),
    (18, {"topicConfigList": {"a": 1}}, "topicConfigList is an object, not a list of objects"),
    (225, {"groupConfigList": [{"groupName": "g"}, None]}, r"groupConfigList\[1\] is null, not an object"),
    (225, [], "of request 225 is a list, not an object"),
    (200, "x", "of request 200 is text, not an object"),
    (34, {"clientID": "c", "consumerDataSet": [[]]}, r"consumerDataSet\[0\] is a list"),
    (34, {"clientID": 7}, "clientID is a number, not text"),
    (34, {}, "clientID is missing"),
    (34, {"clientID": "c" * 2000}, "clientID has 2000 characters, over the limit of 1024"),
    (34, {"clientID": "c", "producerDataSet": [{"groupName": "x" * 300}]}, "over the limit of 255"),
    (34, {"clientID": "c", "heartbeatFingerprint": "x"}, "heartbeatFingerprint is 'x', not a whole number"),
    (34, {"clientID": "c", "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [
        {"topic": "t", "tagsSet": [7]}]}]}, "tagsSet is not a list of which each is text"),
    (41, {"consumerGroup": "g", "clientId": "c", "mqSet": [7]}, r"mqSet\[0\] is a number"),
    (42, {"consumerGroup": "a b", "clientId": "c"}, "contains illegal characters"),
    (46, {"subscriptionData": 7}, "subscriptionData is a number, not an object"),
    (217, {"queueDatas": [{"brokerName": 7}]}, "brokerName is a number, not text"),
    (103, {"topicConfigSerializeWrapper": 7}, "topicConfigSerializeWrapper is a number, not an object"),
])
def test_a_wrong_type_anywhere_in_a_body_is_one_error_that_names_it(tmp_path, caplog, code, body, why):
    async def test(controller, store, peer):
        if code in {103, 217}:
            peer.writer.close()
            peer.__dict__.update((await Peer().open(controller.namesrv_address)).__dict__)
        answer = await peer.ask(code, {"topic": "t", "brokerName": "b", "brokerAddr": "a", "brokerId": "0",
                                       "clusterName": "c", "haServerAddr": ""}, json.dumps(body).encode())
        assert answer.code in {1, 29}
        assert re.search(why, answer.remark), answer.remark

    served(tmp_path, test)
    lines = [r for r in caplog.records if r.getMessage().startswith("request failed")]
    assert len(lines) == 1
    assert not lines[0].exc_text


QUEUES = {"consumerGroup": "g", "clientId": "c", "mqSet": [
    {"topic": "t", "brokerName": "b", "queueId": queue} for queue in range(9)]}


@pytest.mark.parametrize(("code", "body"), [
    (41, QUEUES), (42, QUEUES), (225, {"groupConfigList": [{"groupName": f"n{number}"} for number in range(9)]}),
    (18, {"topicConfigList": [
        {"topicName": f"n{number}", "readQueueNums": 1, "writeQueueNums": 1} for number in range(9)]})])
def test_the_members_of_a_list_are_checked_in_turns_of_the_event_loop(broker, kit, channel, monkeypatch, code, body):
    """Other requests are served between them, however many there are; here each turn has time for one member."""
    clients, admin = clients_of(broker), admin_of(broker)
    serve = {41: clients.lock_batch, 42: clients.unlock_batch, 18: admin.update_topics, 225: admin.update_groups}[code]
    turns, times = [], itertools.count()

    async def run():
        assert serve(channel, kit.request(code, body=json.dumps(body).encode())) is None
        while not channel.sent:
            turns.append(None)
            await asyncio.sleep(0)

    monkeypatch.setattr(broker.loop, "time", lambda: next(times))
    broker.loop.run_until_complete(run())
    assert [answer.code for answer in channel.sent] == [0]
    assert len(turns) >= 8
