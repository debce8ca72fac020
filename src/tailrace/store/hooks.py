"""What rooms above the store may hear."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

__all__ = ["MessageArrivingListener", "PropertyFilter"]


class MessageArrivingListener(Protocol):
    """Told after messages can be read; called from the dispatch thread."""

    def arriving(
        self, topic: str, queue_id: int, next_offset: int, tags_codes: Sequence[int], size: int
    ) -> None:
        """Hear of new messages: their queue now ends at ``next_offset``.

        ``tags_codes`` has one code for each new message; ``size`` is their bytes in the CommitLog.
        """
        ...


class PropertyFilter(Protocol):
    """Keeps messages by their properties; called while a queue is read, from any thread."""

    @property
    def names(self) -> tuple[bytes, ...]:
        """The properties that ``matches`` needs."""
        ...

    @property
    def cost(self) -> int:
        """About how many comparisons ``matches`` makes, at least 1. A read looks at fewer messages for many."""
        ...

    def matches(self, values: Sequence[str | None]) -> bool:
        """Return whether to keep a message whose ``names`` have these values, None for one it lacks."""
        ...
