"""A FastStream broker on RocketMQ: the extra ``faststream``; docs/how-to/programs/frameworks.md.

    from faststream import FastStream
    from tailrace.frameworks.faststream import RocketmqBroker

    broker = RocketmqBroker(namesrv="127.0.0.1:9876")
    app = FastStream(broker)

    @broker.subscriber("orders", group="stock", tags="new || paid")
    async def handle(order: str) -> None: ...
"""

from __future__ import annotations

from tailrace.errors import MissingPackageError

try:
    import faststream as _faststream  # noqa: F401 - an optional package
except ModuleNotFoundError as _error:
    if _error.name != "faststream":
        raise
    raise MissingPackageError("subscribers of FastStream", "faststream", "faststream") from None

from tailrace.frameworks.faststream.annotations import RocketmqMessage
from tailrace.frameworks.faststream.broker import RocketmqBroker
from tailrace.frameworks.faststream.registrator import RocketmqRouter
from tailrace.frameworks.faststream.response import RocketmqResponse
from tailrace.frameworks.faststream.testing import TestRocketmqBroker

__all__ = ["RocketmqBroker", "RocketmqMessage", "RocketmqResponse", "RocketmqRouter", "TestRocketmqBroker"]
