"""Types of the arrays that the timer services pass to each other and to kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["Ints", "Mask", "Units", "no_positions"]

Ints = np.ndarray[Any, np.dtype[np.int64]]
"""An array of offsets, positions, times or hashes; of two dimensions for rows of a kernel."""
Mask = np.ndarray[Any, np.dtype[np.bool_]]
"""An array of truth values."""
Units = np.ndarray[Any, np.dtype[np.void]]
"""An array of units of the timer log, of queue units or of slots of the wheel."""


def no_positions() -> Ints:
    """Return an empty array of positions."""
    return np.empty(0, np.int64)
