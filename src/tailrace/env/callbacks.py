"""Functions that a part calls when something has happened, of parts that are made after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec, final

__all__ = ["Callbacks"]

P = ParamSpec("P")


@final
class Callbacks(Generic[P]):
    """Calls its functions in the order in which they were added. An error of one ends the call."""

    __slots__ = ("_functions",)

    def __init__(self) -> None:
        self._functions: list[Callable[P, object]] = []

    def add(self, function: Callable[P, object]) -> None:
        """Add a function."""
        self._functions.append(function)

    def __call__(self, *args: P.args, **named: P.kwargs) -> None:
        """Call all functions."""
        for function in self._functions:
            function(*args, **named)
