"""Requests to the broker for the clients of the endpoint."""

from __future__ import annotations

from typing import final

from tailrace.formats.remoting import RemotingCommand, RequestCode
from tailrace.formats.requests.custom_header import CustomHeader
from tailrace.proxy.caller import Caller
from tailrace.proxy.clients import Clients

__all__ = ["Calls"]


@final
class Calls:
    """Serves requests over the connection of a client; a client without settings gets one for the call."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    async def call(
        self, caller: Caller, code: RequestCode, header: CustomHeader, body: bytes = b""
    ) -> RemotingCommand:
        """Return the answer of the broker, whatever its code. Raises RemotingConnectError while the server stops."""
        client = self._clients.find(caller.client_id)
        if client is not None:
            return await client.connection.call(code, header.to_ext(), body)
        connection = self._clients.connect(caller)
        try:
            return await connection.call(code, header.to_ext(), body)
        finally:
            connection.close()
