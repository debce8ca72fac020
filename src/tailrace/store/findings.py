"""A finding of ``tailrace verify``."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["Finding"]


class Finding(NamedTuple):
    """One difference between a directory and the rules, with file and position."""

    kind: str
    file: str
    position: int
    detail: str

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON object that ``tailrace verify`` prints."""
        return {"finding": self._asdict()}
