"""From which hosts slaves may connect: those of registered brokers of the same name, and of ``haAllowedHosts``.

The HA protocol has no authentication, so that any host that sends 8 bytes would get the whole log. Everything runs in
the thread of the event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, final

from tailrace import events
from tailrace.auth.addresses import Addresses, addresses_problem, parsed_address
from tailrace.errors import ConfigError, RemotingError
from tailrace.formats import fastjson
from tailrace.formats.remoting import RequestCode
from tailrace.formats.requests.name_server_headers import GetBrokerMemberGroupRequestHeader
from tailrace.ha.faults import Fault, Faults
from tailrace.logs import get_logger
from tailrace.remoting.client import RemotingClient, split_address

__all__ = ["ASK_MS", "GroupMembers", "allowed_hosts", "members_in"]

_log = get_logger(__name__)
FRESH_S: Final = 1.0
"""How long the answer of a name server counts as new for a host that it does not have."""
STALE_S: Final = 10.0
ASK_MS: Final = 2000
"""How long the answer of a name server is waited for."""


def allowed_hosts(text: str) -> Addresses | None:
    """Return the hosts of ``haAllowedHosts``, None without any. Raises ConfigError that names the wrong one."""
    parts = tuple(filter(None, (part.strip() for part in text.split(";"))))
    if problem := addresses_problem(parts):
        raise ConfigError(f"haAllowedHosts: {problem}")
    return Addresses(parts) if parts else None


@final
class GroupMembers:
    """The hosts of slaves.

    ``own`` returns this broker's address; ``local`` the addresses that the name server of this process has for this
    broker, by id; ``name_servers`` the addresses of the others.
    """

    def __init__(
        self, cluster: str, name: str, allowed: Addresses | None, *, own: Callable[[], str],
        local: Callable[[], Mapping[int, str]], name_servers: Callable[[], Iterable[str]],
        outgoing: Callable[[], RemotingClient], faults: Faults,
    ) -> None:
        self._header = GetBrokerMemberGroupRequestHeader(cluster, name)
        self._allowed = allowed
        self._own, self._local, self._name_servers = own, local, name_servers
        self._outgoing, self._faults = outgoing, faults
        self._client: RemotingClient | None = None
        self._by_server: dict[str, dict[int, str]] = {}
        """The last answer of each name server, so that slaves may connect while it is away."""
        self._hosts: Counter[str] = Counter()
        self._addresses: dict[str, str] = {}
        """The host of each member."""
        self._asked_s = -STALE_S
        self._asking: asyncio.Task[None] | None = None
        self._failing: dict[str, str] = {}

    async def connections_of(self, host: str) -> int:
        """Return how many connections a host may have: one for each slave; 0 if no slave may connect from it."""
        age = asyncio.get_running_loop().time() - self._asked_s
        if age >= STALE_S or (host not in self._hosts and age >= FRESH_S):
            if self._asking is None:
                self._asking = asyncio.ensure_future(self._ask())
            await asyncio.shield(self._asking)
        count = self._hosts[host]
        return count or int(self._allowed is not None and self._allowed.has(host))

    def addresses_of(self, host: str) -> list[str]:
        """Return the addresses of the members at a host."""
        return sorted(address for address, one in self._addresses.items() if one == host)

    async def close(self) -> None:
        """Close the connections to name servers."""
        if self._asking is not None:
            self._asking.cancel()
        if self._client is not None:
            await self._client.close()

    async def _ask(self) -> None:
        try:
            servers = list(self._name_servers())
            await asyncio.gather(*(self._ask_one(server) for server in servers))
            members = {address for table in (self._local(), *self._by_server.values())
                       for address in table.values()} - {self._own()}
            found = await asyncio.gather(*(self._address(address) for address in members))
            self._hosts = Counter(host for host in found if host)
            self._addresses = dict(zip(members, found, strict=True))
            self._asked_s = asyncio.get_running_loop().time()
        finally:
            self._asking = None

    async def _ask_one(self, server: str) -> None:
        if self._client is None:
            self._client = self._outgoing()
        try:
            answer = await self._client.ask(
                server, RequestCode.GET_BROKER_MEMBER_GROUP, self._header, timeout_ms=ASK_MS)
            self._by_server[server] = members_in(answer.body)
            self._failing.pop(server, None)
        except (RemotingError, OSError, ValueError) as error:
            is_new = server not in self._failing
            self._failing[server] = str(error)
            if is_new:
                events.MEMBERS_ARE_UNKNOWN.log(_log, address=server, reason=error)
        if self._failing:
            self._faults.begin(Fault.MEMBERS, "; ".join(f"{one}: {why}" for one, why in self._failing.items()))
        else:
            self._faults.end(Fault.MEMBERS)

    @staticmethod
    async def _address(address: str) -> str:
        """Return the address of the host in ``HOST:PORT``, which may be a name; empty if it has none."""
        place = split_address(address)
        if place is None:
            return ""
        try:
            return str(parsed_address(place[0]))
        except ValueError:
            try:
                found = await asyncio.get_running_loop().getaddrinfo(place[0], place[1])
            except (OSError, UnicodeError):
                return ""
            return str(parsed_address(str(found[0][4][0])))


def members_in(answer: bytes) -> dict[int, str]:
    """Return the addresses in the body of an answer to request 901, by id. Raises ValueError."""
    body: Any = fastjson.loads(answer)  # RocketMQ does not quote the ids
    group = body.get("brokerMemberGroup") if isinstance(body, dict) else None
    table = group.get("brokerAddrs") if isinstance(group, dict) else None
    if table is None and isinstance(body, dict):  # a group without members
        return {}
    if isinstance(table, dict):
        return {int(number): str(address) for number, address in table.items()}
    raise ValueError("the answer has no brokerMemberGroup")
