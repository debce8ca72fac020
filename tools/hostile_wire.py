"""What the hostile runs and their victims send: raw frames, signatures, users, and connections from two addresses.

Attackers connect from ATTACKER and victims from 127.0.0.1, so that a bound for each address can tell them apart.
"""

import asyncio
import base64
import dataclasses
import hashlib
import hmac
import json
import socket
import struct
import threading
import time

ATTACKER = "127.0.0.66"
USERS = {
    "root": "Wq7-long-and-random-root", "mallory": "Mal-long-and-random-mall",
    "guest": "Gst-long-and-random-gues", "victim": "Vic-long-and-random-vict"}
"""root is the super user, guest has no permission, and the others have those of PERMISSIONS."""
PERMISSIONS = {
    "mallory": {"Topic:own*": ["Pub", "Sub", "Get", "Create"], "Group:mine*": ["Sub", "Get"]},
    "victim": {"Topic:secret*": ["Pub", "Sub", "Get"], "Group:vgroup*": ["Sub", "Get"]}}
TOPIC = {"defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
         "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
JAVA_5 = 479


@dataclasses.dataclass(frozen=True)
class Target:
    """A server under attack; the addresses are HOST, PORT, or None without that listener."""

    broker: tuple
    namesrv: tuple
    http: tuple
    grpc: tuple | None
    seconds: float
    """Time an attack may take."""
    count: int
    """Number of its requests, connections or streams."""
    seed: int
    directory: str

    def until(self):
        return time.monotonic() + self.seconds

    def hold(self):
        """Keep what is open until the time is over."""
        time.sleep(self.seconds)


def signed(fields, body=b"", user=None, *, password=None):
    """Return the fields with the signature of a user; without a user as they are."""
    made = {name: str(value) for name, value in fields.items()}
    if user is None:
        return made
    made["AccessKey"] = user
    content = "".join(made[name] for name in sorted(made)).encode() + body
    key = (USERS[user] if password is None else password).encode()
    made["Signature"] = base64.b64encode(hmac.digest(key, content, "sha1")).decode()
    return made


def frame(code, fields, body=b"", opaque=1, flag=0):
    header = json.dumps({
        "code": code, "language": "JAVA", "version": JAVA_5, "opaque": opaque, "flag": flag, "extFields": fields,
        "serializeTypeCurrentRPC": "JSON"}).encode()
    return struct.pack(">iI", 4 + len(header) + len(body), len(header)) + header + body


def connect(address, timeout=20.0, source=None):
    made = socket.create_connection(address, timeout, source_address=(source, 0) if source else None)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


class Connection:
    """A connection that sends requests as a user, or without one, and waits for each answer."""

    def __init__(self, address, user=None, *, source=None, timeout=20.0):
        self.socket = connect(address, timeout, source)
        self.user, self.opaque = user, 0

    def ask(self, code, fields, body=b"", *, password=None):
        """Return the header and the body of the answer; raises OSError if the server closes the connection."""
        self.opaque += 1
        self.socket.sendall(frame(
            code, signed(fields, body, self.user, password=password), body, self.opaque))
        while True:
            header, answered = self.receive()
            if header["opaque"] == self.opaque and header.get("flag", 0) & 1:
                return header, answered

    def ask_together(self, code, requests):
        """Send requests in one write, and return the codes of the answers."""
        self.socket.sendall(b"".join(frame(code, fields, opaque=n) for n, fields in enumerate(requests)))
        return [self.receive()[0]["code"] for _ in requests]

    def receive(self):
        length, = struct.unpack(">i", self._exactly(4))
        data = self._exactly(length)
        end = 4 + (struct.unpack(">I", data[:4])[0] & 0xFFFFFF)
        return json.loads(data[4:end]), data[end:]

    def _exactly(self, count):
        parts = bytearray()
        while len(parts) < count:
            more = self.socket.recv(min(1 << 20, count - len(parts)))
            if not more:
                raise ConnectionError("closed by the server")
            parts += more
        return bytes(parts)

    def close(self):
        self.socket.close()


def send_fields(topic, properties="", *, sys_flag=0, queue=0):
    """Fields of SEND_MESSAGE_V2."""
    return {"a": "pg", "b": topic, "c": "TBW102", "d": 4, "e": queue, "f": sys_flag, "g": int(time.time() * 1000),
            "h": 0, "i": properties, "j": 0, "k": "false", "l": 16, "m": "false"}


def pull_fields(group, topic, subscription="*", kind="TAG", *, queue=0):
    return {"consumerGroup": group, "topic": topic, "queueId": queue, "queueOffset": 0, "maxMsgNums": 32,
            "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": subscription,
            "subVersion": int(time.time() * 1000), "expressionType": kind}


def grpc_metadata(user, client_id):
    """Return what a RocketMQ 5 client sends with each call to prove its user."""
    date = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    mac = hmac.new(USERS[user].encode(), date.encode(), hashlib.sha1).hexdigest().upper()
    return (
        ("authorization", f"MQv2-HMAC-SHA1 Credential={user}, SignedHeaders=x-mq-date-time, Signature={mac}"),
        ("x-mq-date-time", date), ("x-mq-client-id", client_id), ("x-mq-language", "PYTHON"),
        ("x-mq-client-version", "5.1.2"), ("x-mq-protocol", "v2"))


def make_users(broker):
    """Create the users, their permissions and two topics."""
    root = Connection(broker, "root")

    def do(code, fields, value=None):
        header, _ = root.ask(code, fields, b"" if value is None else json.dumps(value).encode())
        if header["code"]:
            raise RuntimeError(f"request {code}: {header}")

    for name in ("mallory", "guest", "victim"):
        do(3001, {"username": name}, {"username": name, "password": USERS[name], "userType": "Normal"})
    for name, entries in PERMISSIONS.items():
        for resource, actions in entries.items():
            policy = {"policyType": "Custom", "entries": [
                {"resource": resource, "actions": actions, "sourceIps": [], "decision": "Allow"}]}
            do(3006, {"subject": f"User:{name}"}, {"subject": f"User:{name}", "policies": [policy]})
    for topic in ("own", "secret"):
        do(17, {**TOPIC, "topic": topic})
    for group in ("mine", "vgroup"):
        do(200, {}, {"groupName": group})
    root.close()


class Forwarder:
    """A port of this process whose connections reach the server from ATTACKER, for clients that cannot bind one."""

    def __init__(self, address):
        self._address, self.port = address, 0
        self._loop = asyncio.new_event_loop()
        started = threading.Event()
        threading.Thread(target=self._run, args=(started,), daemon=True).start()
        started.wait(10)

    def _run(self, started):
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        started.set()
        self._loop.run_forever()

    async def _serve(self, reader, writer):
        try:
            to_server = await asyncio.open_connection(*self._address, local_addr=(ATTACKER, 0))
        except OSError:
            writer.close()
            return
        await asyncio.gather(_copy(reader, to_server[1]), _copy(to_server[0], writer))


async def _copy(reader, writer):
    try:
        while data := await reader.read(1 << 18):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()
