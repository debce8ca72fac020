"""What is wrong with replication at the moment, besides a connection that is missing.

A fault has an event when it begins. While it lasts it is 1 in ``tailrace_replication_fault`` and a line in the
``faults`` of ``haStatus``.
"""

from __future__ import annotations

import enum
from typing import Final, final

__all__ = ["Fault", "Faults"]

_CAUSE_MAX: Final = 1000
"""Characters of a cause, which may be the answer of another broker."""


class Fault(enum.StrEnum):
    """The kinds of faults: those of a master, then those of a slave."""

    MEMBERS = "members_unknown"
    """A name server does not say which hosts may connect."""
    GAP = "gap"
    """The log has gaps, at which slaves stop."""
    GAPS_UNKNOWN = "gaps_unknown"
    """The log could not be searched for gaps at the start."""
    ONE_REPLICA = "one_replica"
    """A SYNC_MASTER acknowledges without a slave."""
    OFFSETS_UNKNOWN = "offsets_unknown"
    """Offsets that consumers have committed at a slave could not be asked for at the start."""
    INCOMPLETE = "incomplete_record"
    """A record of the slave stays incomplete."""
    DISPATCH = "dispatch_waits"
    """Dispatch waits until the master says what a topic is."""
    METADATA = "metadata"
    """A part of the metadata could not be copied."""
    USERS = "users"
    """Users and permissions are not copied."""
    KNOWN_MASTER = "known_master"
    """The last answer of the master is not on the disk."""


@final
class Faults:
    """The faults that last. Used in the event loop; any thread may read."""

    def __init__(self) -> None:
        self._causes: dict[Fault, str] = {}

    def begin(self, fault: Fault, cause: object) -> None:
        """Note that a fault lasts, and why."""
        self._causes[fault] = str(cause)[:_CAUSE_MAX]

    def end(self, fault: Fault) -> None:
        """Note that a fault is over, or was not there."""
        self._causes.pop(fault, None)

    @property
    def lasting(self) -> dict[str, int]:
        """Return 1 for each kind that lasts, and 0 for the others."""
        return {fault.value: int(fault in self._causes) for fault in Fault}

    def to_json(self) -> list[str]:
        """Return a line for each fault that lasts: its kind and its cause."""
        return [f"{fault.value}: {cause}" for fault, cause in list(self._causes.items())]
