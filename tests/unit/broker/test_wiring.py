"""Parts of a broker get in their constructors what these declare, by the names of the parameters."""

from __future__ import annotations

import asyncio
import inspect
import types
import typing

from tailrace.broker import BrokerController
from tailrace.broker.wiring import BrokerParts
from tailrace.node.message_store import MessageStore


def fits(value, hint):
    """Whether a value is of a type, as far as that can be seen: not of a protocol, nor of a function."""
    if isinstance(hint, types.UnionType):
        return any(fits(value, one) for one in hint.__args__)
    kind = typing.get_origin(hint) or hint
    if kind is None or kind is types.NoneType:
        return value is None
    return not isinstance(kind, type) or getattr(kind, "_is_protocol", False) or isinstance(value, kind)


def test_each_part_gets_what_its_constructor_declares(tmp_path, monkeypatch):
    made, wrong = set(), []
    make = BrokerParts.make

    def checked(self, kind, **others):
        hints = typing.get_type_hints(kind.__init__, localns={"MessageStore": MessageStore})
        made.add(kind)
        for name, parameter in inspect.signature(kind).parameters.items():
            if parameter.default is parameter.empty:
                value = others[name] if name in others else getattr(self, name)
                if not fits(value, hints[name]):
                    wrong.append(f"{kind.__name__}.{name}: {type(value).__name__}")
        return make(self, kind, **others)

    monkeypatch.setattr(BrokerParts, "make", checked)

    async def start():
        controller = BrokerController(store)
        await controller.start(("127.0.0.1", 0), ("127.0.0.1", 0))
        await controller.stop()

    with MessageStore.open(tmp_path / "store") as store:
        asyncio.run(start())
    assert wrong == []
    assert len(made) > 30
