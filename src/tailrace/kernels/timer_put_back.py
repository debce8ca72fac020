# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Write the records of timers that are due, under their own topics.

``rows`` is the array that ``timer_records.read`` fills. Every position is compared with the length of its buffer
before it is written.
"""

import cython

from tailrace.kernels.shared import constants as C
from tailrace.kernels.shared import layouts as L
from tailrace.kernels.shared.big_endian import be32, be64, put32
from tailrace.kernels.shared.copying import copy_bytes
from tailrace.kernels.shared.record_parts import (
    host_bits,
    put_body_head,
    put_head,
    put_properties_length,
    put_store_time,
    put_topic_length,
)

SOURCE_SHA256 = ""

_NAMES: bytes = b"TIMER_ENQUEUE_MSTIMER_DEQUEUE_MS"


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _digits(v: cython.longlong) -> cython.Py_ssize_t:
    n: cython.Py_ssize_t = 1
    while v >= 10:
        v = v // 10
        n += 1
    return n


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _decimal(out: cython.uchar[::1], q: cython.Py_ssize_t, v: cython.longlong) -> cython.Py_ssize_t:
    """Write a number that is not negative. Return the index after it."""
    n: cython.Py_ssize_t = _digits(v)
    k: cython.Py_ssize_t
    for k in range(n):
        out[q + n - 1 - k] = 48 + v % 10
        v = v // 10
    return q + n


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _put_one(
    out: cython.uchar[::1],
    start: cython.Py_ssize_t,
    limit: cython.Py_ssize_t,
    phy_offset: cython.longlong,
    b: cython.const[cython.uchar][::1],
    rows: cython.const[cython.longlong][:, ::1],
    r: cython.Py_ssize_t,
    queue_offset: cython.longlong,
    dequeue_ms: cython.longlong,
    now_ms: cython.longlong,
    store_host: cython.const[cython.uchar][::1],
    names: cython.const[cython.uchar][::1],
) -> cython.Py_ssize_t:
    """Write the record of row ``r`` for delivery. Return its size, or -1 if it does not fit."""
    p: cython.Py_ssize_t = rows[r, C.T_POS]
    born_length: cython.Py_ssize_t = rows[r, C.T_BORN_LEN]
    body_length: cython.Py_ssize_t = rows[r, C.T_BODY_LEN]
    topic_length: cython.Py_ssize_t = rows[r, C.T_TOPIC_LEN]
    props: cython.Py_ssize_t = rows[r, C.T_PROPS_POS]
    props_length: cython.Py_ssize_t = rows[r, C.T_PROPS_LEN]
    host_length: cython.Py_ssize_t = len(store_host)
    separator: cython.Py_ssize_t = 0 if b[props + props_length - 1] == 2 else 1
    added: cython.Py_ssize_t = 36 + separator + _digits(rows[r, C.T_WROTE]) + _digits(dequeue_ms)
    size: cython.Py_ssize_t = (
        L.FIXED_SIZE + born_length + host_length + body_length + topic_length + props_length + added)
    q: cython.Py_ssize_t
    body: cython.Py_ssize_t = rows[r, C.T_BODY_POS]
    if size + L.BLANK_SIZE > limit - start:
        return -1
    q = put_head(
        out, start, L.MAGIC_V1, be32(b, p + L.AT_BODY_CRC),  # of the body; `timer_records.read` has verified it
        rows[r, C.T_QUEUE_ID], be32(b, p + L.AT_FLAG), queue_offset, phy_offset,
        host_bits(be32(b, p + L.AT_SYS_FLAG), born_length, host_length), be64(b, p + L.AT_BORN_TIMESTAMP))
    q = put_store_time(out, copy_bytes(out, q, b, p + L.HEAD_SIZE, born_length), now_ms)
    q = copy_bytes(out, q, store_host, 0, host_length)
    q = put_body_head(out, q, be32(b, body - L.BODY_HEAD_SIZE), 0, body_length)
    q = copy_bytes(out, q, b, body, body_length)
    q = put_topic_length(out, q, topic_length, False)
    q = copy_bytes(out, q, b, rows[r, C.T_TOPIC_POS], topic_length)
    q = put_properties_length(out, q, props_length + added)
    q = copy_bytes(out, q, b, props, props_length)
    if separator:
        out[q] = 2
        q += 1
    q = copy_bytes(out, q, names, 0, 16)
    out[q] = 1
    q = _decimal(out, q + 1, rows[r, C.T_WROTE])
    out[q] = 2
    q = copy_bytes(out, q + 1, names, 16, 16)
    out[q] = 1
    q = _decimal(out, q + 1, dequeue_ms)
    out[q] = 2
    put32(out, start, size)
    return size


def put_back(
    buf: cython.const[cython.uchar][::1],
    rows: cython.const[cython.longlong][:, ::1],
    order: cython.const[cython.longlong][::1],
    first: cython.Py_ssize_t,
    until: cython.Py_ssize_t,
    out: cython.uchar[::1],
    pos: cython.Py_ssize_t,
    limit: cython.Py_ssize_t,
    phy_offset: cython.longlong,
    queue_offsets: cython.longlong[::1],
    dequeue_ms: cython.longlong,
    now_ms: cython.longlong,
    store_host: cython.const[cython.uchar][::1],
):
    """Write the plain rows ``order[first:until]`` as records of their real topics.

    ``out[pos]`` is at position ``phy_offset`` of the log, ``now_ms`` is the store time. Body, flags, born host and
    properties are copied; the times of enqueue and dequeue are added as properties (RocketMQ's convertMessage).
    ``queue_offsets[T_QUEUE]`` is the queue offset of a row's record and is incremented.
    Return (records, bytes) that fit; eight bytes after them stay free for the blank record.
    """
    n: cython.Py_ssize_t
    r: cython.Py_ssize_t
    size: cython.Py_ssize_t
    p: cython.Py_ssize_t = pos
    count: cython.Py_ssize_t = rows.shape[0]
    queues: cython.Py_ssize_t = queue_offsets.shape[0]
    names: cython.const[cython.uchar][::1] = _NAMES
    if limit > len(out):
        limit = len(out)
    if not 0 <= first <= until <= order.shape[0] or pos < 0 or dequeue_ms < 0:
        raise ValueError(f"rows {first} to {until} of {order.shape[0]} at {pos}")
    if count and rows.shape[1] < C.T_COLUMNS:
        raise ValueError(f"{rows.shape[1]} columns")
    for n in range(first, until):  # check all rows before the first byte is written
        r = order[n]
        if not 0 <= r < count or rows[r, C.T_PLAIN] != 1 or rows[r, C.T_WROTE] < 0 or not (
            0 <= rows[r, C.T_QUEUE] < queues
        ) or rows[r, C.T_PROPS_POS] + rows[r, C.T_PROPS_LEN] > len(buf):
            raise ValueError(f"row {r} is not a plain timer inside the buffer")
    n = first
    with cython.nogil:
        while n < until:
            r = order[n]
            size = _put_one(
                out, p, limit, phy_offset + (p - pos), buf, rows, r,
                queue_offsets[rows[r, C.T_QUEUE]], dequeue_ms, now_ms, store_host, names)
            if size < 0:
                break
            queue_offsets[rows[r, C.T_QUEUE]] += 1
            p += size
            n += 1
    return n - first, p - pos
