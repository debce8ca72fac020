"""What an audit finds."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["Finding"]


class Finding(NamedTuple):
    """Something that is not as it should be."""

    kind: str
    file: str
    position: int
    detail: str

    def as_dict(self) -> dict[str, Any]:
        """The JSON object that ``tailrace verify`` prints."""
        return {"finding": self._asdict()}
