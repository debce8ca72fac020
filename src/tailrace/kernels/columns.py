# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Make column buffers in Arrow's layout from record rows.

Positions and lengths are columns of the rows of ``kernels.record.scan``: int64, positions are indexes into ``buf``.
Arrow's offsets are int32, one more than rows. Its validity is one bit per row, least significant bit first. Every
position is compared with the length of ``buf`` before it is read.
"""

import cython

from tailrace.kernels.shared import layouts as L

if cython.compiled:
    from cython.cimports.libc.string import memcmp, memcpy, memmove

from tailrace.kernels.shared.big_endian import be32, be32u, be64, put64
from tailrace.kernels.shared.copying import copy_bytes, find_byte, inside, load_early
from tailrace.kernels.shared.fnv import queue_hash_of
from tailrace.kernels.shared.record_walk import next_property

SOURCE_SHA256 = ""


_LIMIT = cython.declare(cython.longlong, 0x7FFFFFFF)
_EARLY = cython.declare(cython.Py_ssize_t, 4)  # rows whose bytes are loaded while those of one are used
_EARLY_BYTES = cython.declare(cython.Py_ssize_t, 4096)  # of such a row at most
_LOW_32 = cython.declare(cython.longlong, 0xFFFFFFFF)
_PAIRS = cython.declare(cython.longlong, 0x0000FFFF0000FFFF)
_BYTES = cython.declare(cython.longlong, 0x00FF00FF00FF00FF)
_DIGITS = cython.declare(cython.longlong, 0x0F0F0F0F0F0F0F0F)
_ONES = cython.declare(cython.longlong, 0x0101010101010101)
_SIXES = cython.declare(cython.longlong, 0x0606060606060606)
_ZEROS = cython.declare(cython.longlong, 0x3030303030303030)  # "0" in each byte

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


@cython.cfunc
def _check_rows(count: cython.Py_ssize_t, others: cython.Py_ssize_t, offsets: cython.int[::1]):
    """Raise ValueError if columns of rows differ in length, or ``offsets`` has not one value more than them."""
    if others != count or offsets.shape[0] < count + 1:
        raise ValueError(f"columns of {count} and {others} rows into {offsets.shape[0]} offsets")


def copy_parts(
    buf: cython.const[cython.uchar][::1],
    at: cython.const[cython.longlong][:],
    length: cython.const[cython.longlong][:],
    offsets: cython.int[::1],
    valid: cython.uchar[::1],
    out: cython.uchar[::1],
):
    """Copy the part of each row, ``buf[at:at + length]``, one after the other into ``out``.

    Fill their offsets and validity. A part with a negative position is missing. Return (bytes of all parts, number of
    missing parts); the bytes are NO_ROOM if the parts do not fit ``out``.
    """
    n: cython.Py_ssize_t
    q: cython.Py_ssize_t = 0
    count: cython.Py_ssize_t = at.shape[0]
    limit: cython.longlong = len(buf)
    room: cython.Py_ssize_t = len(out)
    missing: cython.Py_ssize_t = 0
    bad: cython.Py_ssize_t = -1
    _check_rows(count, length.shape[0], offsets)
    if len(valid) < (count + 7) // 8 or room > _LIMIT:
        raise ValueError(f"{count} rows need more bits than {8 * len(valid)}, or {room} bytes are too many")
    with cython.nogil:
        for n in range((count + 7) // 8):
            valid[n] = 255
        offsets[0] = 0
        for n in range(count):
            if cython.compiled:
                if n + _EARLY < count:
                    load_early(buf, cython.cast(cython.Py_ssize_t, at[n + _EARLY]),
                               cython.cast(cython.Py_ssize_t, length[n + _EARLY]), _EARLY_BYTES)
            if at[n] < 0:
                missing += 1
                valid[n >> 3] = valid[n >> 3] & (255 ^ (1 << (n & 7)))
            else:
                if not inside(at[n], length[n], limit):
                    bad = n
                    break
                if length[n] > room - q:
                    q = -2
                    break
                q = _copy_text(
                    out, q, buf, cython.cast(cython.Py_ssize_t, at[n]), cython.cast(cython.Py_ssize_t, length[n]))
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
    one: cython.const[cython.uchar][::1],
    at_one: cython.longlong,
    other: cython.const[cython.uchar][::1],
    at_other: cython.longlong,
    length: cython.longlong,
) -> cython.bint:
    k: cython.Py_ssize_t
    if cython.compiled:
        return length <= 0 or memcmp(
            cython.address(one[at_one]), cython.address(other[at_other]), cython.cast(cython.size_t, length)) == 0
    for k in range(length):
        if one[at_one + k] != other[at_other + k]:
            return False
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _find_name(
    names: cython.const[cython.uchar][::1],
    ends: cython.const[cython.int][::1],
    first: cython.Py_ssize_t,
    until: cython.Py_ssize_t,
    buf: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    length: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Return the first of names [``first``, ``until``) that equals ``buf[start:start + length]``, or ``until``."""
    k: cython.Py_ssize_t
    for k in range(first, until):
        if ends[k + 1] - ends[k] == length and _same(names, ends[k], buf, start, length):
            return k
    return until


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _replace(
    values: cython.uchar[::1],
    ends: cython.int[::1],
    k: cython.Py_ssize_t,
    found: cython.Py_ssize_t,
    buf: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    length: cython.Py_ssize_t,
) -> cython.bint:
    """Make ``buf[start:start + length]`` value ``k`` of ``found`` values. Return False if there is no room."""
    at: cython.Py_ssize_t = ends[k + 1]
    rest: cython.Py_ssize_t = ends[found] - at
    more: cython.Py_ssize_t = length - (at - ends[k])
    i: cython.Py_ssize_t
    if ends[found] + more > len(values):
        return False
    if cython.compiled:
        if rest > 0:
            memmove(cython.address(values[at + more]), cython.address(values[at]), cython.cast(cython.size_t, rest))
    else:
        view = memoryview(values).cast("B")
        view[at + more : at + more + rest] = bytes(view[at : at + rest])
    copy_bytes(values, ends[k], buf, start, length)
    for i in range(k + 1, found + 1):
        ends[i] += cython.cast(cython.int, more)
    return True


def property_texts(
    buf: cython.const[cython.uchar][::1],
    at: cython.const[cython.longlong][:],
    length: cython.const[cython.longlong][:],
    offsets: cython.int[::1],
    name_ends: cython.int[::1],
    names: cython.uchar[::1],
    value_ends: cython.int[::1],
    values: cython.uchar[::1],
):
    """Copy names and values of the properties of all rows, those of a row after those of the row before.

    ``offsets`` has each row's first property, ``name_ends`` and ``value_ends`` have the offsets of the texts.
    Properties without a name or a value are left out. If a name is repeated, its last value is stored at its first
    place. Return the number of properties, or NO_ROOM: names and values are together as long as all properties at most,
    and a property takes four bytes, the last one of a row three.
    """
    n: cython.Py_ssize_t
    p: cython.Py_ssize_t
    e: cython.Py_ssize_t
    start: cython.Py_ssize_t
    value: cython.Py_ssize_t
    k: cython.Py_ssize_t
    first: cython.Py_ssize_t
    found: cython.Py_ssize_t = 0
    count: cython.Py_ssize_t = at.shape[0]
    room: cython.Py_ssize_t = min(name_ends.shape[0], value_ends.shape[0]) - 1
    limit: cython.longlong = len(buf)
    bad: cython.Py_ssize_t = -1
    _check_rows(count, length.shape[0], offsets)
    if room < 0 or len(names) > _LIMIT or len(values) > _LIMIT:
        raise ValueError(f"room for {room} texts in {len(names)} and {len(values)} bytes")
    with cython.nogil:
        offsets[0] = name_ends[0] = value_ends[0] = 0
        for n in range(count):
            first = found
            if not inside(at[n], length[n], limit):
                bad = n
                break
            start = cython.cast(cython.Py_ssize_t, at[n])
            e = start + cython.cast(cython.Py_ssize_t, length[n])
            start, value, p = next_property(buf, start, e)
            while start < e:
                k = _find_name(names, name_ends, first, found, buf, start, value - 1 - start)
                if k < found:
                    if not _replace(values, value_ends, k, found, buf, value, p - value):
                        bad = -2
                        break
                elif (
                    found == room or value - 1 - start > len(names) - name_ends[found]
                    or p - value > len(values) - value_ends[found]
                ):
                    bad = -2
                    break
                else:
                    name_ends[found + 1] = cython.cast(
                        cython.int, _copy_text(names, name_ends[found], buf, start, value - 1 - start))
                    value_ends[found + 1] = cython.cast(
                        cython.int, _copy_text(values, value_ends[found], buf, value, p - value))
                    found += 1
                start, value, p = next_property(buf, p + 1, e)
            if bad == -2:
                break
            offsets[n + 1] = cython.cast(cython.int, found)
    if bad >= 0:
        raise ValueError(f"row {bad} leads out of the buffer")
    return NO_ROOM if bad == -2 else found


def key_texts(
    buf: cython.const[cython.uchar][::1],
    at: cython.const[cython.longlong][:],
    length: cython.const[cython.longlong][:],
    offsets: cython.int[::1],
    ends: cython.int[::1],
    out: cython.uchar[::1],
):
    """Copy the keys of all rows, which are parts split at spaces. Return the number of keys, or NO_ROOM.

    ``offsets`` has each row's first key, ``ends`` the offsets of the texts. A part with a negative position is missing.
    """
    n: cython.Py_ssize_t
    p: cython.Py_ssize_t
    e: cython.Py_ssize_t
    start: cython.Py_ssize_t
    found: cython.Py_ssize_t = 0
    count: cython.Py_ssize_t = at.shape[0]
    room: cython.Py_ssize_t = ends.shape[0] - 1
    limit: cython.longlong = len(buf)
    bad: cython.Py_ssize_t = -1
    _check_rows(count, length.shape[0], offsets)
    if room < 0 or len(out) > _LIMIT:
        raise ValueError(f"room for {room} keys in {len(out)} bytes")
    with cython.nogil:
        offsets[0] = ends[0] = 0
        for n in range(count):
            if at[n] >= 0:
                if not inside(at[n], length[n], limit):
                    bad = n
                    break
                start = cython.cast(cython.Py_ssize_t, at[n])
                e = start + cython.cast(cython.Py_ssize_t, length[n])
                while start < e:
                    p = find_byte(buf, start, e, 32)
                    if p > start:
                        if found == room or p - start > len(out) - ends[found]:
                            bad = -2
                            break
                        ends[found + 1] = cython.cast(cython.int, _copy_text(out, ends[found], buf, start, p - start))
                        found += 1
                    start = p + 1
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
    at: cython.const[cython.longlong][:],
    flags: cython.const[cython.longlong][:],
    v6: cython.longlong,
    offsets: cython.int[::1],
    out: cython.uchar[::1],
):
    """Write ``address:port`` of every row's IPv4 host, whose position is in ``at``. Return the number of bytes.

    Return OTHER_HOST if a row has the bit ``v6`` in its system flag. ``out`` has HOST_BYTES per row.
    """
    n: cython.Py_ssize_t
    k: cython.Py_ssize_t
    p: cython.Py_ssize_t
    q: cython.Py_ssize_t = 0
    port: cython.longlong
    last: cython.Py_ssize_t = -1  # row before, whose host is usually the same
    count: cython.Py_ssize_t = at.shape[0]
    limit: cython.longlong = len(buf)
    bad: cython.Py_ssize_t = -1
    _check_rows(count, flags.shape[0], offsets)
    if len(out) < count * 32 or len(out) > _LIMIT:
        raise ValueError(f"{count} rows into {len(out)} bytes")
    with cython.nogil:
        offsets[0] = 0
        for n in range(count):
            if flags[n] & v6:
                q = -3
                break
            if not inside(at[n], 8, limit):
                bad = n
                break
            p = cython.cast(cython.Py_ssize_t, at[n])
            if last >= 0 and be64(buf, p) == be64(buf, cython.cast(cython.Py_ssize_t, at[last])):
                q = _copy_text(out, q, out, offsets[last], offsets[n] - offsets[last])
                offsets[n + 1] = cython.cast(cython.int, q)
                last = n
                continue
            last = n
            for k in range(4):
                q = _decimal(out, q, buf[p + k])
                out[q] = 46 if k < 3 else 58
                q += 1
            port = be32(buf, p + L.HOST_AT_PORT)
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
def _put_hex(out: cython.uchar[::1], q: cython.Py_ssize_t, value: cython.longlong) -> cython.Py_ssize_t:
    """Write the low 32 bits of a number as eight hexadecimal digits. Return the position after them."""
    x: cython.longlong = value & _LOW_32
    x = (x << 16 | x) & _PAIRS
    x = (x << 8 | x) & _BYTES
    x = (x << 4 | x) & _DIGITS  # a digit in each byte
    put64(out, q, x + _ZEROS + (((x + _SIXES) >> 4) & _ONES) * 7)  # "A" is 7 after the character after "9"
    return q + 8


def message_ids(
    buf: cython.const[cython.uchar][::1],
    at: cython.const[cython.longlong][:],
    flags: cython.const[cython.longlong][:],
    places: cython.const[cython.longlong][:],
    offsets: cython.int[::1],
    out: cython.uchar[::1],
):
    """Write the message id of every row. Return the number of bytes.

    It is made of the store host, whose position is in ``at``, and of the record's place in the log. ``out`` has
    ID_BYTES per row.
    """
    n: cython.Py_ssize_t
    k: cython.Py_ssize_t
    q: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t
    count: cython.Py_ssize_t = at.shape[0]
    limit: cython.longlong = len(buf)
    bad: cython.Py_ssize_t = -1
    _check_rows(count, min(flags.shape[0], places.shape[0]), offsets)
    if len(out) < count * 56 or len(out) > _LIMIT:
        raise ValueError(f"{count} rows into {len(out)} bytes")
    with cython.nogil:
        offsets[0] = 0
        for n in range(count):
            size = L.HOST_V6_SIZE if flags[n] & L.STOREHOST_V6 else L.HOST_V4_SIZE
            if not inside(at[n], size, limit):
                bad = n
                break
            for k in range(0, size, 4):
                q = _put_hex(out, q, be32u(buf, cython.cast(cython.Py_ssize_t, at[n]) + k))
            q = _put_hex(out, q, places[n] >> 32)
            q = _put_hex(out, q, places[n])
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
        value = value * 10 + (cython.cast(cython.longlong, buf[p + k]) - 48)
    return value


def deliver_times(
    offsets: cython.const[cython.int][::1],
    name_ends: cython.const[cython.int][::1],
    names: cython.const[cython.uchar][::1],
    value_ends: cython.const[cython.int][::1],
    values: cython.const[cython.uchar][::1],
    out: cython.longlong[::1],
    valid: cython.uchar[::1],
):
    """Write the delivery times of timer messages, in ms, from what ``property_texts`` has made of their properties.

    Return the number of rows without a time. TIMER_DELIVER_MS is used before TIMER_OUT_MS. A value that is
    not a number is not a time.
    """
    deliver: cython.const[cython.uchar][::1] = _DELIVER
    late: cython.const[cython.uchar][::1] = _OUT
    n: cython.Py_ssize_t
    k: cython.Py_ssize_t
    size: cython.Py_ssize_t
    count: cython.Py_ssize_t = offsets.shape[0] - 1
    texts: cython.Py_ssize_t = min(name_ends.shape[0], value_ends.shape[0]) - 1
    value: cython.longlong
    missing: cython.Py_ssize_t = 0
    bad: cython.bint = False
    if count < 0 or out.shape[0] < count or len(valid) < (count + 7) // 8:
        raise ValueError(f"{count} rows into {out.shape[0]}")
    with cython.nogil:
        for n in range((count + 7) // 8):
            valid[n] = 0
        for n in range(count):
            value = -1
            if not 0 <= offsets[n] <= offsets[n + 1] <= texts:
                bad = True
                break
            for k in range(offsets[n], offsets[n + 1]):
                size = name_ends[k + 1] - name_ends[k]
                if size != len(deliver) and size != len(late):
                    continue
                if (
                    not inside(name_ends[k], size, len(names))
                    or not inside(value_ends[k], value_ends[k + 1] - value_ends[k], len(values))
                ):
                    bad = True
                    break
                if size == len(deliver) and _same(names, name_ends[k], deliver, 0, size):
                    value = _number(values, value_ends[k], value_ends[k + 1] - value_ends[k])
                    break
                if size == len(late) and _same(names, name_ends[k], late, 0, size):
                    value = _number(values, value_ends[k], value_ends[k + 1] - value_ends[k])
            if bad:
                break
            out[n] = max(value, 0)
            if value >= 0:
                valid[n >> 3] = valid[n >> 3] | (1 << (n & 7))
            else:
                missing += 1
    if bad:
        raise ValueError("offsets lead out of the texts")
    return missing
