"""Messages that delete a timer before it is delivered (recall)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from tailrace.formats.commitlog import decode_message
from tailrace.formats.names import (
    REAL_TOPIC,
    TIMER_DEL_UNIQKEY,
    TIMER_DELIVER_MS,
    TIMER_TOPIC,
    UNIQ_KEY,
)
from tailrace.formats.recall_handle import RecallHandle
from tailrace.kernels.properties import encode_properties
from tailrace.model import MessageExtBrokerInner
from tailrace.timer.properties import delete_keys

__all__ = ["RECALLED", "recall_messages", "was_recalled"]

_TAG: Final = "_RECALL_TAG_"
RECALLED: Final = "the message was recalled already"


def recall_messages(
    handle: RecallHandle, born_ms: int, born_host: bytes, producer_group: str = "", *,
    append_topic: bool,
) -> list[MessageExtBrokerInner]:
    """Return the messages that delete a timer: one for each form that a broker may look for.

    With ``append_topic`` (appendTopicForTimerDeleteKey) only the form ``topic+key`` is made. On a Java broker this form
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


def was_recalled(handle: RecallHandle, records: Callable[[str, str], Iterable[bytes]]) -> bool:
    """Return True if the log has a message that deletes this timer.

    ``records`` returns stored records by topic and key, from the index. Without an index nothing is found.
    """
    return any(
        TIMER_DEL_UNIQKEY in properties and properties.get(REAL_TOPIC) == handle.topic
        for properties in (decode_message(data).properties for data in records(TIMER_TOPIC, handle.unique_key)))
