"""A request to free a number of bytes: what was asked for, what is deleted, and why it ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, final

from tailrace.store.retention.rules import SegmentVerdict

__all__ = ["FreeRequest"]


@final
@dataclass(slots=True)
class FreeRequest:
    """The state of a request. One service changes it; any thread may read it."""

    wanted_bytes: int
    freed_bytes: int = 0
    """Bytes that the deleted CommitLog files took on the disk, also those that are still in the trash."""
    files: list[str] = field(default_factory=list)
    """Names of the deleted files, oldest first."""
    stopped: str = ""
    """Reason why fewer bytes are freed than wanted; empty while the request is under way."""
    ended: bool = False

    @classmethod
    def planned(cls, wanted_bytes: int, going: Sequence[SegmentVerdict], stopped: str) -> FreeRequest:
        """Return a request as it would end."""
        request = cls(wanted_bytes)
        for verdict in going:
            request.count(verdict)
        request.end(stopped)
        return request

    @property
    def done(self) -> bool:
        """Return True if the wanted bytes are freed."""
        return self.freed_bytes >= self.wanted_bytes

    def count(self, verdict: SegmentVerdict) -> None:
        """Count a deleted file."""
        self.freed_bytes += verdict.facts.allocated
        self.files.append(verdict.facts.path.rpartition("/")[2])

    def end(self, stopped: str) -> None:
        """End the request."""
        self.stopped = stopped
        self.ended = True

    def to_json(self) -> dict[str, Any]:
        """Return the state as a JSON object, for answers."""
        return {
            "requestedBytes": self.wanted_bytes, "freedBytes": self.freed_bytes, "files": list(self.files),
            "ended": self.ended, "stopped": self.stopped}

    @classmethod
    def from_json(cls, held: dict[str, Any]) -> FreeRequest:
        """Return the request of an answer."""
        return cls(
            held["requestedBytes"], held["freedBytes"], held["files"], held["stopped"], held["ended"])
