"""Registration of this broker at name servers of other processes (BrokerOuterAPI).

The broker registers when it starts, every ``registerNameServerPeriod``, and after topics have changed. It
sends request 103 with all topics to each address. When it stops, it sends request 104. If a name server
cannot be reached, the next registration tries again; nothing else waits for it.
Everything runs in the thread of the event loop, except the encoding of the topics.
"""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import Callable
from typing import Final, final

from tailrace import events
from tailrace.broker.core.addresses import Addresses
from tailrace.broker.core.listeners import Address, is_own_address
from tailrace.config import BrokerConfig
from tailrace.env.supervision import supervised
from tailrace.errors import ConfigError, RemotingError, StoreError
from tailrace.formats import fastjson
from tailrace.formats.remoting import RequestCode, ResponseCode
from tailrace.formats.requests.name_server_headers import (
    GetBrokerMemberGroupRequestHeader,
    RegisterBrokerRequestHeader,
    UnRegisterBrokerRequestHeader,
)
from tailrace.ha.members import ASK_MS, members_in
from tailrace.logs import get_logger
from tailrace.node.topic_config import TopicConfigManager
from tailrace.remoting.addresses import address_text
from tailrace.remoting.client import RemotingClient, split_address
from tailrace.requests.executors import BoundedExecutor

__all__ = ["BrokerGroup", "Registration", "name_server_addresses", "registered_elsewhere"]

_log = get_logger(__name__)

REST_S: Final = 0.2
"""Least time between two registrations, so that many changes of topics need few registrations."""
AGAIN_S: Final = 5.0
"""Between registrations at a name server that did not accept the last one."""
UNREGISTER_TIMEOUT_MS: Final = 3000


def name_server_addresses(text: str) -> list[Address]:
    """Return the addresses of ``namesrvAddr``. Raises ConfigError that names the wrong ones."""
    found, wrong = [], []
    for part in filter(None, (part.strip() for part in text.split(";"))):
        place = split_address(part)
        if place is None or not place[0] or not place[1]:
            wrong.append(f"namesrvAddr={part} is not HOST:PORT")
        elif place not in found:
            found.append(place)
    if wrong:
        raise ConfigError(*wrong)
    return found


def registered_elsewhere(text: str, own: str) -> list[str]:
    """Return the addresses of ``namesrvAddr`` that are not ``own``, the name server of this process."""
    own_place = split_address(own)
    return [
        address_text(host, port)
        for host, port in name_server_addresses(text)
        if own_place is None or port != own_place[1] or not is_own_address(host)]


@final
class BrokerGroup:
    """The brokers with the name of this one, as name servers of other processes know them."""

    def __init__(self, config: BrokerConfig, own: Addresses, outgoing: Callable[[], RemotingClient]) -> None:
        self._config, self._own, self._outgoing = config, own, outgoing

    async def refuse_second(self, name_servers: list[str]) -> None:
        """Raise StoreError if another broker that answers has the name and the id of this one at a name server.

        Both would register there in turn: producers would send now to the one and now to the other, and two logs of one
        name would grow (H40). A name server that does not answer cannot say so, and is left out.
        """
        config, client = self._config, self._outgoing()
        try:
            for address in name_servers:
                if other := await self._same_broker(client, address):
                    raise StoreError(
                        f"broker {config.broker_name} with brokerId={config.broker_id} is {other} at name server "
                        f"{address}, and it answers; stop it first, or give this one another brokerName")
        finally:
            await client.close()

    async def _same_broker(self, client: RemotingClient, name_server: str) -> str:
        """Return the address of another broker with this name and id that answers; empty without one."""
        other = (await self._members(client, name_server)).get(self._config.broker_id, "")
        if not other or other == self._own.broker:
            return ""
        try:  # any answer will do
            await client.invoke(other, RequestCode.GET_BROKER_RUNTIME_INFO, {}, timeout_ms=ASK_MS)
        except (RemotingError, OSError, ValueError):
            return ""
        return other

    async def _members(self, client: RemotingClient, name_server: str) -> dict[int, str]:
        """Return the brokers of this name at a name server, by id; none if it does not answer."""
        header = GetBrokerMemberGroupRequestHeader(self._config.broker_cluster_name, self._config.broker_name)
        try:
            answer = await client.invoke(
                name_server, RequestCode.GET_BROKER_MEMBER_GROUP, header.to_ext(), timeout_ms=ASK_MS)
            return members_in(answer.body) if answer.code == ResponseCode.SUCCESS else {}
        except (RemotingError, OSError):
            return {}
        except ValueError as error:
            events.MEMBERS_ARE_UNKNOWN.log(_log, address=name_server, reason=error)
            return {}

    async def others(self, client: RemotingClient, name_servers: list[str]) -> list[str]:
        """Return the addresses of the other brokers of this name, as the name servers know them."""
        found = await asyncio.gather(*(self._members(client, address) for address in name_servers))
        return sorted({one for table in found for one in table.values()} - {self._own.broker})


@final
class Registration:
    """Keeps the broker registered at ``addresses`` between ``start`` and ``stop``.

    ``on_master`` gets the address of the master and of its HA port if a name server tells them to a slave.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, config: BrokerConfig, topics: TopicConfigManager, own: Addresses,
        outgoing: Callable[[], RemotingClient], background: BoundedExecutor, addresses: list[str],
        on_master: Callable[[str, str], None] | None = None,
    ) -> None:
        self._on_master, self._loop, self._config, self._topics = on_master, loop, config, topics
        self._own, self._background, self._addresses = own, background, addresses
        self._client = outgoing()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._state: dict[str, str] = {}

    def states(self) -> dict[str, bool]:
        """Return for each address whether it accepted the last registration."""
        return {address: self._state.get(address) == "" for address in self._addresses}

    def again(self) -> None:
        """Register soon: a name server that was restarted has forgotten this broker."""
        self._changed.set()

    def start(self) -> None:
        """Start to register: immediately, periodically, and after changes of topics."""
        loop = self._loop

        def changed() -> None:  # in any thread
            with contextlib.suppress(RuntimeError):  # the loop is closed, and the broker with it
                loop.call_soon_threadsafe(self._changed.set)

        self._topics.on_change(changed)
        self._task = loop.create_task(supervised("Registration", self._step))

    async def stop(self) -> None:
        """Unregister at the name servers that accepted the last registration."""
        if self._task is None:
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._task = None
        await asyncio.gather(*(
            self._unregister(address) for address, reason in self._state.items() if not reason))
        await self._client.close()

    async def _step(self) -> None:
        """Register at all name servers, and return when the next registration at all of them is due."""
        self._changed.clear()
        body = await self._background.run(self._body)
        due = self._loop.time() + self._config.register_name_server_period / 1000
        await self._register_at(self._addresses, body)
        while not self._changed.is_set() and self._loop.time() < due:
            refused = [address for address in self._addresses if self._state[address]]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(min(due, self._loop.time() + AGAIN_S) if refused else due):
                    await self._changed.wait()
                    return
            if self._loop.time() < due:  # else the next step registers at all of them
                await self._register_at(refused, body)

    async def _register_at(self, addresses: list[str], body: bytes) -> None:
        await asyncio.gather(*(self._register(address, body) for address in addresses))
        await asyncio.sleep(REST_S)

    def _body(self) -> bytes:
        """Return a RegisterBrokerBody with every topic."""
        mappings = self._topics.mappings
        return fastjson.dumps_large({
            "filterServerList": [],
            "topicConfigSerializeWrapper": {
                **self._topics.to_json(),
                "mappingDataVersion": mappings.data_version.to_json(), "topicQueueMappingDetailMap": {},
                "topicQueueMappingInfoMap": {
                    topic: detail.info() for topic, detail in list(mappings.table.items())}}})

    async def _register(self, address: str, body: bytes) -> None:
        config = self._config
        header = RegisterBrokerRequestHeader(
            config.broker_name, self._own.broker, config.broker_cluster_name, self._own.ha,
            config.broker_id,
            enable_acting_master=False, body_crc32=zlib.crc32(body) & 0x7FFFFFFF)
        try:
            answer = await self._client.invoke(
                address, RequestCode.REGISTER_BROKER, header.to_ext(), body,
                timeout_ms=config.register_broker_timeout_mills)
            reason = "" if answer.code == ResponseCode.SUCCESS else f"code {answer.code}: {answer.remark}"
            if not reason and self._on_master is not None:
                self._on_master(answer.ext.get("masterAddr", ""), answer.ext.get("haServerAddr", ""))
        except (RemotingError, OSError, ValueError) as error:  # ValueError: a host that cannot be looked up
            reason = str(error)
        before = self._state.get(address)
        self._state[address] = reason
        if reason and reason != before:
            events.CANNOT_REGISTER_AT_A_NAME_SERVER.log(_log, address=address, reason=reason)
        elif not reason and before != "":
            events.REGISTERED_AT_A_NAME_SERVER.log(_log, address=address, broker=self._own.broker)

    async def _unregister(self, address: str) -> None:
        config = self._config
        header = UnRegisterBrokerRequestHeader(
            config.broker_name, self._own.broker, config.broker_cluster_name, config.broker_id)
        try:
            await self._client.invoke(
                address, RequestCode.UNREGISTER_BROKER, header.to_ext(), timeout_ms=UNREGISTER_TIMEOUT_MS)
        except RemotingError as error:
            events.CANNOT_UNREGISTER_AT_A_NAME_SERVER.log(_log, address=address, reason=error)
