"""A broker in this process on a store of its own, and connections to it that speak frames."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from tailrace.broker.controller import BrokerController
from tailrace.config import BrokerConfig
from tailrace.formats.remoting import RemotingCommand, decode_frame, encode
from tailrace.node.message_store import MessageStore
from tailrace.node.store_opening import StoreParts

WAIT_S = 20


class Client:
    """One connection."""

    def __init__(self, reader, writer):
        self.reader, self.writer, self.data = reader, writer, b""

    @classmethod
    async def connect(cls, address):
        host, port = address.rsplit(":", 1)
        return cls(*await asyncio.open_connection(host, int(port)))

    def send(self, command):
        self.writer.write(encode(command))

    async def receive(self):
        """The next command, None when the connection has ended."""
        while True:
            command, end = decode_frame(self.data, 0, len(self.data))
            if command is not None:
                self.data = self.data[end:]
                return command
            more = await asyncio.wait_for(self.reader.read(1 << 16), WAIT_S)
            if not more:
                return None
            self.data += more

    async def ask(self, code, ext=None, body=b"", *, opaque=7, **options):
        """Send a request, and return the next answer."""
        self.send(RemotingCommand(code, ext, body, opaque=opaque, **options))
        return await self.receive()


class Served(NamedTuple):
    controller: BrokerController
    store: MessageStore
    connect: Callable[[], Awaitable[Client]]


@contextlib.asynccontextmanager
async def serving(path, store_config=None, *, client=Client, file_system=None, **broker_config):
    """A broker until the context ends; ``connect`` makes a ``client``, which is closed then."""
    with (
        MessageStore.open(path, config=store_config, parts=StoreParts(file_system=file_system)) as store,
        contextlib.ExitStack() as stack,
    ):
        controller = BrokerController(store, BrokerConfig(**broker_config))
        await controller.start(("127.0.0.1", 0), None)

        async def connect():
            made = await client.connect(controller.broker_address)
            stack.callback(made.writer.close)
            return made

        try:
            yield Served(controller, store, connect)
        finally:
            await controller.stop()
