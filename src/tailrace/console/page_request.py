"""A request for a page: the broker, its figures, the user, and the fields of the query."""

from __future__ import annotations

from typing import Final, NamedTuple

from tailrace.broker.wiring import BrokerParts
from tailrace.console.figures import Figures
from tailrace.console.viewer import Viewer
from tailrace.env.clock import Clock
from tailrace.node.message_store import MessageStore

__all__ = ["PageRequest", "Query", "whole_number"]

Query = dict[str, str]
"""The fields of a query, each with its last value."""
_DIGITS_MAX: Final = 30


class PageRequest(NamedTuple):
    """What a page is made of."""

    broker: BrokerParts
    figures: Figures
    viewer: Viewer
    name: str
    """Name of a topic or a group; "" for the page of all."""
    query: Query

    @property
    def store(self) -> MessageStore:
        """The store of the broker."""
        return self.broker.store

    @property
    def clock(self) -> Clock:
        """The clock of the broker."""
        return self.broker.clock


def whole_number(asked: Query, name: str) -> int:
    """Return a field as a number. Raises ValueError that names the field."""
    text = asked[name]
    if text.removeprefix("-").isdecimal() and text.isascii() and len(text) <= _DIGITS_MAX:
        return int(text)
    raise ValueError(f"{name} is {text!r}, not a whole number")
