# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The classification of a message by its properties. All fast paths ask for it, and none decides by itself."""

import cython

from tailrace.kernels.shared import constants as C
from tailrace.kernels.shared.copying import find_in, is_name
from tailrace.kernels.shared.names import mark_of


@cython.cfunc
@cython.returns((cython.int, cython.Py_ssize_t, cython.Py_ssize_t))
@cython.nogil
@cython.exceptval(check=False)
def kind_in(b: cython.p_const_uchar, p: cython.Py_ssize_t, e: cython.Py_ssize_t):
    """Return the kind of a message with stored properties ``b[p:e]``, and start and end of its unique key.

    The kind is 0 for a plain message, else a sum of flags, from WAITS to IRREGULAR. The flags follow from the
    names of properties: what reads a value may find that a flag has no effect. Start and end are -1 without a key.
    """
    kind: cython.int = 0
    key: cython.Py_ssize_t = -1
    key_end: cython.Py_ssize_t = -1
    value: cython.Py_ssize_t
    end: cython.Py_ssize_t
    while p < e:
        value = p
        while value < e and b[value] != 1 and b[value] != 2:  # most names are short
            value += 1
        end = find_in(b, value, e, 2)
        value += 1
        if value == p + 1 or value >= end:
            kind |= C.IRREGULAR
        elif value == p + 9 and is_name(b, p, b"UNIQ_KEY", 8):
            if key < 0:
                key, key_end = value, end
        elif value == p + 5 and is_name(b, p, b"WAIT", 4):
            if end == value + 5 and is_name(b, value, b"false", 5):
                kind |= C.NO_WAIT
        else:
            kind |= mark_of(b, p, value - 1 - p)
        p = end + 1
    return kind if p == e else kind | C.IRREGULAR, key, key_end
