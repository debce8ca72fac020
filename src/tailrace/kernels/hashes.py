# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Java's string hash of UTF-8 bytes, and the hash of an index entry, which is made from it."""

import cython

from tailrace.kernels.shared.java_hash import index_hash_of, java_hash_of, java_hash_on

SOURCE_SHA256 = ""

_MASK_32 = cython.declare(cython.longlong, 0xFFFFFFFF)


def java_hash(text: cython.const[cython.uchar][::1]):
    """Return Java's ``String.hashCode`` of UTF-8 bytes. A byte that is not UTF-8 counts as U+FFFD."""
    return java_hash_of(text, 0, len(text))


def index_hash(topic: cython.const[cython.uchar][::1], key: cython.const[cython.uchar][::1]):
    """Return the hash in an index entry for ``topic#key``."""
    h: cython.longlong = java_hash_on(0, topic, 0, len(topic))
    h = (h * 31 + 35) & _MASK_32
    return index_hash_of(java_hash_on(h, key, 0, len(key)))
