"""Pins: what still needs old messages, and what happens to a pinned file when space is short.

Timers and delay levels (``node.retention.timer_rescue``), consumer groups (``node.retention.group_pins``) and
the archive (``node.retention.archive_pins``) implement `PinSource`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from tailrace.config import StoreConfig

__all__ = ["Pin", "PinKind", "PinPolicy", "PinSource", "held_by", "pin_policies"]


class PinKind(enum.Enum):
    """What still needs an expired message."""

    TIMER = "timer"
    ARCHIVE = "archive"
    GROUP = "group"


class PinPolicy(enum.Enum):
    """What happens to a pinned file when space is short."""

    DELETE_OLDEST = "delete-oldest"
    REFUSE_WRITES = "refuse-writes"


class Pin(NamedTuple):
    """``holder`` needs every message from ``phy_offset`` onwards."""

    kind: PinKind
    phy_offset: int
    holder: str


def held_by(pins: Iterable[Pin]) -> str:
    """Return pins as text."""
    return ", ".join(f"{pin.kind.value} {pin.holder} from {pin.phy_offset}" for pin in pins)


class PinSource(Protocol):
    """A function that returns the pins of the timers, the archive or the consumer groups."""

    def __call__(self) -> Iterable[Pin]:
        """Return the present pins, for each holder the one with the least position."""
        ...


def pin_policies(config: StoreConfig) -> dict[PinKind, PinPolicy]:
    """Return the policy for each kind of pin from the settings."""
    return {
        PinKind.TIMER: PinPolicy(config.pin_policy_timers),
        PinKind.ARCHIVE: PinPolicy(config.pin_policy_archive),
        PinKind.GROUP: PinPolicy(config.pin_policy_groups),
    }
