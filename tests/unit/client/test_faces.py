"""The blocking clients have the methods of the asynchronous ones."""

from __future__ import annotations

import inspect

import pytest

from tailrace import client


def public(kind):
    return {name: member for name, member in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_") or name == "__init__"}


@pytest.mark.parametrize("name", ["Producer", "PullConsumer", "PushConsumer"])
def test_both_faces_have_the_same_methods_and_parameters(name):
    blocking, awaited = public(getattr(client, name)), public(getattr(client, f"Async{name}"))
    assert set(blocking) - set(awaited) <= {"send_async"}
    assert set(awaited) <= set(blocking)
    for method, function in awaited.items():
        theirs = inspect.signature(blocking[method]).parameters.values()
        mine = inspect.signature(function).parameters.values()
        assert [str(p) for p in mine] == [str(p) for p in theirs], method  # with kinds, annotations and defaults
        assert not any(p.kind in {p.VAR_KEYWORD, p.VAR_POSITIONAL} for p in mine), method
