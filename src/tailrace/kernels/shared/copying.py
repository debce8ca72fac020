# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Copy bytes from one buffer to another. The caller has compared both positions with the lengths."""

import cython

if cython.compiled:
    from cython.cimports.libc.string import memcpy


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def copy_bytes(
    out: cython.uchar[::1], q: cython.Py_ssize_t, b: cython.const[cython.uchar][::1],
    p: cython.Py_ssize_t, n: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Copy ``b[p:p + n]`` to ``out[q:]``. Return the index after it."""
    if cython.compiled:
        if n > 0:
            memcpy(cython.address(out[q]), cython.address(b[p]), n)
    else:  # either may be a NumPy array, to which bytes cannot be assigned
        memoryview(out).cast("B")[q : q + n] = memoryview(b).cast("B")[p : p + n]
    return q + n


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def copy_object(out: cython.uchar[::1], q: cython.Py_ssize_t, data: bytes) -> cython.Py_ssize_t:
    """Copy a bytes object, which must not be None, to ``out[q:]``. Return the index after it."""
    k: cython.Py_ssize_t
    n: cython.Py_ssize_t = len(data)
    if cython.compiled:
        start = cython.declare("const unsigned char *")
        start = data
        for k in range(n):
            out[q + k] = start[k]
    else:  # bytes cannot be assigned to a NumPy array
        memoryview(out)[q : q + n] = data
    return q + n


@cython.cfunc
@cython.exceptval(check=False)
def clear_bytes(out: cython.uchar[::1], start: cython.Py_ssize_t, until: cython.Py_ssize_t) -> cython.void:
    """Set ``out[start:until]`` to zero."""
    k: cython.Py_ssize_t
    if cython.compiled:
        for k in range(start, until):
            out[k] = 0
    else:
        out[start:until] = bytes(until - start)
