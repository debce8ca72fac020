# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Walk through the parts of a record and through its properties. Every position is compared with the end before."""

import cython

from tailrace.kernels.shared import layouts as L
from tailrace.kernels.shared.big_endian import be16, be32, be32u
from tailrace.kernels.shared.copying import find_byte


@cython.cfunc
@cython.inline
@cython.returns((cython.Py_ssize_t, cython.Py_ssize_t, cython.Py_ssize_t))
@cython.nogil
@cython.exceptval(check=False)
def next_property(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, e: cython.Py_ssize_t):
    """Return the starts of name and value of the first property in stored properties ``b[p:e]``, and the value's end.

    The name ends one byte before the value. The next property starts after ``end + 1``. A property without name or
    value is left out, as RocketMQ's MessageDecoder does. The start of the name is ``e`` if there is no property left.
    """
    end: cython.Py_ssize_t
    value: cython.Py_ssize_t
    while p < e:
        end = find_byte(b, p, e, 2)
        value = find_byte(b, p, end, 1) + 1
        if p + 1 < value < end:
            return p, value, end
        p = end + 1
    return e, e, e


@cython.cfunc
@cython.inline
@cython.returns((cython.Py_ssize_t, cython.Py_ssize_t, cython.Py_ssize_t, cython.Py_ssize_t))
@cython.nogil
@cython.exceptval(check=False)
def parts_at(b: cython.const[cython.uchar][::1], at: cython.Py_ssize_t, end: cython.Py_ssize_t):
    """Return the starts of store time, body, topic and properties of the record ``b[at:end]``.

    The record has at least MIN_RECORD_SIZE bytes, and its magic was checked. All are -1 if its lengths do not add up.
    """
    v2: cython.Py_ssize_t = 1 if be32u(b, at + L.AT_MAGIC) == L.MAGIC_V2 else 0
    sys_flag: cython.longlong = be32(b, at + L.AT_SYS_FLAG)
    time: cython.Py_ssize_t = at + L.HEAD_SIZE + (L.HOST_V6_SIZE if sys_flag & L.BORNHOST_V6 else L.HOST_V4_SIZE)
    body: cython.Py_ssize_t = (
        time + L.STORE_TIME_SIZE + (L.HOST_V6_SIZE if sys_flag & L.STOREHOST_V6 else L.HOST_V4_SIZE)
        + L.BODY_HEAD_SIZE)
    topic: cython.Py_ssize_t
    properties: cython.Py_ssize_t
    length: cython.longlong
    if body + 4 > end:
        return -1, -1, -1, -1
    length = be32(b, body - L.BODY_HEAD_SIZE + L.AT_BODY_LENGTH)
    if length < 0 or length > end - body - 3 - v2:
        return -1, -1, -1, -1
    topic = body + cython.cast(cython.Py_ssize_t, length) + 1 + v2
    length = be16(b, topic - 2) if v2 else b[topic - 1]
    if length > end - topic - L.PROPERTIES_LENGTH_SIZE:
        return -1, -1, -1, -1
    properties = topic + cython.cast(cython.Py_ssize_t, length) + L.PROPERTIES_LENGTH_SIZE
    if properties + be16(b, properties - L.PROPERTIES_LENGTH_SIZE) != end:
        return -1, -1, -1, -1
    return time, body, topic, properties
