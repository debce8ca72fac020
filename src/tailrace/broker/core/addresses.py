"""The addresses of a broker."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Addresses"]


@dataclass(slots=True)
class Addresses:
    """Addresses as ``ip:port``; each is empty until the broker listens there."""

    broker: str = ""
    """For clients."""
    ha: str = ""
    """For slaves; stays empty without a port for them."""
