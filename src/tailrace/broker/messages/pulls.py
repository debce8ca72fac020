"""A pull, and what it gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tailrace.formats.remoting import ResponseCode
from tailrace.formats.requests.message_headers import PullMessageRequestHeader
from tailrace.model import GetMessageResult
from tailrace.requests.caller import Caller

__all__ = ["Pull", "Pulled"]


@dataclass(slots=True, eq=False)
class Pull:
    """A pull, and what is known from its earlier runs."""

    header: PullMessageRequestHeader
    """As it came."""
    caller: Caller
    offset: int
    """First offset that it reads, a logical one of a static topic: its own, or one past messages that are excluded."""
    begun_ns: int
    """Time at which this run began, of the monotonic clock."""
    has_waited: bool = False
    """True if it has waited for a message, so that it is answered now."""
    cold: GetMessageResult | None = None
    """The messages that a thread has read for it from the disk."""


class Pulled(NamedTuple):
    """What a pull gets: messages, or the offset from which to pull next."""

    code: ResponseCode
    remark: str | None
    """Name of the result of the read (GetMessageStatus)."""
    place: tuple[int, ...]
    """The next offset to pull, the least and the next offset of the queue; of a logical queue see `Place`."""
    topic_sys_flag: int | None
    group_sys_flag: int | None
    """Both are None if another broker has answered that does not know them."""
    suggested: int = 0
    """Id of the broker from which to pull next."""
    body: bytes = b""
    """The records."""
