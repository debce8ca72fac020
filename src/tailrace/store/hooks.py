"""What rooms above the store may hear."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

__all__ = ["MessageArrivingListener"]


class MessageArrivingListener(Protocol):
    """Told after messages can be read; called from the dispatch thread."""

    def arriving(
        self, topic: str, queue_id: int, next_offset: int, tags_codes: Sequence[int]
    ) -> None:
        """The queue now ends at ``next_offset``; ``tags_codes`` are those of the new messages."""
        ...
