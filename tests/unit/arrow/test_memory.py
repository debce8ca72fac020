"""Memory for columns is used again, but never while another object refers to it."""

from __future__ import annotations

import numpy as np
import pytest

from tailrace.arrow import memory
from tailrace.arrow.memory import array

pa = pytest.importorskip("pyarrow")

SIZE = 200_000


@pytest.fixture(autouse=True)
def empty(monkeypatch):
    monkeypatch.setattr(memory, "_free", {})


def kept():
    return sum(block.nbytes for blocks in memory._free.values() for block in blocks)


def test_memory_is_used_again_when_nothing_refers_to_it():
    first = array(SIZE)
    place = first.ctypes.data
    assert array(SIZE).ctypes.data != place
    del first
    assert array(SIZE // 8, np.int64).ctypes.data == place


@pytest.mark.parametrize("part", [
    lambda made: made[5:], lambda made: made[5:][1:2], lambda made: made.reshape(2, -1)[0], lambda made: made.data,
    lambda made: made.view(np.int32), lambda made: pa.py_buffer(made[5:]).slice(3), lambda made: made[::2]])
def test_a_part_keeps_the_memory(part):
    made = array(SIZE)
    place = made.ctypes.data
    rest = part(made)
    del made
    others = [array(SIZE) for _ in range(3)]
    assert place not in [one.ctypes.data for one in others]
    del rest
    assert array(SIZE).ctypes.data == place


def test_what_an_arrow_array_holds_is_left_alone():
    made = array(SIZE)
    made[:] = 7
    column = pa.Array.from_buffers(
        pa.binary(), 1, [None, pa.py_buffer(np.array([0, SIZE], dtype=np.int32)), pa.py_buffer(made)])
    del made
    part = column.slice(0, 1)
    del column
    for _ in range(3):
        array(SIZE)[:] = 9
    assert part[0].as_py() == b"\7" * SIZE


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 98_304, 98_305, 131_072, 131_073, 1 << 20])
def test_sizes(size):
    made = array(size)
    made[:] = 1
    assert (made.nbytes, made.sum()) == (size, size)
    assert size < 1 << 16 or made.base.nbytes < 1.5 * size
    assert len(array(size // 8, np.int64)) == size // 8


def test_only_so_much_free_memory_is_kept():
    made = [array(1 << 20) for _ in range(20)]
    del made
    assert kept() == 4 << 20
    made = [array(9 << 20) for _ in range(3)]
    del made
    assert kept() == 16 << 20
    made = [array(17 << 20)]
    del made
    assert kept() == 16 << 20
