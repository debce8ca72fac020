"""Requests of gRPC that are wrong in one way each, and the codes that they get.

    python tests/support/grpc_cases.py HOST:PORT NAMESRV > tests/interop/fixtures/grpc-verdicts.json

writes what the server at HOST:PORT says: RocketMQ's proxy with its broker in one process (`rocketmq proxy-local`),
whose name server is NAMESRV. The broker is called broker-a and has enableMixedMessageType=true, and the group of the
cases exists: `rocketmq admin updateSubGroup -n NAMESRV -c DefaultCluster -g verdicts`.
"""

import json
import sys
import time

import grpc
from grpc_client import Code, GrpcClient, at_ms, definition, message, named, seconds, service

TOPICS = {"normal": "NORMAL", "fifo": "FIFO", "delay": "DELAY", "transaction": "TRANSACTION", "mixed": "MIXED"}
GROUP = "verdicts"
_Types = definition.MessageType
_Clients = definition.ClientType
LONG = 10**15


def code(answer):
    return Code.Name(answer.status.code)


def sends(**cases):
    """A case for each message: what SendMessage says of it."""
    return {f"send {name.replace('_', ' ')}": (lambda c, m=m: code(c.send(m() if callable(m) else m)))
            for name, m in cases.items()}


def calls(name, request):
    return lambda c: code(c.call(name, request() if callable(request) else request))


def received(**fields):
    topic, group = fields.pop("topic", "normal"), fields.pop("group", GROUP)
    return lambda c: Code.Name(c.receive(group, topic, **fields)[0].code)


def stream(settings):
    """What Telemetry says of settings: the code of the command, or the one of gRPC."""
    def told(c):
        with GrpcClient(c.endpoint) as other:
            try:
                return code(other.telemetry(settings))
            except grpc.RpcError as error:
                return error.code().name
    return told


def as_client(client_id, call):
    def told(c):
        with GrpcClient(c.endpoint, client_id=client_id) as other:
            return call(other)
    return told


def acks(*handles, topic="normal", group=GROUP):
    return calls("AckMessage", service.AckMessageRequest(
        group=named(group), topic=named(topic),
        entries=[service.AckMessageEntry(message_id="A", receipt_handle=handle) for handle in handles]))


def changes(handle, duration=20, topic="normal", group=GROUP):
    return calls("ChangeInvisibleDuration", service.ChangeInvisibleDurationRequest(
        group=named(group), topic=named(topic), receipt_handle=handle, message_id="A",
        invisible_duration=seconds(duration)))


def route(name, **fields):
    return calls("QueryRoute", service.QueryRouteRequest(topic=named(name), **fields))


def now_ms():
    return int(time.time() * 1000)


def transaction(topic, transaction_id, resolution="COMMIT"):
    return calls("EndTransaction", service.EndTransactionRequest(
        topic=named(topic), message_id="A", transaction_id=transaction_id,
        resolution=definition.TransactionResolution.Value(resolution)))


def assignment(topic, group):
    return calls("QueryAssignment", service.QueryAssignmentRequest(topic=named(topic), group=named(group)))


def subscription(group=GROUP, topic="normal", kind="PUSH_CONSUMER", expression="*", sql=False):
    return definition.Settings(
        client_type=_Clients.Value(kind), subscription=definition.Subscription(
            group=named(group), subscriptions=[definition.SubscriptionEntry(
                topic=named(topic), expression=definition.FilterExpression(
                    type=definition.FilterType.SQL if sql else definition.FilterType.TAG, expression=expression))]))


def publishing(*topics):
    return definition.Settings(
        client_type=_Clients.PRODUCER,
        publishing=definition.Publishing(topics=[named(topic) for topic in topics]))


def cases(broker_name):
    """All cases, in the order in which they are tried."""
    expired = f"0 {now_ms() - 100_000} 15000 0 0 {broker_name} 0 0 0"
    return {**cases_of_messages(), **cases_of_clients(), **cases_of_receipts(expired)}


def cases_of_messages():
    return {
        **sends(
            ordinary=message("normal"), blank_topic=message(" "), empty_topic=message(""),
            illegal_topic=message("a.b"), long_topic=message("t" * 128), system_topic=message("SCHEDULE_TOPIC_XXXX"),
            system_prefix=message("rmq_sys_x"), unknown_topic=message("nosuchtopic"),
            empty_body=message("normal", b""), body_of_4_MiB=message("normal", b"x" * (4 << 20)),
            body_above_4_MiB=message("normal", b"x" * ((4 << 20) + 1)),
            blank_tag=message("normal", tag=" "), tag_with_bar=message("normal", tag="a|b"),
            tag_with_control=message("normal", tag="a\x02b"), blank_key=message("normal", keys=[" "]),
            key_with_control=message("normal", keys=["a\x01"]), empty_key=message("normal", keys=[""]),
            no_message_id=message("normal", message_id=""), blank_message_id=message("normal", message_id=" "),
            reserved_property=message("normal", user={"TAGS": "x"}),
            property_name_with_control=message("normal", user={"a\x01": "x"}),
            property_value_with_control=message("normal", user={"a": "x\x7f"}),
            many_properties=message("normal", user={f"p{n}": "x" for n in range(129)}),
            as_many_properties_as_allowed=message("normal", user={f"p{n}": "x" for n in range(128)}),
            large_properties=message("normal", user={"a": "x" * (16 << 10)}),
            blank_message_group=message("fifo", message_group=" "),
            long_message_group=message("fifo", message_group="g" * 64),
            message_group_as_long_as_allowed=message("fifo", message_group="g" * 63),
            message_group_with_control=message("fifo", message_group="g\x1f"),
            group_to_a_normal_topic=message("normal", message_group="g"), no_group_to_a_fifo_topic=message("fifo"),
            delay_to_a_normal_topic=lambda: message("normal", delivery_timestamp=at_ms(now_ms() + 60_000)),
            no_time_to_a_delay_topic=message("delay"),
            type_delay_without_a_time=message("delay", message_type=_Types.DELAY),
            too_far_ahead=lambda: message("delay", delivery_timestamp=at_ms(now_ms() + 25 * 3_600_000)),
            in_the_past=lambda: message("delay", delivery_timestamp=at_ms(now_ms() - 60_000)),
            transaction_to_a_normal_topic=message("normal", message_type=_Types.TRANSACTION),
            normal_to_a_transaction_topic=message("transaction"),
            half_message=message("transaction", message_type=_Types.TRANSACTION),
            long_recovery_time=message(
                "transaction", message_type=_Types.TRANSACTION, orphaned_transaction_recovery_duration=seconds(3601)),
            priority_to_a_normal_topic=message("normal", priority=1), anything_to_a_mixed_topic=message("mixed"),
            group_to_a_mixed_topic=message("mixed", message_group="g"),
        ),
        "send nothing": lambda c: code(c.send()),
        "send to two topics": lambda c: code(c.send(message("normal"), message("mixed"))),
        "send without a client id": as_client("", lambda c: code(c.send(message("normal")))),
        "send with a blank client id": as_client(" ", lambda c: code(c.send(message("normal")))),
        "send without settings": as_client(None, lambda c: code(c.send(message("normal")))),
    }


def cases_of_clients():
    return {
        "route of a topic": route("normal"), "route of an unknown topic": route("nosuchtopic"),
        "route of an illegal topic": route("a b"), "route of a system topic": route("rmq_sys_x"),
        "route without a client id": as_client("", route("normal")),
        "assignment": assignment("normal", GROUP), "assignment of a blank group": assignment("normal", ""),
        "assignment of an illegal group": assignment("normal", "a.b"),
        "assignment of a long group": assignment("normal", "g" * 121),
        "assignment of a system group": assignment("normal", "CID_RMQ_SYS_x"),
        "assignment of an unknown topic": assignment("nosuchtopic", GROUP),
        "heartbeat without settings": as_client(
            None, calls("Heartbeat", service.HeartbeatRequest(group=named(GROUP), client_type=_Clients.PUSH_CONSUMER))),
        "heartbeat": calls("Heartbeat", service.HeartbeatRequest(group=named(GROUP))),
        "heartbeat of a blank group": calls("Heartbeat", service.HeartbeatRequest(group=named(" "))),
        "termination without settings": as_client(
            None, calls("NotifyClientTermination", service.NotifyClientTerminationRequest(group=named(GROUP)))),
        "settings of a producer": stream(publishing("normal")),
        "settings of a producer of a system topic": stream(publishing("rmq_sys_x")),
        "settings of a producer of an illegal topic": stream(publishing("a.b")),
        "settings of a consumer": stream(subscription()),
        "settings of a blank group": stream(subscription(group="")),
        "settings of a system group": stream(subscription(group="CID_RMQ_SYS_x")),
        "settings of neither": stream(definition.Settings(client_type=_Clients.PRODUCER)),
        "settings with an expression without a tag": stream(subscription(expression="||")),
    }


def cases_of_receipts(expired):
    return {
        "receive, short invisible time": received(invisible=9.9),
        "receive, long invisible time": received(invisible=12 * 3600 + 1),
        "receive, renewed, no invisible time": received(invisible=0, auto_renew=True),
        "receive of a blank group": received(group=" "), "receive of an illegal topic": received(topic="a.b"),
        "receive, expression without a tag": received(wanted="||"), "receive, empty SQL": received(wanted=("",)),
        "receive without settings": as_client(None, received()),
        "receive with a near deadline": received(timeout=3),
        "ack of no entries": acks(), "ack of an expired handle": acks(expired),
        "ack of a blank group": acks(expired, group=" "), "ack of an illegal topic": acks(expired, topic="a.b"),
        "ack of what is not a handle": acks("abc"),
        "change of an expired handle": changes(expired), "change of what is not a handle": changes("abc"),
        "change to a long time": changes(expired, 12 * 3600 + 1), "change of a blank group": changes(expired, group=""),
        "dead letter of an expired handle": calls(
            "ForwardMessageToDeadLetterQueue", service.ForwardMessageToDeadLetterQueueRequest(
                group=named(GROUP), topic=named("normal"), receipt_handle=expired, message_id="A")),
        "end of a blank transaction": transaction("transaction", " "),
        "end of an unknown transaction": transaction("transaction", "NOSUCH"),
        "end of a transaction of an illegal topic": transaction("a.b", "NOSUCH"),
        "recall of what is not a handle": calls(
            "RecallMessage", service.RecallMessageRequest(topic=named("delay"), recall_handle="abc")),
        "recall from a normal topic": calls(
            "RecallMessage", service.RecallMessageRequest(topic=named("normal"), recall_handle="abc")),
        **{name: _unimplemented(name) for name in ("PullMessage", "UpdateOffset", "GetOffset", "QueryOffset")},
    }


def _unimplemented(name):
    def told(c):
        try:
            answer = c.call(name, getattr(service, f"{name}Request")())
            return [a.status.code for a in answer] if name == "PullMessage" else code(answer)
        except grpc.RpcError as error:
            return error.code().name
    return told


def verdicts(endpoint, broker_name):
    """The code for each case, by its name."""
    found = {}
    with GrpcClient(endpoint) as client:
        client.endpoint = endpoint
        assert code(client.consumer(GROUP, normal="*")) == "OK"
        for name, told in cases(broker_name).items():
            found[name] = told(client)
    return found


def create_topics(namesrv):
    """The topics of the cases, each of its type."""
    from tailrace.client import Producer

    with Producer(namesrv=namesrv, group="verdicts") as producer:
        for topic, kind in TOPICS.items():
            producer.create_topic(topic, 4, {"message.type": kind})


if __name__ == "__main__":
    create_topics(sys.argv[2])
    time.sleep(2)
    json.dump(verdicts(sys.argv[1], "broker-a"), sys.stdout, indent=1)
    print()
