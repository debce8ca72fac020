"""Tailrace: a durable message store and broker that speaks Apache RocketMQ 5.

    import tailrace
    from tailrace import Message

    with tailrace.MessageStore.open("./store") as store:
        store.put(Message(topic="orders", body=b"42 apples", tags="new", keys=["42"]))
        for m in store.read("orders", queue_id=0, offset=0):
            print(m.queue_offset, m.body)
        print(store.query_message("orders", "42"))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrace.config import FlushDiskType, StoreConfig
from tailrace.errors import StoreError
from tailrace.model import Message, MessageExt, PutMessageResult, PutMessageStatus

if TYPE_CHECKING:
    from tailrace.node.message_store import MessageStore

__all__ = [
    "FlushDiskType",
    "Message",
    "MessageExt",
    "MessageStore",
    "PutMessageResult",
    "PutMessageStatus",
    "StoreConfig",
    "StoreError",
    "__version__",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # The store brings NumPy; who only wants a name from here need not wait for it.
    if name == "MessageStore":
        from tailrace.node.message_store import MessageStore  # noqa: PLC0415

        return MessageStore
    raise AttributeError(name)
