"""The gRPC endpoint: messages, receipts, order, delays, transactions, and one state with the remoting protocol."""

import asyncio
import gzip
import hashlib
import json
import threading
import time
import urllib.request
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("rocketmq.grpc_protocol")

import grpc
from grpc_client import Code, GrpcClient, at_ms, definition, message, named, seconds, service
from grpc_world import grpc_broker
from rocketmq.grpc_protocol.service_pb2_grpc import MessagingServiceStub

from tailrace import Message
from tailrace.client import Producer, PullConsumer, PushConsumer
from tailrace.formats.remoting import RequestCode
from tailrace.remoting.client import RemotingClient

pytestmark = [pytest.mark.slow, pytest.mark.integration]


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with grpc_broker(tmp_path_factory.mktemp("grpc")) as broker:
        yield broker


@pytest.fixture
def client(broker):
    with GrpcClient(broker.grpc_endpoint) as client:
        yield client


def sent(client, *messages):
    answer = client.send(*messages)
    assert [entry.status.code for entry in answer.entries] == [Code.OK] * len(messages), answer
    return answer.entries


def system(found):
    return found.system_properties


def test_a_message_keeps_everything(client):
    body = gzip.compress(b"hello" * 100)
    entry = sent(client, message(
        "normal", body, {"a": "1", "b": "ü"}, tag="t", keys=["k1", "k2"], trace_context="trace",
        body_encoding=definition.Encoding.GZIP, born_timestamp=at_ms(1_700_000_000_123), born_host="box"))[0]
    settings = client.consumer("keeps", normal="*").settings
    assert settings.backoff_policy.max_attempts == 17
    assert [d.seconds for d in settings.backoff_policy.customized_backoff.next][:4] == [1, 5, 10, 30]
    assert not settings.metric.on
    found = client.receive_all("keeps", "normal", 1)[0]
    # RocketMQ also shows the trace context among the properties of the user.
    assert (found.body, dict(found.user_properties)) == (body, {"a": "1", "b": "ü", "TRACE_CONTEXT": "trace"})
    got = system(found)
    assert (got.tag, list(got.keys), got.message_id) == ("t", ["k1", "k2"], entry.message_id)
    assert got.body_encoding == definition.Encoding.GZIP
    assert got.body_digest.checksum == hashlib.md5(body).hexdigest().upper()
    assert (got.born_host, got.trace_context, got.delivery_attempt) == ("box", "trace", 1)
    assert got.born_timestamp == at_ms(1_700_000_000_123)
    assert got.queue_offset == entry.offset
    assert client.ack("keeps", "normal", found).status.code == Code.OK


def test_several_messages_of_one_request_have_an_entry_each(client):
    entries = sent(client, *(message("normal", b"%d" % n, tag="several") for n in range(5)))
    assert len({entry.message_id for entry in entries}) == 5
    client.consumer("several", normal="several")
    found = client.receive_all("several", "normal", 5, wanted="several")
    assert sorted(m.body for m in found) == [b"0", b"1", b"2", b"3", b"4"]
    answer = client.ack("several", "normal", *found)
    assert [entry.status.code for entry in answer.entries] == [Code.OK] * 5


def test_the_route_has_the_address_that_the_client_used(client):
    endpoints = definition.Endpoints(
        scheme=definition.AddressScheme.DOMAIN_NAME, addresses=[definition.Address(host="a.example", port=77)])
    answer = client.call("QueryRoute", service.QueryRouteRequest(topic=named("ordered"), endpoints=endpoints))
    assert [q.id for q in answer.message_queues] == [0, 1, 2, 3]
    assert answer.message_queues[0].broker.endpoints == endpoints
    assert list(answer.message_queues[0].accept_message_types) == [definition.MessageType.FIFO]


def test_a_tag_and_an_expression_of_sql_filter(client):
    for n in range(6):
        sent(client, message("filtered", b"%d" % n, {"n": str(n)}, tag="ab"[n % 2]))
    client.consumer("by-tag", filtered="a || c")
    assert sorted(m.body for m in client.receive_all("by-tag", "filtered", 3, wanted="a || c")) == [b"0", b"2", b"4"]
    client.consumer("by-sql", filtered=("n > 3",))
    assert sorted(m.body for m in client.receive_all("by-sql", "filtered", 2, wanted=("n > 3",))) == [b"4", b"5"]
    answer = client.receive("by-sql", "filtered", wanted=("n >",))[0]
    assert answer.code == Code.ILLEGAL_FILTER_EXPRESSION


def test_a_topic_with_batch_queues_is_refused_by_name(client, broker):
    """Its messages cannot be popped, and clients of gRPC pop."""
    with Producer(broker=broker.broker) as producer:
        producer.create_topic("in-batches", 1, {"queue.type": "BatchCQ"})
    client.consumer("batches", **{"in-batches": "*"})
    answer, found = client.receive("batches", "in-batches")
    assert (answer.code, found) == (Code.FORBIDDEN, [])
    assert "the topic[in-batches] has queue.type=BatchCQ" in answer.message


def test_another_invisible_time_and_the_next_attempt(client):
    client.consumer("changes", normal="change")
    sent(client, message("normal", b"change", tag="change"))
    first = client.receive_all("changes", "normal", 1, wanted="change")[0]
    answer = client.change("changes", "normal", system(first).receipt_handle, 1)
    assert answer.status.code == Code.OK
    assert answer.receipt_handle != system(first).receipt_handle
    second = client.receive_all("changes", "normal", 1, wanted="change")[0]
    assert (second.body, system(second).delivery_attempt) == (b"change", 2)
    assert system(second).message_id == system(first).message_id
    late = client.change("changes", "normal", answer.receipt_handle, 20)
    assert late.status.code == Code.INVALID_RECEIPT_HANDLE, "its time was over"
    assert client.ack("changes", "normal", second).status.code == Code.OK


def test_a_receive_waits_for_a_message(client, broker):
    client.consumer("waits", normal="wait")
    found = []
    thread = threading.Thread(target=lambda: found.extend(client.receive_all("waits", "normal", 1, wanted="wait")))
    thread.start()
    with GrpcClient(broker.grpc_endpoint) as other:
        sent(other, message("normal", b"wait", tag="wait"))
    thread.join(60)
    assert [m.body for m in found] == [b"wait"]


def test_a_topic_that_is_deleted_and_made_again_under_a_consumer(client, broker):
    topic = "again"
    broker.create_topic(topic, queues=1)
    client.producer(topic)
    client.consumer("again", again="*")
    sent(client, *(message(topic, b"old%d" % number) for number in range(20)))
    client.ack("again", topic, *client.receive_all("again", topic, 20))
    status = []
    waits = threading.Thread(target=lambda: status.append(client.receive(
        "again", topic, long_polling_timeout=seconds(20), timeout=60)[0]))
    began = time.monotonic()
    waits.start()
    time.sleep(0.5)
    asyncio.run(ask(broker, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}))
    waits.join(60)
    assert [one.code for one in status] == [Code.TOPIC_NOT_FOUND]
    assert time.monotonic() - began < 15
    broker.create_topic(topic, queues=1)
    sent(client, *(message(topic, b"new%d" % number) for number in range(30)))
    found = client.receive_all("again", topic, 30)
    assert sorted(one.body for one in found) == sorted(b"new%d" % number for number in range(30))


async def ask(broker, code, ext):
    remoting = RemotingClient()
    try:
        assert (await remoting.invoke(broker.broker, code, ext, timeout_ms=20_000)).code == 0
    finally:
        await remoting.close()


def test_a_receive_that_the_client_gives_up_takes_no_message(client):
    client.consumer("gives-up", normal="give-up")
    call = client.stub.ReceiveMessage(service.ReceiveMessageRequest(
        group=named("gives-up"), batch_size=1, invisible_duration=seconds(60),
        message_queue=definition.MessageQueue(topic=named("normal"), id=-1),
        filter_expression=definition.FilterExpression(type=definition.FilterType.TAG, expression="give-up"),
        long_polling_timeout=seconds(20)), metadata=client.metadata)
    time.sleep(0.2)  # so that it waits in the broker, most of the time
    call.cancel()
    time.sleep(0.2)
    sent(client, message("normal", b"give-up", tag="give-up"))
    assert len(client.receive_all("gives-up", "normal", 1, wanted="give-up", within_s=30)) == 1


def test_a_message_group_is_received_in_order_and_one_batch_at_a_time(client, broker):
    broker.create_group("in-order", consumeMessageOrderly=True)
    entries = [sent(client, message("ordered", b"%d" % n, message_group="g"))[0] for n in range(4)]
    assert [entry.offset for entry in entries] == [0, 1, 2, 3], "one queue has the group"
    assert client.consumer("in-order", "PUSH_CONSUMER", ordered="*").settings.subscription.fifo
    assert len(client.call("QueryAssignment", service.QueryAssignmentRequest(
        topic=named("ordered"), group=named("in-order"))).assignments) == 4
    first = client.receive_all("in-order", "ordered", 2, batch=2)
    assert [m.body for m in first] == [b"0", b"1"]
    assert [system(m).message_group for m in first] == ["g", "g"]
    assert client.receive("in-order", "ordered", batch=2)[0].code == Code.MESSAGE_NOT_FOUND
    assert client.ack("in-order", "ordered", *first).status.code == Code.OK
    assert [m.body for m in client.receive_all("in-order", "ordered", 2, batch=2)] == [b"2", b"3"]


def test_a_delayed_message_comes_in_time_or_is_taken_back(client):
    client.consumer("delays", later="*")
    begun = time.time()
    kept = sent(client, message("later", b"kept", delivery_timestamp=at_ms((begun + 3) * 1000)))[0]
    taken = sent(client, message("later", b"taken", delivery_timestamp=at_ms((begun + 3) * 1000)))[0]
    assert kept.recall_handle
    answer = client.call("RecallMessage", service.RecallMessageRequest(
        topic=named("later"), recall_handle=taken.recall_handle))
    assert (answer.status.code, answer.message_id) == (Code.OK, taken.message_id)
    found = client.receive_all("delays", "later", 1)
    assert [m.body for m in found] == [b"kept"]
    assert time.time() - begun >= 2.9
    assert system(found[0]).message_type == definition.MessageType.DELAY
    assert client.ack("delays", "later", *found).status.code == Code.OK
    assert client.receive("delays", "later")[0].code == Code.MESSAGE_NOT_FOUND


def half(client, topic, body, resolution=None):
    entry = sent(client, message(topic, body, message_type=definition.MessageType.TRANSACTION))[0]
    if resolution is not None:
        assert end(client, topic, entry, resolution).status.code == Code.OK
    return entry


def end(client, topic, entry, resolution, source="SOURCE_CLIENT"):
    return client.call("EndTransaction", service.EndTransactionRequest(
        topic=named(topic), message_id=entry.message_id, transaction_id=entry.transaction_id,
        resolution=definition.TransactionResolution.Value(resolution),
        source=definition.TransactionSource.Value(source)))


def test_transactions_are_committed_and_rolled_back(client):
    client.producer("half")
    half(client, "half", b"committed", "COMMIT")
    half(client, "half", b"rolled back", "ROLLBACK")
    open_one = half(client, "half", b"open")
    assert end(client, "half", open_one, "TRANSACTION_RESOLUTION_UNSPECIFIED").status.code == Code.OK
    assert end(client, "half", open_one, "COMMIT").status.code == Code.OK
    assert end(client, "half", open_one, "COMMIT").status.code == Code.OK, "again"


def test_an_orphaned_transaction_is_checked_over_the_stream(client, broker):
    client.producer("orphans")
    entries = {half(client, "orphans", body).transaction_id: body for body in (b"keep", b"drop")}
    asked = {}
    while asked.keys() != entries.keys():
        command = next(client.commands).recover_orphaned_transaction_command
        asked[command.transaction_id] = command.message
        resolution = "COMMIT" if entries[command.transaction_id] == b"keep" else "ROLLBACK"
        answer = client.call("EndTransaction", service.EndTransactionRequest(
            topic=named("orphans"), message_id=command.message.system_properties.message_id,
            transaction_id=command.transaction_id, source=definition.TransactionSource.SOURCE_SERVER_CHECK,
            resolution=definition.TransactionResolution.Value(resolution)))
        assert answer.status.code == Code.OK
    assert {key: found.body for key, found in asked.items()} == entries
    with GrpcClient(broker.grpc_endpoint) as consumer:
        consumer.consumer("orphans", orphans="*")
        found = consumer.receive_all("orphans", "orphans", 1)
        assert [m.body for m in found] == [b"keep"]
        consumer.ack("orphans", "orphans", *found)
        assert consumer.receive("orphans", "orphans")[0].code == Code.MESSAGE_NOT_FOUND


def test_dead_letters_of_a_client_and_of_too_many_attempts(client, broker):
    broker.create_group("dies", retryMaxTimes=1)
    assert client.consumer("dies", dead="*").settings.backoff_policy.max_attempts == 2
    sent(client, message("dead", b"by hand"))
    found = client.receive_all("dies", "dead", 1)[0]
    answer = client.call("ForwardMessageToDeadLetterQueue", service.ForwardMessageToDeadLetterQueueRequest(
        group=named("dies"), topic=named("dead"), message_id=system(found).message_id,
        receipt_handle=system(found).receipt_handle))
    assert answer.status.code == Code.OK
    sent(client, message("dead", b"too often"))
    for attempt in (1, 2):
        found = client.receive_all("dies", "dead", 1)[0]
        assert (found.body, system(found).delivery_attempt) == (b"too often", attempt)
        assert client.change("dies", "dead", system(found).receipt_handle, 1).status.code == Code.OK
    deadline = time.monotonic() + 60
    letters = []
    while len(letters) < 2 and time.monotonic() < deadline:
        assert client.receive("dies", "dead")[1] == []
        letters = [m.body for m in broker.client().messages("%DLQ%dies")]
    assert sorted(letters) == [b"by hand", b"too often"]


def test_clients_of_both_protocols_share_topics_and_progress(client, broker):
    with Producer(namesrv=broker.namesrv, group="shared") as producer:
        producer.send(Message(topic="shared", body=b"from remoting", tags="t", keys=["k"]))
    entry = sent(client, message("shared", b"from grpc", {"a": "1"}, tag="t", keys=["k"]))[0]
    client.consumer("shared-group", shared="*")
    found = client.receive_all("shared-group", "shared", 2, batch=2)
    assert sorted(m.body for m in found) == [b"from grpc", b"from remoting"]
    with PullConsumer(namesrv=broker.namesrv, group="reads") as consumer:
        read = {m.body: m for m in consumer.messages("shared", start="first", follow=False)}
    stored = read[b"from grpc"]
    assert (stored.tags, stored.keys, stored.unique_key) == ("t", ["k"], entry.message_id)
    assert stored.properties["a"] == "1"
    assert client.ack("shared-group", "shared", *found).status.code == Code.OK
    # Queues are divided among all members of a group, also those that receive over gRPC.
    gone = service.NotifyClientTerminationRequest(group=named("shared-group"))
    assert client.call("NotifyClientTermination", gone).status.code == Code.OK
    got = []
    with PushConsumer("shared-group", lambda m: got.append(m.body), namesrv=broker.namesrv, topics="shared"):
        sent(client, message("shared", b"next"))
        deadline = time.monotonic() + 60
        while not got and time.monotonic() < deadline:
            time.sleep(0.05)
    assert got == [b"next"], "what the other kind of client acknowledged does not come again"


def test_nothing_that_was_acknowledged_is_lost_in_a_kill(client, broker):
    stored = Counter()
    stop = threading.Event()

    def send_on():
        number = 0
        while not stop.is_set():
            body = b"%d" % number
            try:
                if client.send(message("killed", body)).status.code == Code.OK:
                    stored[body] += 1
            except grpc.RpcError:
                return
            number += 1

    threads = [threading.Thread(target=send_on)]
    for thread in threads:
        thread.start()
    while len(stored) < 50:
        time.sleep(0.01)
    broker.kill()
    stop.set()
    for thread in threads:
        thread.join(60)
    broker.start()
    with GrpcClient(broker.grpc_endpoint) as again:
        again.consumer("after", killed="*")
        found = Counter()
        while len(found) < len(stored):
            batch = again.receive_all("after", "killed", 1, batch=32)
            found.update(m.body for m in batch)
            again.ack("after", "killed", *batch)
    assert stored.keys() <= found.keys()


def test_metrics_name_the_calls(broker):
    place = [line.partition("=")[2] for line in broker.log.splitlines() if line.startswith("http=")][-1]
    with urllib.request.urlopen(f"http://{place}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    labels = 'cluster="DefaultCluster",node_id="broker-a",node_type="proxy",proxy_mode="local"'
    assert f"rocketmq_proxy_up{{{labels}}} 1.0" in text
    assert 'request_code="receive_message"' in text
    assert "tailrace_grpc_clients" in text


def test_an_administrator_asks_a_client_over_its_stream(client, broker):
    client.consumer("asked", "PUSH_CONSUMER", normal="*")
    entry_body = b"verify"
    entry = sent(client, message("normal", entry_body, tag="verify"))[0]
    with PullConsumer(namesrv=broker.namesrv, group="reads") as consumer:
        stored = next(m for m in consumer.messages("normal", start="first", follow=False)
                      if m.unique_key == entry.message_id)

    def ask(code, **ext):
        async def asking():
            remoting = RemotingClient()
            try:
                return await remoting.invoke(
                    broker.broker, code, {"consumerGroup": "asked", "clientId": client.client_id, **ext},
                    timeout_ms=20_000)
            finally:
                await remoting.close()

        found = []
        thread = threading.Thread(target=lambda: found.append(asyncio.run(asking())))
        thread.start()
        return thread, found

    thread, found = ask(RequestCode.GET_CONSUMER_RUNNING_INFO, jstackEnable="true")
    command = next(client.commands)
    client.tell(service.TelemetryCommand(status=definition.Status(code=Code.OK), thread_stack_trace=(
        service.ThreadStackTrace(
            nonce=command.print_thread_stack_trace_command.nonce, thread_stack_trace="a stack"))))
    thread.join(30)
    assert json.loads(found[0].body)["jstack"] == "a stack"

    thread, found = ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, msgId=stored.msg_id)
    command = next(client.commands).verify_message_command
    assert command.message.body == entry_body
    client.tell(service.TelemetryCommand(
        status=definition.Status(code=Code.FAILED_TO_CONSUME_MESSAGE),
        verify_message_result=service.VerifyMessageResult(nonce=command.nonce)))
    thread.join(30)
    assert json.loads(found[0].body)["consumeResult"] == "CR_LATER"

    thread, found = ask(RequestCode.GET_CONSUMER_RUNNING_INFO, jstackEnable="false")
    thread.join(30)
    assert found[0].code != 0
    assert "uses gRPC" in found[0].remark


def test_a_client_that_vanishes_leaves_its_group(broker):
    with GrpcClient(broker.grpc_endpoint) as client:
        client.producer("orphans")
        client.consumer("leaves", normal="*")
        gone = service.NotifyClientTerminationRequest(group=named("leaves"))
        assert client.call("NotifyClientTermination", gone).status.code == Code.OK
        again = client.call("Heartbeat", service.HeartbeatRequest(group=named("leaves")))
        assert again.status.code == Code.UNRECOGNIZED_CLIENT_TYPE
        client.consumer("leaves", normal="*")
        assert client.call("Heartbeat", service.HeartbeatRequest(group=named("leaves"))).status.code == Code.OK


@pytest.mark.long
def test_a_message_that_is_worked_on_is_renewed(client, broker):
    client.consumer("renewed", "PUSH_CONSUMER", normal="renewed")
    sent(client, message("normal", b"long work", tag="renewed"))
    found = client.receive_all("renewed", "normal", 1, wanted="renewed", invisible=0, auto_renew=True)
    until = time.monotonic() + 75  # longer than the invisible time
    while time.monotonic() < until:
        client.call("Heartbeat", service.HeartbeatRequest(group=named("renewed")))
        assert client.receive("renewed", "normal", wanted="renewed", invisible=0, auto_renew=True)[1] == []
    assert client.ack("renewed", "normal", *found).status.code == Code.OK, "the endpoint knows the latest handle"


@pytest.mark.long
def test_ten_thousand_streams_take_bounded_memory(broker):
    def resident_mb():
        pid = broker._process.pid
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("VmRSS"))) / 1024

    async def status_of(stub, metadata):
        async for answer in stub.ReceiveMessage(service.ReceiveMessageRequest(
            group=named("streams"), batch_size=1, invisible_duration=seconds(60),
            message_queue=definition.MessageQueue(topic=named("normal"), id=-1),
            filter_expression=definition.FilterExpression(type=definition.FilterType.TAG, expression="streams"),
            long_polling_timeout=seconds(20)), metadata=metadata
        ):
            return answer.status.code
        return None

    async def all_of(metadata):
        async with grpc.aio.insecure_channel(broker.grpc_endpoint) as channel:
            stub = MessagingServiceStub(channel)
            waiting = [asyncio.ensure_future(status_of(stub, metadata)) for _ in range(10_000)]
            await asyncio.sleep(3)
            grown = resident_mb() - before
            answer = await stub.SendMessage(
                service.SendMessageRequest(messages=[message("normal", b"served")]), metadata=metadata, timeout=60)
            assert answer.status.code == Code.OK
            return grown, Counter(await asyncio.gather(*waiting))

    with GrpcClient(broker.grpc_endpoint) as client:
        client.consumer("streams", normal="streams")
        before = resident_mb()
        grown, codes = asyncio.run(all_of(client.metadata))
    assert codes[Code.MESSAGE_NOT_FOUND] == 1024, codes  # popPollingSize
    assert codes[Code.TOO_MANY_REQUESTS] == 10_000 - 1024, codes
    assert grown < 300
