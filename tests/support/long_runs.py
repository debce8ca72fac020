"""Whether `make long` or `make crash` runs: tests of every case then take all of their cases, else some."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, TypeVar

__all__ = ["LONG", "some"]

_Case = TypeVar("_Case")

LONG: Final = bool(os.environ.get("TAILRACE_LONG"))


def some(cases: Sequence[_Case], step: int, first: int = 0) -> Sequence[_Case]:
    """Return all cases in a long run, else every ``step``-th one, beginning with the one at ``first``."""
    return cases if LONG else cases[first::step]
