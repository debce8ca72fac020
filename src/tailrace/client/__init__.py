"""Tailrace's RocketMQ client: producers, push consumers and pull consumers, blocking and asyncio.

    from tailrace import Message
    from tailrace.client import Producer, PullConsumer

    with Producer(namesrv="127.0.0.1:9876", group="shop") as producer:
        sent = producer.send(Message(topic="orders", body=b"42 apples", keys=["42"]))
    with PullConsumer(namesrv="127.0.0.1:9876", group="stock") as consumer:
        for message in consumer.messages("orders", start="first", follow=False):
            print(message.body)

The target is one or more name servers (``namesrv``, separated by ``;``) or one broker (``broker``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.lazy_names import lazy_names

if TYPE_CHECKING:
    from tailrace.auth.signature import Credentials
    from tailrace.client.failures import ConsumerFailure
    from tailrace.client.listening import RetryLater
    from tailrace.client.producer import AsyncProducer, Producer
    from tailrace.client.pull_consumer import AsyncPullConsumer, PullConsumer, PullResult
    from tailrace.client.push_consumer import AsyncPushConsumer, PushConsumer
    from tailrace.client.routes import MessageQueue
    from tailrace.client.send_result import SendResult
    from tailrace.client.subscription import Sql
    from tailrace.client.transactions import TransactionSendResult
    from tailrace.remoting.tls import TlsOptions

__all__ = [
    "AsyncProducer",
    "AsyncPullConsumer",
    "AsyncPushConsumer",
    "ConsumerFailure",
    "Credentials",
    "MessageQueue",
    "Producer",
    "PullConsumer",
    "PullResult",
    "PushConsumer",
    "RetryLater",
    "SendResult",
    "Sql",
    "TlsOptions",
    "TransactionSendResult",
]


# The broker uses one module of this package and needs no producers and consumers.
_HOMES = {
    "AsyncProducer": "tailrace.client.producer",
    "AsyncPullConsumer": "tailrace.client.pull_consumer",
    "AsyncPushConsumer": "tailrace.client.push_consumer",
    "ConsumerFailure": "tailrace.client.failures",
    "Credentials": "tailrace.auth.signature",
    "MessageQueue": "tailrace.client.routes",
    "Producer": "tailrace.client.producer",
    "PullConsumer": "tailrace.client.pull_consumer",
    "PullResult": "tailrace.client.pull_consumer",
    "PushConsumer": "tailrace.client.push_consumer",
    "RetryLater": "tailrace.client.listening",
    "SendResult": "tailrace.client.send_result",
    "Sql": "tailrace.client.subscription",
    "TlsOptions": "tailrace.remoting.tls",
    "TransactionSendResult": "tailrace.client.transactions",
}


__getattr__, __dir__ = lazy_names(__name__, _HOMES)
