# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Recognise names of properties and topics. `make gen` writes this file from ``formats.names``."""

import cython

from tailrace.kernels.shared import layouts as L
from tailrace.kernels.shared.big_endian import be32u


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def known_name(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, n: cython.Py_ssize_t) -> cython.int:
    """Return the number NAME_* of a known name, else 0. The name is ``b[p:p + n]``."""
    word: cython.longlong
    if n < 4:
        return 0
    word = be32u(b, p)
    if word == 0x54414753 and n == 4:
        return L.NAME_TAGS
    if word == 0x4b455953 and n == 4:
        return L.NAME_KEYS
    if word == 0x554e4951 and n == 8 and be32u(b, p + 4) == 0x5f4b4559:
        return L.NAME_UNIQ_KEY
    if word == 0x44454c41 and n == 5 and be32u(b, p + 1) == 0x454c4159:
        return L.NAME_DELAY
    if (
        word == 0x494e4e45 and n == 20 and be32u(b, p + 4) == 0x525f4d55 and be32u(b, p + 8) == 0x4c54495f and
        be32u(b, p + 12) == 0x44495350 and be32u(b, p + 16) == 0x41544348
    ):
        return L.NAME_INNER_MULTI_DISPATCH
    if (
        word == 0x494e4e45 and n == 24 and be32u(b, p + 4) == 0x525f4d55 and be32u(b, p + 8) == 0x4c54495f and
        be32u(b, p + 12) == 0x51554555 and be32u(b, p + 16) == 0x455f4f46 and be32u(b, p + 20) == 0x46534554
    ):
        return L.NAME_INNER_MULTI_QUEUE_OFFSET
    if word == 0x5f5f4352 and n == 8 and be32u(b, p + 4) == 0x43333223:
        return L.NAME_CRC_PROPERTY
    if word == 0x5245414c and n == 10 and be32u(b, p + 4) == 0x5f544f50 and be32u(b, p + 6) == 0x4f504943:
        return L.NAME_REAL_TOPIC
    if word == 0x5245414c and n == 8 and be32u(b, p + 4) == 0x5f514944:
        return L.NAME_REAL_QID
    if word == 0x54494d45 and n == 12 and be32u(b, p + 4) == 0x525f4f55 and be32u(b, p + 8) == 0x545f4d53:
        return L.NAME_TIMER_OUT_MS
    if (
        word == 0x54494d45 and n == 15 and be32u(b, p + 4) == 0x525f4445 and be32u(b, p + 8) == 0x4c41595f and
        be32u(b, p + 11) == 0x5f534543
    ):
        return L.NAME_TIMER_DELAY_SEC
    if (
        word == 0x54494d45 and n == 14 and be32u(b, p + 4) == 0x525f4445 and be32u(b, p + 8) == 0x4c41595f and
        be32u(b, p + 10) == 0x595f4d53
    ):
        return L.NAME_TIMER_DELAY_MS
    if (
        word == 0x54494d45 and n == 16 and be32u(b, p + 4) == 0x525f4445 and be32u(b, p + 8) == 0x4c495645 and
        be32u(b, p + 12) == 0x525f4d53
    ):
        return L.NAME_TIMER_DELIVER_MS
    if (
        word == 0x54494d45 and n == 16 and be32u(b, p + 4) == 0x525f454e and be32u(b, p + 8) == 0x51554555 and
        be32u(b, p + 12) == 0x455f4d53
    ):
        return L.NAME_TIMER_ENQUEUE_MS
    if (
        word == 0x54494d45 and n == 16 and be32u(b, p + 4) == 0x525f4445 and be32u(b, p + 8) == 0x51554555 and
        be32u(b, p + 12) == 0x455f4d53
    ):
        return L.NAME_TIMER_DEQUEUE_MS
    if (
        word == 0x54494d45 and n == 16 and be32u(b, p + 4) == 0x525f524f and be32u(b, p + 8) == 0x4c4c5f54 and
        be32u(b, p + 12) == 0x494d4553
    ):
        return L.NAME_TIMER_ROLL_TIMES
    if (
        word == 0x54494d45 and n == 17 and be32u(b, p + 4) == 0x525f4445 and be32u(b, p + 8) == 0x4c5f554e and
        be32u(b, p + 12) == 0x49514b45 and be32u(b, p + 13) == 0x514b4559
    ):
        return L.NAME_TIMER_DEL_UNIQKEY
    if (
        word == 0x53434845 and n == 19 and be32u(b, p + 4) == 0x44554c45 and be32u(b, p + 8) == 0x5f544f50 and
        be32u(b, p + 12) == 0x49435f58 and be32u(b, p + 15) == 0x58585858
    ):
        return L.NAME_SCHEDULE_TOPIC
    if (
        word == 0x726d715f and n == 19 and be32u(b, p + 4) == 0x7379735f and be32u(b, p + 8) == 0x77686565 and
        be32u(b, p + 12) == 0x6c5f7469 and be32u(b, p + 15) == 0x696d6572
    ):
        return L.NAME_TIMER_TOPIC
    return 0


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def known_start(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, n: cython.Py_ssize_t) -> cython.int:
    """Return the number START_* of the known start of a topic, else 0. The name is ``b[p:p + n]``."""
    word: cython.longlong
    if n < 4:
        return 0
    word = be32u(b, p)
    if word == 0x25524554 and n >= 7 and be32u(b, p + 3) == 0x54525925:
        return L.START_RETRY_GROUP_TOPIC
    if word == 0x25444c51 and n >= 5 and be32u(b, p + 1) == 0x444c5125:
        return L.START_DLQ_GROUP_TOPIC
    if word == 0x726d715f and n >= 8 and be32u(b, p + 4) == 0x7379735f:
        return L.START_SYSTEM_TOPIC
    if word == 0x254c4d51 and n >= 5 and be32u(b, p + 1) == 0x4c4d5125:
        return L.START_LMQ
    return 0


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def begins_odd(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, n: cython.Py_ssize_t) -> cython.bint:
    """Return True for the start of a property that a batch cannot honour. The name is ``b[p:p + n]``."""
    word: cython.longlong
    if n < 4:
        return 0
    word = be32u(b, p)
    if word == 0x494e4e45 and n >= 12 and be32u(b, p + 4) == 0x525f4d55 and be32u(b, p + 8) == 0x4c54495f:
        return True
    if word == 0x54494d45 and n >= 7 and be32u(b, p + 3) == 0x45525f44:
        return True
    if word == 0x5452414e and n >= 5 and be32u(b, p + 1) == 0x52414e5f:
        return True
    if word == 0x5f5f4c49 and n >= 4:
        return True
    if word == 0x5f535953 and n >= 4:
        return True
    if word == 0x44454c41 and n >= 6 and be32u(b, p + 2) == 0x4c415901:
        return True
    return 0
