"""The shared part of the clients of a process: connections, routes, and a client id with its heartbeats.

Clients on one event loop that name the same servers share an instance (RocketMQ's MQClientInstance). A
broker knows a member of a group by its connection, so two consumers of one group are on two instances.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Final, final

from tailrace import events
from tailrace.auth.signature import Credentials
from tailrace.client.arguments import check_address
from tailrace.client.routes import Routes
from tailrace.env.clock import Clock, SystemClock
from tailrace.env.entropy import SystemEntropy
from tailrace.env.supervision import supervised
from tailrace.errors import (
    ConfigError,
    RemotingClosedError,
    RemotingCommandError,
    RemotingConnectError,
    RemotingError,
    RemotingTimeoutError,
)
from tailrace.formats import fastjson
from tailrace.formats.commitlog import java_string_hash
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.formats.requests.consumer_headers import UnregisterClientRequestHeader
from tailrace.logs import get_logger
from tailrace.model import MessageExt
from tailrace.remoting.client import RemotingClient
from tailrace.remoting.tls import TlsOptions, client_context

__all__ = ["ClientInstance", "InstanceShare", "Member", "Target", "unreached"]

_log = get_logger(__name__)

NAMESRV_PORT: Final = 9876
BROKER_PORT: Final = 10911
"""Ports that RocketMQ uses, for the text of an error."""
HEARTBEAT_S: Final = 30.0
"""Period of heartbeats, as in RocketMQ (heartbeatBrokerInterval). A broker drops a client after two minutes."""
AGAIN_S: Final = 1.0
"""Seconds until the next heartbeat to a broker whose connection was lost."""
END_S: Final = 2.0
"""Seconds for work that has to be finished before the connections of an instance are closed."""
REQUESTS_MAX: Final = 1_000
"""Number of requests of brokers under way. Further requests are not answered, and the broker sends them again."""


class Member:
    """A client as a member of a group; ``group`` and ``is_consumer`` identify the group."""

    group: str
    is_consumer = False

    def heartbeat_data(self) -> dict[str, Any]:
        """Return ProducerData or ConsumerData of RocketMQ's heartbeat."""
        return {"groupName": self.group}

    def members_changed(self) -> None:
        """Handle a change of the members of the group, or of the brokers' data about them: producers share nothing."""

    def topics(self) -> set[str]:
        """Return the topics whose brokers get the heartbeats."""
        raise NotImplementedError

    def wants(self, request: RemotingCommand) -> bool:
        """Return whether a request of a broker is for this member."""
        raise NotImplementedError

    async def serve(self, address: str, request: RemotingCommand) -> RemotingCommand | None:
        """Serve a request; return the answer if it has one."""
        raise NotImplementedError

    def connection_failed(self, error: RemotingError) -> None:
        """Handle that a server is not available or refuses heartbeats; it was logged, and a send to it raises."""


@dataclass(frozen=True, slots=True)
class Target:
    """The servers of a client: name servers, or one broker."""

    namesrv: str
    broker: str
    timeout_ms: int
    clock: Clock | None = None
    tls: TlsOptions | None = None
    credentials: Credentials | None = None

    def __post_init__(self) -> None:
        if bool(self.namesrv) == bool(self.broker):
            raise ConfigError("set either namesrv or broker, as HOST:PORT")
        check_address("namesrv", self.namesrv, NAMESRV_PORT)
        check_address("broker", self.broker, BROKER_PORT)
        client_context(self.tls)  # so that an invalid file is reported when the client is created


_NOT_AVAILABLE: Final = frozenset({ResponseCode.GO_AWAY, ResponseCode.SERVICE_NOT_AVAILABLE})


def unreached(error: BaseException) -> str:
    """Return the address of the server, if a request failed because of its connection, start or stop; "" otherwise."""
    if isinstance(error, RemotingConnectError | RemotingClosedError):
        return error.address
    if isinstance(error, RemotingCommandError) and error.code in _NOT_AVAILABLE:
        return error.address
    return ""


Role = tuple[str, bool]
"""A group, and whether it is a consumer group. A client id has each role at most once."""

_instances: dict[int, list[ClientInstance]] = {}
"""Instances by the id of their event loop, which they keep alive."""


@final
class ClientInstance:
    """A client id on an event loop. Clients use it through an `InstanceShare`."""

    def __init__(self, target: Target, remoting: RemotingClient | None = None) -> None:
        self.target = target
        self.loop = asyncio.get_running_loop()
        self.client_id = f"{os.uname().nodename}@{os.getpid()}#{SystemEntropy().u64():016x}"
        self.remoting = remoting or RemotingClient(
            connect_timeout_ms=target.timeout_ms, tls=target.tls, credentials=target.credentials)
        self.routes = Routes(self.remoting, target.clock or SystemClock(), target.namesrv, target.broker)
        self.remoting.on_request = self._on_request
        self.remoting.on_lost = self._on_lost
        self.routes.on_answer = self._name_server_answers
        self.awaited_replies: dict[str, asyncio.Future[MessageExt]] = {}
        """Requests of producers that wait for their reply, by correlation id."""
        self._users: list[Role | None] = []
        self._members: list[Member] = []
        self._known: set[str] = set()
        """Addresses of brokers that have received a heartbeat."""
        self._fingerprints: dict[str, int] = {}
        """Fingerprint of the subscriptions that a broker has, by its address; a heartbeat then goes without them."""
        self._lost: set[str] = set()
        self._failing: set[str] = set()
        """Brokers that refused the last heartbeat."""
        self._unreached: dict[str, float] = {}
        """Servers that are not available, and the time of the loop since when; each was logged once."""
        self._wake = asyncio.Event()
        self._beats: asyncio.Task[None] | None = None
        self._beats_due = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._unfinished: set[asyncio.Task[None]] = set()

    @classmethod
    def acquire(cls, target: Target, role: Role | None) -> ClientInstance:
        """Return an instance of the running loop in which no other client has this role."""
        loop = asyncio.get_running_loop()
        for key, found in list(_instances.items()):
            if found and found[0].loop.is_closed():  # its clients were not closed
                _instances.pop(key, None)
        shared = _instances.setdefault(id(loop), [])
        for one in shared:
            if one.target == target and (role is None or role not in one._users):
                break
        else:
            one = cls(target)
            shared.append(one)
        one._users.append(role)
        return one

    async def release(self, role: Role | None) -> None:
        """Close the connections if no other client uses them."""
        self._users.remove(role)
        if self._users:
            return
        shared = _instances.get(id(self.loop), [])
        if self in shared:
            shared.remove(self)
            if not shared:
                _instances.pop(id(self.loop), None)
        await self._finish()
        tasks = [*self._tasks, *self._unfinished, *([self._beats] if self._beats else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.remoting.close()

    def finish_before_close(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work that waits for a request of a client that has closed; it has ``END_S`` when the last one closes."""
        task = asyncio.create_task(work)
        self._unfinished.add(task)
        task.add_done_callback(self._unfinished.discard)

    async def _finish(self) -> None:
        if self._unfinished:
            await self.remoting.end_requests(END_S / 2)
        if self._unfinished:
            await asyncio.wait(self._unfinished, timeout=END_S / 2)

    # --- groups

    async def join(self, member: Member, addresses: set[str] | None = None) -> None:
        """Add a member, and send the first heartbeats. Raises RemotingError if no broker accepted one.

        ``addresses`` are the brokers to use instead of those of the member's topics.
        """
        if member not in self._members:
            self._members.append(member)
        if self._beats is None:
            self._beats_due = self.loop.time() + HEARTBEAT_S
            self._beats = asyncio.create_task(supervised("heartbeats", self._beat))
        await self.heartbeat(await self.brokers_of(member) if addresses is None else addresses)

    async def leave(self, member: Member) -> None:
        """Remove a member from its group, on all brokers that know it."""
        if member not in self._members:
            return
        self._members.remove(member)
        if any((one.group, one.is_consumer) == (member.group, member.is_consumer) for one in self._members):
            return  # the connection stays in the group for the other one
        header = UnregisterClientRequestHeader(self.client_id)
        if member.is_consumer:
            header.consumer_group = member.group
        else:
            header.producer_group = member.group
        for address in sorted(self._known):
            with contextlib.suppress(RemotingError):  # then it notices the end of the connection
                await self.remoting.invoke(
                    address, RequestCode.UNREGISTER_CLIENT, header.to_ext(), timeout_ms=self.target.timeout_ms)

    async def brokers_of(self, member: Member) -> set[str]:
        """Return the addresses of the brokers of a member's topics. Raises RemotingError."""
        if self.target.broker:
            return {self.target.broker}
        found: set[str] = set()
        for topic in sorted(member.topics()):
            try:
                found.update((await self.routes.of(topic)).addresses.values())
            except RemotingCommandError as error:
                if error.code != ResponseCode.TOPIC_NOT_EXIST:
                    raise
        return found

    # --- heartbeats

    async def heartbeat(self, addresses: set[str]) -> None:
        """Send heartbeats with all members to brokers. Raises RemotingError if no broker accepted one."""
        for address in addresses:
            self._fingerprints.pop(address, None)
        answers = await asyncio.gather(*map(self._beat_one, sorted(addresses)))
        if answers and all(answers):
            raise next(error for error in answers if error)
        self._note_failed(sorted(addresses), answers)

    async def _beat_one(self, address: str) -> RemotingError | None:
        try:
            if await self._send_beat(address):
                await self._send_beat(address)
        except RemotingError as error:
            self._fingerprints.pop(address, None)
            self._lost.add(address)
            self._wake.set()
            return error
        self._known.add(address)
        self._failing.discard(address)
        self.reached(address)
        if address in self._lost:
            self._lost.discard(address)
            for member in self._members:
                member.members_changed()
        return None

    def _note_failed(self, addresses: list[str], answers: list[RemotingError | None]) -> None:
        for address, error in zip(addresses, answers, strict=True):
            if error is None:
                continue
            if unreached(error) or isinstance(error, RemotingTimeoutError):
                self.lost(address, error)
            elif address not in self._failing:
                self._failing.add(address)
                events.HEARTBEAT_FAILED.log(_log, broker=address, reason=error)
                self._report(error)

    def lost(self, address: str, error: RemotingError) -> None:
        """Note that a server is not available; the first time it is logged, and the members are notified."""
        if address in self._known:
            self._lost.add(address)
            self._wake.set()
        if address in self._unreached:
            return
        self._unreached[address] = self.loop.time()
        events.SERVER_IS_NOT_AVAILABLE.log(_log, address=address, reason=error)
        self._report(error)

    def _report(self, error: RemotingError) -> None:
        for member in self._members:
            member.connection_failed(error)

    def reached(self, address: str) -> None:
        """Note that a server has answered; this is logged if it did not before."""
        since = self._unreached.pop(address, None)
        if since is not None:
            events.SERVER_IS_AVAILABLE_AGAIN.log(_log, address=address, seconds=round(self.loop.time() - since, 1))

    def _name_server_answers(self, address: str) -> None:
        """Log that one name server answers after a time in which none did; only one of them was noted as lost."""
        for one in [one for one in self._unreached if self.routes.is_name_server(one)]:
            self._unreached[address] = self._unreached.pop(one)
        self.reached(address)

    async def _send_beat(self, address: str) -> bool:
        """Send a heartbeat; return True if the broker has to get the subscriptions. Raises RemotingError.

        It goes without them if the broker has said that it has them (version 2). A broker that does not know
        that version gets them each time.
        """
        consumers = [one.heartbeat_data() for one in self._members if one.is_consumer]
        producers = [{"groupName": name} for name in sorted({m.group for m in self._members if not m.is_consumer})]
        fingerprint = _fingerprint(consumers, producers)
        without = address not in self._lost and self._fingerprints.get(address) == fingerprint
        body = fastjson.dumps({
            "clientID": self.client_id, "producerDataSet": producers, "heartbeatFingerprint": fingerprint,
            "withoutSub": without,
            "consumerDataSet": [{**one, "subscriptionDataSet": []} for one in consumers] if without else consumers})
        answer = await self.remoting.ask(
            address, RequestCode.HEART_BEAT, body=body, timeout_ms=self.target.timeout_ms)
        changed = answer.ext.get("IS_SUB_CHANGE") != "false"
        if answer.ext.get("IS_SUPPORT_HEART_BEAT_V2") == "true" and not changed:
            self._fingerprints[address] = fingerprint
        else:
            self._fingerprints.pop(address, None)
        return without and changed

    def _on_lost(self, address: str) -> None:
        self._fingerprints.pop(address, None)
        if address in self._known and self._members:
            self.lost(address, RemotingClosedError(address))

    async def _beat(self) -> None:
        """Wait until heartbeats are due or a connection was lost, and send them."""
        if not self._lost:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self._beats_due):
                    await self._wake.wait()
        if self._lost:
            await asyncio.sleep(AGAIN_S)
        self._wake.clear()
        addresses = set(self._lost)
        if self.loop.time() >= self._beats_due:  # also while another broker is tried every second
            addresses |= await self._addresses()
            self._beats_due = self.loop.time() + HEARTBEAT_S
        self._note_failed(sorted(addresses), await asyncio.gather(*map(self._beat_one, sorted(addresses))))
        if self._lost:
            self._lost &= await self._addresses()

    async def _addresses(self) -> set[str]:
        """Return the brokers of all members' topics whose routes are known."""
        found: set[str] = set()
        for member in list(self._members):
            try:
                found |= await self.brokers_of(member)
            except RemotingError:
                return found | self._known
        return found

    # --- requests of brokers

    def _on_request(self, address: str, request: RemotingCommand) -> None:
        if request.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            for member in self._members:
                if member.is_consumer and member.group == request.ext.get("consumerGroup"):
                    member.members_changed()
            return
        for member in self._members:
            if member.wants(request):
                break
        else:
            return
        if len(self._tasks) >= REQUESTS_MAX:
            events.REQUEST_OF_A_BROKER_LEFT_FOR_LATER.log(_log, group=member.group, under_way=REQUESTS_MAX)
            return
        task = asyncio.create_task(self._serve(member, address, request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, member: Member, address: str, request: RemotingCommand) -> None:
        try:
            answer = await member.serve(address, request)
        except Exception as error:  # noqa: BLE001 - the outermost step of a request
            events.REQUEST_OF_A_BROKER_FAILED.log(_log, broker=address, code=request.code, reason=repr(error))
            answer = request.answer(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")
        if answer is None or request.is_oneway:
            return
        try:
            await self.remoting.answer(address, answer)
        except RemotingError as error:
            events.REQUEST_OF_A_BROKER_FAILED.log(_log, broker=address, code=request.code, reason=repr(error))


def _fingerprint(consumers: list[dict[str, Any]], producers: list[dict[str, str]]) -> int:
    """Return a number that is the same for members with the same groups and subscriptions, and is never 0.

    A Java broker compares it with that of the group's last heartbeat, by whichever member.
    """
    plain = [{**one, "subscriptionDataSet": sorted(
        ({**wanted, "subVersion": 0} for wanted in one["subscriptionDataSet"]), key=lambda wanted: wanted["topic"])}
        for one in sorted(consumers, key=lambda one: one["groupName"])]
    return java_string_hash(fastjson.dumps([plain, producers]).decode()) or 1


@final
class InstanceShare:
    """The use of an instance by one client, from the first use until the client is closed."""

    def __init__(self, target: Target, role: Role | None = None) -> None:
        self._target = target
        self._role = role
        self._instance: ClientInstance | None = None
        self.closed = False

    @property
    def instance(self) -> ClientInstance:
        """Return the instance. Raises RemotingError after `close`."""
        if self.closed:
            raise RemotingError("the client is closed")
        if self._instance is None:
            self._instance = ClientInstance.acquire(self._target, self._role)
        return self._instance

    async def close(self) -> None:
        """Release the instance; a second call has no effect."""
        self.closed = True
        if self._instance is not None:
            instance, self._instance = self._instance, None
            await instance.release(self._role)
