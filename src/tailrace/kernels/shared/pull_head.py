# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Write the header of a successful answer to a pull, from the parts around its fields."""

import cython

from tailrace.kernels.shared import layouts as L
from tailrace.kernels.shared.big_endian import put32
from tailrace.kernels.shared.copying import copy_object
from tailrace.kernels.shared.texts import put_decimal

PULL_HEAD_SIZE = cython.declare(cython.Py_ssize_t, 1024)
"""Bytes of a header at most."""
PULL_PARTS_MAX = cython.declare(cython.Py_ssize_t, 900)
"""Bytes of the parts around its four fields, which have up to 20 digits each and a length."""


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put_number(
    out: cython.uchar[::1], q: cython.Py_ssize_t, value: cython.longlong, sized: cython.bint
) -> cython.Py_ssize_t:
    """Write a decimal number, after its length if it is ``sized``. Return the index after it."""
    start: cython.Py_ssize_t = q + 4 if sized else q
    end: cython.Py_ssize_t = put_decimal(out, start, value)
    if sized:
        put32(out, q, end - start)
    return end


@cython.cfunc
@cython.exceptval(check=False)
def put_pull_head(
    out: cython.uchar[::1], parts: tuple, binary: cython.bint, opaque: cython.longlong, next_offset: cython.longlong,
    low: cython.longlong, high: cython.longlong, body: cython.longlong,
) -> cython.Py_ssize_t:
    """Write prefix and header to ``out``, which has `PULL_HEAD_SIZE` bytes. Return their size.

    The five ``parts`` are around the next offset, the least and the next one of the queue, and the request number. In a
    binary header the request number is the first of these. ``body`` is the number of bytes that follow.
    """
    at: cython.Py_ssize_t = 1
    q: cython.Py_ssize_t = copy_object(out, 0, parts[0])
    if binary:
        put32(out, q, opaque)
        q = copy_object(out, q + 4, parts[1])
        at = 2
    q = copy_object(out, _put_number(out, q, next_offset, binary), parts[at])
    q = copy_object(out, _put_number(out, q, low, binary), parts[at + 1])
    q = copy_object(out, _put_number(out, q, high, binary), parts[at + 2])
    if not binary:
        q = copy_object(out, put_decimal(out, q, opaque), parts[4])
    put32(out, 0, q - L.PREFIX_AT_WORD + body)
    put32(out, L.PREFIX_AT_WORD, (q - L.PREFIX_SIZE) | (L.BINARY_WORD if binary else 0))
    if binary:
        at = L.PREFIX_SIZE + L.BINARY_AT_REMARK_LENGTH
        at += 4 + (out[at + 2] << 8 | out[at + 3])  # after the remark
        put32(out, at, q - at - 4)
    return q
