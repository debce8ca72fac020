# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Parts of a record of the CommitLog. Each function writes one; the caller has checked the room.

In order: head (``formats.commitlog.MESSAGE_HEAD``), born host, store time, store host, body head, body,
topic, properties. The total size is the first field. Write it last, so that an interrupted write never
leaves a record that looks complete.
"""

import cython

from tailrace.kernels.shared.big_endian import put32, put64

FIXED_SIZE = cython.declare(cython.Py_ssize_t, 75)  # all but hosts, body, topic, properties
BLANK_SIZE = cython.declare(cython.Py_ssize_t, 8)
MAGIC_V1 = cython.declare(cython.longlong, 0xDAA320A7)
MAGIC_V2 = cython.declare(cython.longlong, 0xDAA320AB)
_HOSTS_V6 = cython.declare(cython.longlong, 0x30)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def host_bits(
    sys_flag: cython.longlong, born_length: cython.Py_ssize_t, store_length: cython.Py_ssize_t
) -> cython.longlong:
    """Return ``sys_flag`` with both IPv6 bits set according to the lengths of the hosts."""
    return (
        (sys_flag & ~_HOSTS_V6) | (0x10 if born_length == 20 else 0) | (0x20 if store_length == 20 else 0))


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
    put32(out, pos + 4, magic)
    put32(out, pos + 8, body_crc)
    put32(out, pos + 12, queue_id)
    put32(out, pos + 16, flag)
    put64(out, pos + 20, queue_offset)
    put64(out, pos + 28, phy_offset)
    put32(out, pos + 36, sys_flag)
    put64(out, pos + 40, born_timestamp)
    return pos + 48


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def put_store_time(
    out: cython.uchar[::1], q: cython.Py_ssize_t, store_timestamp: cython.longlong
) -> cython.Py_ssize_t:
    """Write the store time; return the place of the store host."""
    put64(out, q, store_timestamp)
    return q + 8


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
    put64(out, q + 4, prepared)
    put32(out, q + 12, body_length)
    return q + 16


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
    return q + 2
