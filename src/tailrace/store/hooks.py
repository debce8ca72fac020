"""Interfaces through which the store calls rooms above it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

__all__ = ["Follower", "MessageArrivingListener", "PropertyFilter"]


class MessageArrivingListener(Protocol):
    """Called by the dispatch thread after new messages can be read."""

    def arriving(
        self, topic: str, queue_id: int, next_offset: int, tags_codes: Sequence[int], size: int
    ) -> None:
        """Handle new messages of a queue, which now ends at ``next_offset``.

        ``tags_codes`` has one code for each new record; ``size`` is their length in the CommitLog in bytes.
        """
        ...


class Follower(Protocol):
    """Knows the topics of a slave's master. Called by the dispatch thread."""

    def may_create(self, topic: str) -> None:
        """Return if a queue of a topic may be made. Raises DispatchWaitsError if that is not known yet."""
        ...

    def begins_again(self, topic: str, queue_id: int, phy_offset: int) -> None:
        """Have a queue removed that begins again at a position of the log. Raises DispatchWaitsError."""
        ...


class PropertyFilter(Protocol):
    """Selects messages by their properties. Called by any thread that reads a queue."""

    @property
    def names(self) -> tuple[bytes, ...]:
        """The properties that ``matches`` needs."""
        ...

    @property
    def cost(self) -> int:
        """Approximate number of comparisons of ``matches``, at least 1. A read checks fewer messages if it is high."""
        ...

    def matches(self, values: Sequence[str | None]) -> bool:
        """Return True to select a message. ``values`` are those of ``names``, None for a missing property."""
        ...
