"""Lite topics over gRPC: sends, subscriptions, receipts, and what is refused."""

import time

import pytest

pytest.importorskip("rocketmq.grpc_protocol")

import grpc
from grpc_client import Code, GrpcClient, definition, message, named, seconds, service
from grpc_world import grpc_broker

pytestmark = [pytest.mark.slow, pytest.mark.integration]
Action = definition.LiteSubscriptionAction


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with grpc_broker(tmp_path_factory.mktemp("lite"), enableLmq=True, enableMultiDispatch=True) as broker:
        broker.create_topic("lite", "LITE")
        for group, more in (("g", {}), ("x", {"+lite.sub.model": "Exclusive"}), ("dead", {}),
                            ("small", {"+lite.sub.client.quota": "1"})):
            broker.create_group(group, retryMaxTimes=1 if group == "dead" else 16,
                                attributes={"+lite.bind.topic": "lite", **more})
        yield broker


@pytest.fixture
def client(broker):
    with GrpcClient(broker.grpc_endpoint) as client:
        yield client


def consumer(client, group="g", topic="lite"):
    return client.consumer(group, "LITE_PUSH_CONSUMER", **{topic: "*"})


def sync(client, *names, action="PARTIAL_ADD", group="g", topic="lite", **more):
    return client.call("SyncLiteSubscription", service.SyncLiteSubscriptionRequest(
        action=Action.Value(action), topic=named(topic), group=named(group), lite_topic_set=names, **more)).status.code


def send(client, name, body=b"x"):
    answer = client.send(message("lite", body, lite_topic=name))
    assert answer.status.code == Code.OK, answer.status


def ack(client, group, one):
    system = one.system_properties
    return client.call("AckMessage", service.AckMessageRequest(group=named(group), topic=named("lite"), entries=[
        service.AckMessageEntry(message_id=system.message_id, receipt_handle=system.receipt_handle,
                                lite_topic=system.lite_topic)])).status.code


def test_messages_of_lite_topics_are_received_in_order_and_acknowledged(client):
    settings = consumer(client).settings
    assert (settings.subscription.lite_subscription_quota, settings.subscription.max_lite_topic_size) == (2000, 64)
    assert sync(client, "in-order") == Code.OK
    for n in range(3):
        send(client, "in-order", b"%d" % n)
        send(client, "other", b"%d" % n)
    found = client.receive_all("g", "lite", 1, batch=2)
    assert [(m.body, m.system_properties.lite_topic, m.system_properties.queue_offset) for m in found] == [
        (b"%d" % n, "in-order", n) for n in range(len(found))]
    assert {m.system_properties.message_type for m in found} == {definition.MessageType.LITE}
    acknowledged = 0
    while acknowledged < 3:
        if acknowledged == len(found):
            found += client.receive("g", "lite", batch=2)[1]
        for one in found[acknowledged:]:
            assert ack(client, "g", one) == Code.OK
        acknowledged = len(found)
    assert [m.body for m in found] == [b"0", b"1", b"2"]
    assert client.receive("g", "lite")[0].code == Code.MESSAGE_NOT_FOUND


def test_a_changed_message_comes_again_and_is_counted(client):
    consumer(client)
    sync(client, "again")
    send(client, "again")
    first, = client.receive_all("g", "lite", 1)
    system = first.system_properties
    changed = client.call("ChangeInvisibleDuration", service.ChangeInvisibleDurationRequest(
        group=named("g"), topic=named("lite"), receipt_handle=system.receipt_handle, message_id=system.message_id,
        invisible_duration=seconds(1), lite_topic="again"))
    assert changed.status.code == Code.OK
    second, = client.receive_all("g", "lite", 1)
    assert (second.system_properties.delivery_attempt, second.body) == (2, b"x")
    assert ack(client, "g", second) == Code.OK


def test_a_message_that_a_push_consumer_holds_is_renewed_and_given_back(broker, client):
    consumer(client)
    sync(client, "held")
    send(client, "held")
    one, = client.receive_all("g", "lite", 1, auto_renew=True)
    assert client.call("NotifyClientTermination", service.NotifyClientTerminationRequest(
        group=named("g"))).status.code == Code.OK
    with GrpcClient(broker.grpc_endpoint) as other:
        consumer(other)
        sync(other, "held")
        begun = time.monotonic()
        again, = other.receive_all("g", "lite", 1)
        assert time.monotonic() - begun < 10  # not the 60 s of a renewed message
        assert (again.system_properties.message_id, ack(other, "g", again)) == (
            one.system_properties.message_id, Code.OK)


def test_a_dead_letter_is_made_of_a_lite_message(client):
    consumer(client, "dead")
    sync(client, "dies", group="dead")
    send(client, "dies")
    one, = client.receive_all("dead", "lite", 1)
    system = one.system_properties
    forward = service.ForwardMessageToDeadLetterQueueRequest(
        group=named("dead"), topic=named("lite"), message_id=system.message_id,
        receipt_handle=system.receipt_handle, lite_topic="other")
    assert client.call("ForwardMessageToDeadLetterQueue", forward).status.code == Code.INVALID_RECEIPT_HANDLE
    forward.lite_topic = "dies"
    assert client.call("ForwardMessageToDeadLetterQueue", forward).status.code == Code.OK
    assert ack(client, "dead", one) == Code.OK
    assert client.receive("dead", "lite")[0].code == Code.MESSAGE_NOT_FOUND


def test_an_exclusive_subscription_ends_that_of_another_client(broker, client):
    consumer(client, "x")
    sync(client, "mine", group="x")
    with GrpcClient(broker.grpc_endpoint) as other:
        consumer(other, "x")
        sync(other, "mine", group="x")
        assert next(client.commands).notify_unsubscribe_lite_command.lite_topic == "mine"
        send(other, "mine", b"one")
        assert [m.body for m in other.receive_all("x", "lite", 1)] == [b"one"]


@pytest.mark.parametrize(("names", "more", "code"), [
    (["a$b"], {}, "ILLEGAL_LITE_TOPIC"), (["a" * 65], {}, "ILLEGAL_LITE_TOPIC"), ([" "], {}, "ILLEGAL_LITE_TOPIC"),
    (["a"], {"group": "none"}, "ILLEGAL_CONSUMER_GROUP"), (["a"], {"topic": "normal"}, "ILLEGAL_TOPIC"),
    ([f"n{n}" for n in range(302)], {"group": "small"}, "LITE_SUBSCRIPTION_QUOTA_EXCEEDED")])
def test_wrong_subscriptions_are_refused(client, names, more, code):
    assert sync(client, *names, **more) == Code.Value(code)


@pytest.mark.parametrize(("kind", "group", "topic"), [
    ("PUSH_CONSUMER", "g", "lite"), ("LITE_PUSH_CONSUMER", "plain", "lite"), ("LITE_PUSH_CONSUMER", "g", "normal"),
    ("LITE_SIMPLE_CONSUMER", "g", "lite")])
def test_wrong_consumers_are_refused(broker, kind, group, topic):
    broker.create_group("plain")
    with GrpcClient(broker.grpc_endpoint) as client, pytest.raises(grpc.RpcError):
        client.consumer(group, kind, **{topic: "*"})


def test_messages_of_another_type_are_refused(client):
    for sent in (message("lite"), message("normal", lite_topic="a"), message("lite", message_group="a")):
        assert client.send(sent).status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    assert client.send(message("lite", lite_topic="a b")).status.code == Code.ILLEGAL_LITE_TOPIC
