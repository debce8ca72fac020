# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Records of the CommitLog, written; ``kernels.record`` walks them."""

import cython

from tailrace.kernels.shared.big_endian import put32, put64
from tailrace.kernels.shared.crc32 import crc32, crc_of, use_crc32

SOURCE_SHA256 = ""

_END_OF_FILE = cython.declare(cython.int, -1)
_MAGIC_V1 = cython.declare(cython.longlong, 0xDAA320A7)
_MAGIC_V2 = cython.declare(cython.longlong, 0xDAA320AB)
_MASK_31 = cython.declare(cython.longlong, 0x7FFFFFFF)
_CRC_NAME: bytes = b"__CRC32#"

END_OF_FILE = _END_OF_FILE


def record_size(
    born_host_length: cython.longlong,
    store_host_length: cython.longlong,
    body_length: cython.longlong,
    topic_length: cython.longlong,
    properties_length: cython.longlong,
):
    """Bytes of a record; a topic of more than 127 bytes makes it version 2."""
    return (
        75 + born_host_length + store_host_length + body_length + topic_length + properties_length
        + (topic_length > 127)
    )


@cython.ccall
def encode(
    buf: cython.uchar[::1],
    pos: cython.Py_ssize_t,
    limit: cython.Py_ssize_t,
    phy_offset: cython.longlong,
    queue_id: cython.longlong,
    flag: cython.longlong,
    queue_offset: cython.longlong,
    sys_flag: cython.longlong,
    born_timestamp: cython.longlong,
    born_host: cython.const[cython.uchar][::1],
    store_timestamp: cython.longlong,
    store_host: cython.const[cython.uchar][::1],
    reconsume_times: cython.longlong,
    prepared: cython.longlong,
    body: cython.const[cython.uchar][::1],
    body_crc: cython.longlong,
    topic: cython.const[cython.uchar][::1],
    props: cython.const[cython.uchar][::1],
    append_prop_crc: cython.bint,
) -> cython.longlong:
    """Write a record at ``buf[pos:]`` and return its size, or END_OF_FILE when it does not fit.

    It fits when eight bytes stay free before ``limit``, for the blank record. The IPv6 bits of
    ``sys_flag`` follow the lengths of the hosts. ``append_prop_crc`` ends the properties with a
    checksum of the whole record. Lengths of topic and properties were checked by the caller.
    """
    body_length: cython.Py_ssize_t = len(body)
    topic_length: cython.Py_ssize_t = len(topic)
    props_length: cython.Py_ssize_t = len(props)
    born_length: cython.Py_ssize_t = len(born_host)
    store_length: cython.Py_ssize_t = len(store_host)
    v2: cython.bint = topic_length > 127
    separator: cython.Py_ssize_t = 0
    extra: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t
    q: cython.Py_ssize_t = pos
    crc: cython.longlong
    k: cython.Py_ssize_t
    if append_prop_crc:
        separator = 1 if props_length and props[props_length - 1] != 2 else 0
        extra = separator + 20
    size = 75 + born_length + store_length + body_length + topic_length + v2 + props_length + extra
    if limit > len(buf):
        limit = len(buf)
    if pos < 0 or size + 8 > limit - pos:
        return _END_OF_FILE
    sys_flag = sys_flag & ~cython.cast(cython.longlong, 0x30)
    if born_length == 20:
        sys_flag |= 0x10
    if store_length == 20:
        sys_flag |= 0x20
    # The length comes last: a torn store leaves no record that looks whole.
    put32(buf, q + 4, _MAGIC_V2 if v2 else _MAGIC_V1)
    put32(buf, q + 8, body_crc)
    put32(buf, q + 12, queue_id)
    put32(buf, q + 16, flag)
    put64(buf, q + 20, queue_offset)
    put64(buf, q + 28, phy_offset)
    put32(buf, q + 36, sys_flag)
    put64(buf, q + 40, born_timestamp)
    q += 48
    buf[q : q + born_length] = born_host
    q += born_length
    put64(buf, q, store_timestamp)
    q += 8
    buf[q : q + store_length] = store_host
    q += store_length
    put32(buf, q, reconsume_times)
    put64(buf, q + 4, prepared)
    put32(buf, q + 12, body_length)
    q += 16
    if body_length:
        buf[q : q + body_length] = body
    q += body_length
    if v2:
        buf[q] = (topic_length >> 8) & 255
        q += 1
    buf[q] = topic_length & 255
    q += 1
    if topic_length:
        buf[q : q + topic_length] = topic
    q += topic_length
    buf[q] = ((props_length + extra) >> 8) & 255
    buf[q + 1] = (props_length + extra) & 255
    q += 2
    if props_length:
        buf[q : q + props_length] = props
    q += props_length
    put32(buf, pos, size)
    if append_prop_crc:
        if separator:
            buf[q] = 2
            q += 1
        crc = crc_of(buf, pos, q) & _MASK_31
        for k in range(8):
            buf[q + k] = _CRC_NAME[k]
        buf[q + 8] = 1
        for k in range(10):
            buf[q + 9 + k] = 48 + crc % 10
            crc = crc // 10
        buf[q + 19] = 2
    return size


def encode_many(
    buf: cython.uchar[::1],
    pos: cython.Py_ssize_t,
    limit: cython.Py_ssize_t,
    phy_offset: cython.longlong,
    topic: cython.const[cython.uchar][::1],
    queue_id: cython.longlong,
    first_queue_offset: cython.longlong,
    sys_flag: cython.longlong,
    born_timestamp: cython.longlong,
    born_host: cython.const[cython.uchar][::1],
    store_timestamp: cython.longlong,
    store_host: cython.const[cython.uchar][::1],
    items: list,
    first: cython.Py_ssize_t,
    phy_offsets: cython.longlong[::1],
    append_prop_crc: cython.bint,
):
    """Write records for ``items[first:]``, (flag, body, properties) each, as many as fit.

    ``phy_offset`` is the position of ``buf[pos]``. Returns (items written, bytes written);
    ``phy_offsets`` gets the position of each.
    """
    n: cython.Py_ssize_t = 0
    p: cython.Py_ssize_t = pos
    count: cython.Py_ssize_t = len(items) - first
    size: cython.longlong
    body: cython.const[cython.uchar][::1]
    props: cython.const[cython.uchar][::1]
    while n < count:
        flag, body, props = items[first + n]
        size = encode(
            buf, p, limit, phy_offset + (p - pos), queue_id, flag, first_queue_offset + n,
            sys_flag, born_timestamp, born_host, store_timestamp, store_host, 0, 0, body,
            crc_of(body, 0, len(body)) & _MASK_31, topic, props, append_prop_crc,
        )
        if size < 0:
            break
        phy_offsets[first + n] = phy_offset + (p - pos)
        p += cython.cast(cython.Py_ssize_t, size)
        n += 1
    return n, p - pos
