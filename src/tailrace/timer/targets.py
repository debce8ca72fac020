"""Where a message that has waited may be delivered: its topic may have been deleted, or have fewer queues, since."""

from __future__ import annotations

from typing import Final, Protocol, final

__all__ = ["ANY_TARGET", "NOWHERE", "Targets", "why_gone"]

NOWHERE: Final = (1 << 63) - 1
"""A position after every record."""


class Targets(Protocol):
    """The topics of the store, for the services that deliver later. Any thread may call."""

    def first_position(self, topic: str) -> int:
        """Return the position of the log before which records of a topic must not be delivered.

        They belong to a life of the topic that was ended by its deletion. NOWHERE for a topic that does not exist.
        """
        ...

    def queue_id(self, topic: str, queue_id: int) -> int:
        """Return a queue of the topic that can be read: the given one, or another if the topic has fewer queues now."""
        ...


@final
class _AnyTarget:
    """Every topic exists and has every queue."""

    def first_position(self, topic: str) -> int:
        return 0

    def queue_id(self, topic: str, queue_id: int) -> int:
        return queue_id


ANY_TARGET: Final = _AnyTarget()


def why_gone(targets: Targets, topic: str, phy_offset: int) -> str:
    """Return why a message with a record at ``phy_offset`` is not delivered to its topic any more, or ""."""
    return f"its topic {topic} was deleted" if phy_offset < targets.first_position(topic) else ""
