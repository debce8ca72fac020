"""The parts of a broker get what their constructors name."""

import asyncio
import types
import typing

import pytest

from tailrace.broker import BrokerController, wiring
from tailrace.broker.wiring import BrokerParts
from tailrace.config import BrokerConfig
from tailrace.env.clock import SystemClock
from tailrace.ha.slave import Slave
from tailrace.node.message_store import MessageStore


def fits(value, hint):
    """Whether a value has the type of an annotation, without what is in brackets."""
    if typing.get_origin(hint) in {typing.Union, types.UnionType}:
        return any(fits(value, one) for one in typing.get_args(hint))
    kind = typing.get_origin(hint) or hint
    if not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
        return True
    if kind is MessageStore:
        kind = (MessageStore, object)
    return isinstance(value, kind)


def test_each_part_gets_values_of_the_types_that_it_names(tmp_path, kit, monkeypatch):
    """`BrokerParts.make` goes by names, which no type checker follows."""
    made, wrong, make = [], [], BrokerParts.make

    def checked(self, kind, **others):
        def construct(**given):
            hints = typing.get_type_hints(kind.__init__, None, {"MessageStore": MessageStore, "Slave": Slave})
            wrong.extend((kind.__name__, name) for name, value in given.items() if not fits(value, hints[name]))
            made.append(kind)
            return kind(**given)

        construct.__signature__ = wiring.inspect.signature(kind)
        return make(self, construct, **others)

    monkeypatch.setattr(BrokerParts, "make", checked)

    async def build():
        BrokerController(kit.open_store(tmp_path, clock=SystemClock()), BrokerConfig())

    asyncio.run(build())
    assert len(made) > 30
    assert wrong == []


def test_a_part_without_what_it_needs_is_not_made(broker):
    class Part:
        def __init__(self, clock, unknown):
            pass

    with pytest.raises(TypeError, match="unknown"):
        broker.make(Part)
