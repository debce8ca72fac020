"""Tailrace: a durable message store and broker that speaks Apache RocketMQ 5.

    import tailrace
    from tailrace import Message

    with tailrace.MessageStore.open("./store") as store:
        store.put(Message(topic="orders", body=b"42 apples", tags="new", keys=["42"]))
        for m in store.read("orders"):
            print(m.queue_offset, m.body)
        print(store.query_message("orders", "42"))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.errors import StoreError
from tailrace.lazy_names import lazy_names

if TYPE_CHECKING:
    from tailrace.client import (
        AsyncProducer,
        AsyncPullConsumer,
        AsyncPushConsumer,
        ConsumerFailure,
        MessageQueue,
        Producer,
        PullConsumer,
        PushConsumer,
        RetryLater,
        SendResult,
        Sql,
        TlsOptions,
    )
    from tailrace.config import FlushDiskType, StoreConfig
    from tailrace.dataset.opening import scan
    from tailrace.model import Message, MessageExt, PutMessageResult, PutMessageStatus
    from tailrace.node.message_store import MessageStore

__all__ = [
    "AsyncProducer",
    "AsyncPullConsumer",
    "AsyncPushConsumer",
    "ConsumerFailure",
    "FlushDiskType",
    "Message",
    "MessageExt",
    "MessageQueue",
    "MessageStore",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "PutMessageResult",
    "PutMessageStatus",
    "RetryLater",
    "SendResult",
    "Sql",
    "StoreConfig",
    "StoreError",
    "TlsOptions",
    "scan",
    "__version__",
]
__version__ = "0.1.0"


# The module of each public name. A module is imported when its name is first used: the store imports
# NumPy, and settings and messages build their classes, which a program that uses other names can skip.
_HOMES = {
    "AsyncProducer": "tailrace.client",
    "AsyncPullConsumer": "tailrace.client",
    "AsyncPushConsumer": "tailrace.client",
    "ConsumerFailure": "tailrace.client",
    "MessageQueue": "tailrace.client",
    "Producer": "tailrace.client",
    "PullConsumer": "tailrace.client",
    "PushConsumer": "tailrace.client",
    "RetryLater": "tailrace.client",
    "SendResult": "tailrace.client",
    "Sql": "tailrace.client",
    "TlsOptions": "tailrace.client",
    "FlushDiskType": "tailrace.config",
    "Message": "tailrace.model",
    "MessageExt": "tailrace.model",
    "MessageStore": "tailrace.node.message_store",
    "PutMessageResult": "tailrace.model",
    "PutMessageStatus": "tailrace.model",
    "StoreConfig": "tailrace.config",
    "scan": "tailrace.dataset.opening",
}


__getattr__, __dir__ = lazy_names(__name__, _HOMES)
