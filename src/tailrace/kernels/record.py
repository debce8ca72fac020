# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Read records of the CommitLog: ``scan`` finds and checks them and fills one row for each.

The same source runs interpreted or compiled, with the same results. ``buf`` is any contiguous buffer of bytes,
``rows`` a C-contiguous int64 array with ``COLUMNS`` columns (C_*). Positions in rows (C_*_POS) are indexes into
``buf``. A scan also reads damaged bytes, so every position is compared with the length before it is read.
"""

import cython

from tailrace.kernels.shared.big_endian import BE_SIGN, be16, be32, be32u, be64
from tailrace.kernels.shared.copying import copy_bytes, find_byte, inside
from tailrace.kernels.shared.crc32 import crc32, crc_of, own_crc_is_wrong, use_crc32
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
    BLANK_MAGIC,
    BLANK_SIZE,
    BODY_HEAD_SIZE,
    BORNHOST_V6,
    HEAD_SIZE,
    HOST_V4_SIZE,
    HOST_V6_SIZE,
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD_SIZE,
    PROPERTIES_LENGTH_SIZE,
    STORE_TIME_SIZE,
    STOREHOST_V6,
)

SOURCE_SHA256 = ""

_REASON_END = cython.declare(cython.int, 0)  # everything up to `until` was read
_ITEM_HEAD = cython.declare(cython.int, 20)  # bytes of a message in a batch body before its body
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
REASON_NAMES = {
    0: "end", 1: "rows full", 2: "blank", 3: "zero", 4: "bad magic", 5: "bad length",
    6: "bad body checksum", 7: "wrong physical offset", 8: "cut off", 9: "bad record checksum",
    10: "torn after its body",
}

_CHECK_BODY_CRC = cython.declare(cython.int, 1)
_CHECK_PHY_OFFSET = cython.declare(cython.int, 2)
_CHECK_PROP_CRC = cython.declare(cython.int, 4)
_LEAVE_PROPERTIES = cython.declare(cython.int, 8)  # do not read the properties; rows have none of the known ones


_MASK_31 = cython.declare(cython.longlong, 0x7FFFFFFF)
_LOW_32 = cython.declare(cython.longlong, 0xFFFFFFFF)


# The same numbers for other modules; in the compiled module the names above are C integers and cannot be imported.
REASON_END = _REASON_END
REASON_ROWS_FULL = _REASON_ROWS_FULL
REASON_BLANK = _REASON_BLANK
REASON_ZERO = _REASON_ZERO
REASON_BAD_MAGIC = _REASON_BAD_MAGIC
REASON_BAD_LENGTH = _REASON_BAD_LENGTH
REASON_BAD_CRC = _REASON_BAD_CRC
REASON_BAD_PHY_OFFSET = _REASON_BAD_PHY_OFFSET
REASON_SHORT = _REASON_SHORT
REASON_BAD_PROP_CRC = _REASON_BAD_PROP_CRC
REASON_TORN = _REASON_TORN
CHECK_BODY_CRC = _CHECK_BODY_CRC
CHECK_PHY_OFFSET = _CHECK_PHY_OFFSET
CHECK_PROP_CRC = _CHECK_PROP_CRC
LEAVE_PROPERTIES = _LEAVE_PROPERTIES
C_PHY = _C_PHY
C_SIZE = _C_SIZE
C_QUEUE_ID = _C_QUEUE_ID
C_QUEUE_OFFSET = _C_QUEUE_OFFSET
C_SYS_FLAG = _C_SYS_FLAG
C_STORE_TIMESTAMP = _C_STORE_TIMESTAMP
C_TAGS_CODE = _C_TAGS_CODE
C_BORN_TIMESTAMP = _C_BORN_TIMESTAMP
C_FLAG = _C_FLAG
C_BODY_CRC = _C_BODY_CRC
C_RECONSUME_TIMES = _C_RECONSUME_TIMES
C_PREPARED = _C_PREPARED
C_BODY_POS = _C_BODY_POS
C_BODY_LEN = _C_BODY_LEN
C_TOPIC_POS = _C_TOPIC_POS
C_TOPIC_LEN = _C_TOPIC_LEN
C_PROPS_POS = _C_PROPS_POS
C_PROPS_LEN = _C_PROPS_LEN
C_BORN_HOST_POS = _C_BORN_HOST_POS
C_STORE_HOST_POS = _C_STORE_HOST_POS
C_QUEUE_HASH = _C_QUEUE_HASH
C_DELAY_LEVEL = _C_DELAY_LEVEL
C_KEYS_POS = _C_KEYS_POS
C_KEYS_LEN = _C_KEYS_LEN
C_UNIQ_POS = _C_UNIQ_POS
C_UNIQ_LEN = _C_UNIQ_LEN
C_TAGS_POS = _C_TAGS_POS
C_TAGS_LEN = _C_TAGS_LEN
C_LMQ_POS = _C_LMQ_POS
C_LMQ_LEN = _C_LMQ_LEN
C_LMQ_OFFSETS_POS = _C_LMQ_OFFSETS_POS
C_LMQ_OFFSETS_LEN = _C_LMQ_OFFSETS_LEN
COLUMNS = _COLUMNS


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _properties(
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
def _walk_one(
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
        if (length & _MASK_31) != rows[n, _C_BODY_CRC]:
            return _REASON_BAD_CRC
    if check & _CHECK_PROP_CRC and own_crc_is_wrong(b, p, q, end):
        return _REASON_BAD_PROP_CRC
    rows[n, _C_SIZE] = size
    rows[n, _C_QUEUE_ID] = be32(b, p + AT_QUEUE_ID)
    rows[n, _C_FLAG] = be32(b, p + AT_FLAG)
    rows[n, _C_QUEUE_OFFSET] = be64(b, p + AT_QUEUE_OFFSET)
    rows[n, _C_SYS_FLAG] = sys_flag
    rows[n, _C_BORN_TIMESTAMP] = be64(b, p + AT_BORN_TIMESTAMP)
    rows[n, _C_QUEUE_HASH] = queue_hash_of(
        b, rows[n, _C_TOPIC_POS], rows[n, _C_TOPIC_POS] + rows[n, _C_TOPIC_LEN], rows[n, _C_QUEUE_ID]
    )
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
        _properties(b, q, end, rows, n)
    rows[n, _C_TAGS_CODE] = (
        java_hash_of(b, rows[n, _C_TAGS_POS], rows[n, _C_TAGS_POS] + rows[n, _C_TAGS_LEN])
        if rows[n, _C_TAGS_POS] >= 0
        else 0
    )
    return 0


def scan(
    buf: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    until: cython.Py_ssize_t,
    base: cython.longlong,
    check: cython.int,
    rows: cython.longlong[:, ::1],
):
    """Read the records in ``buf[start:until]`` and fill one row for each. ``buf[0]`` is at position ``base``.

    Return (count, stop, reason): the number of records, the index after the last one, and why the scan
    stopped, one of REASON_*. ``check`` is a sum of CHECK_* flags.
    """
    n: cython.Py_ssize_t = 0
    p: cython.Py_ssize_t = start
    room: cython.Py_ssize_t = rows.shape[0]
    size: cython.longlong
    magic: cython.longlong
    reason: cython.int = _REASON_END
    if until > len(buf):
        until = len(buf)
    if start < 0 or (room and rows.shape[1] < _COLUMNS):
        raise ValueError(f"start {start}, {rows.shape[1]} columns")
    with cython.nogil:
        while p < until:
            if n == room:
                reason = _REASON_ROWS_FULL
                break
            if p + BLANK_SIZE > until:
                reason = _REASON_SHORT
                break
            size = be32(buf, p)
            magic = be32u(buf, p + AT_MAGIC)
            if magic == BLANK_MAGIC:
                reason = _REASON_BLANK if size >= BLANK_SIZE else _REASON_BAD_LENGTH
                break
            if magic != MAGIC_V1 and magic != MAGIC_V2:
                reason = _REASON_ZERO if magic == 0 and size == 0 else _REASON_BAD_MAGIC
                break
            if size < MIN_RECORD_SIZE:
                reason = _REASON_BAD_LENGTH
                break
            if size > until - p:
                reason = _REASON_SHORT
                break
            reason = _walk_one(buf, p, size, base, check, rows, n)
            if reason != 0:
                break
            n += 1
            p += cython.cast(cython.Py_ssize_t, size)
    return n, p, reason


def fill_rows(
    buf: cython.const[cython.uchar][::1],
    base: cython.longlong,
    places: cython.longlong[:, ::1],
    rows: cython.longlong[:, ::1],
):
    """Fill one row for each record in ``places`` (PLACE_* of ``kernels.unit_records``).

    ``buf[0]`` is at position ``base`` of the log. Checksums are not verified, because
    ``unit_records.find_units`` has verified them. Raises ValueError for a place without a record.
    """
    n: cython.Py_ssize_t
    count: cython.Py_ssize_t = places.shape[0]
    limit: cython.longlong = len(buf)
    bad: cython.Py_ssize_t = -1
    if count and (places.shape[1] < 2 or rows.shape[0] < count or rows.shape[1] < _COLUMNS):
        raise ValueError(f"{count} places of {places.shape[1]}, {rows.shape[0]} rows of {rows.shape[1]}")
    with cython.nogil:
        for n in range(count):
            if (
                places[n, 1] < MIN_RECORD_SIZE or places[n, 0] < 0 or places[n, 0] > limit - places[n, 1]
                or _walk_one(buf, cython.cast(cython.Py_ssize_t, places[n, 0]), places[n, 1], base, 0, rows, n)
            ):
                bad = n
                break
    if bad >= 0:
        raise ValueError(f"there is no record at place {bad}")


def pack_rows(
    buf: cython.const[cython.uchar][::1],
    rows: cython.longlong[:, ::1],
    first: cython.Py_ssize_t,
    kept: cython.longlong[:, ::1],
    count: cython.Py_ssize_t,
    texts: cython.uchar[::1],
    t: cython.Py_ssize_t,
    bodies: cython.uchar[::1],
    b: cython.Py_ssize_t,
    with_bodies: cython.bint,
):
    """Copy rows from ``first`` onwards to ``kept[count:]``, and their bytes to ``texts[t:]`` and ``bodies[b:]``.

    Hosts, topic and properties are copied to ``texts``, and the body to ``bodies`` if ``with_bodies``. Their positions
    in ``kept``, and those of keys, unique key and tags, are indexes into these two; other positions are copied. It
    ends before the first row for which one of the three has no room. Return (number of that row, and ``count``, ``t``
    and ``b`` after the last copied row).
    """
    n: cython.Py_ssize_t = first
    k: cython.Py_ssize_t
    hosts: cython.longlong
    store_host: cython.longlong
    topic: cython.longlong
    props: cython.longlong
    body: cython.longlong
    limit: cython.longlong = len(buf)
    is_bad: cython.bint = False
    if first < 0 or t < 0 or b < 0 or count < 0 or rows.shape[1] != _COLUMNS or kept.shape[1] != _COLUMNS:
        raise ValueError(f"first {first}, at {count}, {t}, {b}, {rows.shape[1]} and {kept.shape[1]} columns")
    with cython.nogil:
        while n < rows.shape[0] and count < kept.shape[0]:
            store_host = HOST_V6_SIZE if rows[n, _C_SYS_FLAG] & STOREHOST_V6 else HOST_V4_SIZE
            topic = rows[n, _C_TOPIC_LEN]
            props = rows[n, _C_PROPS_LEN]
            body = rows[n, _C_BODY_LEN] if with_bodies else 0
            if (
                not inside(rows[n, _C_BORN_HOST_POS], 0, limit)
                or not inside(rows[n, _C_STORE_HOST_POS], store_host, limit)
                or rows[n, _C_BORN_HOST_POS] > rows[n, _C_STORE_HOST_POS]
                or not inside(rows[n, _C_TOPIC_POS], topic, limit)
                or not inside(rows[n, _C_PROPS_POS], props, limit)
                or (with_bodies and not inside(rows[n, _C_BODY_POS], body, limit))
            ):
                is_bad = True
                break
            hosts = rows[n, _C_STORE_HOST_POS] + store_host - rows[n, _C_BORN_HOST_POS]
            if hosts + topic + props > len(texts) - t or body > len(bodies) - b:
                break
            for k in range(_COLUMNS):
                kept[count, k] = rows[n, k]
            if with_bodies:
                kept[count, _C_BODY_POS] = b
                b = copy_bytes(bodies, b, buf, rows[n, _C_BODY_POS], body)
            kept[count, _C_BORN_HOST_POS] = t
            kept[count, _C_STORE_HOST_POS] = t + hosts - store_host
            t = copy_bytes(texts, t, buf, rows[n, _C_BORN_HOST_POS], hosts)
            kept[count, _C_TOPIC_POS] = t
            t = copy_bytes(texts, t, buf, rows[n, _C_TOPIC_POS], topic)
            kept[count, _C_PROPS_POS] = t
            for k in range(_C_KEYS_POS, _C_TAGS_LEN, 2):
                if rows[n, k] >= 0:
                    if not inside(rows[n, k] - rows[n, _C_PROPS_POS], rows[n, k + 1], props):
                        is_bad = True
                        break
                    kept[count, k] = rows[n, k] - rows[n, _C_PROPS_POS] + t
            if is_bad:
                break
            t = copy_bytes(texts, t, buf, rows[n, _C_PROPS_POS], props)
            count += 1
            n += 1
    if is_bad:
        raise ValueError(f"row {n} leads out of the buffer")
    return n, count, t, b


def take_numbers(
    rows: cython.longlong[:, ::1],
    columns: cython.const[cython.longlong][::1],
    at: cython.Py_ssize_t,
    short: cython.int[:, ::1],
    long: cython.longlong[:, ::1],
):
    """Copy columns of rows to ``short[:, at:]`` and ``long[:, at:]``, one column to each row of them.

    The first columns are copied to ``short``, with their low 32 bits.
    """
    n: cython.Py_ssize_t
    k: cython.Py_ssize_t
    count: cython.Py_ssize_t = rows.shape[0]
    shorts: cython.Py_ssize_t = short.shape[0]
    room: cython.Py_ssize_t = min(short.shape[1], long.shape[1])
    if columns.shape[0] != shorts + long.shape[0] or not 0 <= at <= room - count:
        raise ValueError(f"{columns.shape[0]} columns of {count} rows at {at} of {room}")
    for k in range(columns.shape[0]):
        if not 0 <= columns[k] < rows.shape[1]:
            raise ValueError(f"column {columns[k]} of {rows.shape[1]}")
    with cython.nogil:
        for n in range(count):
            for k in range(shorts):
                short[k, at + n] = cython.cast(
                    cython.int, ((rows[n, columns[k]] & _LOW_32) ^ BE_SIGN) - BE_SIGN)
            for k in range(shorts, columns.shape[0]):
                long[k - shorts, at + n] = rows[n, columns[k]]


def check_batch(data: bytes):
    """Check the body of a batch request.

    Return (messages, longest body, longest properties, bytes of all bodies and properties). ``messages`` is
    -1 if lengths do not add up or the last message is cut off.
    """
    view: cython.const[cython.uchar][::1] = data
    limit: cython.Py_ssize_t = len(data)
    at: cython.Py_ssize_t = 0
    count: cython.Py_ssize_t = 0
    total: cython.longlong = 0
    longest: cython.longlong = 0
    most: cython.longlong = 0
    size: cython.longlong
    body: cython.longlong
    props: cython.longlong
    while at < limit:
        if limit - at < _ITEM_HEAD:
            return -1, 0, 0, 0
        size, body = be32(view, at), be32(view, at + 16)
        if limit - at - _ITEM_HEAD - 2 < max(body, 0):
            return -1, 0, 0, 0
        props = view[at + _ITEM_HEAD + max(body, 0)] * 256 + view[at + _ITEM_HEAD + max(body, 0) + 1]
        if body < 0 or props > 32767 or _ITEM_HEAD + body + 2 + props != size or size > limit - at:
            return -1, 0, 0, 0
        longest, most = max(longest, body), max(most, props)
        total += body + props
        at += cython.cast(cython.Py_ssize_t, size)
        count += 1
    return count, longest, most, total
