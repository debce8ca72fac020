"""Processor time and Python calls of sends and pulls with access control, without it, and with its hashes alone.

    python benchmarks/macro/access.py [REQUESTS]

One process: a broker on a store, and a socket that sends signed frames that were made before the clock starts. The
processor time is that of the thread of the event loop, which serves and reads, from the first to the last answer, with
1 and with 32 requests at a time. The ways alternate, and the least of the rounds counts. Calls are those of the
profiler for one request. The floor is a broker without access control that gets the same signed frames and hashes as
many bytes: no check can cost less than to parse the two fields and to hash.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
import time

from tailrace.auth.model import Acl, User, acl_of
from tailrace.auth.signature import Credentials, Signer, sign
from tailrace.auth_settings import AuthConfig
from tailrace.broker import BrokerController
from tailrace.config import BrokerConfig, StoreConfig
from tailrace.formats.remoting import MQ_VERSION, RemotingCommand, encode
from tailrace.kernels import signatures
from tailrace.node.message_store import MessageStore
from tailrace.remoting import Channel

USER = Credentials("ann", "a-password-of-some-length")
ROUNDS = 7
SEND = {"a": "g", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0",
        "i": "KEYS\x01k\x02UNIQ_KEY\x01" + "0" * 32, "j": "0", "k": "false", "m": "false"}
PULL = {"consumerGroup": "stock", "topic": "orders", "queueId": "0", "queueOffset": "0", "maxMsgNums": "1",
        "sysFlag": "0", "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0", "subscription": "*"}
KINDS = {"send 100 bytes": (310, SEND, bytes(100)), "send 4 KiB": (310, SEND, bytes(4096)), "pull": (11, PULL, b"")}


def frame(code: int, ext: dict[str, str], body: bytes, *, signed: bool) -> bytes:
    """Return a request as it is on the wire, in the header encoding of Java clients."""
    if signed:
        ext = sign(ext, body, USER, MQ_VERSION)
    return encode(RemotingCommand(code, ext, body, opaque=1, serialize_type=0))


async def round_of(address: str, data: bytes, requests: int, at_a_time: int = 32) -> float:
    """Return the processor time of one request in microseconds."""
    host, port = address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    many, answered = data * at_a_time, 0
    began = time.thread_time_ns()
    for _ in range(requests // at_a_time):
        writer.write(many)
        answered = 0
        while answered < at_a_time:
            length = int.from_bytes(await reader.readexactly(4), "big")
            if b'"code":16,' in await reader.readexactly(length):
                raise SystemExit("a request was denied, so its cost means nothing")
            answered += 1
    took = time.thread_time_ns() - began
    writer.close()
    return took / 1000 / (requests // at_a_time * at_a_time)


def prepare(controller: BrokerController) -> None:
    """Make the user and its permissions."""
    users, acls = controller.access.users, controller.access.acls
    users.change(users.creation(_user()))
    acls.change(acls.update(_acl(), users))


def _user() -> User:
    return User(USER.access_key, USER.secret_key)


def _acl() -> Acl:

    return acl_of({"subject": "User:ann", "policies": [{"entries": [
        {"resource": "Topic:ord*", "actions": ["Pub", "Sub"], "decision": "Allow"},
        {"resource": "Group:stock", "actions": ["Sub"], "decision": "Allow"}]}]})


def hash_only(controller: BrokerController, ext: dict[str, str]) -> None:
    """Have a broker hash as many bytes as a check of the signature of requests with these fields, and no more."""
    key = Signer(USER.secret_key).key
    content = bytes(sum(map(len, ext.values())) + len(USER.access_key))

    def check(_: Channel, request: RemotingCommand) -> None:
        signatures.digest(key, content, request.body)

    for server in controller.servers:
        server.check = check


async def calls_of(controller: BrokerController, data: bytes, requests: int) -> float:
    """Return the Python calls of one request in the event loop, those of this program included."""
    count = 0

    def count_calls(_: object, event: str, __: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    sys.setprofile(count_calls)
    try:
        await round_of(controller.broker_address, data, requests)
    finally:
        sys.setprofile(None)
    return count / requests


async def measure(requests: int) -> None:
    """Print a JSON line for each kind of request."""
    paths = {kind: tempfile.mkdtemp() for kind in ("open", "floor", "access")}
    stores = {kind: MessageStore.open(path, config=StoreConfig()) for kind, path in paths.items()}
    config = AuthConfig(
        authentication_enabled=True, authorization_enabled=True,
        init_authentication_user='{"username":"root","password":"x"}')
    brokers = {
        "open": BrokerController(stores["open"], BrokerConfig()),
        "floor": BrokerController(stores["floor"], BrokerConfig()),
        "access": BrokerController(stores["access"], BrokerConfig(), auth_config=config)}
    for kind, controller in brokers.items():
        stores[kind].topics.create_if_missing("orders", 4)  # the user may not create it
        await controller.start(("127.0.0.1", 0), None)
    prepare(brokers["access"])
    for name, (code, ext, body) in KINDS.items():
        data = {kind: frame(code, ext, body, signed=kind != "open") for kind in brokers}
        hash_only(brokers["floor"], ext)
        calls = {kind: await calls_of(controller, data[kind], 640) for kind, controller in brokers.items()}
        for at_a_time in (1, 32):
            took: dict[str, list[float]] = {kind: [] for kind in brokers}
            for _ in range(ROUNDS):
                for kind, controller in brokers.items():
                    took[kind].append(await round_of(controller.broker_address, data[kind], requests, at_a_time))
            least = {kind: min(found) for kind, found in took.items()}
            print(json.dumps({
                "request": name, "at_a_time": at_a_time, "open_us": round(least["open"], 1),
                "floor_us": round(least["floor"], 1), "access_us": round(least["access"], 1),
                "floor_rate": round(least["open"] / least["floor"], 3),
                "rate": round(least["open"] / least["access"], 3),
                "open_calls": round(calls["open"], 1), "access_calls": round(calls["access"], 1)}), flush=True)
    for controller in brokers.values():
        await controller.stop()
    for kind, store in stores.items():
        store.close()
        shutil.rmtree(paths[kind])


if __name__ == "__main__":
    asyncio.run(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000))
