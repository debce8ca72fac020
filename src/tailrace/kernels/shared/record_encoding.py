# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Write records of the CommitLog, with the checksum property if there is one: one, or those of many messages."""

import cython

from tailrace.kernels.shared import layouts as L
from tailrace.kernels.shared.big_endian import be32, put32, put64
from tailrace.kernels.shared.copying import copy_bytes, copy_object
from tailrace.kernels.shared.crc32 import crc_of, crc_of_object
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
    """Fields that all records of one put share; hosts and topic are set before a record is written."""

    queue_id: cython.longlong
    flag: cython.longlong
    sys_flag: cython.longlong
    born_timestamp: cython.longlong
    reconsume_times: cython.longlong
    prepared: cython.longlong
    now: cython.longlong
    born_host: bytes
    store_host: bytes
    topic: bytes
    append_crc: cython.bint


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
def size_of(
    common: RecordFields, body_length: cython.Py_ssize_t, props_length: cython.Py_ssize_t,
    last: cython.uchar,
) -> cython.Py_ssize_t:
    """Return the size of a record; ``last`` is the last byte of its properties."""
    topic_length: cython.Py_ssize_t = len(common.topic)
    return (
        L.FIXED_SIZE + len(common.born_host) + len(common.store_host) + body_length + topic_length
        + (topic_length > L.MAX_TOPIC_V1) + props_length + crc_room(common.append_crc, props_length, last)
    )


@cython.cfunc
def begin_record(
    out: cython.uchar[::1], pos: cython.Py_ssize_t, common: RecordFields, flag: cython.longlong,
    queue_offset: cython.longlong, phy_offset: cython.longlong, body_crc: cython.longlong,
    body_length: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Write everything before the body; return the place of the body."""
    born: cython.Py_ssize_t = len(common.born_host)
    store: cython.Py_ssize_t = len(common.store_host)
    q: cython.Py_ssize_t = put_head(
        out, pos, L.MAGIC_V2 if len(common.topic) > L.MAX_TOPIC_V1 else L.MAGIC_V1, body_crc, common.queue_id, flag,
        queue_offset, phy_offset, host_bits(common.sys_flag, born, store), common.born_timestamp)
    q = put_store_time(out, copy_object(out, q, common.born_host), common.now)
    q = copy_object(out, q, common.store_host)
    return put_body_head(out, q, common.reconsume_times, common.prepared, body_length)


@cython.cfunc
def put_topic(
    out: cython.uchar[::1], q: cython.Py_ssize_t, common: RecordFields, props_length: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Write the topic and the length of the properties; return the place of the properties."""
    length: cython.Py_ssize_t = len(common.topic)
    q = copy_object(out, put_topic_length(out, q, length, length > L.MAX_TOPIC_V1), common.topic)
    return put_properties_length(out, q, props_length)


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
def put_record(
    out: cython.uchar[::1], pos: cython.Py_ssize_t, limit: cython.Py_ssize_t, common: RecordFields,
    flag: cython.longlong, queue_offset: cython.longlong, phy_offset: cython.longlong, body: bytes,
    body_crc: cython.longlong, props: bytes,
) -> cython.Py_ssize_t:
    """Write a record at ``out[pos:]``; return its size, or -1 if it does not fit before ``limit``.

    Eight bytes after it must stay free for the blank record.
    """
    props_length: cython.Py_ssize_t = len(props)
    last: cython.uchar = props[props_length - 1] if props_length else 0
    room: cython.Py_ssize_t = crc_room(common.append_crc, props_length, last)
    q: cython.Py_ssize_t
    if size_of(common, len(body), props_length, last) + L.BLANK_SIZE > limit - pos:
        return -1
    q = begin_record(out, pos, common, flag, queue_offset, phy_offset, body_crc, len(body))
    q = copy_object(out, q, body)
    q = put_topic(out, q, common, props_length + room)
    q = copy_object(out, q, props)
    return end_record(out, pos, q, room)


@cython.cfunc
def put_items(
    out: cython.uchar[::1], at: cython.Py_ssize_t, limit: cython.Py_ssize_t, common: RecordFields, items: list,
    until: cython.Py_ssize_t, queue_offset: cython.longlong, phy_offset: cython.longlong, positions: list,
) -> cython.Py_ssize_t:
    """Write the records of items (flag, body, properties) that fit into ``out[at:limit]``; return their bytes.

    ``positions`` has the position in the log of each item that is written; the next item is the one after these, the
    last one that before ``until``. ``queue_offset`` is that of the first item, ``phy_offset`` the position of
    ``out[at]``.
    """
    p: cython.Py_ssize_t = at
    size: cython.Py_ssize_t
    n: cython.Py_ssize_t
    flag: cython.longlong
    plain: bytes
    for n in range(len(positions), until):
        flag, body, props = items[n]
        plain = body if type(body) is bytes else bytes(body)
        if type(props) is not bytes:
            raise TypeError(f"properties of message {n} are {type(props).__name__}, not bytes")
        size = put_record(
            out, p, limit, common, flag, queue_offset + n, phy_offset + (p - at), plain,
            crc_of_object(plain) & CRC_31_BITS, props)
        if size < 0:
            break
        positions.append(phy_offset + (p - at))
        p += size
    return p - at


@cython.cfunc
def put_batch(
    out: cython.uchar[::1], at: cython.Py_ssize_t, limit: cython.Py_ssize_t, common: RecordFields, items: bytes,
    queue_offset: cython.longlong, phy_offset: cython.longlong, positions: list,
) -> cython.Py_ssize_t:
    """As ``put_items``, for a batch body that ``record.check_batch`` has accepted. All of its records must fit."""
    data: cython.const[cython.uchar][::1] = items
    b: cython.Py_ssize_t = 0
    p: cython.Py_ssize_t = at
    q: cython.Py_ssize_t
    body: cython.Py_ssize_t
    props: cython.Py_ssize_t
    room: cython.Py_ssize_t
    last: cython.uchar
    while b < len(data):
        body = be32(data, b + L.ITEM_AT_BODY_LENGTH)
        q = b + L.ITEM_SIZE + body
        props = data[q] * 256 + data[q + 1]
        last = data[q + 1 + props] if props else 0
        room = crc_room(common.append_crc, props, last)
        if size_of(common, body, props, last) + L.BLANK_SIZE > limit - p:
            raise ValueError(f"the records of a batch of {len(data)} bytes do not fit {limit - at} bytes")
        positions.append(phy_offset + (p - at))
        q = begin_record(
            out, p, common, be32(data, b + L.ITEM_AT_FLAG), queue_offset, phy_offset + (p - at),
            crc_of(data, b + L.ITEM_SIZE, b + L.ITEM_SIZE + body) & CRC_31_BITS, body)
        q = copy_bytes(out, q, data, b + L.ITEM_SIZE, body)
        q = put_topic(out, q, common, props + room)
        q = copy_bytes(out, q, data, b + L.ITEM_SIZE + body + 2, props)
        p += end_record(out, p, q, room)
        queue_offset += 1
        b += L.ITEM_SIZE + body + 2 + props
    return p - at
