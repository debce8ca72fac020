# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Choose queue units by their tags code."""

import cython

SOURCE_SHA256 = ""

_TWO_32 = cython.declare(cython.longlong, 0x100000000)
_SIGN_32 = cython.declare(cython.longlong, 0x80000000)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _be32u(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t) -> cython.longlong:
    return (
        (cython.cast(cython.longlong, b[p]) << 24)
        | (cython.cast(cython.longlong, b[p + 1]) << 16)
        | (cython.cast(cython.longlong, b[p + 2]) << 8)
        | b[p + 3]
    )


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
            code = (
                (_be32u(units, 20 * i + 12) ^ _SIGN_32) - _SIGN_32
            ) * _TWO_32 + _be32u(units, 20 * i + 16)
            for k in range(codes.shape[0]):
                if codes[k] == code:
                    chosen[n] = i
                    n += 1
                    break
    return n
