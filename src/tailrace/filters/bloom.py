"""Positions in a bloom filter that a Java broker keeps with the expression of a group.

A Java broker assigns bits to each group and topic, and may store with each message which expressions match it
(enableCalcFilterBitMap). Tailrace does not read these bits. It computes them because a Java broker ignores a
``consumerFilter.json`` with another number of bits.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple, final

__all__ = ["BloomFilter", "BloomFilterData"]

_MASK: Final = (1 << 64) - 1
_C1: Final = 0x87C37B91114253D5
_C2: Final = 0x4CF5AD432745937F


class BloomFilterData(NamedTuple):
    """Positions of the bits of a group and topic, and the number of all bits."""

    positions: tuple[int, ...]
    bits: int


@final
class BloomFilter:
    """A filter for ``expected`` expressions and an error rate of ``error_percent`` %, as in BloomFilter.java."""

    def __init__(self, error_percent: int, expected: int) -> None:
        rate = error_percent / 100
        self._hashes = math.ceil(math.log(rate) / math.log(0.5))
        bits = math.ceil(expected * (math.log(1 / rate) / math.log(2)) * (math.log(math.e) / math.log(2)))
        self._bits = 8 * math.ceil(bits / 8)

    def data_of(self, group: str, topic: str) -> BloomFilterData:
        """Return the bits of a group and topic."""
        number = murmur3_64(f"{group}#{topic}".encode())
        low, high = number & 0xFFFFFFFF, number >> 32
        positions = []
        for i in range(1, self._hashes + 1):
            combined = (low + i * high) & 0xFFFFFFFF
            if combined >> 31:
                combined ^= 0xFFFFFFFF
            positions.append(combined % self._bits)
        return BloomFilterData(tuple(positions), self._bits)


def murmur3_64(data: bytes) -> int:
    """Return the first 64 bits of MurmurHash3 x64 128 with seed 0."""
    h1 = h2 = 0
    whole = len(data) // 16 * 16
    for at in range(0, whole, 16):
        h1 ^= _mix_k1(int.from_bytes(data[at : at + 8], "little"))
        h1 = ((_rotate(h1, 27) + h2) * 5 + 0x52DCE729) & _MASK
        h2 ^= _mix_k2(int.from_bytes(data[at + 8 : at + 16], "little"))
        h2 = ((_rotate(h2, 31) + h1) * 5 + 0x38495AB5) & _MASK
    tail = data[whole:]
    h1 ^= _mix_k1(int.from_bytes(tail[:8], "little"))
    h2 ^= _mix_k2(int.from_bytes(tail[8:], "little"))
    h1 ^= len(data)
    h2 ^= len(data)
    h1 = (h1 + h2) & _MASK
    h2 = (h2 + h1) & _MASK
    return (_final_mix(h1) + _final_mix(h2)) & _MASK


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _MASK


def _mix_k1(k: int) -> int:
    return _rotate(k * _C1 & _MASK, 31) * _C2 & _MASK


def _mix_k2(k: int) -> int:
    return _rotate(k * _C2 & _MASK, 33) * _C1 & _MASK


def _final_mix(k: int) -> int:
    k = (k ^ k >> 33) * 0xFF51AFD7ED558CCD & _MASK
    k = (k ^ k >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return k ^ k >> 33
