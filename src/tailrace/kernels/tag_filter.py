# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Choose queue units by their tags code."""

import cython

from tailrace.kernels.shared.big_endian import be64

SOURCE_SHA256 = ""


def filter_units(
    units: cython.const[cython.uchar][::1],
    count: cython.Py_ssize_t,
    codes: cython.longlong[::1],
    chosen: cython.longlong[::1],
):
    """Put the numbers of units whose tags code is one of ``codes`` into ``chosen``; their count."""
    n: cython.Py_ssize_t = 0
    i: cython.Py_ssize_t
    k: cython.Py_ssize_t
    code: cython.longlong
    if count < 0 or len(units) < 20 * count or chosen.shape[0] < count:
        raise ValueError(f"{count} units in {len(units)} bytes, room for {chosen.shape[0]}")
    with cython.nogil:
        for i in range(count):
            code = be64(units, 20 * i + 12)
            for k in range(codes.shape[0]):
                if codes[k] == code:
                    chosen[n] = i
                    n += 1
                    break
    return n
