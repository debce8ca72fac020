"""A client of few instructions for `broker_requests.py`: the same frames for both brokers.

Pops and acknowledgements have JSON headers, because their codes do not fit into a binary one. Pulls and
sends have binary headers.
"""

from __future__ import annotations

import base64
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

import orjson

from tailrace.formats.remoting import RemotingCommand, SerializeType, encode

POP, ACK, BATCH_ACK, PULL, SEND, END = 200050, 200051, 200151, 11, 310, 37
FOUND, PULL_AGAIN = 0, 20
BROKER_NAME = "broker-a"
POPPED = 32
EXPRESSION = "a >= 99 AND b = 'x'"
"""Keeps one of 100 messages: those whose number ends in 99."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def properties_of(number: int) -> dict[str, str]:
    """The properties of a message of the backlog, besides its key and tag."""
    return {"a": str(number % 100), "b": "x", "region": "north-1"}


class Connection:
    """One connection; answers come in the order in which they arrive."""

    def __init__(self, broker: str) -> None:
        host, port = broker.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), 60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._data = b""

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def answers(self, count: int) -> list[bytes]:
        """Wait for that many frames, each without its length."""
        found: list[bytes] = []
        data = self._data
        while True:
            at = 0
            while len(found) < count and len(data) - at >= 4:
                size = int.from_bytes(data[at : at + 4], "big")
                if len(data) - at < 4 + size:
                    break
                found.append(data[at + 4 : at + 4 + size])
                at += 4 + size
            self._data = data = data[at:]
            if len(found) == count:
                return found
            more = self._socket.recv(1 << 20)
            if not more:
                raise SystemExit("the broker closed the connection")
            data += more

    def close(self) -> None:
        self._socket.close()


def json_frame(code: int, fields: dict[str, str], body: bytes = b"", opaque: int = 0) -> bytes:
    """Return a request as a Java client sends it."""
    header = orjson.dumps({
        "code": code, "extFields": fields, "flag": 0, "language": "JAVA", "opaque": opaque,
        "serializeTypeCurrentRPC": "JSON", "version": 493})
    return struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body


def header_of(frame: bytes) -> dict[str, Any]:
    """The header of an answer in JSON."""
    size = int.from_bytes(frame[:4], "big") & 0xFFFFFF
    found: dict[str, Any] = orjson.loads(frame[4 : 4 + size])
    return found


class Popped:
    """What the header of an answer to a pop says: parts of a queue and the offsets in them."""

    def __init__(self, header: dict[str, Any]) -> None:
        fields = header["extFields"]
        self.pop_time, self.invisible = fields["popTime"], fields["invisibleTime"]
        self.revive_queue = fields["reviveQid"]
        self.parts: list[tuple[str, str, str, list[int]]] = []
        """Retry flag, queue, start offset and queue offsets of each part."""
        starts = [one.split(" ") for one in fields["startOffsetInfo"].split(";")]
        offsets = [one.split(" ") for one in fields["msgOffsetInfo"].split(";")]
        for (flag, queue, start), (_, _, places) in zip(starts, offsets, strict=True):
            self.parts.append((flag, queue, start, [int(place) for place in places.split(",")]))
        self.count = sum(len(places) for *_, places in self.parts)
        self.came_back = sum(len(places) for flag, _, _, places in self.parts if flag != "0")


class PopConsumer:
    """Pops all messages of a group, and acknowledges them."""

    def __init__(self, broker: str, topic: str, group: str, invisible_ms: int, *, single: bool) -> None:
        self.connection = Connection(broker)
        self._topic, self._group, self._invisible_ms = topic, group, invisible_ms
        self._single = single
        self.count = self.came_back = 0

    def pop(self, most: int = POPPED) -> Popped | None:
        """Return what was popped, None when nothing is there."""
        self.connection.send(json_frame(POP, {
            "consumerGroup": self._group, "topic": self._topic, "queueId": "-1", "maxMsgNums": str(most),
            "invisibleTime": str(self._invisible_ms), "pollTime": "0", "bornTime": str(now_ms()),
            "initMode": "0", "exp": "*", "expType": "TAG", "order": "false"}))
        header = header_of(self.connection.answers(1)[0])
        if header["code"] == FOUND:
            return Popped(header)
        if header["code"] not in {209, 210}:  # nothing found; no room to wait
            raise SystemExit(f"pop: {header}")
        return None

    def cycle(self) -> bool:
        """Pop and acknowledge once; False if nothing was there."""
        popped = self.pop()
        if popped is None:
            return False
        frames = self._acks(popped) if self._single else [self._batch(popped)]
        self.connection.send(b"".join(frames))
        for frame in self.connection.answers(len(frames)):
            if b'"code":0,' not in frame:
                raise SystemExit(f"acknowledgement: {frame[:300]!r}")
        self.count += popped.count
        self.came_back += popped.came_back
        return True

    def _acks(self, popped: Popped) -> list[bytes]:
        return [
            json_frame(ACK, {
                "consumerGroup": self._group, "topic": self._topic, "queueId": queue, "offset": str(offset),
                "extraInfo": f"{start} {popped.pop_time} {popped.invisible} {popped.revive_queue} {flag} "
                             f"{BROKER_NAME} {queue} {offset}"}, opaque=number)
            for flag, queue, start, offsets in popped.parts for number, offset in enumerate(offsets)]

    def _batch(self, popped: Popped) -> bytes:
        acks = []
        for flag, queue, start, offsets in popped.parts:
            bits = 0
            for offset in offsets:
                bits |= 1 << offset - int(start)
            acks.append({
                "b": base64.b64encode(bits.to_bytes(bits.bit_length() + 7 >> 3, "little")).decode(),
                "c": self._group, "it": int(popped.invisible), "pt": int(popped.pop_time), "q": int(queue),
                "r": flag, "rq": int(popped.revive_queue), "so": int(start), "t": self._topic})
        return json_frame(BATCH_ACK, {}, orjson.dumps({"acks": acks, "brokerName": BROKER_NAME}))


def pull_matching(broker: str, topic: str, group: str, queue_id: int, until: int) -> tuple[int, int]:
    """Pull one queue with the expression, up to an offset; messages and requests."""
    connection, at, messages, requests = Connection(broker), 0, 0, 0
    while at < until:
        requests += 1
        connection.send(encode(RemotingCommand(PULL, {
            "consumerGroup": group, "topic": topic, "queueId": str(queue_id), "queueOffset": str(at),
            "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
            "subscription": EXPRESSION, "subVersion": "0", "expressionType": "SQL92",
        }, opaque=requests)))
        frame = connection.answers(1)[0]
        header = header_of(frame)
        if header["code"] == FOUND:
            messages += frame.count(b"\x02b\x01x\x02") or frame.count(b"b\x01x\x02")
        elif header["code"] != PULL_AGAIN:
            raise SystemExit(f"pull: {header}")
        at = int(header["extFields"]["nextBeginOffset"])
    connection.close()
    return messages, requests


def half_frame(topic: str, number: int, body: int) -> bytes:
    """A send of a half message."""
    return encode(RemotingCommand(SEND, {
        "a": "bench", "b": topic, "c": "TBW102", "d": "8", "e": str(number % 8), "f": "4",
        "g": str(now_ms()), "h": "0", "j": "0", "k": "false",
        "i": f"UNIQ_KEY\x01{os.getpid():08X}{number:024X}\x02TRAN_MSG\x01true\x02PGROUP\x01bench\x02",
    }, bytes(body), opaque=number, serialize_type=SerializeType.ROCKETMQ))


def send_half(connection: Connection, topic: str, count: int, body: int) -> tuple[int, int]:
    """Send half messages; where the first one is: queue offset and position in the log."""
    first: tuple[int, int] | None = None
    for start in range(0, count, 100):
        numbers = range(start, min(start + 100, count))
        connection.send(b"".join(half_frame(topic, number, body) for number in numbers))
        for frame in connection.answers(len(numbers)):
            if frame[4:6] != b"\0\0":
                raise SystemExit(f"half message: {frame[:300]!r}")
            if first is None:
                at = frame.index(b"msgId") + 5
                msg_id = frame[at + 4 : at + 36]
                at = frame.index(b"queueOffset") + 11
                size = int.from_bytes(frame[at : at + 4], "big")
                first = int(frame[at + 4 : at + 4 + size]), int(msg_id[16:], 16)
    assert first is not None
    return first


def commit_half(connection: Connection, queue_offset: int, phy_offset: int) -> int:
    """Commit a half message; the code of the answer."""
    connection.send(json_frame(END, {
        "producerGroup": "bench", "tranStateTableOffset": str(queue_offset),
        "commitLogOffset": str(phy_offset), "commitOrRollback": "8", "fromTransactionCheck": "true",
        "msgId": f"{os.getpid():08X}{0:024X}", "transactionId": f"{os.getpid():08X}{0:024X}"}))
    return int(header_of(connection.answers(1)[0])["code"])


def in_threads(works: list[Callable[[], None]]) -> None:
    """Run functions side by side; an error of one ends the program."""
    errors: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
