"""Who calls: what the metadata of a call says, and the connection over which the broker serves it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from tailrace.auth.addresses import parsed_address
from tailrace.auth.model import User
from tailrace.formats.remoting import LANGUAGE_CODES, LANGUAGE_OTHER
from tailrace.proxy.limits import MAX_CLIENT_ID, MAX_CLIENT_VERSION
from tailrace.proxy.protocol import Code, GrpcError

__all__ = ["Caller", "address_of", "born_host_of", "caller_of", "metadata_of"]

PEERS_MAX: Final = 1_024
"""Addresses that are kept after they were read."""
_LANGUAGES: Final = {
    **LANGUAGE_CODES, "DOT_NET": LANGUAGE_CODES["DOTNET"], "GOLANG": LANGUAGE_CODES["GO"]}
"""Codes of languages. Clients write two names in another way than the remoting protocol."""


class Caller(NamedTuple):
    """The client of a call."""

    client_id: str
    peer: tuple[str, int]
    """Its address and port."""
    language: int
    version: str
    """Of the client's library; empty if the client does not say it."""
    user: str = ""
    """The user whose signature was valid; empty without `authenticationEnabled`."""
    proven: User | None = None
    """That user, with the password that it used."""


def metadata_of(context: Any) -> dict[str, str]:
    """Return the metadata of a call by name. Values of names that end in ``-bin`` are bytes."""
    return dict(context.invocation_metadata() or ())


def caller_of(metadata: dict[str, str], peer: tuple[str, int], user: str = "") -> Caller:
    """Return the client of a call. Raises GrpcError if the call does not name it."""
    client_id = metadata.get("x-mq-client-id", "").strip()
    if not client_id:
        raise GrpcError(Code.CLIENT_ID_REQUIRED, "client id cannot be empty: the metadata has no x-mq-client-id")
    if len(client_id) > MAX_CLIENT_ID:
        raise GrpcError(
            Code.BAD_REQUEST, f"x-mq-client-id has {len(client_id)} characters, over the limit of {MAX_CLIENT_ID}")
    return Caller(
        client_id, peer, _LANGUAGES.get(metadata.get("x-mq-language", "").upper(), LANGUAGE_OTHER),
        metadata.get("x-mq-client-version", "")[:MAX_CLIENT_VERSION], user)


@lru_cache(PEERS_MAX)
def born_host_of(peer: tuple[str, int]) -> bytes:
    """Return an address and port in the form in which messages store them."""
    return parsed_address(peer[0]).packed + peer[1].to_bytes(4, "big")


@lru_cache(PEERS_MAX)
def address_of(peer: str) -> tuple[str, int]:
    """Return host and port of an address as gRPC writes it, such as ``ipv4:127.0.0.1:81``."""
    kind, _, place = peer.partition(":")
    host, _, port = unquote(place).rpartition(":")
    host = host.strip("[]").partition("%")[0]
    if kind not in {"ipv4", "ipv6"} or not port.isdecimal():
        return "127.0.0.1", 0  # a Unix socket
    try:
        return str(parsed_address(host)), int(port)
    except ValueError:
        return "127.0.0.1", 0
