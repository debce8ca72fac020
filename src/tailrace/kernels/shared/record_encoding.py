# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Write a record of the CommitLog, with the checksum property if there is one. All puts use ``put_record``."""

import cython

from tailrace.kernels.shared import layouts as L
from tailrace.kernels.shared.big_endian import put32, put64
from tailrace.kernels.shared.copying import copy_from
from tailrace.kernels.shared.crc32 import crc_of
from tailrace.kernels.shared.record_parts import (
    host_bits,
    put_body_head,
    put_head,
    put_properties_length,
    put_store_time,
    put_topic_length,
)

CRC_31_BITS = cython.declare(cython.longlong, 0x7FFFFFFF)


@cython.cclass
class RecordFields:
    """Fields that records of one put share. Hosts and topic are pointers to bytes that the caller keeps alive.

    They are set before a record is written; ``set_*`` also keeps the bytes alive.
    """

    queue_id: cython.longlong
    flag: cython.longlong
    sys_flag: cython.longlong
    born_timestamp: cython.longlong
    reconsume_times: cython.longlong
    prepared: cython.longlong
    now: cython.longlong
    born: cython.p_const_uchar
    born_length: cython.Py_ssize_t
    store: cython.p_const_uchar
    store_length: cython.Py_ssize_t
    topic: cython.p_const_uchar
    topic_length: cython.Py_ssize_t
    append_crc: cython.bint
    born_host: bytes
    store_host: bytes
    topic_bytes: bytes

    @cython.cfunc
    def set_born_host(self, host: bytes) -> cython.void:
        """Set the born host."""
        self.born_host, self.born_length = host, len(host)
        self.born = host

    @cython.cfunc
    def set_store_host(self, host: bytes) -> cython.void:
        """Set the store host."""
        self.store_host, self.store_length = host, len(host)
        self.store = host

    @cython.cfunc
    def set_topic(self, topic: bytes) -> cython.void:
        """Set the topic."""
        self.topic_bytes, self.topic_length = topic, len(topic)
        self.topic = topic


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def crc_room(
    append_crc: cython.bint, props_length: cython.Py_ssize_t, last: cython.uchar
) -> cython.Py_ssize_t:
    """Return the size of the checksum property, with the separator before it if one is needed."""
    if not append_crc:
        return 0
    return L.CRC_SIZE + (1 if props_length and last != 2 else 0)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def size_of(
    common: RecordFields, body_length: cython.Py_ssize_t, props_length: cython.Py_ssize_t, last: cython.uchar,
) -> cython.Py_ssize_t:
    """Return the size of a record; ``last`` is the last byte of its properties."""
    return (
        L.FIXED_SIZE + common.born_length + common.store_length + body_length + common.topic_length
        + (common.topic_length > L.MAX_TOPIC_V1) + props_length + crc_room(common.append_crc, props_length, last)
    )


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def end_record(
    out: cython.uchar[::1], pos: cython.Py_ssize_t, q: cython.Py_ssize_t, room: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Write the checksum of the record, if it has one, and the size; return the size."""
    crc: cython.longlong
    k: cython.Py_ssize_t
    put32(out, pos, q + room - pos)
    if room:
        if room > L.CRC_SIZE:
            out[q] = 2
            q += 1
        crc = crc_of(out, pos, q) & CRC_31_BITS
        put64(out, q, L.CRC_NAME)
        out[q + 8] = 1
        for k in range(10):
            out[q + 9 + k] = 48 + crc % 10
            crc = crc // 10
        out[q + L.CRC_SIZE - 1] = 2
        q += L.CRC_SIZE
    return q - pos


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def put_record(
    out: cython.uchar[::1], pos: cython.Py_ssize_t, limit: cython.Py_ssize_t, common: RecordFields,
    flag: cython.longlong, queue_offset: cython.longlong, phy_offset: cython.longlong,
    body: cython.p_const_uchar, body_length: cython.Py_ssize_t, body_crc: cython.longlong,
    props: cython.p_const_uchar, props_length: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Write a record at ``out[pos:]``; return its size, or -1 if it does not fit before ``limit``.

    Eight bytes after it must stay free for the blank record.
    """
    v2: cython.bint = common.topic_length > L.MAX_TOPIC_V1
    last: cython.uchar = props[props_length - 1] if props_length else 0
    room: cython.Py_ssize_t = crc_room(common.append_crc, props_length, last)
    q: cython.Py_ssize_t
    if size_of(common, body_length, props_length, last) + L.BLANK_SIZE > limit - pos:
        return -1
    q = put_head(
        out, pos, L.MAGIC_V2 if v2 else L.MAGIC_V1, body_crc, common.queue_id, flag, queue_offset, phy_offset,
        host_bits(common.sys_flag, common.born_length, common.store_length), common.born_timestamp)
    q = put_store_time(out, copy_from(out, q, common.born, common.born_length), common.now)
    q = copy_from(out, q, common.store, common.store_length)
    q = put_body_head(out, q, common.reconsume_times, common.prepared, body_length)
    q = put_topic_length(out, copy_from(out, q, body, body_length), common.topic_length, v2)
    q = copy_from(out, q, common.topic, common.topic_length)
    q = copy_from(out, put_properties_length(out, q, props_length + room), props, props_length)
    return end_record(out, pos, q, room)
