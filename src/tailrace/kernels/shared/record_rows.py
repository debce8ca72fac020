# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Fill a row from a record, and copy its numbers.

Rows are int64 with the columns of ``constants``. Positions in them are indexes into the buffer of the record.
"""

import cython

from tailrace.kernels.shared import constants as C
from tailrace.kernels.shared import layouts as L
from tailrace.kernels.shared.big_endian import BE_SIGN, be16, be32, be32u, be64
from tailrace.kernels.shared.copying import find_byte
from tailrace.kernels.shared.crc32 import crc_of, own_crc_is_wrong
from tailrace.kernels.shared.fnv import queue_hash_of
from tailrace.kernels.shared.java_hash import java_hash_of
from tailrace.kernels.shared.names import (
    is_delay,
    is_inner_multi_dispatch,
    is_inner_multi_queue_offset,
    is_keys,
    is_tags,
    is_uniq_key,
)

_MASK_31_BITS = cython.declare(cython.longlong, 0x7FFFFFFF)
_LOW_32 = cython.declare(cython.longlong, 0xFFFFFFFF)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _fill_properties(
    b: cython.const[cython.uchar][::1],
    p: cython.Py_ssize_t,
    e: cython.Py_ssize_t,
    rows: cython.longlong[:, ::1],
    n: cython.Py_ssize_t,
) -> cython.void:
    """Set the positions and lengths of the properties that the store uses, and the delay level."""
    start: cython.Py_ssize_t = p
    value: cython.Py_ssize_t
    length: cython.Py_ssize_t
    k: cython.Py_ssize_t
    level: cython.longlong
    while start < e:
        p = find_byte(b, start, e, 2)
        value = find_byte(b, start, p, 1) + 1
        length = value - 1 - start
        if length > 0 and p > value:
            if is_tags(b, start, length):
                rows[n, C.TAGS_POS] = value
                rows[n, C.TAGS_LEN] = p - value
            elif is_keys(b, start, length):
                rows[n, C.KEYS_POS] = value
                rows[n, C.KEYS_LEN] = p - value
            elif is_uniq_key(b, start, length):
                rows[n, C.UNIQ_POS] = value
                rows[n, C.UNIQ_LEN] = p - value
            elif is_delay(b, start, length):
                level = 0
                for k in range(value, p):
                    if 48 <= b[k] <= 57 and level < 1000000:
                        level = level * 10 + (b[k] - 48)
                    else:
                        level = 0
                        break
                rows[n, C.DELAY_LEVEL] = level
            elif is_inner_multi_dispatch(b, start, length):
                rows[n, C.LMQ_POS] = value
                rows[n, C.LMQ_LEN] = p - value
            elif is_inner_multi_queue_offset(b, start, length):
                rows[n, C.LMQ_OFFSETS_POS] = value
                rows[n, C.LMQ_OFFSETS_LEN] = p - value
        start = p + 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def fill_row(
    b: cython.const[cython.uchar][::1],
    p: cython.Py_ssize_t,
    size: cython.longlong,
    base: cython.longlong,
    check: cython.int,
    rows: cython.longlong[:, ::1],
    n: cython.Py_ssize_t,
) -> cython.int:
    """Fill row ``n`` from the record ``b[p:p + size]``, which is inside the buffer. Return 0 or a REASON_*."""
    end: cython.Py_ssize_t = p + cython.cast(cython.Py_ssize_t, size)
    v2: cython.bint = be32u(b, p + L.AT_MAGIC) == L.MAGIC_V2
    sys_flag: cython.longlong = be32(b, p + L.AT_SYS_FLAG)
    q: cython.Py_ssize_t = p + L.HEAD_SIZE
    length: cython.longlong
    store_host: cython.Py_ssize_t
    rows[n, C.BORN_HOST_POS] = q
    q += L.HOST_V6_SIZE if sys_flag & L.BORNHOST_V6 else L.HOST_V4_SIZE
    rows[n, C.STORE_HOST_POS] = q + L.STORE_TIME_SIZE
    store_host = L.HOST_V6_SIZE if sys_flag & L.STOREHOST_V6 else L.HOST_V4_SIZE
    if q + L.STORE_TIME_SIZE + store_host + L.BODY_HEAD_SIZE + 4 > end:
        return C.REASON_BAD_LENGTH
    rows[n, C.STORE_TIMESTAMP] = be64(b, q)
    q += L.STORE_TIME_SIZE + store_host
    rows[n, C.RECONSUME_TIMES] = be32(b, q)
    rows[n, C.PREPARED] = be64(b, q + L.AT_PREPARED)
    length = be32(b, q + L.AT_BODY_LENGTH)
    q += L.BODY_HEAD_SIZE
    if length < 0 or length > end - q - 3 - v2:
        return C.REASON_BAD_LENGTH
    rows[n, C.BODY_POS] = q
    rows[n, C.BODY_LEN] = length
    q += cython.cast(cython.Py_ssize_t, length)
    length = be16(b, q) if v2 else b[q]
    q += 2 if v2 else 1
    if length > end - q - 2:
        return C.REASON_BAD_LENGTH
    rows[n, C.TOPIC_POS] = q
    rows[n, C.TOPIC_LEN] = length
    q += cython.cast(cython.Py_ssize_t, length)
    length = be16(b, q)
    q += L.PROPERTIES_LENGTH_SIZE
    if q + length != end:
        return C.REASON_BAD_LENGTH
    rows[n, C.PROPS_POS] = q
    rows[n, C.PROPS_LEN] = length
    rows[n, C.PHY] = base + p
    if check & C.CHECK_PHY_OFFSET and be64(b, p + L.AT_PHY_OFFSET) != base + p:
        return C.REASON_BAD_PHY_OFFSET
    rows[n, C.BODY_CRC] = be32(b, p + L.AT_BODY_CRC)
    if check & C.CHECK_BODY_CRC and rows[n, C.BODY_LEN] > 0:
        length = crc_of(b, rows[n, C.BODY_POS], rows[n, C.BODY_POS] + rows[n, C.BODY_LEN])
        if (length & _MASK_31_BITS) != rows[n, C.BODY_CRC]:
            return C.REASON_BAD_CRC
    if check & C.CHECK_PROP_CRC and own_crc_is_wrong(b, p, q, end):
        return C.REASON_BAD_PROP_CRC
    rows[n, C.SIZE] = size
    rows[n, C.QUEUE_ID] = be32(b, p + L.AT_QUEUE_ID)
    rows[n, C.FLAG] = be32(b, p + L.AT_FLAG)
    rows[n, C.QUEUE_OFFSET] = be64(b, p + L.AT_QUEUE_OFFSET)
    rows[n, C.SYS_FLAG] = sys_flag
    rows[n, C.BORN_TIMESTAMP] = be64(b, p + L.AT_BORN_TIMESTAMP)
    rows[n, C.DELAY_LEVEL] = 0
    rows[n, C.KEYS_POS] = -1
    rows[n, C.KEYS_LEN] = 0
    rows[n, C.UNIQ_POS] = -1
    rows[n, C.UNIQ_LEN] = 0
    rows[n, C.TAGS_POS] = -1
    rows[n, C.TAGS_LEN] = 0
    rows[n, C.LMQ_POS] = -1
    rows[n, C.LMQ_LEN] = 0
    rows[n, C.LMQ_OFFSETS_POS] = -1
    rows[n, C.LMQ_OFFSETS_LEN] = 0
    if not check & C.LEAVE_PROPERTIES:
        _fill_properties(b, q, end, rows, n)
    if check & C.LEAVE_HASHES:
        return 0
    rows[n, C.QUEUE_HASH] = queue_hash_of(
        b, rows[n, C.TOPIC_POS], rows[n, C.TOPIC_POS] + rows[n, C.TOPIC_LEN], rows[n, C.QUEUE_ID]
    )
    rows[n, C.TAGS_CODE] = (
        java_hash_of(b, rows[n, C.TAGS_POS], rows[n, C.TAGS_POS] + rows[n, C.TAGS_LEN])
        if rows[n, C.TAGS_POS] >= 0
        else 0
    )
    return 0


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def put_numbers(
    rows: cython.longlong[:, ::1],
    n: cython.Py_ssize_t,
    columns: cython.const[cython.longlong][::1],
    at: cython.Py_ssize_t,
    short: cython.int[:, ::1],
    long: cython.longlong[:, ::1],
) -> cython.void:
    """Copy ``columns`` of row ``n``: the first ones to ``short[:, at]`` (low 32 bits), others to ``long[:, at]``."""
    k: cython.Py_ssize_t
    shorts: cython.Py_ssize_t = short.shape[0]
    for k in range(shorts):
        short[k, at] = cython.cast(cython.int, ((rows[n, columns[k]] & _LOW_32) ^ BE_SIGN) - BE_SIGN)
    for k in range(shorts, columns.shape[0]):
        long[k - shorts, at] = rows[n, columns[k]]


@cython.cfunc
@cython.exceptval(check=False)
def numbers_fit(
    columns: cython.const[cython.longlong][::1],
    end: cython.Py_ssize_t,
    short: cython.int[:, ::1],
    long: cython.longlong[:, ::1],
) -> cython.bint:
    """Return True if ``put_numbers`` may be called for ``at`` in [0, ``end``)."""
    k: cython.Py_ssize_t
    for k in range(columns.shape[0]):
        if not 0 <= columns[k] < C.COLUMNS:
            return False
    return (
        columns.shape[0] == short.shape[0] + long.shape[0]
        and end <= short.shape[1] and end <= long.shape[1])
