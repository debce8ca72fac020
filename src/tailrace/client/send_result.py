"""The result of a send."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SendResult"]


@dataclass(slots=True)
class SendResult:
    """The place of a message, or of the first one of a batch.

    ``status`` is SEND_OK, FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT or SLAVE_NOT_AVAILABLE: in all
    four the message is stored. ``msg_id`` is its unique key, ``offset_msg_id`` the broker's id.
    """

    status: str
    broker_name: str
    queue_id: int
    queue_offset: int
    msg_id: str
    offset_msg_id: str
    recall_handle: str = ""
    """Argument of `recall` for a timer message; empty for other messages."""
    region: str = ""
    """Region of the broker; empty if the broker has message traces off."""
