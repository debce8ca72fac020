# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Recognise the names INNER_MULTI_DISPATCH and INNER_MULTI_QUEUE_OFFSET, in two parts. The caller checks lengths."""

import cython


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def is_inner_multi(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t) -> cython.bint:
    """Return True if the bytes at ``p`` are INNER_MULTI_."""
    return (
        b[p] == 73 and b[p + 1] == 78 and b[p + 2] == 78 and b[p + 3] == 69 and b[p + 4] == 82
        and b[p + 5] == 95 and b[p + 6] == 77 and b[p + 7] == 85 and b[p + 8] == 76
        and b[p + 9] == 84 and b[p + 10] == 73 and b[p + 11] == 95
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def is_dispatch(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t) -> cython.bint:
    """Return True if the bytes at ``p`` are DISPATCH."""
    return (
        b[p] == 68 and b[p + 1] == 73 and b[p + 2] == 83 and b[p + 3] == 80 and b[p + 4] == 65
        and b[p + 5] == 84 and b[p + 6] == 67 and b[p + 7] == 72
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def is_queue_offset(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t) -> cython.bint:
    """Return True if the bytes at ``p`` are QUEUE_OFFSET."""
    return (
        b[p] == 81 and b[p + 1] == 85 and b[p + 2] == 69 and b[p + 3] == 85 and b[p + 4] == 69
        and b[p + 5] == 95 and b[p + 6] == 79 and b[p + 7] == 70 and b[p + 8] == 70
        and b[p + 9] == 83 and b[p + 10] == 69 and b[p + 11] == 84
    )
