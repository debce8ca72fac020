"""PyPI rocketmq-python-client with a gRPC endpoint: python grpc_python_client.py HOST:PORT tls|plain|outlives.

With ``outlives`` it sends and consumes on while the server is killed and started again.
"""

import os
import sys
import threading
import time

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.grpc_protocol import FilterType

CONFIGURATION = ClientConfiguration(sys.argv[1], Credentials(), request_timeout=10)
TLS = sys.argv[2] == "tls"


def message(topic, body, **fields):
    made = Message()
    made.topic, made.body = topic, body.encode()
    for name, value in fields.items():
        if name == "n":
            made.add_property("n", value)
        else:
            setattr(made, name, value)
    return made


def until(ready, seconds=60):
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, f"nothing after {seconds} s"
        time.sleep(0.02)


def received(group, topic, expression, count, nack=False):
    consumer = SimpleConsumer(CONFIGURATION, group, {topic: expression}, 5, tls_enable=TLS)
    consumer.startup()
    found = []

    def some():
        nonlocal nack
        for one in consumer.receive(16, 20):
            if nack:
                nack = False
                consumer.change_invisible_duration(one, 1)
                continue
            consumer.ack(one)
            found.append(f"{one.body.decode()}/{one.delivery_attempt}")
        return len(found) >= count

    until(some)
    consumer.shutdown()
    return ",".join(sorted(found))


class Listener(MessageListener):
    def __init__(self, fails=()):
        self.fails, self.seen, self.lock = set(fails), [], threading.Lock()

    def consume(self, message):
        with self.lock:
            body = message.body.decode()
            if body in self.fails:
                self.fails.remove(body)
                return ConsumeResult.FAILURE
            self.seen.append(f"{body}/{message.delivery_attempt}")
            return ConsumeResult.SUCCESS


class Checker(TransactionChecker):
    def __init__(self):
        self.asked = []

    def check(self, message):
        self.asked.append(message.body.decode())
        return TransactionResolution.COMMIT


def push(topic, group, listener):
    consumer = PushConsumer(CONFIGURATION, group, listener, {topic: FilterExpression("*")}, tls_enable=TLS)
    consumer.startup()
    return consumer


def outlive():
    listener, acknowledged, number = Listener(), set(), 0
    push("normal", "py-outlives", listener)
    producer = Producer(CONFIGURATION, ("normal",))
    producer.startup()
    while len(acknowledged) < 300:
        body = f"s{number}"
        number += 1
        try:
            producer.send(message("normal", body))
        except Exception:
            time.sleep(0.05)
            continue
        acknowledged.add(body)
        if len(acknowledged) == 100:
            print("kill me", flush=True)
    until(lambda: acknowledged <= {one.partition("/")[0] for one in list(listener.seen)}, 120)
    print(f"all {len(acknowledged)} were consumed", flush=True)
    os._exit(0)  # the client would wait for its threads


def main():
    producer = Producer(CONFIGURATION, ("normal", "later", "ordered"), tls_enable=TLS)
    producer.startup()
    for n in range(4):
        producer.send(message("normal", f"m{n}", tag="ab"[n % 2], keys=f"k{n}", n=str(n)))
    print("simple", received("py-simple", "normal", FilterExpression("*"), 4, nack=True))
    print("tag", received("py-tag", "normal", FilterExpression("b"), 2))
    print("sql", received("py-sql", "normal", FilterExpression("n > 2", FilterType.SQL), 1))
    if TLS:
        producer.shutdown()
        return

    begun = time.time()
    producer.send(message("later", "kept", delivery_timestamp=int(begun) + 3))
    taken = producer.send(message("later", "taken", delivery_timestamp=int(begun) + 3))
    producer.recall_message("later", taken.recall_handle)
    print("later", received("py-later", "later", FilterExpression("*"), 1), time.time() - begun > 1.9)

    listener = Listener(fails=["o2"])
    consumer = push("ordered", "py-ordered", listener)
    for n in range(5):
        producer.send(message("ordered", f"o{n}", message_group="g"))
    until(lambda: len(listener.seen) >= 5)
    print("ordered", ",".join(one.partition("/")[0] for one in listener.seen))
    consumer.shutdown()

    listener = Listener(fails=["m1"])
    consumer = push("normal", "py-push", listener)
    until(lambda: len(listener.seen) >= 4)
    print("push", ",".join(sorted(listener.seen)))
    consumer.shutdown()
    producer.shutdown()

    checker = Checker()
    producer = Producer(CONFIGURATION, ("half",), checker=checker, tls_enable=TLS)
    producer.startup()
    for body in ("commit", "rollback", "orphan"):
        transaction = producer.begin_transaction()
        producer.send(message("half", body), transaction)
        if body == "commit":
            transaction.commit()
        if body == "rollback":
            transaction.rollback()
    until(lambda: checker.asked)
    print("half", received("py-half", "half", FilterExpression("*"), 2), ",".join(checker.asked))
    producer.shutdown()


(outlive if sys.argv[2] == "outlives" else main)()
