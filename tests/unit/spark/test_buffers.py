"""Buffers that are used again, but never while another object holds them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tailrace.spark.buffers import BufferPool, Scratch

SIZE = 200_000


def test_a_buffer_is_used_again_when_nobody_holds_it():
    rooms = BufferPool()
    first = rooms.take(SIZE)
    place = first.ctypes.data
    del first
    assert rooms.take(SIZE - 1).ctypes.data == place


def test_what_an_arrow_array_holds_is_left_alone():
    rooms = BufferPool()
    taken = rooms.take(SIZE)
    taken[:] = 7
    column = pa.Array.from_buffers(
        pa.binary(), 1, [None, pa.py_buffer(np.array([0, SIZE], dtype=np.int32)), pa.py_buffer(taken)])
    del taken
    for _ in range(3):
        rooms.take(SIZE)[:] = 9
    part = column.slice(0, 1)
    del column
    rooms.take(SIZE)[:] = 9
    assert part[0].as_py() == b"\7" * SIZE


def test_what_is_left_in_scratch_is_not_taken_for_new():
    scratch = Scratch()
    scratch.take(4)[:] = b"abcd"
    assert b"abcd" not in bytes(scratch.take(4))
