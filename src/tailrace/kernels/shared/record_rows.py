# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Fill a row from a record, and copy its numbers.

Rows are int64 with the columns of ``record_columns``. Positions in them are indexes into the buffer of the record.
"""

import cython

from tailrace.kernels.shared.big_endian import BE_SIGN, be16, be32, be32u, be64
from tailrace.kernels.shared.copying import find_byte
from tailrace.kernels.shared.crc32 import crc_of, own_crc_is_wrong
from tailrace.kernels.shared.fnv import queue_hash_of
from tailrace.kernels.shared.java_hash import java_hash_of
from tailrace.kernels.shared.lmq_names import is_dispatch, is_inner_multi, is_queue_offset
from tailrace.kernels.shared.record_columns import (
    _C_BODY_CRC,
    _C_BODY_LEN,
    _C_BODY_POS,
    _C_BORN_HOST_POS,
    _C_BORN_TIMESTAMP,
    _C_DELAY_LEVEL,
    _C_FLAG,
    _C_KEYS_LEN,
    _C_KEYS_POS,
    _C_LMQ_LEN,
    _C_LMQ_OFFSETS_LEN,
    _C_LMQ_OFFSETS_POS,
    _C_LMQ_POS,
    _C_PHY,
    _C_PREPARED,
    _C_PROPS_LEN,
    _C_PROPS_POS,
    _C_QUEUE_HASH,
    _C_QUEUE_ID,
    _C_QUEUE_OFFSET,
    _C_RECONSUME_TIMES,
    _C_SIZE,
    _C_STORE_HOST_POS,
    _C_STORE_TIMESTAMP,
    _C_SYS_FLAG,
    _C_TAGS_CODE,
    _C_TAGS_LEN,
    _C_TAGS_POS,
    _C_TOPIC_LEN,
    _C_TOPIC_POS,
    _C_UNIQ_LEN,
    _C_UNIQ_POS,
    _COLUMNS,
)
from tailrace.kernels.shared.record_layout import (
    AT_BODY_CRC,
    AT_BODY_LENGTH,
    AT_BORN_TIMESTAMP,
    AT_FLAG,
    AT_MAGIC,
    AT_PHY_OFFSET,
    AT_PREPARED,
    AT_QUEUE_ID,
    AT_QUEUE_OFFSET,
    AT_SYS_FLAG,
    BODY_HEAD_SIZE,
    BORNHOST_V6,
    HEAD_SIZE,
    HOST_V4_SIZE,
    HOST_V6_SIZE,
    MAGIC_V2,
    PROPERTIES_LENGTH_SIZE,
    STORE_TIME_SIZE,
    STOREHOST_V6,
)

_CHECK_BODY_CRC = cython.declare(cython.int, 1)
_CHECK_PHY_OFFSET = cython.declare(cython.int, 2)
_CHECK_PROP_CRC = cython.declare(cython.int, 4)
_LEAVE_PROPERTIES = cython.declare(cython.int, 8)  # do not read the properties; rows have none of the known ones
LEAVE_HASHES = cython.declare(cython.int, 16)  # do not fill queue hash and tags code
_REASON_END = cython.declare(cython.int, 0)  # everything up to `until` was read
_REASON_ROWS_FULL = cython.declare(cython.int, 1)
_REASON_BLANK = cython.declare(cython.int, 2)  # the blank record that ends a file is at `stop`
_REASON_ZERO = cython.declare(cython.int, 3)  # zeros at `stop`: never written
_REASON_BAD_MAGIC = cython.declare(cython.int, 4)
_REASON_BAD_LENGTH = cython.declare(cython.int, 5)  # lengths that do not add up
_REASON_BAD_CRC = cython.declare(cython.int, 6)
_REASON_BAD_PHY_OFFSET = cython.declare(cython.int, 7)
_REASON_SHORT = cython.declare(cython.int, 8)  # the record ends after `until`
_REASON_BAD_PROP_CRC = cython.declare(cython.int, 9)
_REASON_TORN = cython.declare(cython.int, 10)  # set by store.walk, not by scan: topic or properties have a NUL byte

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
            if length == 4 and b[start + 3] == 83:  # S
                if b[start] == 84 and b[start + 1] == 65 and b[start + 2] == 71:  # TAGS
                    rows[n, _C_TAGS_POS] = value
                    rows[n, _C_TAGS_LEN] = p - value
                elif b[start] == 75 and b[start + 1] == 69 and b[start + 2] == 89:  # KEYS
                    rows[n, _C_KEYS_POS] = value
                    rows[n, _C_KEYS_LEN] = p - value
            elif (
                length == 8 and b[start] == 85 and b[start + 1] == 78 and b[start + 2] == 73
                and b[start + 3] == 81 and b[start + 4] == 95 and b[start + 5] == 75
                and b[start + 6] == 69 and b[start + 7] == 89
            ):  # UNIQ_KEY
                rows[n, _C_UNIQ_POS] = value
                rows[n, _C_UNIQ_LEN] = p - value
            elif (
                length == 5 and b[start] == 68 and b[start + 1] == 69 and b[start + 2] == 76
                and b[start + 3] == 65 and b[start + 4] == 89
            ):  # DELAY
                level = 0
                for k in range(value, p):
                    if 48 <= b[k] <= 57 and level < 1000000:
                        level = level * 10 + (b[k] - 48)
                    else:
                        level = 0
                        break
                rows[n, _C_DELAY_LEVEL] = level
            elif length == 20 and is_inner_multi(b, start) and is_dispatch(b, start + 12):
                rows[n, _C_LMQ_POS] = value
                rows[n, _C_LMQ_LEN] = p - value
            elif length == 24 and is_inner_multi(b, start) and is_queue_offset(b, start + 12):
                rows[n, _C_LMQ_OFFSETS_POS] = value
                rows[n, _C_LMQ_OFFSETS_LEN] = p - value
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
    v2: cython.bint = be32u(b, p + AT_MAGIC) == MAGIC_V2
    sys_flag: cython.longlong = be32(b, p + AT_SYS_FLAG)
    q: cython.Py_ssize_t = p + HEAD_SIZE
    length: cython.longlong
    rows[n, _C_BORN_HOST_POS] = q
    q += HOST_V6_SIZE if sys_flag & BORNHOST_V6 else HOST_V4_SIZE
    rows[n, _C_STORE_HOST_POS] = q + STORE_TIME_SIZE
    if q + STORE_TIME_SIZE + (HOST_V6_SIZE if sys_flag & STOREHOST_V6 else HOST_V4_SIZE) + BODY_HEAD_SIZE + 4 > end:
        return _REASON_BAD_LENGTH
    rows[n, _C_STORE_TIMESTAMP] = be64(b, q)
    q += STORE_TIME_SIZE + (HOST_V6_SIZE if sys_flag & STOREHOST_V6 else HOST_V4_SIZE)
    rows[n, _C_RECONSUME_TIMES] = be32(b, q)
    rows[n, _C_PREPARED] = be64(b, q + AT_PREPARED)
    length = be32(b, q + AT_BODY_LENGTH)
    q += BODY_HEAD_SIZE
    if length < 0 or length > end - q - 3 - v2:
        return _REASON_BAD_LENGTH
    rows[n, _C_BODY_POS] = q
    rows[n, _C_BODY_LEN] = length
    q += cython.cast(cython.Py_ssize_t, length)
    length = be16(b, q) if v2 else b[q]
    q += 2 if v2 else 1
    if length > end - q - 2:
        return _REASON_BAD_LENGTH
    rows[n, _C_TOPIC_POS] = q
    rows[n, _C_TOPIC_LEN] = length
    q += cython.cast(cython.Py_ssize_t, length)
    length = be16(b, q)
    q += PROPERTIES_LENGTH_SIZE
    if q + length != end:
        return _REASON_BAD_LENGTH
    rows[n, _C_PROPS_POS] = q
    rows[n, _C_PROPS_LEN] = length
    rows[n, _C_PHY] = base + p
    if check & _CHECK_PHY_OFFSET and be64(b, p + AT_PHY_OFFSET) != base + p:
        return _REASON_BAD_PHY_OFFSET
    rows[n, _C_BODY_CRC] = be32(b, p + AT_BODY_CRC)
    if check & _CHECK_BODY_CRC and rows[n, _C_BODY_LEN] > 0:
        length = crc_of(b, rows[n, _C_BODY_POS], rows[n, _C_BODY_POS] + rows[n, _C_BODY_LEN])
        if (length & _MASK_31_BITS) != rows[n, _C_BODY_CRC]:
            return _REASON_BAD_CRC
    if check & _CHECK_PROP_CRC and own_crc_is_wrong(b, p, q, end):
        return _REASON_BAD_PROP_CRC
    rows[n, _C_SIZE] = size
    rows[n, _C_QUEUE_ID] = be32(b, p + AT_QUEUE_ID)
    rows[n, _C_FLAG] = be32(b, p + AT_FLAG)
    rows[n, _C_QUEUE_OFFSET] = be64(b, p + AT_QUEUE_OFFSET)
    rows[n, _C_SYS_FLAG] = sys_flag
    rows[n, _C_BORN_TIMESTAMP] = be64(b, p + AT_BORN_TIMESTAMP)
    rows[n, _C_DELAY_LEVEL] = 0
    rows[n, _C_KEYS_POS] = -1
    rows[n, _C_KEYS_LEN] = 0
    rows[n, _C_UNIQ_POS] = -1
    rows[n, _C_UNIQ_LEN] = 0
    rows[n, _C_TAGS_POS] = -1
    rows[n, _C_TAGS_LEN] = 0
    rows[n, _C_LMQ_POS] = -1
    rows[n, _C_LMQ_LEN] = 0
    rows[n, _C_LMQ_OFFSETS_POS] = -1
    rows[n, _C_LMQ_OFFSETS_LEN] = 0
    if not check & _LEAVE_PROPERTIES:
        _fill_properties(b, q, end, rows, n)
    if check & LEAVE_HASHES:
        return 0
    rows[n, _C_QUEUE_HASH] = queue_hash_of(
        b, rows[n, _C_TOPIC_POS], rows[n, _C_TOPIC_POS] + rows[n, _C_TOPIC_LEN], rows[n, _C_QUEUE_ID]
    )
    rows[n, _C_TAGS_CODE] = (
        java_hash_of(b, rows[n, _C_TAGS_POS], rows[n, _C_TAGS_POS] + rows[n, _C_TAGS_LEN])
        if rows[n, _C_TAGS_POS] >= 0
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
        if not 0 <= columns[k] < _COLUMNS:
            return False
    return (
        columns.shape[0] == short.shape[0] + long.shape[0]
        and end <= short.shape[1] and end <= long.shape[1])
