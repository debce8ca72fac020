"""Every name of a topic or group that comes into being can be deleted."""

from __future__ import annotations

import json

import pytest
from broker_kit import admin_of, clients_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailrace.broker import wiring
from tailrace.config import StoreConfig
from tailrace.errors import StoreError
from tailrace.formats import fastjson
from tailrace.kernels.properties import encode_properties
from tailrace.model import MessageExtBrokerInner
from tailrace.node.subscription_group import SubscriptionGroupConfig
from tailrace.node.topic_config import TopicConfig
from tailrace.requests.config_changes import MissingConfigError
from tailrace.requests.durable_answers import DurableAnswers

CHARACTERS = "%|_-aZ09"
OTHERS = ".@+ /\\:äÜ雨*?\0\n"
PREFIXES = ("", "%RETRY%", "%DLQ%", "%LMQ%", "rmq_sys_", "RMQ_SYS_", "CID_RMQ_SYS_", "-", "%", "|", "_")
names = st.builds(
    lambda prefix, text, length: (prefix + text * length)[:length],
    st.sampled_from(PREFIXES), st.text(CHARACTERS, min_size=1, max_size=3),
    st.sampled_from([1, 2, 20, 119, 120, 121, 126, 127, 128, 247, 248, 254, 255, 256, 300]))
odd_names = st.text(CHARACTERS + OTHERS, min_size=1, max_size=12) | names
KNOWN = (
    "TBW102", "BenchmarkTest", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "RMQ_SYS_TRACE_TOPIC", "CHECKPOINT_TOPIC",
    "DefaultCluster", "broker-a", "DefaultCluster_REPLY_TOPIC", "rmq_sys_REVIVE_LOG_DefaultCluster")
generated = settings(
    max_examples=60, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@pytest.fixture
def served(broker, kit, store):
    durable = DurableAnswers(broker.loop, store)
    send = wiring.sends(broker, durable, wait_durable=False)
    return [kit.served(one) for one in (admin_of(broker), clients_of(broker), send)]


def exists(broker, name):
    return name in broker.topics.table


def delete(topics, kit, channel, name):
    return kit.decoded(topics.delete_topic(channel, kit.request(215, {"topic": name})))


def tried(method, channel, request):
    """Serve a request, which may be refused; one that creates something is served again."""
    for _ in range(4):
        try:
            return method(channel, request)
        except MissingConfigError as missing:
            for change in missing.changes:
                change.manager.change(change.edit, change.also)
        except StoreError:
            return None
    raise AssertionError


@generated
@given(name=names | st.sampled_from(KNOWN))
def test_topics_of_admin_requests_and_of_sends(served, broker, kit, channel, name):
    topics, _, send = served
    of_broker = exists(broker, name)
    topics.update_topic(channel, kit.request(17, {
        "topic": name, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}))
    sent = kit.request(310, {
        "a": "p", "b": name, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0", "i": "", "j": "0",
        "k": "false", "m": "false"}, body=b"x")
    tried(send.send_v2, channel, sent)
    if of_broker:
        assert delete(topics, kit, channel, name).code == 29
        assert exists(broker, name)
    elif exists(broker, name):
        assert delete(topics, kit, channel, name).code == 0, name
        assert not exists(broker, name)


@generated
@given(name=names)
def test_groups_of_heartbeats_with_their_retry_topics(served, broker, kit, channel, name):
    topics, clients, _ = served
    body = fastjson.dumps({"clientID": "c", "consumerDataSet": [{"groupName": name, "subscriptionDataSet": []}]})
    tried(clients.heartbeat, channel, kit.request(34, {}, body=body))
    for topic in [topic for topic in broker.topics.table if topic.startswith("%RETRY%")]:
        assert delete(topics, kit, channel, topic).code == 0, topic
    assert delete_group(topics, kit, channel, name).code == 0
    assert broker.groups.select(name) is None


def delete_group(topics, kit, channel, name):
    return kit.decoded(topics.delete_group(channel, kit.request(207, {"groupName": name, "cleanOffset": "true"})))


@generated
@given(name=names)
def test_groups_of_admin_requests(served, broker, kit, channel, name):
    topics, _, _ = served
    topics.update_group(channel, kit.request(200, {}, body=json.dumps({"groupName": name}).encode()))
    assert delete_group(topics, kit, channel, name).code == 0
    assert broker.groups.select(name) is None


@generated
@given(name=odd_names)
def test_topics_and_groups_of_a_directory_with_other_names(served, broker, kit, channel, name):
    # Of a Java broker, of a POP retry topic of the second form, or of a directory of queues without a config.
    topics, _, _ = served
    if not broker.topics.is_of_broker(name):
        broker.topics.update(TopicConfig(topic_name=name))
        assert delete(topics, kit, channel, name).code == 0
        assert not exists(broker, name)
    broker.groups.update_all([SubscriptionGroupConfig(group_name=name)])
    assert delete_group(topics, kit, channel, name).code == 0
    assert broker.groups.select(name) is None


def test_an_lmq_queue_with_a_name_that_no_topic_can_have(kit, channel, loop, tmp_path):
    store = kit.open_store(tmp_path / "lmq", config=StoreConfig(enable_lmq=True, enable_multi_dispatch=True))
    topics = kit.served(admin_of(kit.make_broker(store, loop)))
    name = "%LMQ%käse.jpg"
    store.put_inner(MessageExtBrokerInner("orders", 0, b"x", encode_properties({"INNER_MULTI_DISPATCH": name})))
    assert store.queue_of(name, 0).max == 1
    assert delete(topics, kit, channel, name).code == 0
    assert store.queue_of(name, 0).max == store.queue_of(name, 0).begin_of_life
    assert delete(topics, kit, channel, name).code == 29  # no queue has this name any more
