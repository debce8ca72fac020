# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""ConsumeQueue units from record rows, and back."""

import cython

SOURCE_SHA256 = ""

# Columns of kernels.record; tests compare them.
_C_PHY = cython.declare(cython.int, 0)
_C_SIZE = cython.declare(cython.int, 1)
_C_TAGS_CODE = cython.declare(cython.int, 6)
_MASK_32 = cython.declare(cython.longlong, 0xFFFFFFFF)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put32(b: cython.uchar[::1], p: cython.Py_ssize_t, v: cython.longlong) -> cython.void:
    b[p] = (v >> 24) & 255
    b[p + 1] = (v >> 16) & 255
    b[p + 2] = (v >> 8) & 255
    b[p + 3] = v & 255


def build_units(
    rows: cython.longlong[:, ::1],
    order: cython.longlong[::1],
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    out: cython.uchar[::1],
):
    """Pack units of rows ``order[first:last]`` into ``out``; the number of bytes."""
    i: cython.Py_ssize_t
    r: cython.Py_ssize_t
    p: cython.Py_ssize_t = 0
    count: cython.Py_ssize_t = rows.shape[0]
    if not 0 <= first <= last <= order.shape[0] or len(out) < 20 * (last - first):
        raise ValueError(f"rows {first} to {last} into {len(out)} bytes")
    if rows.shape[0] and rows.shape[1] <= _C_TAGS_CODE:
        raise ValueError(f"{rows.shape[1]} columns")
    with cython.nogil:
        for i in range(first, last):
            r = order[i]
            if r < 0 or r >= count:
                p = -1
                break
            _put32(out, p, (rows[r, _C_PHY] >> 32) & _MASK_32)
            _put32(out, p + 4, rows[r, _C_PHY] & _MASK_32)
            _put32(out, p + 8, rows[r, _C_SIZE] & _MASK_32)
            _put32(out, p + 12, (rows[r, _C_TAGS_CODE] >> 32) & _MASK_32)
            _put32(out, p + 16, rows[r, _C_TAGS_CODE] & _MASK_32)
            p += 20
    if p < 0:
        raise ValueError("order names a row that does not exist")
    return p
