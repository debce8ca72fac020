"""PyPI rocketmq-python-client as three users: python grpc_users.py HOST:PORT; prints what each of them gets."""

import sys

import grpc
from rocketmq import (
    ClientConfiguration,
    Credentials,
    FilterExpression,
    Message,
    Producer,
    SimpleConsumer,
)
from rocketmq.grpc_protocol import definition_pb2, service_pb2
from rocketmq.v5.util.signature import Signature


def configuration(*credentials):
    return ClientConfiguration(sys.argv[1], Credentials(*credentials), request_timeout=10)


def send(who, credentials, *topics):
    producer = Producer(configuration(*credentials))
    try:
        producer.startup()
        for topic in topics:
            message = Message()
            message.topic, message.body = topic, b"x"
            try:
                producer.send(message)
                print(who, "sent", topic, flush=True)
            except Exception as error:
                print(who, "not sent", topic, repr(error), flush=True)
    finally:
        if producer.is_running:
            producer.shutdown()


def receive(who, credentials, group, topic):
    consumer = SimpleConsumer(configuration(*credentials), group, {topic: FilterExpression()}, 5)
    consumer.startup()
    try:
        found = []
        while not found:
            found = consumer.receive(10, 30)
        for message in found:
            consumer.ack(message)
        print(who, "received", topic, sorted({message.body for message in found}), flush=True)
    finally:
        consumer.shutdown()


def route(who, credentials, topic):
    """Ask with the client's signature; the client itself does not tell why a route is refused."""
    with grpc.insecure_channel(sys.argv[1]) as channel:
        ask = channel.unary_unary(
            "/apache.rocketmq.v2.MessagingService/QueryRoute", service_pb2.QueryRouteRequest.SerializeToString,
            service_pb2.QueryRouteResponse.FromString)
        status = ask(
            service_pb2.QueryRouteRequest(topic=definition_pb2.Resource(name=topic)), timeout=30,
            metadata=Signature.metadata(configuration(*credentials), "route")).status
    print(who, "route", topic, status.code, status.message, flush=True)


send("admin", ("root", "root-secret"), "orders", "bills")
send("shop", ("shop", "shop-secret-of-16"), "orders", "bills")
receive("admin", ("root", "root-secret"), "readers", "bills")
receive("shop", ("shop", "shop-secret-of-16"), "stock", "orders")
send("stranger", (), "orders")
send("liar", ("root", "other"), "orders")
route("stranger", (), "orders")
route("liar", ("root", "other"), "orders")
route("shop", ("shop", "shop-secret-of-16"), "others")
