"""Wrong requests of gRPC get the codes that RocketMQ's proxy gives them."""

import json
from pathlib import Path

import pytest

pytest.importorskip("rocketmq.grpc_protocol")

import grpc
from grpc_cases import create_topics, verdicts
from grpc_client import Code, GrpcClient, definition, message, named, service

from tailrace.pytest_plugin import TailraceBroker

pytestmark = [pytest.mark.slow, pytest.mark.integration]
REFERENCE = json.loads((Path(__file__).parents[1] / "interop/fixtures/grpc-verdicts.json").read_text())
STRICTER = {
    # The proxy fails on these texts with an error of its own.
    "ack of what is not a handle": "INVALID_RECEIPT_HANDLE",
    "change of what is not a handle": "INVALID_RECEIPT_HANDLE",
    # The proxy puts whatever message is at the position among the dead letters.
    "dead letter of an expired handle": "INVALID_RECEIPT_HANDLE",
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    broker = TailraceBroker(tmp_path_factory.mktemp("grpc") / "store", "--grpc", "127.0.0.1:0", settings={
        "mappedFileSizeCommitLog": 64 << 20, "brokerName": "broker-a", "autoCreateSubscriptionGroup": True})
    broker.start()
    create_topics(broker.namesrv)
    yield broker
    broker.stop()


def test_codes_are_those_of_the_proxy(broker):
    found = verdicts(broker.grpc_endpoint, "broker-a")
    # The proxy refuses it, also from clients that connect again after a restart.
    assert found.pop("receive without settings") in {"OK", "MESSAGE_NOT_FOUND"}
    reference = {name: code for name, code in REFERENCE.items() if name != "receive without settings"}
    assert found == {**reference, **STRICTER}
    assert "Traceback" not in broker.log


def test_a_message_names_what_is_wrong(broker):
    with GrpcClient(broker.grpc_endpoint) as client:
        for sent, words in (
            (message("normal", message_id=""), "message id"),
            (message("normal", trace_context="a\x02TRAN_MSG\x01true"), "trace_context"),
            (message("normal", born_host="a\x01"), "born_host"),
            (message("normal", lite_topic="a$"), "lite topic"),
            (message("normal", priority=-1), "priority"),
        ):
            answer = client.send(sent)
            assert answer.status.code != Code.OK
            assert words in answer.status.message
        lite = client.call("SyncLiteSubscription", service.SyncLiteSubscriptionRequest())
        assert lite.status.code == Code.ILLEGAL_TOPIC
        client.consumer("names", normal="*")
        assert "batch_size" in client.receive("names", "normal", batch=0)[0].message
        assert "x-mq-client-id" in GrpcClient(broker.grpc_endpoint, client_id="").send(message("normal")).status.message


def test_kinds_of_clients_that_are_not_served_are_refused(broker):
    for kind, subscribes in (("LITE_SIMPLE_CONSUMER", True), ("PULL_CONSUMER", True), ("SIMPLE_CONSUMER", False)):
        settings = definition.Settings(client_type=definition.ClientType.Value(kind))
        if subscribes:
            settings.subscription.group.CopyFrom(named("kinds"))
        else:
            settings.publishing.SetInParent()
        with GrpcClient(broker.grpc_endpoint) as client, pytest.raises(grpc.RpcError, match=f"client_type is {kind}"):
            client.telemetry(settings)


def test_a_handle_of_another_broker_or_message_is_refused(broker):
    with GrpcClient(broker.grpc_endpoint) as client:
        client.send(message("mixed", b"one"))
        client.consumer("handles", mixed="*")
        found = client.receive_all("handles", "mixed", 1, batch=1)[0].system_properties
        parts = found.receipt_handle.split(" ")
        for field, value in ((5, "other"), (6, "9"), (7, "999999"), (3, "77"), (4, "7"), (0, "x")):
            wrong = " ".join([*parts[:field], value, *parts[field + 1 :]])
            answer = client.change("handles", "mixed", wrong, 20)
            assert answer.status.code == Code.INVALID_RECEIPT_HANDLE, wrong
        forward = service.ForwardMessageToDeadLetterQueueRequest(
            group=named("handles"), topic=named("mixed"), message_id=found.message_id,
            receipt_handle=" ".join([*parts[:8], str(int(parts[8]) + 1)]))
        assert client.call("ForwardMessageToDeadLetterQueue", forward).status.code == Code.INVALID_RECEIPT_HANDLE


def test_invisible_times_have_the_limits_of_the_proxy(broker):
    with GrpcClient(broker.grpc_endpoint) as client:
        client.consumer("times", normal="*")
        assert client.receive("times", "normal", invisible=10)[0].code in {Code.OK, Code.MESSAGE_NOT_FOUND}
        assert client.receive("times", "normal", invisible=9.999)[0].code == Code.ILLEGAL_INVISIBLE_TIME
