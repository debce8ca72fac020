"""What pages show of a running broker."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from datetime import datetime
from typing import Final

from tailrace.broker.context import BrokerContext
from tailrace.errors import CorruptionError
from tailrace.formats.commitlog import SysFlag, decompress_body
from tailrace.model import MessageExt
from tailrace.spellings import time_ms

__all__ = ["BODY_MAX", "Place", "body_text", "find_messages", "group_rows", "local_time", "whole_number"]

BODY_MAX: Final = 2_000
"""Characters of a body that a page shows."""
_DECOMPRESSED_MAX: Final = 1 << 20
MESSAGES_MAX: Final = 50
Place = dict[str, str]
"""The fields of the form that looks for messages."""


def local_time(ms: int) -> str:
    """Return a time in this machine's zone, "-" for none."""
    try:
        return datetime.fromtimestamp(ms / 1000).astimezone().isoformat(" ", "milliseconds") if ms > 0 else "-"
    except (OverflowError, ValueError, OSError):
        return str(ms)


def whole_number(asked: Place, name: str) -> int:
    """Return a field as a number. Raises ValueError that names the field."""
    try:
        return int(asked[name])
    except ValueError:
        raise ValueError(f"{name} is {asked[name]!r}, not a whole number") from None


def body_text(message: MessageExt) -> str:
    """Return the beginning of a body as text, or its bytes in hexadecimal if it is not UTF-8."""
    body = message.body
    if message.sys_flag & SysFlag.COMPRESSED:
        try:
            body = decompress_body(body, message.sys_flag, _DECOMPRESSED_MAX)
        except CorruptionError as error:
            return f"{len(body)} compressed bytes: {error}"
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = body[: BODY_MAX // 2].hex(" ")
    return text if len(text) <= BODY_MAX else f"{text[:BODY_MAX]}… ({len(body)} bytes)"


def find_messages(broker: BrokerContext, asked: Place) -> list[MessageExt]:
    """Return messages of a topic: by key, or of a queue from an offset or a time on. Raises ValueError."""
    store, topic = broker.store, asked["topic"]
    if asked.get("key"):
        return list(store.query_message(topic, asked["key"], MESSAGES_MAX))
    queues = [whole_number(asked, "queue")] if asked.get("queue") else sorted(
        {q for name, q, _, _ in store.queues() if name == topic})
    found: list[MessageExt] = []
    for queue_id in queues:
        low, high = store.min_offset_in_queue(topic, queue_id), store.max_offset_in_queue(topic, queue_id)
        if asked.get("offset"):
            at = whole_number(asked, "offset")
        elif asked.get("time"):
            at = store.get_offset_in_queue_by_time(topic, queue_id, time_ms(asked["time"], "time"))
        else:
            at = high - MESSAGES_MAX
        found += itertools.islice(store.read(topic, queue_id, max(at, low), max_count=MESSAGES_MAX), MESSAGES_MAX)
    by_time = sorted(found, key=lambda message: message.store_timestamp)
    forward = bool(asked.get("offset") or asked.get("time"))
    return by_time[:MESSAGES_MAX] if forward else by_time[-MESSAGES_MAX:]


def group_rows(broker: BrokerContext, names: Iterable[str]) -> list[tuple[str, str, int, int, int, int]]:
    """Return group, topic, queue, committed offset, end and lag of each queue that groups have consumed."""
    wanted = set(names)
    return sorted(
        (group, topic, queue_id, offset, end, max(end - max(offset, low), 0))
        for topic, group, queue_id, offset in broker.offsets.entries() if group in wanted
        for low, end in ((
            broker.store.min_offset_in_queue(topic, queue_id),
            max(broker.store.max_offset_in_queue(topic, queue_id), 0)),))
