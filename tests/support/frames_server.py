"""A server of remoting frames on the loopback, and clients that send bytes."""

from __future__ import annotations

import asyncio
import contextlib

from tailrace.formats.remoting import decode_frame, encode
from tailrace.remoting import RemotingServer


class Client:
    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer
        self.data = b""

    async def receive(self):
        while True:
            command, end = decode_frame(self.data, 0, len(self.data))
            if command is not None:
                self.data = self.data[end:]
                return command
            more = await asyncio.wait_for(self.reader.read(65536), 60)
            if not more:
                return None
            self.data += more

    def send(self, *commands):
        self.writer.write(b"".join(map(encode, commands)))


@contextlib.asynccontextmanager
async def serving(**options):
    server = _Server(**options)
    host, port = await server.start("127.0.0.1", 0)
    clients = []

    async def connect():
        client = Client(*await asyncio.open_connection(host, port))
        clients.append(client)
        return client

    server.connect = connect
    try:
        yield server
    finally:
        for client in clients:
            client.writer.close()
        await server.stop(0.0)


def run(test):
    asyncio.run(asyncio.wait_for(test(), 60))


# The tests hang `connect` on it.
class _Server(RemotingServer):
    connect = None


def echo(channel, request):
    return request.answer(ext={"peer": channel.peer}, body=request.body)
