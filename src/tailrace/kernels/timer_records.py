# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Timers in bulk: the records that units name, and the records that leave the wheel.

``rows`` is a C-contiguous int64 array of ``COLUMNS`` columns, a row a unit, positions in it are
indexes into the buffer that was read. What is not plain in every respect is marked as odd, and
somebody else looks at it. Every place is compared with the length of its buffer before it is read.
"""

import zlib

import cython

SOURCE_SHA256 = ""

_T_PLAIN = cython.declare(cython.int, 0)  # 1: all other columns hold
_T_OUT = cython.declare(cython.int, 1)  # TIMER_OUT_MS
_T_DUE = cython.declare(cython.int, 2)  # the millisecond at which it is due
_T_QUEUE_ID = cython.declare(cython.int, 3)  # REAL_QID
_T_IDENTITY = cython.declare(cython.int, 4)  # hash of REAL_TOPIC, UNIQ_KEY and TIMER_OUT_MS, above 0
_T_QUEUE_HASH = cython.declare(cython.int, 5)  # hash of REAL_TOPIC and REAL_QID
_T_POS = cython.declare(cython.int, 6)
_T_BORN_LEN = cython.declare(cython.int, 7)
_T_BODY_POS = cython.declare(cython.int, 8)
_T_BODY_LEN = cython.declare(cython.int, 9)
_T_PROPS_POS = cython.declare(cython.int, 10)
_T_PROPS_LEN = cython.declare(cython.int, 11)
_T_TOPIC_POS = cython.declare(cython.int, 12)  # of REAL_TOPIC
_T_TOPIC_LEN = cython.declare(cython.int, 13)
_T_KEY_POS = cython.declare(cython.int, 14)  # of UNIQ_KEY
_T_KEY_LEN = cython.declare(cython.int, 15)
_T_WROTE = cython.declare(cython.int, 16)  # the unit's write time; filled by the caller
_T_QUEUE = cython.declare(cython.int, 17)  # which queue offset counts it; filled by the caller
_COLUMNS = cython.declare(cython.int, 18)

_TAIL = cython.declare(cython.int, 96)  # at most, of the two properties that are added
_MAX_PROPERTIES = cython.declare(cython.int, 32767)
_MAGIC_V1 = cython.declare(cython.longlong, 0xDAA320A7)
_MAGIC_V2 = cython.declare(cython.longlong, 0xDAA320AB)
_MASK_32 = cython.declare(cython.longlong, 0xFFFFFFFF)
_MASK_31 = cython.declare(cython.longlong, 0x7FFFFFFF)
_SIGN_32 = cython.declare(cython.longlong, 0x80000000)
_TWO_32 = cython.declare(cython.longlong, 0x100000000)
_MASK_64 = cython.declare(cython.ulonglong, 0xFFFFFFFFFFFFFFFF)
_MASK_62 = cython.declare(cython.ulonglong, 0x3FFFFFFFFFFFFFFF)
_FNV_START = cython.declare(cython.ulonglong, 14695981039346656037)
_FNV_PRIME = cython.declare(cython.ulonglong, 1099511628211)

T_PLAIN = _T_PLAIN
T_OUT = _T_OUT
T_DUE = _T_DUE
T_QUEUE_ID = _T_QUEUE_ID
T_IDENTITY = _T_IDENTITY
T_QUEUE_HASH = _T_QUEUE_HASH
T_POS = _T_POS
T_BODY_LEN = _T_BODY_LEN
T_PROPS_LEN = _T_PROPS_LEN
T_TOPIC_POS = _T_TOPIC_POS
T_TOPIC_LEN = _T_TOPIC_LEN
T_KEY_POS = _T_KEY_POS
T_KEY_LEN = _T_KEY_LEN
T_WROTE = _T_WROTE
T_QUEUE = _T_QUEUE
COLUMNS = _COLUMNS

# Names of properties, by what they mean here.
_REAL_TOPIC = cython.declare(cython.int, 1)
_REAL_QID = cython.declare(cython.int, 2)
_UNIQ_KEY = cython.declare(cython.int, 3)
_OUT_MS = cython.declare(cython.int, 4)
_DELAY_SEC = cython.declare(cython.int, 5)
_DELAY_MS = cython.declare(cython.int, 6)
_DELIVER_MS = cython.declare(cython.int, 7)
_ODD_NAME = cython.declare(cython.int, 8)

if cython.compiled:
    _TABLE = cython.declare(cython.uint[256])
    # ISA-L's crc32_gzip_refl(start, bytes, length), or NULL: the table is used.
    _isal_crc32 = cython.declare(
        "unsigned int (*)(unsigned int, const unsigned char *, unsigned long long) noexcept nogil")
    _isal_crc32 = cython.NULL


def _fill_table():
    i: cython.int
    j: cython.int
    c: cython.uint
    for i in range(256):
        c = i
        for j in range(8):
            c = (c >> 1) ^ 0xEDB88320 if c & 1 else c >> 1
        _TABLE[i] = c


if cython.compiled:
    _fill_table()


def use_crc32(address: cython.size_t):
    """Compute checksums by the C function of ISA-L at an address; 0 goes back to the table."""
    global _isal_crc32
    if cython.compiled:
        _isal_crc32 = cython.cast(
            "unsigned int (*)(unsigned int, const unsigned char *, unsigned long long) noexcept nogil",
            cython.cast(cython.p_void, address))


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _crc_compiled(
    b: cython.const[cython.uchar][::1], i: cython.Py_ssize_t, e: cython.Py_ssize_t
) -> cython.longlong:
    c: cython.uint = 0xFFFFFFFF
    while i < e:
        c = _TABLE[(c ^ b[i]) & 255] ^ (c >> 8)
        i += 1
    return cython.cast(cython.longlong, c ^ cython.cast(cython.uint, 0xFFFFFFFF))


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _crc(
    b: cython.const[cython.uchar][::1], i: cython.Py_ssize_t, e: cython.Py_ssize_t
) -> cython.longlong:
    if cython.compiled:
        if i < e and _isal_crc32 != cython.NULL:
            return _isal_crc32(0, cython.address(b[i]), e - i)
        return _crc_compiled(b, i, e)
    return zlib.crc32(memoryview(b)[i:e])


def crc32(buf: cython.const[cython.uchar][::1], start: cython.Py_ssize_t, until: cython.Py_ssize_t):
    """CRC-32 of a part of ``buf``."""
    if not 0 <= start <= until <= len(buf):
        raise ValueError(f"{start} to {until} of {len(buf)}")
    return _crc(buf, start, until)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _be32u(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t) -> cython.longlong:
    return (
        (cython.cast(cython.longlong, b[p]) << 24)
        | (cython.cast(cython.longlong, b[p + 1]) << 16)
        | (cython.cast(cython.longlong, b[p + 2]) << 8)
        | b[p + 3]
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _be32(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t) -> cython.longlong:
    return (_be32u(b, p) ^ _SIGN_32) - _SIGN_32


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _be64(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t) -> cython.longlong:
    return _be32(b, p) * _TWO_32 + _be32u(b, p + 4)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put32(b: cython.uchar[::1], p: cython.Py_ssize_t, v: cython.longlong) -> cython.void:
    b[p] = (v >> 24) & 255
    b[p + 1] = (v >> 16) & 255
    b[p + 2] = (v >> 8) & 255
    b[p + 3] = v & 255


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put64(b: cython.uchar[::1], p: cython.Py_ssize_t, v: cython.longlong) -> cython.void:
    _put32(b, p, (v >> 32) & _MASK_32)
    _put32(b, p + 4, v & _MASK_32)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _copy(
    out: cython.uchar[::1], q: cython.Py_ssize_t, b: cython.const[cython.uchar][::1],
    p: cython.Py_ssize_t, n: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Copy ``n`` bytes; the place behind them."""
    k: cython.Py_ssize_t
    for k in range(n):
        out[q + k] = b[p + k]
    return q + n


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
    """What a property's name means, 0 when it means nothing here."""
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
    return _ODD_NAME if n == 17 and _is(b, p, 17, names, 131) else 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _number(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, e: cython.Py_ssize_t
) -> cython.longlong:
    """A number of up to 15 digits, -1 for anything else."""
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
def _hash(
    h: cython.ulonglong, b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, e: cython.Py_ssize_t
) -> cython.ulonglong:
    while p < e:
        h = ((h ^ b[p]) * _FNV_PRIME) & _MASK_64
        p += 1
    return h


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _end_hash(h: cython.ulonglong, number: cython.longlong) -> cython.longlong:
    """A hash in 62 bits, never 0."""
    h = ((h ^ 1) * _FNV_PRIME) & _MASK_64
    h = ((h ^ cython.cast(cython.ulonglong, number & _MASK_32)) * _FNV_PRIME) & _MASK_64
    h = ((h ^ cython.cast(cython.ulonglong, (number >> 32) & _MASK_32)) * _FNV_PRIME) & _MASK_64
    h = ((h ^ (h >> 29)) * _FNV_PRIME) & _MASK_64
    return cython.cast(cython.longlong, (h ^ (h >> 32)) & _MASK_62) | 1


def identity_hash(
    topic: cython.const[cython.uchar][::1], key: cython.const[cython.uchar][::1], out_ms: cython.longlong
):
    """The hash of a timer's identity, as ``read`` computes it."""
    h: cython.ulonglong = _hash(_FNV_START, topic, 0, len(topic))
    h = ((h ^ 1) * _FNV_PRIME) & _MASK_64
    return _end_hash(_hash(h, key, 0, len(key)), out_ms)


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
    """Fill what the properties say; whether they are those of a plain timer."""
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
                elif kind == _ODD_NAME:
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
            return False  # text that is not ASCII has rules of its own
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
    h = _hash(
        _FNV_START, b, rows[n, _T_TOPIC_POS], rows[n, _T_TOPIC_POS] + rows[n, _T_TOPIC_LEN])
    rows[n, _T_QUEUE_HASH] = _end_hash(h, queue_id)
    h = ((h ^ 1) * _FNV_PRIME) & _MASK_64
    h = _hash(h, b, rows[n, _T_KEY_POS], rows[n, _T_KEY_POS] + rows[n, _T_KEY_LEN])
    rows[n, _T_IDENTITY] = _end_hash(h, out)
    return True


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
    """Fill row ``n`` from the record ``b[p:end]``; whether it is a plain timer."""
    sys_flag: cython.longlong
    stored_ms: cython.longlong
    length: cython.longlong
    q: cython.Py_ssize_t = p + 48
    if end - p < 91 or _be32(b, p) != end - p or _be64(b, p + 28) != phy_offset:
        return False
    if _be32u(b, p + 4) != _MAGIC_V1:
        return False
    sys_flag = _be32(b, p + 36)
    if sys_flag & 0x8:  # of a transaction, not counted in its queue or waiting for its end
        return False
    if sys_flag & 0x4:
        return False
    rows[n, _T_POS] = p
    rows[n, _T_BORN_LEN] = 20 if sys_flag & 0x10 else 8
    q += 20 if sys_flag & 0x10 else 8
    if q + 8 + (20 if sys_flag & 0x20 else 8) + 16 + 3 > end:
        return False
    stored_ms = _be64(b, q)
    q += 8 + (20 if sys_flag & 0x20 else 8) + 12
    length = _be32(b, q)
    q += 4
    if length < 0 or length > end - q - 22:
        return False
    rows[n, _T_BODY_POS] = q
    rows[n, _T_BODY_LEN] = length
    if length and (_crc(b, q, q + cython.cast(cython.Py_ssize_t, length)) & _MASK_31) != _be32(b, p + 8):
        return False
    q += cython.cast(cython.Py_ssize_t, length)
    if b[q] != 19 or not _is(b, q + 1, 19, names, 156):
        return False
    q += 22
    length = (cython.cast(cython.longlong, b[q - 2]) << 8) | b[q - 1]
    if q + length != end or length + _TAIL > _MAX_PROPERTIES:
        return False
    rows[n, _T_PROPS_POS] = q
    rows[n, _T_PROPS_LEN] = length
    return _properties(b, q, end, stored_ms, precision_ms, names, rows, n)


def read(
    buf: cython.const[cython.uchar][::1],
    at: cython.const[cython.longlong][::1],
    phy_offsets: cython.const[cython.longlong][::1],
    sizes: cython.const[cython.longlong][::1],
    precision_ms: cython.longlong,
    rows: cython.longlong[:, ::1],
):
    """Take apart the timers whose records are at ``at`` in ``buf``, made for ``phy_offsets``.

    Plain is a whole record of the timer topic whose checksum fits and whose properties are ASCII with
    a real topic, queue, unique key and slot time, of no transaction, neither rolled nor put back nor
    a request to delete. A place below 0 is one that could not be read.
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


# -- back into the log


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
    """Write a number that is not negative; the place behind it."""
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
    """Write the record that row ``r`` leaves the wheel as; its size, or -1 when it does not fit."""
    p: cython.Py_ssize_t = rows[r, _T_POS]
    born_length: cython.Py_ssize_t = rows[r, _T_BORN_LEN]
    body_length: cython.Py_ssize_t = rows[r, _T_BODY_LEN]
    topic_length: cython.Py_ssize_t = rows[r, _T_TOPIC_LEN]
    props: cython.Py_ssize_t = rows[r, _T_PROPS_POS]
    props_length: cython.Py_ssize_t = rows[r, _T_PROPS_LEN]
    host_length: cython.Py_ssize_t = len(store_host)
    separator: cython.Py_ssize_t = 0 if b[props + props_length - 1] == 2 else 1
    added: cython.Py_ssize_t = 36 + separator + _digits(rows[r, _T_WROTE]) + _digits(dequeue_ms)
    size: cython.Py_ssize_t = (
        75 + born_length + host_length + body_length + topic_length + props_length + added)
    q: cython.Py_ssize_t
    sys_flag: cython.longlong = _be32(b, p + 36) & ~cython.cast(cython.longlong, 0x30)
    times: cython.Py_ssize_t = p + 48 + born_length + 8 + (20 if b[p + 39] & 0x20 else 8)
    if size + 8 > limit - start:
        return -1
    if born_length == 20:
        sys_flag |= 0x10
    if host_length == 20:
        sys_flag |= 0x20
    # The length comes last: a torn store leaves no record that looks whole.
    _put32(out, start + 4, _MAGIC_V1)
    _copy(out, start + 8, b, p + 8, 4)  # the body's checksum, which was compared
    _put32(out, start + 12, rows[r, _T_QUEUE_ID])
    _copy(out, start + 16, b, p + 16, 4)
    _put64(out, start + 20, queue_offset)
    _put64(out, start + 28, phy_offset)
    _put32(out, start + 36, sys_flag & _MASK_32)
    q = _copy(out, start + 40, b, p + 40, 8 + born_length)
    _put64(out, q, now_ms)
    q = _copy(out, q + 8, store_host, 0, host_length)
    q = _copy(out, q, b, times, 4)
    _put64(out, q, 0)
    _put32(out, q + 8, body_length)
    q = _copy(out, q + 12, b, rows[r, _T_BODY_POS], body_length)
    out[q] = topic_length
    q = _copy(out, q + 1, b, rows[r, _T_TOPIC_POS], topic_length)
    out[q] = ((props_length + added) >> 8) & 255
    out[q + 1] = (props_length + added) & 255
    q = _copy(out, q + 2, b, props, props_length)
    if separator:
        out[q] = 2
        q += 1
    q = _copy(out, q, names, 83, 16)
    out[q] = 1
    q = _decimal(out, q + 1, rows[r, _T_WROTE])
    out[q] = 2
    q = _copy(out, q + 1, names, 99, 16)
    out[q] = 1
    q = _decimal(out, q + 1, dequeue_ms)
    out[q] = 2
    _put32(out, start, size)
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
    """Write the plain rows ``order[first:until]`` of ``read`` as records of their real topics.

    ``phy_offset`` is the position of ``out[pos]``, ``now_ms`` the store time. Body, flags, hosts and
    properties stay; the two times of the wheel are added (convertMessage). ``queue_offsets`` counts on
    for each row's T_QUEUE.
    Returns (records, bytes): those that fit with eight bytes left, for the blank record.
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
    if count and rows.shape[1] < _COLUMNS:
        raise ValueError(f"{rows.shape[1]} columns")
    for n in range(first, until):  # all before the first byte
        r = order[n]
        if not 0 <= r < count or rows[r, _T_PLAIN] != 1 or rows[r, _T_WROTE] < 0 or not (
            0 <= rows[r, _T_QUEUE] < queues
        ) or rows[r, _T_PROPS_POS] + rows[r, _T_PROPS_LEN] > len(buf):
            raise ValueError(f"row {r} is none to put")
    n = first
    with cython.nogil:
        while n < until:
            r = order[n]
            size = _put_one(
                out, p, limit, phy_offset + (p - pos), buf, rows, r,
                queue_offsets[rows[r, _T_QUEUE]], dequeue_ms, now_ms, store_host, names)
            if size < 0:
                break
            queue_offsets[rows[r, _T_QUEUE]] += 1
            p += size
            n += 1
    return n - first, p - pos
