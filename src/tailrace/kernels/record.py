# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Records of the CommitLog: walk them, write them.

One source, two speeds: interpreted it is the meaning, compiled the same thing fast. ``buf`` is any
contiguous run of bytes, ``rows`` a C-contiguous int64 array of ``COLUMNS`` columns. Positions in
rows are indexes into ``buf``. A walk reads damaged bytes, so every read is behind a comparison.
"""

import zlib

import cython

SOURCE_SHA256 = ""

_REASON_END = cython.declare(cython.int, 0)  # everything up to `until` was consumed
_REASON_ROWS_FULL = cython.declare(cython.int, 1)
_REASON_BLANK = cython.declare(cython.int, 2)  # the record that ends a file stands at `stop`
_REASON_ZERO = cython.declare(cython.int, 3)  # nothing was ever written at `stop`
_REASON_BAD_MAGIC = cython.declare(cython.int, 4)
_REASON_BAD_LENGTH = cython.declare(cython.int, 5)  # lengths that do not add up
_REASON_BAD_CRC = cython.declare(cython.int, 6)
_REASON_BAD_PHY_OFFSET = cython.declare(cython.int, 7)
_REASON_SHORT = cython.declare(cython.int, 8)  # the record goes on behind `until`
_REASON_BAD_PROP_CRC = cython.declare(cython.int, 9)
_REASON_TORN = cython.declare(cython.int, 10)  # not told by a walk: topic or properties hold a NUL
REASON_NAMES = {
    0: "end", 1: "rows full", 2: "blank", 3: "zero", 4: "bad magic", 5: "bad length",
    6: "bad body checksum", 7: "wrong physical offset", 8: "cut off", 9: "bad record checksum",
    10: "torn behind its body",
}

_CHECK_BODY_CRC = cython.declare(cython.int, 1)
_CHECK_PHY_OFFSET = cython.declare(cython.int, 2)
_CHECK_PROP_CRC = cython.declare(cython.int, 4)
_LEAVE_PROPERTIES = cython.declare(cython.int, 8)  # rows say that there are none of the known ones

_C_PHY = cython.declare(cython.int, 0)
_C_SIZE = cython.declare(cython.int, 1)
_C_QUEUE_ID = cython.declare(cython.int, 2)
_C_QUEUE_OFFSET = cython.declare(cython.int, 3)
_C_SYS_FLAG = cython.declare(cython.int, 4)
_C_STORE_TIMESTAMP = cython.declare(cython.int, 5)
_C_TAGS_CODE = cython.declare(cython.int, 6)
_C_BORN_TIMESTAMP = cython.declare(cython.int, 7)
_C_FLAG = cython.declare(cython.int, 8)
_C_BODY_CRC = cython.declare(cython.int, 9)
_C_RECONSUME_TIMES = cython.declare(cython.int, 10)
_C_PREPARED = cython.declare(cython.int, 11)
_C_BODY_POS = cython.declare(cython.int, 12)
_C_BODY_LEN = cython.declare(cython.int, 13)
_C_TOPIC_POS = cython.declare(cython.int, 14)
_C_TOPIC_LEN = cython.declare(cython.int, 15)
_C_PROPS_POS = cython.declare(cython.int, 16)
_C_PROPS_LEN = cython.declare(cython.int, 17)
_C_BORN_HOST_POS = cython.declare(cython.int, 18)
_C_STORE_HOST_POS = cython.declare(cython.int, 19)
_C_QUEUE_HASH = cython.declare(cython.int, 20)
_C_DELAY_LEVEL = cython.declare(cython.int, 21)
_C_KEYS_POS = cython.declare(cython.int, 22)
_C_KEYS_LEN = cython.declare(cython.int, 23)
_C_UNIQ_POS = cython.declare(cython.int, 24)
_C_UNIQ_LEN = cython.declare(cython.int, 25)
_C_TAGS_POS = cython.declare(cython.int, 26)
_C_TAGS_LEN = cython.declare(cython.int, 27)
_COLUMNS = cython.declare(cython.int, 28)

_END_OF_FILE = cython.declare(cython.int, -1)

_MAGIC_V1 = cython.declare(cython.longlong, 0xDAA320A7)
_MAGIC_V2 = cython.declare(cython.longlong, 0xDAA320AB)
_MAGIC_BLANK = cython.declare(cython.longlong, 0xCBD43194)
_MASK_32 = cython.declare(cython.longlong, 0xFFFFFFFF)
_MASK_31 = cython.declare(cython.longlong, 0x7FFFFFFF)
_SIGN_32 = cython.declare(cython.longlong, 0x80000000)
_TWO_32 = cython.declare(cython.longlong, 0x100000000)
_MASK_64 = cython.declare(cython.ulonglong, 0xFFFFFFFFFFFFFFFF)
_MASK_62 = cython.declare(cython.ulonglong, 0x3FFFFFFFFFFFFFFF)
_FNV_START = cython.declare(cython.ulonglong, 14695981039346656037)
_FNV_PRIME = cython.declare(cython.ulonglong, 1099511628211)


# The same numbers for users; compiled, the names above are C integers that no import sees.
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
COLUMNS = _COLUMNS
END_OF_FILE = _END_OF_FILE

if cython.compiled:
    _TABLE = cython.declare(cython.uint[4096])


def _fill_table():
    i: cython.int
    j: cython.int
    c: cython.uint
    for i in range(256):
        c = i
        for j in range(8):
            c = (c >> 1) ^ 0xEDB88320 if c & 1 else c >> 1
        _TABLE[i] = c
    for i in range(256):
        c = _TABLE[i]
        for j in range(1, 16):
            c = _TABLE[c & 255] ^ (c >> 8)
            _TABLE[j * 256 + i] = c


if cython.compiled:
    _fill_table()
    # ISA-L's crc32_gzip_refl(start, bytes, length), or NULL: the table is used.
    _isal_crc32 = cython.declare(
        "unsigned int (*)(unsigned int, const unsigned char *, unsigned long long) noexcept nogil")
    _isal_crc32 = cython.NULL


def use_crc32(address: cython.size_t):
    """Compute checksums by the C function of ISA-L at an address; 0 goes back to the table."""
    global _isal_crc32
    if cython.compiled:
        _isal_crc32 = cython.cast(
            "unsigned int (*)(unsigned int, const unsigned char *, unsigned long long) noexcept nogil",
            cython.cast(cython.p_void, address))


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _be16(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t) -> cython.longlong:
    return (cython.cast(cython.longlong, b[p]) << 8) | b[p + 1]


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
@cython.nogil
@cython.exceptval(check=False)
def _crc_compiled(
    b: cython.const[cython.uchar][::1], i: cython.Py_ssize_t, e: cython.Py_ssize_t
) -> cython.longlong:
    c: cython.uint = 0xFFFFFFFF
    a: cython.uint
    while i + 16 <= e:
        a = c ^ (
            cython.cast(cython.uint, b[i])
            | (cython.cast(cython.uint, b[i + 1]) << 8)
            | (cython.cast(cython.uint, b[i + 2]) << 16)
            | (cython.cast(cython.uint, b[i + 3]) << 24)
        )
        c = (
            _TABLE[3840 + (a & 255)] ^ _TABLE[3584 + ((a >> 8) & 255)]
            ^ _TABLE[3328 + ((a >> 16) & 255)] ^ _TABLE[3072 + (a >> 24)]
            ^ _TABLE[2816 + b[i + 4]] ^ _TABLE[2560 + b[i + 5]]
            ^ _TABLE[2304 + b[i + 6]] ^ _TABLE[2048 + b[i + 7]]
            ^ _TABLE[1792 + b[i + 8]] ^ _TABLE[1536 + b[i + 9]]
            ^ _TABLE[1280 + b[i + 10]] ^ _TABLE[1024 + b[i + 11]]
            ^ _TABLE[768 + b[i + 12]] ^ _TABLE[512 + b[i + 13]]
            ^ _TABLE[256 + b[i + 14]] ^ _TABLE[b[i + 15]]
        )
        i += 16
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


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _java_hash(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, e: cython.Py_ssize_t
) -> cython.longlong:
    """Java's hash of UTF-8 bytes, over UTF-16 units; a bad byte counts as U+FFFD."""
    h: cython.longlong = 0
    c: cython.longlong
    n: cython.Py_ssize_t
    k: cython.Py_ssize_t
    good: cython.bint
    while p < e:
        c = b[p]
        if c < 0x80:
            h = (h * 31 + c) & _MASK_32
            p += 1
            continue
        n = 0
        if 0xC2 <= c < 0xE0:
            n, c = 1, c & 0x1F
        elif 0xE0 <= c < 0xF0:
            n, c = 2, c & 0x0F
        elif 0xF0 <= c < 0xF5:
            n, c = 3, c & 0x07
        good = n > 0 and p + n < e
        if good:
            for k in range(1, n + 1):
                if b[p + k] & 0xC0 != 0x80:
                    good = False
                    break
                c = (c << 6) | (b[p + k] & 0x3F)
        if not good:
            h = (h * 31 + 0xFFFD) & _MASK_32
            p += 1
            continue
        p += n + 1
        if c >= 0x10000:
            c -= 0x10000
            h = (h * 31 + (0xD800 + (c >> 10))) & _MASK_32
            c = 0xDC00 + (c & 0x3FF)
        h = (h * 31 + c) & _MASK_32
    return (h ^ _SIGN_32) - _SIGN_32


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _queue_hash(
    b: cython.const[cython.uchar][::1],
    p: cython.Py_ssize_t,
    e: cython.Py_ssize_t,
    queue_id: cython.longlong,
) -> cython.longlong:
    h: cython.ulonglong = _FNV_START
    while p < e:
        h = ((h ^ b[p]) * _FNV_PRIME) & _MASK_64
        p += 1
    h = ((h ^ cython.cast(cython.ulonglong, queue_id & _MASK_32)) * _FNV_PRIME) & _MASK_64
    h = h ^ (h >> 29)
    return cython.cast(cython.longlong, h & _MASK_62)


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
    """Note where the properties are that the store reacts to."""
    start: cython.Py_ssize_t = p
    value: cython.Py_ssize_t = -1
    length: cython.Py_ssize_t
    k: cython.Py_ssize_t
    level: cython.longlong
    c: cython.uchar
    while p <= e:
        c = b[p] if p < e else 2
        if c == 1:
            if value < 0:
                value = p + 1
        elif c == 2:
            length = value - 1 - start
            if value >= 0 and length > 0 and p > value:
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
            start = p + 1
            value = -1
        p += 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _prop_crc_wrong(
    b: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    props: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
) -> cython.bint:
    """Whether a record ends in a checksum of itself that does not fit."""
    at: cython.Py_ssize_t = end - 20
    value: cython.longlong = 0
    k: cython.Py_ssize_t
    if at < props or b[end - 1] != 2 or b[at + 8] != 1:
        return False
    if not (
        b[at] == 95 and b[at + 1] == 95 and b[at + 2] == 67 and b[at + 3] == 82
        and b[at + 4] == 67 and b[at + 5] == 51 and b[at + 6] == 50 and b[at + 7] == 35
    ):
        return False
    for k in range(10):
        if not 48 <= b[at + 18 - k] <= 57:
            return True
        value = value * 10 + (b[at + 18 - k] - 48)
    return value != (_crc(b, start, at) & _MASK_31)


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
    """Fill row ``n`` from the record of ``size`` bytes at ``p``; 0 or a reason. All bytes exist."""
    end: cython.Py_ssize_t = p + cython.cast(cython.Py_ssize_t, size)
    v2: cython.bint = _be32u(b, p + 4) == _MAGIC_V2
    sys_flag: cython.longlong = _be32(b, p + 36)
    q: cython.Py_ssize_t = p + 48
    length: cython.longlong
    rows[n, _C_BORN_HOST_POS] = q
    q += 20 if sys_flag & 0x10 else 8
    rows[n, _C_STORE_HOST_POS] = q + 8
    if q + 8 + (20 if sys_flag & 0x20 else 8) + 16 + 4 > end:
        return _REASON_BAD_LENGTH
    rows[n, _C_STORE_TIMESTAMP] = _be64(b, q)
    q += 8 + (20 if sys_flag & 0x20 else 8)
    rows[n, _C_RECONSUME_TIMES] = _be32(b, q)
    rows[n, _C_PREPARED] = _be64(b, q + 4)
    length = _be32(b, q + 12)
    q += 16
    if length < 0 or length > end - q - 3 - v2:
        return _REASON_BAD_LENGTH
    rows[n, _C_BODY_POS] = q
    rows[n, _C_BODY_LEN] = length
    q += cython.cast(cython.Py_ssize_t, length)
    length = _be16(b, q) if v2 else b[q]
    q += 2 if v2 else 1
    if length > end - q - 2:
        return _REASON_BAD_LENGTH
    rows[n, _C_TOPIC_POS] = q
    rows[n, _C_TOPIC_LEN] = length
    q += cython.cast(cython.Py_ssize_t, length)
    length = _be16(b, q)
    q += 2
    if q + length != end:
        return _REASON_BAD_LENGTH
    rows[n, _C_PROPS_POS] = q
    rows[n, _C_PROPS_LEN] = length
    rows[n, _C_PHY] = base + p
    if check & _CHECK_PHY_OFFSET and _be64(b, p + 28) != base + p:
        return _REASON_BAD_PHY_OFFSET
    rows[n, _C_BODY_CRC] = _be32(b, p + 8)
    if check & _CHECK_BODY_CRC and rows[n, _C_BODY_LEN] > 0:
        length = _crc(b, rows[n, _C_BODY_POS], rows[n, _C_BODY_POS] + rows[n, _C_BODY_LEN])
        if (length & _MASK_31) != rows[n, _C_BODY_CRC]:
            return _REASON_BAD_CRC
    if check & _CHECK_PROP_CRC and _prop_crc_wrong(b, p, q, end):
        return _REASON_BAD_PROP_CRC
    rows[n, _C_SIZE] = size
    rows[n, _C_QUEUE_ID] = _be32(b, p + 12)
    rows[n, _C_FLAG] = _be32(b, p + 16)
    rows[n, _C_QUEUE_OFFSET] = _be64(b, p + 20)
    rows[n, _C_SYS_FLAG] = sys_flag
    rows[n, _C_BORN_TIMESTAMP] = _be64(b, p + 40)
    rows[n, _C_QUEUE_HASH] = _queue_hash(
        b, rows[n, _C_TOPIC_POS], rows[n, _C_TOPIC_POS] + rows[n, _C_TOPIC_LEN], rows[n, _C_QUEUE_ID]
    )
    rows[n, _C_DELAY_LEVEL] = 0
    rows[n, _C_KEYS_POS] = -1
    rows[n, _C_KEYS_LEN] = 0
    rows[n, _C_UNIQ_POS] = -1
    rows[n, _C_UNIQ_LEN] = 0
    rows[n, _C_TAGS_POS] = -1
    rows[n, _C_TAGS_LEN] = 0
    if not check & _LEAVE_PROPERTIES:
        _properties(b, q, end, rows, n)
    rows[n, _C_TAGS_CODE] = (
        _java_hash(b, rows[n, _C_TAGS_POS], rows[n, _C_TAGS_POS] + rows[n, _C_TAGS_LEN])
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
    """Walk records from index ``start`` up to ``until``; ``buf[0]`` is at physical offset ``base``.

    Fills one row a record and returns (count, stop, reason): ``stop`` is the index of the first
    byte that was not consumed, ``reason`` one of REASON_*. ``check`` combines CHECK_* bits.
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
            if p + 8 > until:
                reason = _REASON_SHORT
                break
            size = _be32(buf, p)
            magic = _be32u(buf, p + 4)
            if magic == _MAGIC_BLANK:
                reason = _REASON_BLANK if size >= 8 else _REASON_BAD_LENGTH
                break
            if magic != _MAGIC_V1 and magic != _MAGIC_V2:
                reason = _REASON_ZERO if magic == 0 and size == 0 else _REASON_BAD_MAGIC
                break
            if size < 91:
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


def is_message(
    buf: cython.const[cython.uchar][::1],
    phy_offset: cython.longlong,
    topic: cython.const[cython.uchar][::1],
    queue_id: cython.longlong,
    queue_offset: cython.longlong,
):
    """Whether ``buf`` is one whole record, made for a physical offset and a place in a queue.

    All checksums are checked. An empty ``topic`` stands for any topic, queue and place.
    """
    end: cython.Py_ssize_t = len(buf)
    p: cython.Py_ssize_t
    q: cython.Py_ssize_t
    n: cython.Py_ssize_t
    k: cython.Py_ssize_t
    length: cython.longlong
    sys_flag: cython.longlong
    v2: cython.bint
    if end < 91 or _be32(buf, 0) != end or _be64(buf, 28) != phy_offset:
        return False
    v2 = _be32u(buf, 4) == _MAGIC_V2
    if not v2 and _be32u(buf, 4) != _MAGIC_V1:
        return False
    sys_flag = _be32(buf, 36)
    p = 48 + (20 if sys_flag & 0x10 else 8) + 8 + (20 if sys_flag & 0x20 else 8) + 12
    if p + 7 + v2 > end:
        return False
    length = _be32(buf, p)
    p += 4
    if length < 0 or length > end - p - 3 - v2:
        return False
    q = p + cython.cast(cython.Py_ssize_t, length)
    n = _be16(buf, q) if v2 else buf[q]
    k = q + 1 + v2
    if n > end - k - 2 or k + n + 2 + _be16(buf, k + n) != end:
        return False
    if length and (_crc(buf, p, q) & _MASK_31) != _be32(buf, 8):
        return False
    if _prop_crc_wrong(buf, 0, k + n + 2, end):
        return False
    if len(topic):
        if n != len(topic) or _be32(buf, 12) != queue_id or _be64(buf, 20) != queue_offset:
            return False
        for p in range(n):
            if buf[k + p] != topic[p]:
                return False
    return True


def crc32(buf: cython.const[cython.uchar][::1], start: cython.Py_ssize_t, until: cython.Py_ssize_t):
    """CRC-32 of a part of ``buf``."""
    if not 0 <= start <= until <= len(buf):
        raise ValueError(f"{start} to {until} of {len(buf)}")
    return _crc(buf, start, until)


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


@cython.cfunc
def _encode(
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
    _put32(buf, q + 4, _MAGIC_V2 if v2 else _MAGIC_V1)
    _put32(buf, q + 8, body_crc & _MASK_32)
    _put32(buf, q + 12, queue_id & _MASK_32)
    _put32(buf, q + 16, flag & _MASK_32)
    _put64(buf, q + 20, queue_offset)
    _put64(buf, q + 28, phy_offset)
    _put32(buf, q + 36, sys_flag & _MASK_32)
    _put64(buf, q + 40, born_timestamp)
    q += 48
    buf[q : q + born_length] = born_host
    q += born_length
    _put64(buf, q, store_timestamp)
    q += 8
    buf[q : q + store_length] = store_host
    q += store_length
    _put32(buf, q, reconsume_times & _MASK_32)
    _put64(buf, q + 4, prepared)
    _put32(buf, q + 12, body_length)
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
    _put32(buf, pos, size)
    if append_prop_crc:
        if separator:
            buf[q] = 2
            q += 1
        crc = _crc(buf, pos, q) & _MASK_31
        for k in range(8):
            buf[q + k] = _CRC_NAME[k]
        buf[q + 8] = 1
        for k in range(10):
            buf[q + 9 + k] = 48 + crc % 10
            crc = crc // 10
        buf[q + 19] = 2
    return size


_CRC_NAME: bytes = b"__CRC32#"


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
):
    """Write a record at ``buf[pos:]`` and return its size, or END_OF_FILE when it does not fit.

    It fits when eight bytes stay free before ``limit``, for the blank record. The IPv6 bits of
    ``sys_flag`` follow the lengths of the hosts. ``append_prop_crc`` ends the properties with a
    checksum of the whole record. Lengths of topic and properties were checked by the caller.
    """
    return _encode(
        buf, pos, limit, phy_offset, queue_id, flag, queue_offset, sys_flag, born_timestamp,
        born_host, store_timestamp, store_host, reconsume_times, prepared, body, body_crc, topic,
        props, append_prop_crc,
    )


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
        size = _encode(
            buf, p, limit, phy_offset + (p - pos), queue_id, flag, first_queue_offset + n,
            sys_flag, born_timestamp, born_host, store_timestamp, store_host, 0, 0, body,
            _crc(body, 0, len(body)) & _MASK_31, topic, props, append_prop_crc,
        )
        if size < 0:
            break
        phy_offsets[first + n] = phy_offset + (p - pos)
        p += cython.cast(cython.Py_ssize_t, size)
        n += 1
    return n, p - pos
