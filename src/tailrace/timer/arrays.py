"""Types of the arrays that the timer services pass to each other and to kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["Ints", "Mask", "Units", "different", "grouped", "no_positions"]

Ints = np.ndarray[Any, np.dtype[np.int64]]
"""An array of offsets, positions, times or hashes; of two dimensions for rows of a kernel."""
Mask = np.ndarray[Any, np.dtype[np.bool_]]
"""An array of truth values."""
Units = np.ndarray[Any, np.dtype[np.void]]
"""An array of units of the timer log, of queue units or of slots of the wheel."""


def no_positions() -> Ints:
    """Return an empty array of positions."""
    return np.empty(0, np.int64)


def different(values: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the different values, the index of the first of each, and their counts; fast if all are equal."""
    if len(values) and bool((values == values[0]).all()):
        return values[:1], np.zeros(1, np.int64), np.array([len(values)])
    return np.unique(values, return_index=True, return_counts=True)


def grouped(values: Ints) -> tuple[Ints, Ints]:
    """Return a stable order that groups equal values, and the index at which each group starts."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    return order, np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
