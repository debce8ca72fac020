# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Make column buffers in Arrow's layout from record rows.

``rows`` are those of ``kernels.record.scan``, or a table of places made here: int64, positions are indexes into
``buf``. Arrow's offsets are int32, one more than rows. Its validity is one bit per row, least significant bit
first. Every position is compared with the length of ``buf`` before it is read.
"""

import cython

if cython.compiled:
    from cython.cimports.libc.string import memcmp, memcpy

from tailrace.kernels.shared.copying import copy_bytes, find_byte, inside, load_early
from tailrace.kernels.shared.fnv import queue_hash_of
from tailrace.kernels.shared.record_columns import (
    _C_KEYS_LEN,
    _C_KEYS_POS,
    _C_PHY,
    _C_PROPS_LEN,
    _C_PROPS_POS,
    _C_STORE_HOST_POS,
    _C_SYS_FLAG,
    _COLUMNS,
)
from tailrace.kernels.shared.record_layout import HOST_V4_SIZE, HOST_V6_SIZE, STOREHOST_V6

SOURCE_SHA256 = ""


_NAME_POS = cython.declare(cython.int, 0)
_NAME_LEN = cython.declare(cython.int, 1)
_VALUE_POS = cython.declare(cython.int, 2)
_VALUE_LEN = cython.declare(cython.int, 3)

_LIMIT = cython.declare(cython.longlong, 0x7FFFFFFF)
_EARLY = cython.declare(cython.Py_ssize_t, 4)  # rows whose bytes are loaded while those of one are used
_EARLY_BYTES = cython.declare(cython.Py_ssize_t, 4096)  # of such a row at most
_SIGN_32 = cython.declare(cython.longlong, 0x80000000)

NAME_POS = _NAME_POS
NAME_LEN = _NAME_LEN
VALUE_POS = _VALUE_POS
VALUE_LEN = _VALUE_LEN
PLACE_COLUMNS = 4
HOST_BYTES = 32  # the longest text of an IPv4 host is shorter
ID_BYTES = 56
NO_ROOM = -2
OTHER_HOST = -3


def queue_hash(topic: cython.const[cython.uchar][::1], queue_id: cython.longlong):
    """Return the hash of a queue in column C_QUEUE_HASH of ``kernels.record``."""
    return queue_hash_of(topic, 0, len(topic), queue_id)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _copy_text(
    out: cython.uchar[::1], q: cython.Py_ssize_t, b: cython.const[cython.uchar][::1],
    p: cython.Py_ssize_t, n: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Do what ``copy_bytes`` does. A short text needs no call: it is two moves of fixed size, which may overlap."""
    if cython.compiled:
        if 8 <= n <= 16:
            memcpy(cython.address(out[q]), cython.address(b[p]), 8)
            memcpy(cython.address(out[q + n - 8]), cython.address(b[p + n - 8]), 8)
        elif 4 <= n < 8:
            memcpy(cython.address(out[q]), cython.address(b[p]), 4)
            memcpy(cython.address(out[q + n - 4]), cython.address(b[p + n - 4]), 4)
        elif 16 < n <= 32:
            memcpy(cython.address(out[q]), cython.address(b[p]), 16)
            memcpy(cython.address(out[q + n - 16]), cython.address(b[p + n - 16]), 16)
        else:
            copy_bytes(out, q, b, p, n)
        return q + n
    return copy_bytes(out, q, b, p, n)


def is_ascii(data: cython.const[cython.uchar][::1]):
    """Return True if every byte is below 128."""
    p: cython.Py_ssize_t
    bits: cython.uchar = 0
    if not cython.compiled:
        return bytes(data).isascii()
    with cython.nogil:
        for p in range(len(data)):  # without a break, so that many bytes are looked at together
            bits |= data[p]
    return bits < 128


def copy_parts(
    buf: cython.const[cython.uchar][::1],
    rows: cython.longlong[:, ::1],
    at: cython.Py_ssize_t,
    length: cython.Py_ssize_t,
    offsets: cython.int[::1],
    valid: cython.uchar[::1],
    out: cython.uchar[::1],
):
    """Copy the parts with position in column ``at`` and length in column ``length`` one after the other into ``out``.

    Fill their offsets and validity. A part with a negative position is missing. Return (bytes of all parts, number of
    missing parts); the bytes are NO_ROOM if the parts do not fit ``out``.
    """
    n: cython.Py_ssize_t
    q: cython.Py_ssize_t = 0
    count: cython.Py_ssize_t = rows.shape[0]
    limit: cython.longlong = len(buf)
    room: cython.Py_ssize_t = len(out)
    missing: cython.Py_ssize_t = 0
    bad: cython.Py_ssize_t = -1
    if offsets.shape[0] < count + 1 or len(valid) < (count + 7) // 8 or room > _LIMIT:
        raise ValueError(f"{count} rows need more offsets or bits, or {room} bytes are too many")
    if count and not (0 <= at < rows.shape[1] and 0 <= length < rows.shape[1]):
        raise ValueError(f"{rows.shape[1]} columns")
    with cython.nogil:
        for n in range((count + 7) // 8):
            valid[n] = 255
        offsets[0] = 0
        for n in range(count):
            if cython.compiled:
                if n + _EARLY < count:
                    load_early(buf, cython.cast(cython.Py_ssize_t, rows[n + _EARLY, at]),
                               cython.cast(cython.Py_ssize_t, rows[n + _EARLY, length]), _EARLY_BYTES)
            if rows[n, at] < 0:
                missing += 1
                valid[n >> 3] = valid[n >> 3] & (255 ^ (1 << (n & 7)))
            else:
                if not inside(rows[n, at], rows[n, length], limit):
                    bad = n
                    break
                if rows[n, length] > room - q:
                    q = -2
                    break
                q = _copy_text(
                    out, q, buf, cython.cast(cython.Py_ssize_t, rows[n, at]),
                    cython.cast(cython.Py_ssize_t, rows[n, length]))
            offsets[n + 1] = cython.cast(cython.int, q)
        if count & 7:
            valid[count >> 3] = valid[count >> 3] & ((1 << (count & 7)) - 1)
    if bad >= 0:
        raise ValueError(f"row {bad} leads out of the buffer")
    return q, missing


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _same(
    buf: cython.const[cython.uchar][::1],
    one: cython.longlong,
    other: cython.longlong,
    length: cython.longlong,
) -> cython.bint:
    k: cython.Py_ssize_t
    if cython.compiled:
        return length <= 0 or memcmp(cython.address(buf[one]), cython.address(buf[other]), length) == 0
    for k in range(length):
        if buf[one + k] != buf[other + k]:
            return False
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _find_name(
    buf: cython.const[cython.uchar][::1],
    places: cython.longlong[:, ::1],
    first: cython.Py_ssize_t,
    until: cython.Py_ssize_t,
    start: cython.Py_ssize_t,
    length: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Return the first of places [``first``, ``until``) with this name, or ``until``."""
    k: cython.Py_ssize_t
    for k in range(first, until):
        if places[k, _NAME_LEN] == length and _same(buf, places[k, _NAME_POS], start, length):
            return k
    return until


def find_properties(
    buf: cython.const[cython.uchar][::1],
    rows: cython.longlong[:, ::1],
    places: cython.longlong[:, ::1],
    offsets: cython.int[::1],
):
    """Fill ``places`` with the positions of names and values of all properties; ``offsets`` has each row's first one.

    Properties without a name or a value are left out. If a name is repeated, its last value is stored at its
    first place. Return the number of properties, or NO_ROOM. A row has at most a quarter as many properties as
    bytes, plus one.
    """
    n: cython.Py_ssize_t
    p: cython.Py_ssize_t
    e: cython.Py_ssize_t
    start: cython.Py_ssize_t
    value: cython.Py_ssize_t
    k: cython.Py_ssize_t
    first: cython.Py_ssize_t
    found: cython.Py_ssize_t = 0
    room: cython.Py_ssize_t = places.shape[0]
    limit: cython.longlong = len(buf)
    bad: cython.Py_ssize_t = -1
    if offsets.shape[0] < rows.shape[0] + 1:
        raise ValueError(f"{rows.shape[0]} rows need more offsets")
    if rows.shape[0] and (rows.shape[1] < _COLUMNS or places.shape[1] < 4):
        raise ValueError(f"{rows.shape[1]} and {places.shape[1]} columns")
    with cython.nogil:
        offsets[0] = 0
        for n in range(rows.shape[0]):
            first = found
            if not inside(rows[n, _C_PROPS_POS], rows[n, _C_PROPS_LEN], limit):
                bad = n
                break
            p = cython.cast(cython.Py_ssize_t, rows[n, _C_PROPS_POS])
            e = p + cython.cast(cython.Py_ssize_t, rows[n, _C_PROPS_LEN])
            start = p
            while start < e:
                p = find_byte(buf, start, e, 2)
                value = find_byte(buf, start, p, 1) + 1
                if value > start + 1 and p > value:
                    k = _find_name(buf, places, first, found, start, value - 1 - start)
                    if k == found:
                        if found == room:
                            bad = -2
                            break
                        places[k, _NAME_POS] = start
                        places[k, _NAME_LEN] = value - 1 - start
                        found += 1
                    places[k, _VALUE_POS] = value
                    places[k, _VALUE_LEN] = p - value
                start = p + 1
            if bad == -2:
                break
            offsets[n + 1] = cython.cast(cython.int, found)
    if bad >= 0:
        raise ValueError(f"row {bad} leads out of the buffer")
    return NO_ROOM if bad == -2 else found


def find_keys(
    buf: cython.const[cython.uchar][::1],
    rows: cython.longlong[:, ::1],
    places: cython.longlong[:, ::1],
    offsets: cython.int[::1],
):
    """Fill ``places`` with the positions of the keys of all rows, split at spaces. Return their number, or NO_ROOM."""
    n: cython.Py_ssize_t
    p: cython.Py_ssize_t
    e: cython.Py_ssize_t
    start: cython.Py_ssize_t
    found: cython.Py_ssize_t = 0
    room: cython.Py_ssize_t = places.shape[0]
    limit: cython.longlong = len(buf)
    bad: cython.Py_ssize_t = -1
    if offsets.shape[0] < rows.shape[0] + 1:
        raise ValueError(f"{rows.shape[0]} rows need more offsets")
    if rows.shape[0] and (rows.shape[1] < _COLUMNS or places.shape[1] < 2):
        raise ValueError(f"{rows.shape[1]} and {places.shape[1]} columns")
    with cython.nogil:
        offsets[0] = 0
        for n in range(rows.shape[0]):
            if rows[n, _C_KEYS_POS] >= 0:
                if not inside(rows[n, _C_KEYS_POS], rows[n, _C_KEYS_LEN], limit):
                    bad = n
                    break
                p = cython.cast(cython.Py_ssize_t, rows[n, _C_KEYS_POS])
                e = p + cython.cast(cython.Py_ssize_t, rows[n, _C_KEYS_LEN])
                start = p
                while p <= e:
                    if p == e or buf[p] == 32:
                        if p > start:
                            if found == room:
                                bad = -2
                                break
                            places[found, _NAME_POS] = start
                            places[found, _NAME_LEN] = p - start
                            found += 1
                        start = p + 1
                    p += 1
                if bad == -2:
                    break
            offsets[n + 1] = cython.cast(cython.int, found)
    if bad >= 0:
        raise ValueError(f"row {bad} leads out of the buffer")
    return NO_ROOM if bad == -2 else found


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _decimal(
    out: cython.uchar[::1], q: cython.Py_ssize_t, value: cython.longlong
) -> cython.Py_ssize_t:
    """Write a number that is not negative. Return the position after it."""
    width: cython.Py_ssize_t = 1
    rest: cython.longlong = value
    k: cython.Py_ssize_t
    while rest >= 10:
        rest = rest // 10
        width += 1
    for k in range(width):
        out[q + width - 1 - k] = 48 + value % 10
        value = value // 10
    return q + width


def host_texts(
    buf: cython.const[cython.uchar][::1],
    rows: cython.longlong[:, ::1],
    at: cython.Py_ssize_t,
    v6: cython.longlong,
    offsets: cython.int[::1],
    out: cython.uchar[::1],
):
    """Write ``address:port`` of every row's IPv4 host, whose position is in column ``at``. Return the number of bytes.

    Return OTHER_HOST if a row has the bit ``v6`` in its system flag. ``out`` has HOST_BYTES per row.
    """
    n: cython.Py_ssize_t
    k: cython.Py_ssize_t
    p: cython.Py_ssize_t
    q: cython.Py_ssize_t = 0
    port: cython.longlong
    last: cython.Py_ssize_t = -1  # row before, whose host is usually the same
    count: cython.Py_ssize_t = rows.shape[0]
    limit: cython.longlong = len(buf)
    bad: cython.Py_ssize_t = -1
    if offsets.shape[0] < count + 1 or len(out) < count * 32 or len(out) > _LIMIT:
        raise ValueError(f"{count} rows into {len(out)} bytes")
    if count and not (rows.shape[1] >= _COLUMNS and 0 <= at < rows.shape[1]):
        raise ValueError(f"{rows.shape[1]} columns")
    with cython.nogil:
        offsets[0] = 0
        for n in range(count):
            if rows[n, _C_SYS_FLAG] & v6:
                q = -3
                break
            if not inside(rows[n, at], 8, limit):
                bad = n
                break
            p = cython.cast(cython.Py_ssize_t, rows[n, at])
            if last >= 0 and _same(buf, p, rows[last, at], 8):
                q = _copy_text(out, q, out, offsets[last], offsets[n] - offsets[last])
                offsets[n + 1] = cython.cast(cython.int, q)
                last = n
                continue
            last = n
            for k in range(4):
                q = _decimal(out, q, buf[p + k])
                out[q] = 46 if k < 3 else 58
                q += 1
            port = (
                (cython.cast(cython.longlong, buf[p + 4]) << 24)
                | (cython.cast(cython.longlong, buf[p + 5]) << 16)
                | (cython.cast(cython.longlong, buf[p + 6]) << 8)
                | buf[p + 7]
            )
            port = (port ^ _SIGN_32) - _SIGN_32
            if port < 0:
                out[q] = 45
                q += 1
                port = -port
            q = _decimal(out, q, port)
            offsets[n + 1] = cython.cast(cython.int, q)
    if bad >= 0:
        raise ValueError(f"row {bad} leads out of the buffer")
    return q


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _hex_digit(value: cython.int) -> cython.uchar:
    return 48 + value if value < 10 else 55 + value


def message_ids(
    buf: cython.const[cython.uchar][::1],
    rows: cython.longlong[:, ::1],
    offsets: cython.int[::1],
    out: cython.uchar[::1],
):
    """Write the message id of every row, made of store host and position. Return the number of bytes.

    ``out`` has ID_BYTES per row.
    """
    n: cython.Py_ssize_t
    k: cython.Py_ssize_t
    p: cython.Py_ssize_t
    q: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t
    last: cython.Py_ssize_t = 0  # position and size of the host of the row before, which is usually the same
    last_size: cython.Py_ssize_t = 0
    last_high: cython.longlong = 0  # high 32 bits of the position of the row before, usually the same, too
    count: cython.Py_ssize_t = rows.shape[0]
    limit: cython.longlong = len(buf)
    bad: cython.Py_ssize_t = -1
    if offsets.shape[0] < count + 1 or len(out) < count * 56 or len(out) > _LIMIT:
        raise ValueError(f"{count} rows into {len(out)} bytes")
    if count and rows.shape[1] < _COLUMNS:
        raise ValueError(f"{rows.shape[1]} columns")
    with cython.nogil:
        offsets[0] = 0
        for n in range(count):
            size = HOST_V6_SIZE if rows[n, _C_SYS_FLAG] & STOREHOST_V6 else HOST_V4_SIZE
            if not inside(rows[n, _C_STORE_HOST_POS], size, limit):
                bad = n
                break
            p = cython.cast(cython.Py_ssize_t, rows[n, _C_STORE_HOST_POS])
            if size == last_size and rows[n, _C_PHY] >> 32 == last_high and _same(buf, p, last, size):
                q = _copy_text(out, q, out, offsets[n - 1], 2 * size + 8)
            else:
                for k in range(size):
                    out[q] = _hex_digit(buf[p + k] >> 4)
                    out[q + 1] = _hex_digit(buf[p + k] & 15)
                    q += 2
                for k in range(8):
                    out[q + k] = _hex_digit((rows[n, _C_PHY] >> (60 - 4 * k)) & 15)
                q += 8
            last, last_size, last_high = p, size, rows[n, _C_PHY] >> 32
            for k in range(8):
                out[q + k] = _hex_digit((rows[n, _C_PHY] >> (28 - 4 * k)) & 15)
            q += 8
            offsets[n + 1] = cython.cast(cython.int, q)
    if bad >= 0:
        raise ValueError(f"row {bad} leads out of the buffer")
    return q


_DELIVER: bytes = b"TIMER_DELIVER_MS"
_OUT: bytes = b"TIMER_OUT_MS"


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _number(
    buf: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, length: cython.Py_ssize_t
) -> cython.longlong:
    """Return a decimal number of at most 15 digits, or -1."""
    value: cython.longlong = 0
    k: cython.Py_ssize_t
    if length < 1 or length > 15:
        return -1
    for k in range(length):
        if not 48 <= buf[p + k] <= 57:
            return -1
        value = value * 10 + (buf[p + k] - 48)
    return value


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _named(
    buf: cython.const[cython.uchar][::1],
    p: cython.Py_ssize_t,
    length: cython.longlong,
    name: cython.const[cython.uchar][::1],
) -> cython.bint:
    k: cython.Py_ssize_t
    if length != len(name):
        return False
    for k in range(length):
        if buf[p + k] != name[k]:
            return False
    return True


def deliver_times(
    buf: cython.const[cython.uchar][::1],
    places: cython.longlong[:, ::1],
    offsets: cython.const[cython.int][::1],
    out: cython.longlong[::1],
    valid: cython.uchar[::1],
):
    """Write the delivery times of timer messages, in ms, from the places of their properties.

    Return the number of rows without a time. TIMER_DELIVER_MS is used before TIMER_OUT_MS. A value that is
    not a number is not a time.
    """
    deliver: cython.const[cython.uchar][::1] = _DELIVER
    late: cython.const[cython.uchar][::1] = _OUT
    n: cython.Py_ssize_t
    k: cython.Py_ssize_t
    count: cython.Py_ssize_t = offsets.shape[0] - 1
    value: cython.longlong
    missing: cython.Py_ssize_t = 0
    bad: cython.bint = False
    limit: cython.longlong = len(buf)
    if out.shape[0] < count or len(valid) < (count + 7) // 8:
        raise ValueError(f"{count} rows into {out.shape[0]}")
    if count > 0 and (places.shape[1] < 4 or offsets[0] < 0 or offsets[count] > places.shape[0]):
        raise ValueError(f"{places.shape[1]} columns, {places.shape[0]} places")
    with cython.nogil:
        for n in range((count + 7) // 8):
            valid[n] = 0
        for n in range(count):
            value = -1
            if offsets[n] < offsets[0] or offsets[n + 1] > offsets[count]:
                bad = True
                break
            for k in range(offsets[n], offsets[n + 1]):
                if not inside(places[k, _NAME_POS], places[k, _NAME_LEN], limit) or not inside(
                    places[k, _VALUE_POS], places[k, _VALUE_LEN], limit
                ):
                    bad = True
                    break
                if _named(buf, places[k, _NAME_POS], places[k, _NAME_LEN], deliver):
                    value = _number(buf, places[k, _VALUE_POS], places[k, _VALUE_LEN])
                    break
                if _named(buf, places[k, _NAME_POS], places[k, _NAME_LEN], late):
                    value = _number(buf, places[k, _VALUE_POS], places[k, _VALUE_LEN])
            if bad:
                break
            out[n] = max(value, 0)
            if value >= 0:
                valid[n >> 3] = valid[n >> 3] | (1 << (n & 7))
            else:
                missing += 1
    if bad:
        raise ValueError("places lead out of the buffer")
    return missing
