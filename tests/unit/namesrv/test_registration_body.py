"""The body of a registration: topics and mappings of static topics, plain and compressed."""

from __future__ import annotations

import json
import zlib

import pytest
from static_topics import item, mapping

from tailrace.config import NameServerConfig
from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import MessageIllegalError
from tailrace.namesrv.kv_config import KVConfigManager
from tailrace.namesrv.name_server import NameServer
from tailrace.namesrv.registration_body import read_registration
from tailrace.node.topic_config import TopicConfig
from tailrace.node.topic_queue_mapping import TopicQueueMappingDetail

INFO = {
    "bname": "b", "currIdMap": {"1": 0}, "dirty": False, "epoch": 3, "scope": "__global__", "topic": "st",
    "totalQueues": 2}
VERSION = {"counter": 1, "stateVersion": 0, "timestamp": 9}
REGISTER = {
    "brokerName": "b", "brokerAddr": "127.0.0.1:1", "clusterName": "c", "haServerAddr": "", "brokerId": "0"}


def plain(infos, topics=("st", "other")):
    return json.dumps({"filterServerList": [], "topicConfigSerializeWrapper": {
        "dataVersion": VERSION, "topicConfigTable": {name: {"topicName": name} for name in topics},
        "topicQueueMappingInfoMap": infos}}).encode()


def compressed(infos, tail=b""):
    def part(text):
        return len(text).to_bytes(4, "big") + text

    parts = [part(json.dumps(VERSION).encode()), (1).to_bytes(4, "big"), part(b"st 2 2 6 SINGLE_TAG")]
    if infos is not None:
        parts += [part(b"[]"), len(infos).to_bytes(4, "big"), *(part(json.dumps(i).encode()) for i in infos)]
    return zlib.compress(b"".join(parts) + tail)


@pytest.mark.parametrize(("body", "is_compressed", "mappings"), [
    (plain({"st": INFO}), False, {"st": INFO}), (plain({}), False, {}),
    (compressed([INFO]), True, {"st": INFO}), (compressed([]), True, {}), (compressed(None), True, {}),
])
def test_mappings_are_read_by_topic(kit, body, is_compressed, mappings):
    found = read_registration(kit.request(103, body=body), compressed=is_compressed)
    assert (found.version, "st" in found.topics, found.mappings) == (VERSION, True, mappings)


@pytest.mark.parametrize(("info", "said"), [
    (5, "topicQueueMappingInfoMap: st: the mapping is not an object"),
    ({**INFO, "topic": "no topic"}, "illegal characters"),
    ({**INFO, "currIdMap": {"a": 1}}, "not numbers of queues"),
])
def test_a_wrong_mapping_is_refused_with_its_topic(kit, info, said):
    with pytest.raises(MessageIllegalError, match=said):
        read_registration(kit.request(103, body=plain({"st": info})), compressed=False)


def test_a_route_has_the_mappings_of_the_brokers_of_the_topic(kit, clock, channel, tmp_path):
    """Of this process as they are now, of others as they registered them; other topics have none."""
    server = NameServer(clock, KVConfigManager(OsFileSystem(), str(tmp_path)), NameServerConfig())
    topics = {name: TopicConfig(topic_name=name) for name in ("st", "other")}
    table = {"st": TopicQueueMappingDetail.from_json(mapping("a", {0: [item(0, "a", 3)]}, topic="st"))}
    server.register_local("c", "a", "127.0.0.1:2", topics, table)
    assert server.register_broker(channel, kit.request(103, REGISTER, body=plain({"st": INFO}))).code == 0
    found = server.route("st")["topicQueueMappingByBroker"]
    assert (found["a"]["currIdMap"], found["b"]) == ({"0": 3}, INFO)
    assert "topicQueueMappingByBroker" not in server.route("other")
    table.clear()
    server.delete_topic(channel, kit.request(216, {"topic": "st"}))
    assert "topicQueueMappingByBroker" not in server.route("st")


def test_a_body_that_is_not_compressed_as_it_says_is_an_invalid_request(kit):
    """A ValueError is answered without a traceback in the log; zlib's own error is not one."""
    with pytest.raises(ValueError, match="not compressed as it says"):
        read_registration(kit.request(103, body=b'{"topic":"t"}'), compressed=True)
