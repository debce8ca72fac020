"""The handle with which a producer recalls a timer message.

It has RocketMQ's form (RecallMessageHandle): base64 of ``v1 TOPIC BROKER TIMESTAMP KEY``. The timestamp is one
millisecond after the slot time, so that rounding down gives the same slot.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final, NamedTuple

from tailrace.errors import MessageIllegalError

__all__ = ["RecallHandle", "build_handle", "parse_handle"]

_VERSION: Final = "v1"


class RecallHandle(NamedTuple):
    """Content of a handle."""

    topic: str
    broker_name: str
    timestamp_ms: int
    unique_key: str


def build_handle(topic: str, broker_name: str, out_ms: int, unique_key: str) -> str:
    """Return the handle of a timer with slot time ``out_ms``."""
    text = f"{_VERSION} {topic} {broker_name} {out_ms + 1} {unique_key}"
    return base64.urlsafe_b64encode(text.encode()).decode()


def parse_handle(handle: Any) -> RecallHandle:
    """Return the content of a handle. Raises MessageIllegalError."""
    if not isinstance(handle, str) or not handle:
        raise MessageIllegalError(
            "recallHandle", f"is {handle!r}; give the recall_handle of the result, which messages with deliver_at or "
            "delay have")
    try:
        text = base64.b64decode(handle.encode(), altchars=b"-_", validate=True).decode()
        version, topic, broker_name, timestamp, unique_key, *_ = text.split(" ")
        if version != _VERSION:
            raise ValueError(version)
        return RecallHandle(topic, broker_name, int(timestamp), unique_key)
    except (binascii.Error, ValueError) as error:
        raise MessageIllegalError("recallHandle", f"is invalid: {error}") from None
