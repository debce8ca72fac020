"""A server that echoes, with TLS, and a client for one request; for tests of TLS."""

from __future__ import annotations

import asyncio
import contextlib

from tailrace.remoting.acceptor import Acceptor
from tailrace.remoting.client import RemotingClient
from tailrace.remoting.limits import ServerLimits
from tailrace.remoting.server import RemotingServer
from tailrace.remoting.tls import server_context

ECHO = 7
WAIT_S = 20


@contextlib.asynccontextmanager
async def serving(config, *, limits=None, **acceptor_options):
    """A server that answers with the body of the request; its acceptor and its address."""
    acceptor = Acceptor(
        limits or ServerLimits(), config.mode, server_context(config),
        **{"handshake_timeout_s": WAIT_S, **acceptor_options})
    server = RemotingServer(acceptor=acceptor)
    server.register(lambda channel, request: request.answer(0, body=request.body), ECHO)
    host, port = await server.start("127.0.0.1", 0)
    try:
        yield acceptor, f"{host}:{port}", server
    finally:
        await server.stop(0)


async def echo(address, tls=None, body=b"ping", client=None):
    made = client or RemotingClient(tls=tls, connect_timeout_ms=WAIT_S * 1000)
    try:
        return (await made.invoke(address, ECHO, {}, body, timeout_ms=WAIT_S * 1000)).body
    finally:
        if client is None:
            await made.close()


def run(test):
    asyncio.run(asyncio.wait_for(test(), 3 * WAIT_S))
