"""Randomness, passed to the code that needs it."""

from __future__ import annotations

import os
import random
from typing import Protocol, final

__all__ = ["Entropy", "SeededEntropy", "SystemEntropy", "secret_bytes"]


class Entropy(Protocol):
    """A source of random numbers."""

    def u64(self) -> int:
        """A number in [0, 2**64)."""
        ...

    def randrange(self, n: int) -> int:
        """A number in [0, n)."""
        ...

    def bytes(self, n: int) -> bytes:
        """``n`` random bytes."""
        ...


class SeededEntropy:
    """A source that returns the same numbers for the same seed."""

    __slots__ = ("_random",)

    def __init__(self, seed: int | None) -> None:
        self._random = random.Random(seed)

    def u64(self) -> int:
        """A number in [0, 2**64)."""
        return self._random.getrandbits(64)

    def randrange(self, n: int) -> int:
        """A number in [0, n)."""
        return self._random.randrange(n)

    def bytes(self, n: int) -> bytes:
        """``n`` random bytes."""
        return self._random.randbytes(n)


@final
class SystemEntropy(SeededEntropy):
    """A source that is seeded by the operating system."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(None)


def secret_bytes(n: int) -> bytes:
    """Return ``n`` bytes for a key. Unlike those of `SystemEntropy`, no other random numbers tell anything of them."""
    return os.urandom(n)
