# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Read and write big-endian numbers. The caller has compared the position with the length."""

import cython

if cython.compiled:
    from cython.cimports.processor import load32, load64, store32, store64

BE_SIGN = cython.declare(cython.longlong, 0x80000000)
BE_HIGH = cython.declare(cython.longlong, 0x100000000)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def be16(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t) -> cython.longlong:
    """Return two bytes as an unsigned number."""
    return (cython.cast(cython.longlong, b[p]) << 8) | b[p + 1]


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def be32u(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t) -> cython.longlong:
    """Return four bytes as an unsigned number."""
    if cython.compiled:
        return load32(cython.address(b[p]))
    return (
        (cython.cast(cython.longlong, b[p]) << 24)
        | (cython.cast(cython.longlong, b[p + 1]) << 16)
        | (cython.cast(cython.longlong, b[p + 2]) << 8)
        | b[p + 3]
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def be32(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t) -> cython.longlong:
    """Return four bytes as a signed number."""
    return (be32u(b, p) ^ BE_SIGN) - BE_SIGN


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def be64(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t) -> cython.longlong:
    """Return eight bytes as a signed number."""
    if cython.compiled:
        return load64(cython.address(b[p]))
    return be32(b, p) * BE_HIGH + be32u(b, p + 4)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def put32(b: cython.uchar[::1], p: cython.Py_ssize_t, v: cython.longlong) -> cython.void:
    """Write the low four bytes of ``v``."""
    if cython.compiled:
        store32(cython.address(b[p]), cython.cast(cython.uint, v))
    else:
        b[p] = (v >> 24) & 255
        b[p + 1] = (v >> 16) & 255
        b[p + 2] = (v >> 8) & 255
        b[p + 3] = v & 255


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def put64(b: cython.uchar[::1], p: cython.Py_ssize_t, v: cython.longlong) -> cython.void:
    """Write eight bytes."""
    if cython.compiled:
        store64(cython.address(b[p]), cython.cast(cython.ulonglong, v))
    else:
        put32(b, p, v >> 32)
        put32(b, p + 4, v)
