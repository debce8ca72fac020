"""What rooms above the store may hear."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

__all__ = ["MessageArrivingListener"]


class MessageArrivingListener(Protocol):
    """Told after messages can be read; called from the dispatch thread."""

    def arriving(
        self, topic: str, queue_id: int, next_offset: int, tags_codes: Sequence[int], size: int
    ) -> None:
        """Hear of new messages: their queue now ends at ``next_offset``.

        ``tags_codes`` has one code for each new message; ``size`` is their bytes in the CommitLog.
        """
        ...
