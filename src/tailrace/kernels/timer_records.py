# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Read many records of timers, for the enqueue service (``read_enqueued``) and for the delivery (``read``).

``rows`` is a C-contiguous int64 array with one row per record and ``ENQUEUE_COLUMNS`` or ``COLUMNS`` columns;
positions in it are indexes into the buffer. A record that is not plain in every respect is marked as odd, and the
caller handles it in Python. Every position is compared with the length of its buffer before it is read.
"""

import cython

from tailrace.kernels.shared.big_endian import be32, be32u, be64
from tailrace.kernels.shared.crc32 import crc32, crc_of, use_crc32
from tailrace.kernels.shared.fnv import FNV_MASK, FNV_PRIME, FNV_START, fnv_on
from tailrace.kernels.shared.java_hash import java_hash_of
from tailrace.kernels.shared.record_layout import (
    AT_BODY_CRC,
    AT_BODY_LENGTH,
    AT_MAGIC,
    AT_PHY_OFFSET,
    AT_SYS_FLAG,
    BODY_HEAD_SIZE,
    BORNHOST_V6,
    HEAD_SIZE,
    HOST_V4_SIZE,
    HOST_V6_SIZE,
    MAGIC_V1,
    MAX_PROPERTIES,
    MIN_RECORD_SIZE,
    STORE_TIME_SIZE,
    STOREHOST_V6,
)
from tailrace.kernels.shared.timer_columns import (
    _COLUMNS,
    _E_KIND,
    _E_OUT,
    _E_TOPIC,
    _E_TOPIC_HASH,
    _E_TOPIC_LEN,
    _E_TOPIC_POS,
    _ENQUEUE_COLUMNS,
    _T_BODY_LEN,
    _T_BODY_POS,
    _T_BORN_LEN,
    _T_DUE,
    _T_IDENTITY,
    _T_KEY_LEN,
    _T_KEY_POS,
    _T_OUT,
    _T_PLAIN,
    _T_POS,
    _T_PROPS_LEN,
    _T_PROPS_POS,
    _T_QUEUE,
    _T_QUEUE_HASH,
    _T_QUEUE_ID,
    _T_TOPIC_LEN,
    _T_TOPIC_POS,
    _T_WROTE,
)

SOURCE_SHA256 = ""


_TIMER = cython.declare(cython.int, 1)
_DELETE = cython.declare(cython.int, 2)

_TAIL = cython.declare(cython.int, 96)  # greatest length of the two properties that are added
_MASK_32 = cython.declare(cython.longlong, 0xFFFFFFFF)
_MASK_31 = cython.declare(cython.longlong, 0x7FFFFFFF)
_MASK_62 = cython.declare(cython.ulonglong, 0x3FFFFFFFFFFFFFFF)

T_PLAIN = _T_PLAIN
T_OUT = _T_OUT
T_DUE = _T_DUE
T_QUEUE_ID = _T_QUEUE_ID
T_IDENTITY = _T_IDENTITY
T_QUEUE_HASH = _T_QUEUE_HASH
T_BODY_LEN = _T_BODY_LEN
T_TOPIC_POS = _T_TOPIC_POS
T_TOPIC_LEN = _T_TOPIC_LEN
T_KEY_POS = _T_KEY_POS
T_KEY_LEN = _T_KEY_LEN
T_WROTE = _T_WROTE
T_QUEUE = _T_QUEUE
COLUMNS = _COLUMNS
E_KIND = _E_KIND
E_OUT = _E_OUT
E_TOPIC_HASH = _E_TOPIC_HASH
E_TOPIC = _E_TOPIC
E_TOPIC_POS = _E_TOPIC_POS
E_TOPIC_LEN = _E_TOPIC_LEN
ENQUEUE_COLUMNS = _ENQUEUE_COLUMNS
ODD = 0
TIMER = _TIMER
DELETE = _DELETE

# Numbers for the names of properties, see `_kind`.
_REAL_TOPIC = cython.declare(cython.int, 1)
_REAL_QID = cython.declare(cython.int, 2)
_UNIQ_KEY = cython.declare(cython.int, 3)
_OUT_MS = cython.declare(cython.int, 4)
_DELAY_SEC = cython.declare(cython.int, 5)
_DELAY_MS = cython.declare(cython.int, 6)
_DELIVER_MS = cython.declare(cython.int, 7)
_ODD_NAME = cython.declare(cython.int, 8)
_DELETE_NAME = cython.declare(cython.int, 9)

# -- records


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _is(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, n: cython.Py_ssize_t,
    name: cython.const[cython.uchar][::1], at: cython.Py_ssize_t,
) -> cython.bint:
    k: cython.Py_ssize_t
    for k in range(n):
        if b[p + k] != name[at + k]:
            return False
    return True


_NAMES: bytes = (
    b"REAL_TOPICREAL_QIDUNIQ_KEYTIMER_OUT_MSTIMER_DELAY_SECTIMER_DELAY_MS"
    b"TIMER_DELIVER_MSTIMER_ENQUEUE_MSTIMER_DEQUEUE_MSTIMER_ROLL_TIMES"
    b"TIMER_DEL_UNIQKEY__CRC32#rmq_sys_wheel_timer"
)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _kind(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, n: cython.Py_ssize_t,
    names: cython.const[cython.uchar][::1],
) -> cython.int:
    """Return the number of a property's name, 0 for a name that is not used here."""
    c: cython.uchar = b[p]
    if c == 82:  # R
        if n == 10 and _is(b, p, 10, names, 0):
            return _REAL_TOPIC
        return _REAL_QID if n == 8 and _is(b, p, 8, names, 10) else 0
    if c == 85:  # U
        return _UNIQ_KEY if n == 8 and _is(b, p, 8, names, 18) else 0
    if c == 95:  # _
        return _ODD_NAME if n == 8 and _is(b, p, 8, names, 148) else 0
    if c != 84:  # T
        return 0
    if n == 12:
        return _OUT_MS if _is(b, p, 12, names, 26) else 0
    if n == 15:
        return _DELAY_SEC if _is(b, p, 15, names, 38) else 0
    if n == 14:
        return _DELAY_MS if _is(b, p, 14, names, 53) else 0
    if n == 16:
        if _is(b, p, 16, names, 67):
            return _DELIVER_MS
        return _ODD_NAME if (
            _is(b, p, 16, names, 83) or _is(b, p, 16, names, 99) or _is(b, p, 16, names, 115)) else 0
    return _DELETE_NAME if n == 17 and _is(b, p, 17, names, 131) else 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _number(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, e: cython.Py_ssize_t
) -> cython.longlong:
    """Return a decimal number of up to 15 digits, -1 for anything else."""
    value: cython.longlong = 0
    if p >= e or e - p > 15:
        return -1
    while p < e:
        if not 48 <= b[p] <= 57:
            return -1
        value = value * 10 + (b[p] - 48)
        p += 1
    return value


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _end_hash(h: cython.ulonglong, number: cython.longlong) -> cython.longlong:
    """Finish a hash with a number. Return 62 bits, never 0."""
    h = ((h ^ 1) * FNV_PRIME) & FNV_MASK
    h = ((h ^ cython.cast(cython.ulonglong, number & _MASK_32)) * FNV_PRIME) & FNV_MASK
    h = ((h ^ cython.cast(cython.ulonglong, (number >> 32) & _MASK_32)) * FNV_PRIME) & FNV_MASK
    h = ((h ^ (h >> 29)) * FNV_PRIME) & FNV_MASK
    return cython.cast(cython.longlong, (h ^ (h >> 32)) & _MASK_62) | 1


def identity_hash(
    topic: cython.const[cython.uchar][::1], key: cython.const[cython.uchar][::1], out_ms: cython.longlong
):
    """Return the hash of a timer's identity (topic, unique key, slot time), as ``read`` computes it."""
    h: cython.ulonglong = fnv_on(FNV_START, topic, 0, len(topic))
    h = ((h ^ 1) * FNV_PRIME) & FNV_MASK
    return _end_hash(fnv_on(h, key, 0, len(key)), out_ms)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _properties(
    b: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    e: cython.Py_ssize_t,
    stored_ms: cython.longlong,
    precision_ms: cython.longlong,
    names: cython.const[cython.uchar][::1],
    rows: cython.longlong[:, ::1],
    n: cython.Py_ssize_t,
) -> cython.bint:
    """Fill the columns that depend on the properties. Return True if they are those of a plain timer."""
    p: cython.Py_ssize_t = start
    value: cython.Py_ssize_t = -1
    kind: cython.int
    number: cython.longlong
    said: cython.longlong
    c: cython.uchar
    out: cython.longlong = -1
    queue_id: cython.longlong = -1
    seconds: cython.longlong = -1
    millis: cython.longlong = -1
    deliver: cython.longlong = -1
    h: cython.ulonglong
    rows[n, _T_TOPIC_LEN] = 0
    rows[n, _T_KEY_LEN] = 0
    while p <= e:
        c = b[p] if p < e else 2
        if c == 1:
            if value < 0:
                value = p + 1
        elif c == 2:
            if value >= 0 and value - 1 > start and p > value:
                kind = _kind(b, start, value - 1 - start, names)
                if kind == _REAL_TOPIC:
                    rows[n, _T_TOPIC_POS] = value
                    rows[n, _T_TOPIC_LEN] = p - value
                elif kind == _UNIQ_KEY:
                    rows[n, _T_KEY_POS] = value
                    rows[n, _T_KEY_LEN] = p - value
                elif kind == _ODD_NAME or kind == _DELETE_NAME:
                    return False
                elif kind != 0:
                    number = _number(b, value, p)
                    if number < 0:
                        return False
                    if kind == _REAL_QID:
                        queue_id = number
                    elif kind == _OUT_MS:
                        out = number
                    elif kind == _DELAY_SEC:
                        seconds = number
                    elif kind == _DELAY_MS:
                        millis = number
                    else:
                        deliver = number
            start = p + 1
            value = -1
        elif c >= 128:
            return False  # only ASCII is handled here
        p += 1
    if rows[n, _T_TOPIC_LEN] == 0 or rows[n, _T_KEY_LEN] == 0 or rows[n, _T_TOPIC_LEN] > 127:
        return False
    if out < 0 or queue_id < 0 or queue_id > _MASK_31 or seconds > 1000000000:
        return False
    said = deliver
    if seconds >= 0:
        said = stored_ms + seconds * 1000
    elif millis >= 0:
        said = stored_ms + millis
    rows[n, _T_OUT] = out
    rows[n, _T_DUE] = said if out < said <= out + precision_ms else out + precision_ms
    rows[n, _T_QUEUE_ID] = queue_id
    h = fnv_on(
        FNV_START, b, rows[n, _T_TOPIC_POS], rows[n, _T_TOPIC_POS] + rows[n, _T_TOPIC_LEN])
    rows[n, _T_QUEUE_HASH] = _end_hash(h, queue_id)
    h = ((h ^ 1) * FNV_PRIME) & FNV_MASK
    h = fnv_on(h, b, rows[n, _T_KEY_POS], rows[n, _T_KEY_POS] + rows[n, _T_KEY_LEN])
    rows[n, _T_IDENTITY] = _end_hash(h, out)
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _body_at(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, end: cython.Py_ssize_t,
    phy_offset: cython.longlong,
) -> cython.Py_ssize_t:
    """Return the index of the body (after its length) of the record ``b[p:end]``, -1 if it is not a record."""
    q: cython.Py_ssize_t = p + HEAD_SIZE
    length: cython.longlong
    if end - p < MIN_RECORD_SIZE or be32(b, p) != end - p or be64(b, p + AT_PHY_OFFSET) != phy_offset:
        return -1
    if be32u(b, p + AT_MAGIC) != MAGIC_V1:
        return -1
    q += HOST_V6_SIZE if b[p + AT_SYS_FLAG + 3] & BORNHOST_V6 else HOST_V4_SIZE
    q += STORE_TIME_SIZE + (HOST_V6_SIZE if b[p + AT_SYS_FLAG + 3] & STOREHOST_V6 else HOST_V4_SIZE)
    if q + BODY_HEAD_SIZE + 3 > end:
        return -1
    q += AT_BODY_LENGTH
    length = be32(b, q)
    return -1 if length < 0 or length > end - q - 4 - 22 else q + 4


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _properties_at(
    b: cython.const[cython.uchar][::1], q: cython.Py_ssize_t, end: cython.Py_ssize_t,
    names: cython.const[cython.uchar][::1],
) -> cython.Py_ssize_t:
    """Return the index of the properties of a timer's record whose body starts at ``q``, or -1."""
    q += cython.cast(cython.Py_ssize_t, be32(b, q - 4))
    if b[q] != 19 or not _is(b, q + 1, 19, names, 156):
        return -1
    q += 22
    return q if q + ((cython.cast(cython.longlong, b[q - 2]) << 8) | b[q - 1]) == end else -1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _record(
    b: cython.const[cython.uchar][::1],
    p: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    phy_offset: cython.longlong,
    precision_ms: cython.longlong,
    names: cython.const[cython.uchar][::1],
    rows: cython.longlong[:, ::1],
    n: cython.Py_ssize_t,
) -> cython.bint:
    """Fill row ``n`` from the record ``b[p:end]``. Return True if it is a plain timer."""
    sys_flag: cython.longlong
    length: cython.longlong
    q: cython.Py_ssize_t = _body_at(b, p, end, phy_offset)
    if q < 0:
        return False
    sys_flag = be32(b, p + AT_SYS_FLAG)
    if sys_flag & 0x8:  # records of transactions are not plain
        return False
    if sys_flag & 0x4:
        return False
    rows[n, _T_POS] = p
    rows[n, _T_BORN_LEN] = HOST_V6_SIZE if sys_flag & BORNHOST_V6 else HOST_V4_SIZE
    length = be32(b, q - 4)
    rows[n, _T_BODY_POS] = q
    rows[n, _T_BODY_LEN] = length
    if length and (crc_of(b, q, q + cython.cast(cython.Py_ssize_t, length)) & _MASK_31) != be32(b, p + AT_BODY_CRC):
        return False
    q = _properties_at(b, q, end, names)
    if q < 0 or end - q + _TAIL > MAX_PROPERTIES:
        return False
    rows[n, _T_PROPS_POS] = q
    rows[n, _T_PROPS_LEN] = end - q
    return _properties(
        b, q, end, be64(b, p + HEAD_SIZE + rows[n, _T_BORN_LEN]), precision_ms, names, rows, n)


def read(
    buf: cython.const[cython.uchar][::1],
    at: cython.const[cython.longlong][::1],
    phy_offsets: cython.const[cython.longlong][::1],
    sizes: cython.const[cython.longlong][::1],
    precision_ms: cython.longlong,
    rows: cython.longlong[:, ::1],
):
    """Fill ``rows`` from the timer records at ``at`` in ``buf``, whose positions in the log are ``phy_offsets``.

    T_PLAIN is 1 for a plain timer: a valid record of the timer topic whose body checksum matches; its properties
    are ASCII and have real topic, queue id, unique key and slot time; it is not part of a transaction, was not rolled
    or delivered before, and is not a request to delete a timer. An ``at`` below 0 is a record that could not be
    read.
    """
    n: cython.Py_ssize_t
    p: cython.longlong
    count: cython.Py_ssize_t = at.shape[0]
    size: cython.Py_ssize_t = len(buf)
    names: cython.const[cython.uchar][::1] = _NAMES
    if not count == phy_offsets.shape[0] == sizes.shape[0] == rows.shape[0]:
        raise ValueError(f"{count} places, {rows.shape[0]} rows")
    if count and rows.shape[1] < _COLUMNS:
        raise ValueError(f"{rows.shape[1]} columns")
    with cython.nogil:
        for n in range(count):
            p = at[n]
            rows[n, _T_PLAIN] = 0
            if p >= 0 and sizes[n] > 0 and p <= size and sizes[n] <= size - p:
                rows[n, _T_PLAIN] = _record(
                    buf, p, p + sizes[n], phy_offsets[n], precision_ms, names, rows, n)


# -- for the enqueue


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _enqueued(
    b: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    e: cython.Py_ssize_t,
    names: cython.const[cython.uchar][::1],
    rows: cython.longlong[:, ::1],
    n: cython.Py_ssize_t,
) -> cython.int:
    """Fill the E_* columns from the properties ``b[start:e]``. Return the kind: TIMER, DELETE or ODD."""
    p: cython.Py_ssize_t = start
    value: cython.Py_ssize_t = -1
    kind: cython.int
    found: cython.int = _TIMER
    c: cython.uchar
    rows[n, _E_OUT] = -1
    rows[n, _E_TOPIC_LEN] = 0
    while p <= e:
        c = b[p] if p < e else 2
        if c == 1:
            if value < 0:
                value = p + 1
        elif c == 2:
            if value >= 0 and value - 1 > start and p > value:
                kind = _kind(b, start, value - 1 - start, names)
                if kind == _REAL_TOPIC:
                    rows[n, _E_TOPIC_POS] = value
                    rows[n, _E_TOPIC_LEN] = p - value
                elif kind == _DELETE_NAME:
                    found = _DELETE
                elif kind == _OUT_MS:
                    rows[n, _E_OUT] = _number(b, value, p)
                    if rows[n, _E_OUT] < 0:
                        return 0
            start = p + 1
            value = -1
        elif c >= 128:
            return 0  # only ASCII is handled here
        p += 1
    if rows[n, _E_TOPIC_LEN] == 0 or rows[n, _E_OUT] < 0:
        return 0
    e = cython.cast(cython.Py_ssize_t, rows[n, _E_TOPIC_POS] + rows[n, _E_TOPIC_LEN])
    rows[n, _E_TOPIC_HASH] = java_hash_of(b, rows[n, _E_TOPIC_POS], e)
    rows[n, _E_TOPIC] = _end_hash(fnv_on(FNV_START, b, rows[n, _E_TOPIC_POS], e), 0)
    return found


def topic_hash(topic: cython.const[cython.uchar][::1]):
    """Return the hash of a topic, as ``read_enqueued`` computes it."""
    return _end_hash(fnv_on(FNV_START, topic, 0, len(topic)), 0)


def read_enqueued(
    buf: cython.const[cython.uchar][::1],
    at: cython.const[cython.longlong][::1],
    phy_offsets: cython.const[cython.longlong][::1],
    sizes: cython.const[cython.longlong][::1],
    rows: cython.longlong[:, ::1],
):
    """Fill the E_* columns from the timer records at ``at``, whose positions in the log are ``phy_offsets``.

    E_KIND is TIMER or DELETE for a record of the timer topic with valid lengths whose properties are ASCII and
    have slot time and real topic, else ODD. Checksums are not verified. An ``at`` below 0 is a record that could
    not be read.
    """
    n: cython.Py_ssize_t
    p: cython.longlong
    q: cython.Py_ssize_t
    end: cython.Py_ssize_t
    count: cython.Py_ssize_t = at.shape[0]
    size: cython.Py_ssize_t = len(buf)
    names: cython.const[cython.uchar][::1] = _NAMES
    if not count == phy_offsets.shape[0] == sizes.shape[0] == rows.shape[0]:
        raise ValueError(f"{count} places, {rows.shape[0]} rows")
    if count and rows.shape[1] < _ENQUEUE_COLUMNS:
        raise ValueError(f"{rows.shape[1]} columns")
    with cython.nogil:
        for n in range(count):
            p = at[n]
            rows[n, _E_KIND] = 0
            if p >= 0 and sizes[n] > 0 and p <= size and sizes[n] <= size - p:
                end = cython.cast(cython.Py_ssize_t, p + sizes[n])
                q = _body_at(buf, cython.cast(cython.Py_ssize_t, p), end, phy_offsets[n])
                if q >= 0:
                    q = _properties_at(buf, q, end, names)
                if q >= 0:
                    rows[n, _E_KIND] = _enqueued(buf, q, end, names, rows, n)
