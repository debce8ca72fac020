# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Java's string hash over UTF-8 bytes, and the index hash made of it."""

import cython

SOURCE_SHA256 = ""

_MASK_32 = cython.declare(cython.longlong, 0xFFFFFFFF)
_SIGN_32 = cython.declare(cython.longlong, 0x80000000)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _extend(
    h: cython.longlong, b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, e: cython.Py_ssize_t
) -> cython.longlong:
    c: cython.longlong
    n: cython.Py_ssize_t
    k: cython.Py_ssize_t
    good: cython.bint
    while p < e:
        c = b[p]
        if c < 0x80:
            h = (h * 31 + c) & _MASK_32
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
            h = (h * 31 + 0xFFFD) & _MASK_32
            p += 1
            continue
        p += n + 1
        if c >= 0x10000:
            c -= 0x10000
            h = (h * 31 + (0xD800 + (c >> 10))) & _MASK_32
            c = 0xDC00 + (c & 0x3FF)
        h = (h * 31 + c) & _MASK_32
    return h


def java_hash(text: cython.const[cython.uchar][::1]):
    """Java's ``String.hashCode`` of UTF-8 bytes; a byte that is not UTF-8 counts as U+FFFD."""
    h: cython.longlong = _extend(0, text, 0, len(text))
    return (h ^ _SIGN_32) - _SIGN_32


def index_hash(topic: cython.const[cython.uchar][::1], key: cython.const[cython.uchar][::1]):
    """The hash that an index entry stores for ``topic#key``."""
    h: cython.longlong = _extend(0, topic, 0, len(topic))
    h = (h * 31 + 35) & _MASK_32
    h = _extend(h, key, 0, len(key))
    h = (h ^ _SIGN_32) - _SIGN_32
    if h == -_SIGN_32:
        return 0
    return -h if h < 0 else h
