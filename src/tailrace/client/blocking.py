"""Blocking clients, derived from the asynchronous ones: the same names, parameters and docstrings."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

__all__ = ["arguments_of", "blocking"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


def blocking(
    method: Callable[Concatenate[Any, _P], Coroutine[Any, Any, _T]]
) -> Callable[Concatenate[Any, _P], _T]:
    """Return the method that runs a coroutine method of ``self._awaited`` in the loop, and waits for its result."""
    @functools.wraps(method)
    def call(self: Any, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        found: _T = self._loop.run(method(self._awaited, *args, **kwargs))
        return found

    return call


def arguments_of(
    init: Callable[Concatenate[Any, _P], None]
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, _P], None]]:
    """Give a constructor the parameters of another one, to which it passes them."""
    def give(own: Callable[..., None]) -> Callable[Concatenate[Any, _P], None]:
        return functools.wraps(init)(own)

    return give
