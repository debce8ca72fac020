# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Fill a row from a record, and copy its numbers.

Rows are int64 with the columns of ``constants``. Positions in them are indexes into the buffer of the record.
"""

import cython

from tailrace.kernels.shared import constants as C
from tailrace.kernels.shared import layouts as L
from tailrace.kernels.shared.big_endian import BE_SIGN, be32, be64
from tailrace.kernels.shared.crc32 import crc_of, own_crc_is_wrong
from tailrace.kernels.shared.fnv import queue_hash_of
from tailrace.kernels.shared.java_hash import java_hash_of
from tailrace.kernels.shared.names import known_name
from tailrace.kernels.shared.record_walk import next_property, parts_at

_MASK_31_BITS = cython.declare(cython.longlong, 0x7FFFFFFF)
_LOW_32 = cython.declare(cython.longlong, 0xFFFFFFFF)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def fill_properties(
    b: cython.const[cython.uchar][::1],
    p: cython.Py_ssize_t,
    e: cython.Py_ssize_t,
    rows: cython.longlong[:, ::1],
    n: cython.Py_ssize_t,
) -> cython.void:
    """Set the positions and lengths of the properties that the store uses, the delay level, and their part of KIND."""
    value: cython.Py_ssize_t
    end: cython.Py_ssize_t
    k: cython.Py_ssize_t
    name: cython.int
    level: cython.longlong
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
    rows[n, C.KIND] = 0
    p, value, end = next_property(b, p, e)
    while p < e:
        name = known_name(b, p, value - 1 - p)
        if name == L.NAME_TAGS:
            rows[n, C.TAGS_POS] = value
            rows[n, C.TAGS_LEN] = end - value
        elif name == L.NAME_KEYS:
            rows[n, C.KEYS_POS] = value
            rows[n, C.KEYS_LEN] = end - value
        elif name == L.NAME_UNIQ_KEY:
            rows[n, C.UNIQ_POS] = value
            rows[n, C.UNIQ_LEN] = end - value
        elif name == L.NAME_DELAY:
            level = 0
            for k in range(value, end):
                if 48 <= b[k] <= 57 and level < 1000000:
                    level = level * 10 + (b[k] - 48)
                else:
                    level = 0
                    break
            rows[n, C.DELAY_LEVEL] = level
            rows[n, C.KIND] |= C.WAITS
        elif name == L.NAME_INNER_MULTI_DISPATCH:
            rows[n, C.LMQ_POS] = value
            rows[n, C.LMQ_LEN] = end - value
        elif name == L.NAME_INNER_MULTI_QUEUE_OFFSET:
            rows[n, C.LMQ_OFFSETS_POS] = value
            rows[n, C.LMQ_OFFSETS_LEN] = end - value
            rows[n, C.KIND] |= C.LMQ
        p, value, end = next_property(b, end + 1, e)


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
    time: cython.Py_ssize_t
    body: cython.Py_ssize_t
    topic: cython.Py_ssize_t
    q: cython.Py_ssize_t
    length: cython.longlong
    time, body, topic, q = parts_at(b, p, end)
    if q < 0:
        return C.REASON_BAD_LENGTH
    rows[n, C.BORN_HOST_POS] = p + L.HEAD_SIZE
    rows[n, C.STORE_TIMESTAMP] = be64(b, time)
    rows[n, C.STORE_HOST_POS] = time + L.STORE_TIME_SIZE
    rows[n, C.RECONSUME_TIMES] = be32(b, body - L.BODY_HEAD_SIZE)
    rows[n, C.PREPARED] = be64(b, body - L.BODY_HEAD_SIZE + L.AT_PREPARED)
    rows[n, C.BODY_POS] = body
    rows[n, C.BODY_LEN] = be32(b, body - L.BODY_HEAD_SIZE + L.AT_BODY_LENGTH)
    rows[n, C.TOPIC_POS] = topic
    rows[n, C.TOPIC_LEN] = q - L.PROPERTIES_LENGTH_SIZE - topic
    rows[n, C.PROPS_POS] = q
    rows[n, C.PROPS_LEN] = end - q
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
    rows[n, C.SYS_FLAG] = be32(b, p + L.AT_SYS_FLAG)
    rows[n, C.BORN_TIMESTAMP] = be64(b, p + L.AT_BORN_TIMESTAMP)
    fill_properties(b, end if check & C.LEAVE_PROPERTIES else q, end, rows, n)
    if rows[n, C.SYS_FLAG] & L.INNER_BATCH:
        rows[n, C.KIND] |= C.INNER_BATCH
    if (rows[n, C.SYS_FLAG] & L.TRANSACTION_MASK) == L.TRANSACTION_ROLLBACK:
        rows[n, C.KIND] |= C.ROLLED_BACK
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
