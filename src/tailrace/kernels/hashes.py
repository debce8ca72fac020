# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Java's string hash over UTF-8 bytes, and the index hash made of it."""

import cython

from tailrace.kernels.shared.java_hash import java_hash_on

SOURCE_SHA256 = ""

_MASK_32 = cython.declare(cython.longlong, 0xFFFFFFFF)
_SIGN_32 = cython.declare(cython.longlong, 0x80000000)


def java_hash(text: cython.const[cython.uchar][::1]):
    """Java's ``String.hashCode`` of UTF-8 bytes; a byte that is not UTF-8 counts as U+FFFD."""
    h: cython.longlong = java_hash_on(0, text, 0, len(text))
    return (h ^ _SIGN_32) - _SIGN_32


def index_hash(topic: cython.const[cython.uchar][::1], key: cython.const[cython.uchar][::1]):
    """The hash that an index entry stores for ``topic#key``."""
    h: cython.longlong = java_hash_on(0, topic, 0, len(topic))
    h = (h * 31 + 35) & _MASK_32
    h = java_hash_on(h, key, 0, len(key))
    h = (h ^ _SIGN_32) - _SIGN_32
    if h == -_SIGN_32:
        return 0
    return -h if h < 0 else h
