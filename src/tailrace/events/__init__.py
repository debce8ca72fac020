"""Every line that Tailrace logs, declared once: level, phrase, keys, meaning and what an operator should do.

A module logs an event through its declaration: ``events.BROKER_STOPPED.log(_log, broker=name)``. The line is the
phrase and then ``key=value`` for each key. If RocketMQ has a phrase for an event, that phrase is used.
`tests/unit/test_events.py` compares the keys of every call with the declaration. docs/reference/events.md is generated
from the declarations and the calls.
"""

from __future__ import annotations

from typing import Final

from tailrace.events.broker import *
from tailrace.events.client import *
from tailrace.events.declaration import Event, split_line
from tailrace.events.network import *
from tailrace.events.node import *
from tailrace.events.replication import *
from tailrace.events.retention import *
from tailrace.events.slave import *
from tailrace.events.spark import *
from tailrace.events.store import *
from tailrace.events.timers import *

__all__ = ["EVENTS", "Event", "split_line"]

EVENTS: Final = tuple(value for value in list(globals().values()) if isinstance(value, Event))
"""All events."""
