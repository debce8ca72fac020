# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Read many records of timers, for the enqueue service (``read_enqueued``) and for the delivery (``read``).

``rows`` is a C-contiguous int64 array with one row per record and ``C.E_COLUMNS`` or ``C.T_COLUMNS`` columns;
positions in it are indexes into the buffer. A record that is not plain in every respect is marked as odd, and the
caller handles it in Python. Every position is compared with the length of its buffer before it is read.
"""

import cython

from tailrace.kernels.shared import constants as C
from tailrace.kernels.shared import layouts as L
from tailrace.kernels.shared.big_endian import be32, be32u, be64
from tailrace.kernels.shared.copying import inside
from tailrace.kernels.shared.crc32 import crc32, crc_of, use_crc32
from tailrace.kernels.shared.fnv import FNV_MASK, FNV_PRIME, FNV_START, fnv_on
from tailrace.kernels.shared.java_hash import java_hash_of
from tailrace.kernels.shared.names import known_name
from tailrace.kernels.shared.record_walk import next_property
from tailrace.kernels.shared.unit_reading import record_parts_at

SOURCE_SHA256 = ""


_TAIL = cython.declare(cython.int, 96)  # greatest length of the two properties that are added
_MASK_32 = cython.declare(cython.longlong, 0xFFFFFFFF)
_MASK_31 = cython.declare(cython.longlong, 0x7FFFFFFF)
_MASK_62 = cython.declare(cython.ulonglong, 0x3FFFFFFFFFFFFFFF)


# -- records


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _is_ascii(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, e: cython.Py_ssize_t) -> cython.bint:
    """Return True if all bytes of ``b[p:e]`` are below 128."""
    bits: cython.uchar = 0
    while p < e:
        bits |= b[p]
        p += 1
    return bits < 128


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
    rows: cython.longlong[:, ::1],
    n: cython.Py_ssize_t,
) -> cython.bint:
    """Fill the columns that depend on the properties. Return True if they are those of a plain timer."""
    value: cython.Py_ssize_t
    end: cython.Py_ssize_t
    name: cython.int
    number: cython.longlong = 0
    said: cython.longlong
    out: cython.longlong = -1
    queue_id: cython.longlong = -1
    seconds: cython.longlong = -1
    millis: cython.longlong = -1
    deliver: cython.longlong = -1
    h: cython.ulonglong
    rows[n, C.T_TOPIC_LEN] = 0
    rows[n, C.T_KEY_LEN] = 0
    if not _is_ascii(b, start, e):
        return False  # only ASCII is handled here
    start, value, end = next_property(b, start, e)
    while start < e:
        name = known_name(b, start, value - 1 - start)
        if name == L.NAME_REAL_TOPIC:
            rows[n, C.T_TOPIC_POS] = value
            rows[n, C.T_TOPIC_LEN] = end - value
        elif name == L.NAME_UNIQ_KEY:
            rows[n, C.T_KEY_POS] = value
            rows[n, C.T_KEY_LEN] = end - value
        elif name == L.NAME_REAL_QID:
            queue_id = number = _number(b, value, end)
        elif name == L.NAME_TIMER_OUT_MS:
            out = number = _number(b, value, end)
        elif name == L.NAME_TIMER_DELAY_SEC:
            seconds = number = _number(b, value, end)
        elif name == L.NAME_TIMER_DELAY_MS:
            millis = number = _number(b, value, end)
        elif name == L.NAME_TIMER_DELIVER_MS:
            deliver = number = _number(b, value, end)
        elif (
            name == L.NAME_TIMER_DEL_UNIQKEY or name == L.NAME_TIMER_ENQUEUE_MS or name == L.NAME_TIMER_DEQUEUE_MS
            or name == L.NAME_TIMER_ROLL_TIMES or name == L.NAME_CRC_PROPERTY or name == L.NAME_INNER_MULTI_DISPATCH
        ):
            return False  # it deletes a timer, was put back before, or gets units of light queues
        if number < 0:
            return False
        start, value, end = next_property(b, end + 1, e)
    if rows[n, C.T_TOPIC_LEN] == 0 or rows[n, C.T_KEY_LEN] == 0 or rows[n, C.T_TOPIC_LEN] > L.MAX_TOPIC_V1:
        return False
    if out < 0 or queue_id < 0 or queue_id > _MASK_31 or seconds > 1000000000:
        return False
    said = deliver
    if seconds >= 0:
        said = stored_ms + seconds * 1000
    elif millis >= 0:
        said = stored_ms + millis
    rows[n, C.T_OUT] = out
    rows[n, C.T_DUE] = said if out < said <= out + precision_ms else out + precision_ms
    rows[n, C.T_QUEUE_ID] = queue_id
    h = fnv_on(
        FNV_START, b, rows[n, C.T_TOPIC_POS], rows[n, C.T_TOPIC_POS] + rows[n, C.T_TOPIC_LEN])
    rows[n, C.T_QUEUE_HASH] = _end_hash(h, queue_id)
    h = ((h ^ 1) * FNV_PRIME) & FNV_MASK
    h = fnv_on(h, b, rows[n, C.T_KEY_POS], rows[n, C.T_KEY_POS] + rows[n, C.T_KEY_LEN])
    rows[n, C.T_IDENTITY] = _end_hash(h, out)
    return True


@cython.cfunc
@cython.returns((cython.Py_ssize_t, cython.Py_ssize_t))
@cython.nogil
@cython.exceptval(check=False)
def _timer_at(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, end: cython.Py_ssize_t, phy_offset: cython.longlong,
):
    """Return the starts of body and properties of the record ``b[p:end]``, -1 if it is not one of the timer topic."""
    body: cython.Py_ssize_t
    topic: cython.Py_ssize_t
    q: cython.Py_ssize_t
    _, body, topic, q = record_parts_at(b, p, end - p, phy_offset)
    if (
        q < 0 or be32u(b, p + L.AT_MAGIC) != L.MAGIC_V1
        or known_name(b, topic, q - L.PROPERTIES_LENGTH_SIZE - topic) != L.NAME_TIMER_TOPIC
    ):
        return -1, -1
    return body, q


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _record(
    b: cython.const[cython.uchar][::1],
    p: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    max_body: cython.longlong,
    precision_ms: cython.longlong,
    rows: cython.longlong[:, ::1],
    n: cython.Py_ssize_t,
) -> cython.bint:
    """Fill row ``n`` from the record ``b[p:end]``. Return True if it is a plain timer."""
    sys_flag: cython.longlong
    length: cython.longlong
    q: cython.Py_ssize_t
    properties: cython.Py_ssize_t
    q, properties = _timer_at(b, p, end, rows[n, C.T_POSITION])
    if properties < 0 or end - properties + _TAIL > L.MAX_PROPERTIES:
        return False
    sys_flag = be32(b, p + L.AT_SYS_FLAG)
    if sys_flag & L.TRANSACTION_MASK:  # records of transactions are not plain
        return False
    rows[n, C.T_BORN_LEN] = L.HOST_V6_SIZE if sys_flag & L.BORNHOST_V6 else L.HOST_V4_SIZE
    length = be32(b, q - 4)
    rows[n, C.T_BODY_POS] = q
    rows[n, C.T_BODY_LEN] = length
    if length > max_body:
        return False
    if length and (crc_of(b, q, q + cython.cast(cython.Py_ssize_t, length)) & _MASK_31) != be32(b, p + L.AT_BODY_CRC):
        return False
    rows[n, C.T_PROPS_POS] = properties
    rows[n, C.T_PROPS_LEN] = end - properties
    return _properties(
        b, properties, end, be64(b, p + L.HEAD_SIZE + rows[n, C.T_BORN_LEN]), precision_ms, rows, n)


def place(units: cython.const[cython.uchar][::1], precision_ms: cython.longlong, rows: cython.longlong[:, ::1]):
    """Fill T_POSITION, T_SLOT, T_SIZE, T_WROTE and T_FAR of the rows from units of the timer log.

    Return False if the positions do not ascend.
    """
    ascend: cython.bint = True
    n: cython.Py_ssize_t
    p: cython.Py_ssize_t
    time: cython.longlong
    if len(units) != rows.shape[0] * L.TIMER_UNIT_SIZE or precision_ms <= 0 or rows.shape[1] != C.T_COLUMNS:
        raise ValueError(f"{len(units)} bytes of units, {rows.shape[0]} rows of {rows.shape[1]}")
    with cython.nogil:
        for n in range(rows.shape[0]):
            p = n * L.TIMER_UNIT_SIZE
            time = be64(units, p + L.TIMER_AT_WRITE_TIME_MS)
            rows[n, C.T_WROTE] = time
            time += be32(units, p + L.TIMER_AT_DELAY_MS)
            rows[n, C.T_SLOT] = time - (time % precision_ms + precision_ms) % precision_ms  # rounded down
            rows[n, C.T_POSITION] = be64(units, p + L.TIMER_AT_PHY_OFFSET)
            rows[n, C.T_SIZE] = be32(units, p + L.TIMER_AT_MSG_SIZE)
            rows[n, C.T_FAR] = (be32u(units, p + L.TIMER_AT_MAGIC) & L.TIMER_MAGIC_ROLL) != 0
            if n and rows[n, C.T_POSITION] < rows[n - 1, C.T_POSITION]:
                ascend = False
    return ascend


def read(
    buf: cython.const[cython.uchar][::1],
    precision_ms: cython.longlong,
    frontier_ms: cython.longlong,
    suspicious_until_ms: cython.longlong,
    max_body: cython.longlong,
    max_size: cython.longlong,
    rows: cython.longlong[:, ::1],
):
    """Fill ``rows`` from the timer records that T_POS, T_SIZE and T_POSITION name. Return how many are not plain.

    T_PLAIN is 1 for a plain timer: a valid record of the timer topic whose body checksum matches; its properties
    are ASCII and have real topic, queue id, unique key and slot time; it is not part of a transaction, was not rolled
    or delivered before, is not a request to delete a timer, and has no light queues. Its body has at most ``max_body``
    bytes and the record at most ``max_size``. It is not a far timer whose slot time is ``frontier_ms`` or later.
    T_ASK is 1 for a far timer, and for a plain one with a slot time before ``suspicious_until_ms``.
    """
    n: cython.Py_ssize_t
    p: cython.Py_ssize_t
    odd: cython.Py_ssize_t = 0
    if rows.shape[1] != C.T_COLUMNS:
        raise ValueError(f"{rows.shape[1]} columns")
    with cython.nogil:
        for n in range(rows.shape[0]):
            rows[n, C.T_PLAIN] = 0
            rows[n, C.T_ASK] = rows[n, C.T_FAR]
            p = cython.cast(cython.Py_ssize_t, rows[n, C.T_POS])
            if (
                inside(p, rows[n, C.T_SIZE], len(buf)) and rows[n, C.T_SIZE] <= max_size and rows[n, C.T_WROTE] >= 0
                and _record(buf, p, p + rows[n, C.T_SIZE], max_body, precision_ms, rows, n)
            ):
                rows[n, C.T_PLAIN] = rows[n, C.T_FAR] == 0 or rows[n, C.T_OUT] < frontier_ms
                rows[n, C.T_ASK] |= rows[n, C.T_OUT] < suspicious_until_ms
            odd += 1 - rows[n, C.T_PLAIN]
    return odd


# -- for the enqueue


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _enqueued(
    b: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    e: cython.Py_ssize_t,
    rows: cython.longlong[:, ::1],
    n: cython.Py_ssize_t,
) -> cython.int:
    """Fill the E_* columns from the properties ``b[start:e]``. Return the kind, one of E_TIMER, E_DELETE or E_ODD."""
    value: cython.Py_ssize_t
    end: cython.Py_ssize_t
    name: cython.int
    found: cython.int = C.E_TIMER
    rows[n, C.E_OUT] = -1
    rows[n, C.E_TOPIC_LEN] = 0
    if not _is_ascii(b, start, e):
        return C.E_ODD  # only ASCII is handled here
    start, value, end = next_property(b, start, e)
    while start < e:
        name = known_name(b, start, value - 1 - start)
        if name == L.NAME_REAL_TOPIC:
            rows[n, C.E_TOPIC_POS] = value
            rows[n, C.E_TOPIC_LEN] = end - value
        elif name == L.NAME_TIMER_DEL_UNIQKEY:
            found = C.E_DELETE
        elif name == L.NAME_TIMER_OUT_MS:
            rows[n, C.E_OUT] = _number(b, value, end)
            if rows[n, C.E_OUT] < 0:
                return C.E_ODD
        start, value, end = next_property(b, end + 1, e)
    if rows[n, C.E_TOPIC_LEN] == 0 or rows[n, C.E_OUT] < 0:
        return C.E_ODD
    e = cython.cast(cython.Py_ssize_t, rows[n, C.E_TOPIC_POS] + rows[n, C.E_TOPIC_LEN])
    rows[n, C.E_TOPIC_HASH] = java_hash_of(b, rows[n, C.E_TOPIC_POS], e)
    rows[n, C.E_TOPIC] = _end_hash(fnv_on(FNV_START, b, rows[n, C.E_TOPIC_POS], e), 0)
    return found


def topic_hash(topic: cython.const[cython.uchar][::1]):
    """Return the hash of a topic, as ``read_enqueued`` computes it."""
    return _end_hash(fnv_on(FNV_START, topic, 0, len(topic)), 0)


def read_enqueued(buf: cython.const[cython.uchar][::1], rows: cython.longlong[:, ::1]):
    """Fill ``rows`` from the timer records that E_POS, E_SIZE and E_POSITION name.

    E_KIND is TIMER or DELETE for a record of the timer topic with valid lengths whose properties are ASCII and
    have slot time and real topic, else C.E_ODD. Checksums are not verified.
    """
    n: cython.Py_ssize_t
    p: cython.Py_ssize_t
    q: cython.Py_ssize_t
    end: cython.Py_ssize_t
    if rows.shape[1] != C.E_COLUMNS:
        raise ValueError(f"{rows.shape[1]} columns")
    with cython.nogil:
        for n in range(rows.shape[0]):
            rows[n, C.E_KIND] = C.E_ODD
            if inside(rows[n, C.E_POS], rows[n, C.E_SIZE], len(buf)):
                p = cython.cast(cython.Py_ssize_t, rows[n, C.E_POS])
                end = p + cython.cast(cython.Py_ssize_t, rows[n, C.E_SIZE])
                _, q = _timer_at(buf, p, end, rows[n, C.E_POSITION])
                if q >= 0:
                    rows[n, C.E_KIND] = _enqueued(buf, q, end, rows, n)
