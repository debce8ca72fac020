"""Taking a timer back: the handle that a producer gets, and the message that deletes.

The handle is the reference's (RecallMessageHandle): base64 of ``v1 TOPIC BROKER TIMESTAMP KEY``, the
timestamp one millisecond above the slot time, so that it is rounded down into the same slot.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final, NamedTuple

from tailrace.errors import MessageIllegalError
from tailrace.kernels.properties import encode_properties
from tailrace.model import MessageExtBrokerInner
from tailrace.timer.properties import TIMER_DEL_UNIQKEY, TIMER_DELIVER_MS, UNIQ_KEY, delete_keys

__all__ = ["RecallHandle", "build_handle", "parse_handle", "recall_messages"]

_VERSION: Final = "v1"
_TAG: Final = "_RECALL_TAG_"


class RecallHandle(NamedTuple):
    """What a handle says."""

    topic: str
    broker_name: str
    timestamp_ms: int
    unique_key: str


def build_handle(topic: str, broker_name: str, out_ms: int, unique_key: str) -> str:
    """The handle of a timer with this slot time."""
    text = " ".join((_VERSION, topic, broker_name, str(out_ms + 1), unique_key))
    return base64.urlsafe_b64encode(text.encode()).decode()


def parse_handle(handle: str) -> RecallHandle:
    """What a handle says; raises MessageIllegalError."""
    try:
        text = base64.b64decode(handle.encode(), altchars=b"-_", validate=True).decode()
        version, topic, broker_name, timestamp, unique_key, *_ = text.split(" ")
        if version != _VERSION:
            raise ValueError(version)
        return RecallHandle(topic, broker_name, int(timestamp), unique_key)
    except (binascii.Error, ValueError) as error:
        raise MessageIllegalError("recallHandle", f"is invalid: {error}") from None


def recall_messages(
    handle: RecallHandle, born_ms: int, born_host: bytes, producer_group: str = "", *,
    append_topic: bool,
) -> list[MessageExtBrokerInner]:
    """Return the messages that delete a timer: one for each form that a broker may look for.

    With ``append_topic`` (appendTopicForTimerDeleteKey) only ``topic+key``, which at a Java broker
    cannot delete a timer of another topic.
    """
    made = []
    for key in delete_keys(handle.topic, handle.unique_key, append_topic=append_topic):
        properties = {
            "TAGS": _TAG, TIMER_DEL_UNIQKEY: key, UNIQ_KEY: handle.unique_key,
            TIMER_DELIVER_MS: str(handle.timestamp_ms), "BORN_TIMESTAMP": str(born_ms),
        }
        if producer_group:
            properties["PGROUP"] = producer_group
        made.append(MessageExtBrokerInner(
            handle.topic, 0, b"0", encode_properties(properties), born_timestamp=born_ms,
            born_host=born_host, wait_store_msg_ok=False))
    return made
