"""Report of an open: what it found and did, as ``tailrace recover`` prints it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["RecoveryReport"]


@dataclass(slots=True)
class RecoveryReport:
    """Result of a recovery. Positions are physical offsets."""

    mode: str = "empty"
    why: str = ""
    decision: str = "NOTHING"
    """Name of a StartDecision of ``table``: where the walk started."""
    at_end: str = "END"
    """Name of a StopDecision of ``table``: what happened where the walk ended."""
    start: int = 0
    end: int = 0
    scanned: int = 0
    cut: list[dict[str, Any]] = field(default_factory=list)
    stepped_over: list[dict[str, Any]] = field(default_factory=list)
    sealed: list[dict[str, Any]] = field(default_factory=list)
    rebuilt: list[str] = field(default_factory=list)
    quarantined_bytes: int = 0
    read_only: str = ""
    check_crc: bool = True
    ms: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON object that ``tailrace recover`` prints."""
        return {
            "mode": self.mode, "decision": self.decision, "from": self.start, "why": self.why,
            "to": self.end, "atEnd": self.at_end,
            "scanned": self.scanned, "cut": self.cut, "steppedOver": self.stepped_over,
            "sealed": self.sealed, "rebuilt": self.rebuilt, "quarantinedBytes": self.quarantined_bytes,
            "checkCRCOnRecover": self.check_crc, "readOnly": self.read_only or None,
            "ms": round(self.ms, 1),
        }
