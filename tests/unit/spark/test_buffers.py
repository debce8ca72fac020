"""A buffer that is used again, but whose old content is never taken for new."""

from __future__ import annotations

from tailrace.spark.buffers import Scratch


def test_what_is_left_in_scratch_is_not_taken_for_new():
    scratch = Scratch()
    scratch.take(4)[:] = b"abcd"
    assert b"abcd" not in bytes(scratch.take(4))
