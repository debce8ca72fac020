"""Interfaces through which the store calls rooms above it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

__all__ = ["MessageArrivingListener", "PropertyFilter", "TopicLives"]


class MessageArrivingListener(Protocol):
    """Called by the dispatch thread after new messages can be read."""

    def arriving(
        self, topic: str, queue_id: int, next_offset: int, tags_codes: Sequence[int], size: int
    ) -> None:
        """Handle new messages of a queue, which now ends at ``next_offset``.

        ``tags_codes`` has one code for each new record; ``size`` is their length in the CommitLog in bytes.
        """
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


class TopicLives(Protocol):
    """Says which records belong to a topic that was deleted. Called by any thread."""

    def deleted_up_to(self, topic: str) -> int:
        """Return the position of the log before which all messages of the topic belong to a life that was deleted.

        Return 0 if no life of the topic was deleted.
        """
        ...
