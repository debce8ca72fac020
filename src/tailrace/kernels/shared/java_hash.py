# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Java's ``String.hashCode``, and the hash of index entries."""

import cython

JAVA_MASK = cython.declare(cython.longlong, 0xFFFFFFFF)
JAVA_SIGN = cython.declare(cython.longlong, 0x80000000)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def java_hash_on(
    h: cython.longlong, b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, e: cython.Py_ssize_t
) -> cython.longlong:
    """Return Java's hash of the UTF-8 bytes ``b[p:e]``, continued from ``h``, as an unsigned 32-bit number.

    Java hashes UTF-16 units. A byte that is not UTF-8 counts as U+FFFD.
    """
    c: cython.longlong
    n: cython.Py_ssize_t
    k: cython.Py_ssize_t
    good: cython.bint
    while p + 4 <= e and (b[p] | b[p + 1] | b[p + 2] | b[p + 3]) < 0x80:  # 31 to the 4th, 3rd, 2nd
        h = (h * 923521 + b[p] * 29791 + b[p + 1] * 961 + b[p + 2] * 31 + b[p + 3]) & JAVA_MASK
        p += 4
    while p < e:
        c = b[p]
        if c < 0x80:
            h = (h * 31 + c) & JAVA_MASK
            p += 1
            continue
        n = 0
        if 0xC2 <= c < 0xE0:
            n, c = 1, c & 0x1F
        elif 0xE0 <= c < 0xF0:
            n, c = 2, c & 0x0F
        elif 0xF0 <= c < 0xF5:
            n, c = 3, c & 0x07
        good = n > 0 and p + n < e
        if good:
            for k in range(1, n + 1):
                if b[p + k] & 0xC0 != 0x80:
                    good = False
                    break
                c = (c << 6) | (b[p + k] & 0x3F)
        if not good:
            h = (h * 31 + 0xFFFD) & JAVA_MASK
            p += 1
            continue
        p += n + 1
        if c >= 0x10000:
            c -= 0x10000
            h = (h * 31 + (0xD800 + (c >> 10))) & JAVA_MASK
            c = 0xDC00 + (c & 0x3FF)
        h = (h * 31 + c) & JAVA_MASK
    return h


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def java_hash_of(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, e: cython.Py_ssize_t
) -> cython.longlong:
    """Return Java's hash of ``b[p:e]``, a signed 32-bit number."""
    return (java_hash_on(0, b, p, e) ^ JAVA_SIGN) - JAVA_SIGN


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def index_hash_of(h: cython.longlong) -> cython.longlong:
    """Return the hash in an index entry for a key with this ``java_hash_on``: its absolute value.

    -2**31 has no absolute value in 32 bits and becomes 0.
    """
    h = (h ^ JAVA_SIGN) - JAVA_SIGN
    if h == -JAVA_SIGN:
        return 0
    return -h if h < 0 else h
