"""A FastStream broker on RocketMQ or Tailrace; docs/how-to/programs/frameworks.md.

    from faststream import FastStream
    from tailrace_faststream import RocketmqBroker

    broker = RocketmqBroker(namesrv="127.0.0.1:9876")
    app = FastStream(broker)

    @broker.subscriber("orders", group="stock", tags="new || paid")
    async def handle(order: str) -> None: ...
"""

from __future__ import annotations

from tailrace_faststream.annotations import RocketmqMessage
from tailrace_faststream.broker import RocketmqBroker
from tailrace_faststream.registrator import RocketmqRouter
from tailrace_faststream.response import RocketmqResponse
from tailrace_faststream.testing import TestRocketmqBroker

__all__ = ["RocketmqBroker", "RocketmqMessage", "RocketmqResponse", "RocketmqRouter", "TestRocketmqBroker"]
