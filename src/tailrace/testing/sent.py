"""The messages of a simulated run, and what is known of each."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

__all__ = ["MAY_BE_THERE", "Sent", "State", "ViolationError"]


class ViolationError(AssertionError):
    """The store broke a promise."""


class State(enum.Enum):
    """State of a message in the model."""

    UNKNOWN = "a crash or an error came between: it may be there or not"
    REFUSED = "the store refused it: it must never be there"
    APPENDED = "put: only a power loss may take it"
    DURABLE = "durable: nothing may take it"
    LOST = "an open did not find it: it must never reappear"
    EXPIRED = "retention has deleted it"
    DELETED = "its topic was deleted"


MAY_BE_THERE: Final = (State.UNKNOWN, State.APPENDED, State.DURABLE)


@dataclass(slots=True)
class Sent:
    """A message, and the place that the store returned for it. ``due_ms`` is 0 unless it is a timer."""

    number: int
    topic: str
    queue_id: int
    body: bytes
    due_ms: int = 0
    state: State = State.UNKNOWN
    phy_offset: int = -1
    queue_offset: int = -1
