# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Copy, clear, find and load bytes. The caller has compared positions with the lengths of buffers, by ``inside``."""

import cython

if cython.compiled:
    from cython.cimports.libc.string import memchr, memcmp, memcpy, memset
    from cython.cimports.processor import prefetch


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def inside(at: cython.longlong, length: cython.longlong, limit: cython.longlong) -> cython.bint:
    """Return True if ``length`` bytes from ``at`` are in a buffer of ``limit`` bytes."""
    return 0 <= length <= limit and 0 <= at <= limit - length


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def pointer_to(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t) -> cython.p_const_uchar:
    """Return a pointer to ``b[p]``. Interpreted pointers are buffers."""
    if cython.compiled:
        start = cython.address(b[p])
    else:
        start = memoryview(b).cast("B")[p:]
    return start


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def copy_from(
    out: cython.uchar[::1], q: cython.Py_ssize_t, start: cython.p_const_uchar, n: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Copy ``n`` bytes at a pointer to ``out[q:]``. Return the index after them."""
    if cython.compiled:
        if n > 0:
            memcpy(cython.address(out[q]), start, n)
    else:  # out may be a NumPy array, to which bytes cannot be assigned
        memoryview(out).cast("B")[q : q + n] = start[:n]
    return q + n


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def copy_bytes(
    out: cython.uchar[::1], q: cython.Py_ssize_t, b: cython.const[cython.uchar][::1],
    p: cython.Py_ssize_t, n: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Copy ``b[p:p + n]`` to ``out[q:]``. Return the index after it."""
    return copy_from(out, q, pointer_to(b, p), n)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def copy_object(out: cython.uchar[::1], q: cython.Py_ssize_t, data: bytes) -> cython.Py_ssize_t:
    """Copy a bytes object, which must not be None, to ``out[q:]``. Return the index after it."""
    return copy_from(out, q, data, len(data))


@cython.cfunc
@cython.exceptval(check=False)
def clear_bytes(out: cython.uchar[::1], start: cython.Py_ssize_t, until: cython.Py_ssize_t) -> cython.void:
    """Set ``out[start:until]`` to zero."""
    if cython.compiled:
        if start < until:
            memset(cython.address(out[start]), 0, until - start)
    else:
        out[start:until] = bytes(until - start)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def is_name(
    b: cython.p_const_uchar, p: cython.Py_ssize_t, name: cython.p_const_char, n: cython.Py_ssize_t
) -> cython.bint:
    """Return True if ``b[p:p + n]`` is the name, which has ``n`` bytes."""
    k: cython.Py_ssize_t
    if cython.compiled:
        return memcmp(b + p, name, n) == 0
    for k in range(n):
        if b[p + k] != name[k]:
            return False
    return True


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def find_in(
    b: cython.p_const_uchar, p: cython.Py_ssize_t, e: cython.Py_ssize_t, wanted: cython.uchar
) -> cython.Py_ssize_t:
    """As ``find_byte``, in bytes at a pointer."""
    if cython.compiled:
        if p < e:
            found = cython.declare(cython.p_const_uchar)
            found = cython.cast(cython.p_const_uchar, memchr(b + p, wanted, cython.cast(cython.size_t, e - p)))
            if found != cython.NULL:
                return found - b
        return e
    while p < e and b[p] != wanted:
        p += 1
    return p if p < e else e


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def find_byte(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, e: cython.Py_ssize_t, wanted: cython.uchar
) -> cython.Py_ssize_t:
    """Return the index of the first byte ``wanted`` in ``b[p:e]``, or ``e``."""
    return find_in(pointer_to(b, 0), p, e, wanted)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def load_early(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, n: cython.Py_ssize_t, most: cython.Py_ssize_t
) -> cython.void:
    """Start to load up to ``most`` bytes of ``b[p:p + n]``, so that later code does not wait for them.

    Positions outside of the buffer are left out. Pages that are not in memory are not read from the disk.
    """
    e: cython.Py_ssize_t
    if cython.compiled:
        if p < 0 or n <= 0 or p > len(b) - n:
            return
        e = p + (n if n < most else most)
        p -= p & 63
        while p < e:
            prefetch(cython.address(b[p]))
            p += 64
