"""Messages that delete a timer before it is delivered (recall)."""

from __future__ import annotations

from typing import Final

from tailrace.formats.recall_handle import RecallHandle
from tailrace.kernels.properties import encode_properties
from tailrace.model import MessageExtBrokerInner
from tailrace.timer.properties import TIMER_DEL_UNIQKEY, TIMER_DELIVER_MS, UNIQ_KEY, delete_keys

__all__ = ["recall_messages"]

_TAG: Final = "_RECALL_TAG_"


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
