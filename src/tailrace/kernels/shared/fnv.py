# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The hash function FNV-1a, for hash tables in memory."""

import cython

FNV_START = cython.declare(cython.ulonglong, 14695981039346656037)
FNV_PRIME = cython.declare(cython.ulonglong, 1099511628211)
FNV_MASK = cython.declare(cython.ulonglong, 0xFFFFFFFFFFFFFFFF)
FNV_QUEUE = cython.declare(cython.ulonglong, 0x3FFFFFFFFFFFFFFF)
FNV_32 = cython.declare(cython.longlong, 0xFFFFFFFF)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def fnv_on(
    h: cython.ulonglong, b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, e: cython.Py_ssize_t
) -> cython.ulonglong:
    """Return FNV-1a of ``b[p:e]``, continued from ``h``."""
    while p < e:
        h = ((h ^ b[p]) * FNV_PRIME) & FNV_MASK
        p += 1
    return h


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def queue_hash_of(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, e: cython.Py_ssize_t,
    queue_id: cython.longlong,
) -> cython.longlong:
    """Return a hash of topic ``b[p:e]`` and queue id, 62 bits."""
    h: cython.ulonglong = fnv_on(FNV_START, b, p, e)
    h = ((h ^ cython.cast(cython.ulonglong, queue_id & FNV_32)) * FNV_PRIME) & FNV_MASK
    h = h ^ (h >> 29)
    return cython.cast(cython.longlong, h & FNV_QUEUE)
