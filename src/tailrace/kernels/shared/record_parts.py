# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Parts of a record of the CommitLog. Each function writes one; the caller has checked the room.

Their order is that of ``formats.commitlog.RECORD``. The total size is the first field. Write it last, so
that an interrupted write never leaves a record that looks complete.
"""

import cython

from tailrace.kernels.shared import layouts as L
from tailrace.kernels.shared.big_endian import put32, put64


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def host_bits(
    sys_flag: cython.longlong, born_length: cython.Py_ssize_t, store_length: cython.Py_ssize_t
) -> cython.longlong:
    """Return ``sys_flag`` with both IPv6 bits set according to the lengths of the hosts."""
    return (
        (sys_flag & ~L.HOSTS_V6) | (L.BORNHOST_V6 if born_length == L.HOST_V6_SIZE else 0)
        | (L.STOREHOST_V6 if store_length == L.HOST_V6_SIZE else 0))


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def put_head(
    out: cython.uchar[::1], pos: cython.Py_ssize_t, magic: cython.longlong, body_crc: cython.longlong,
    queue_id: cython.longlong, flag: cython.longlong, queue_offset: cython.longlong,
    phy_offset: cython.longlong, sys_flag: cython.longlong, born_timestamp: cython.longlong,
) -> cython.Py_ssize_t:
    """Write everything before the born host except the size; return the place of that host."""
    put32(out, pos + L.AT_MAGIC, magic)
    put32(out, pos + L.AT_BODY_CRC, body_crc)
    put32(out, pos + L.AT_QUEUE_ID, queue_id)
    put32(out, pos + L.AT_FLAG, flag)
    put64(out, pos + L.AT_QUEUE_OFFSET, queue_offset)
    put64(out, pos + L.AT_PHY_OFFSET, phy_offset)
    put32(out, pos + L.AT_SYS_FLAG, sys_flag)
    put64(out, pos + L.AT_BORN_TIMESTAMP, born_timestamp)
    return pos + L.HEAD_SIZE


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def put_store_time(
    out: cython.uchar[::1], q: cython.Py_ssize_t, store_timestamp: cython.longlong
) -> cython.Py_ssize_t:
    """Write the store time; return the place of the store host."""
    put64(out, q, store_timestamp)
    return q + L.STORE_TIME_SIZE


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def put_body_head(
    out: cython.uchar[::1], q: cython.Py_ssize_t, reconsume_times: cython.longlong,
    prepared: cython.longlong, body_length: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Write what is between store host and body; return the place of the body."""
    put32(out, q, reconsume_times)
    put64(out, q + L.AT_PREPARED, prepared)
    put32(out, q + L.AT_BODY_LENGTH, body_length)
    return q + L.BODY_HEAD_SIZE


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def put_topic_length(
    out: cython.uchar[::1], q: cython.Py_ssize_t, length: cython.Py_ssize_t, v2: cython.bint
) -> cython.Py_ssize_t:
    """Write the length of the topic, two bytes in version 2; return the place of the topic."""
    if v2:
        out[q] = (length >> 8) & 255
        q += 1
    out[q] = length & 255
    return q + 1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def put_properties_length(
    out: cython.uchar[::1], q: cython.Py_ssize_t, length: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Write the length of the properties; return their place."""
    out[q] = (length >> 8) & 255
    out[q + 1] = length & 255
    return q + L.PROPERTIES_LENGTH_SIZE
