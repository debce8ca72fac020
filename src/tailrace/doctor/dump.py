"""Show a directory as JSON objects: the store, its queues, their messages."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection, Iterator
from typing import Any

from tailrace.doctor.timers import pending_timers
from tailrace.env.clock import SystemClock
from tailrace.errors import CorruptionError
from tailrace.formats.commitlog import decode_message
from tailrace.formats.filenames import CHECKPOINT
from tailrace.formats.indexfile import INDEX_HEADER
from tailrace.model import MessageExt
from tailrace.spellings import camel
from tailrace.store.directory import StoreDirectory
from tailrace.store.store_checkpoint import read_checkpoint
from tailrace.store.walk.scan import has_unit

__all__ = ["KINDS", "body_of", "dump", "message_line", "query"]

KINDS = ("store", "queues", "messages", "timers", "checkpoint", "index")
"""Kinds of objects that can be shown; by default the first three are shown."""


def _host(host: tuple[str, int]) -> str:
    """Return a host as Java's InetSocketAddress prints it."""
    ip, port = host
    return f"/[{_full_ipv6(ip)}]:{port}" if ":" in ip else f"/{ip}:{port}"


def _full_ipv6(ip: str) -> str:
    import ipaddress  # noqa: PLC0415 - IPv6 hosts are rare

    packed = ipaddress.IPv6Address(ip).packed
    return ":".join(f"{packed[i] << 8 | packed[i + 1]:x}" for i in range(0, 16, 2))


def message_line(
    message: MessageExt, topic: str, queue_id: int, queue_offset: int, size: int, tags_code: int,
    *, body: bool = False,
) -> dict[str, Any]:
    """Return a message as a JSON object, with the fields and the order of RocketMQ's output."""
    line: dict[str, Any] = {
        "topic": topic,
        "queueId": queue_id,
        "queueOffset": queue_offset,
        "physicalOffset": message.phy_offset,
        "size": size,
        "tagsCode": tags_code,
        "storedTopic": message.topic,
        "storedQueueOffset": message.queue_offset,
        "sysFlag": message.sys_flag,
        "flag": message.flag,
        "bodyCrc": message.body_crc,
        "bornTimestamp": message.born_timestamp,
        "storeTimestamp": message.store_timestamp,
        "bornHost": _host(message.born_host),
        "storeHost": _host(message.store_host),
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "bodySize": len(message.body),
        "bodySha256": hashlib.sha256(message.body).hexdigest(),
        "msgId": message.msg_id,
        "properties": dict(sorted(message.properties.items())),
    }
    if body:
        line |= body_of(message.body)
    return {"message": line}


def body_of(body: bytes) -> dict[str, str]:
    """Return a body as a member of JSON: text as ``body``, other bytes as ``bodyBase64``."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"bodyBase64": base64.b64encode(body).decode()}


def dump(
    directory: StoreDirectory, *, only: Collection[str] = KINDS, topic: str = "", body: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield the lines of ``tailrace dump``. Records that cannot be served become ``damaged`` lines."""
    told: set[int] = set()
    if "store" in only:
        yield {"store": {
            "minPhyOffset": directory.min_phy_offset if directory.log_files else -1,
            "maxPhyOffset": directory.max_phy_offset,
        }}
    if "checkpoint" in only and only is not KINDS:
        fields = read_checkpoint(directory.file_system, f"{directory.path}/{CHECKPOINT}")
        yield {"checkpoint": {camel(name): value for name, value in fields._asdict().items()}}
    if "index" in only and only is not KINDS:
        for file in directory.index_files():
            header = file.read(0, INDEX_HEADER.size)
            if len(header) == INDEX_HEADER.size:
                yield {"index": {
                    "file": file.path.rpartition("/")[2], "size": file.size,
                    **{camel(name): one for name, one in INDEX_HEADER.unpack_from(header)._asdict().items()}}}
    if "timers" in only and only is not KINDS:
        now_ms = SystemClock().now_ms()
        for timer in pending_timers(directory):
            if not topic or timer.topic == topic:
                yield timer.line(now_ms)
    for queue in directory.queues():
        if topic and queue.topic != topic:
            continue
        if "queues" in only:
            yield {"queue": {
                "topic": queue.topic, "queueId": queue.queue_id, "min": queue.min_offset,
                "max": queue.max_offset,
            }}
        if "messages" not in only:
            continue
        for offset, unit, data in directory.records(queue):
            try:
                if data is None:
                    raise CorruptionError("the record is gone")
                if not unit.tags_code and not has_unit(data, unit.phy_offset):
                    raise CorruptionError("the record is damaged")
                message = decode_message(data)
            except CorruptionError as error:
                told.add(unit.phy_offset)
                yield {"damaged": {
                    "topic": queue.topic, "queueId": queue.queue_id, "queueOffset": offset,
                    "physicalOffset": unit.phy_offset, "size": unit.size, "reason": error.what,
                }}
                continue
            yield message_line(
                message, queue.topic, queue.queue_id, offset, unit.size, unit.tags_code, body=body)
    for damage in directory.damaged if "messages" in only else ():
        if damage.phy_offset in told:
            continue
        yield {"damaged": {
            "topic": None, "queueId": None, "queueOffset": None,
            "physicalOffset": damage.phy_offset, "size": damage.size, "reason": damage.reason,
        }}


def query(
    directory: StoreDirectory, topic: str, key: str, *, body: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield the lines of all messages of a topic with this key or unique key."""
    from tailrace.formats.commitlog import tags_code  # noqa: PLC0415 - one name more than dump needs

    for phy_offset in directory.query(topic, key):
        head = directory.read(phy_offset, 4)
        size = int.from_bytes(head, "big", signed=True)
        data = directory.read(phy_offset, size) if size > 0 else b""
        try:
            message = decode_message(data)
        except CorruptionError:
            continue
        if message.topic != topic or message.phy_offset != phy_offset:
            continue
        if phy_offset + size > directory.max_phy_offset:
            continue
        if message.queue_offset < directory.purged.get((topic, message.queue_id), 0):
            continue
        if key in message.keys or key == message.unique_key:
            yield message_line(
                message, topic, message.queue_id, message.queue_offset, size,
                tags_code(message.tags), body=body)
