# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Columns of the rows of records (``kernels.record``), and copies of the bytes that Arrow columns are made of.

Hosts, topic and properties are copied to ``texts``, bodies to ``bodies``. The positions of these, and of keys, unique
key and tags, are indexes into the two; other positions are those of the record and are not used.
"""

import cython

from tailrace.kernels.shared import constants as C
from tailrace.kernels.shared import layouts as L
from tailrace.kernels.shared.big_endian import be32
from tailrace.kernels.shared.copying import copy_bytes, inside
from tailrace.kernels.shared.crc32 import crc32, use_crc32
from tailrace.kernels.shared.record_rows import fill_row, numbers_fit, put_numbers
from tailrace.kernels.shared.unit_reading import (
    EARLY,
    PRE_BLANK,
    load_record,
    look_ahead,
    message_at,
)

SOURCE_SHA256 = ""

_PACKED = cython.declare(cython.int, 0)
_NO_ROOM = cython.declare(cython.int, 1)
_OUTSIDE = cython.declare(cython.int, 2)  # a position or length of the row leads out of the buffer


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _pack(
    buf: cython.const[cython.uchar][::1],
    row: cython.longlong[:, ::1],
    texts: cython.uchar[::1],
    bodies: cython.uchar[::1],
    ends: cython.p_Py_ssize_t,
    with_bodies: cython.bint,
) -> cython.int:
    """Copy the bytes of the row ``row[0]`` and set its positions to those of the copies.

    ``ends`` are the numbers of bytes in ``texts`` and ``bodies``. They change only if the row is copied.
    """
    k: cython.Py_ssize_t
    t: cython.Py_ssize_t = ends[0]
    limit: cython.longlong = len(buf)
    born_host: cython.longlong = row[0, C.BORN_HOST_POS]
    store_host: cython.longlong = row[0, C.STORE_HOST_POS]
    host: cython.longlong = L.HOST_V6_SIZE if row[0, C.SYS_FLAG] & L.STOREHOST_V6 else L.HOST_V4_SIZE
    hosts: cython.longlong = store_host + host - born_host
    topic: cython.longlong = row[0, C.TOPIC_LEN]
    props_at: cython.longlong = row[0, C.PROPS_POS]
    props: cython.longlong = row[0, C.PROPS_LEN]
    body: cython.longlong = row[0, C.BODY_LEN] if with_bodies else 0
    if (
        not inside(born_host, 0, limit) or not inside(store_host, host, limit) or born_host > store_host
        or not inside(row[0, C.TOPIC_POS], topic, limit) or not inside(props_at, props, limit)
        or (with_bodies and not inside(row[0, C.BODY_POS], body, limit))
    ):
        return _OUTSIDE
    for k in range(C.KEYS_POS, C.TAGS_LEN, 2):
        if row[0, k] >= 0 and not inside(row[0, k] - props_at, row[0, k + 1], props):
            return _OUTSIDE
    if hosts + topic + props > len(texts) - t or body > len(bodies) - ends[1]:
        return _NO_ROOM
    if with_bodies:
        k = ends[1]
        ends[1] = copy_bytes(bodies, k, buf, row[0, C.BODY_POS], body)
        row[0, C.BODY_POS] = k
    row[0, C.BORN_HOST_POS] = t
    row[0, C.STORE_HOST_POS] = t + hosts - host
    t = copy_bytes(texts, t, buf, born_host, hosts)
    k = t
    t = copy_bytes(texts, t, buf, row[0, C.TOPIC_POS], topic)
    row[0, C.TOPIC_POS] = k
    for k in range(C.KEYS_POS, C.TAGS_LEN, 2):
        if row[0, k] >= 0:
            row[0, k] += t - props_at
    row[0, C.PROPS_POS] = t
    ends[0] = copy_bytes(texts, t, buf, props_at, props)
    return _PACKED


@cython.cfunc
def _check_places(
    count: cython.Py_ssize_t,
    room: cython.Py_ssize_t,
    t: cython.Py_ssize_t,
    b: cython.Py_ssize_t,
    row: cython.longlong[:, ::1],
    columns: cython.const[cython.longlong][::1],
    short: cython.int[:, ::1],
    long: cython.longlong[:, ::1],
):
    """Raise ValueError for a place below 0, and for arrays that are not as ``pack_rows`` needs them."""
    if t < 0 or b < 0 or count < 0 or row.shape[0] < 1 or row.shape[1] != C.COLUMNS:
        raise ValueError(f"at {count}, {t} and {b}, a row of {row.shape[1]} columns")
    if not numbers_fit(columns, room, short, long):
        raise ValueError(f"{columns.shape[0]} columns of {room} rows")


def pack_rows(
    buf: cython.const[cython.uchar][::1],
    rows: cython.longlong[:, ::1],
    first: cython.Py_ssize_t,
    row: cython.longlong[:, ::1],
    count: cython.Py_ssize_t,
    room: cython.Py_ssize_t,
    texts: cython.uchar[::1],
    t: cython.Py_ssize_t,
    bodies: cython.uchar[::1],
    b: cython.Py_ssize_t,
    with_bodies: cython.bint,
    columns: cython.const[cython.longlong][::1],
    short: cython.int[:, ::1],
    long: cython.longlong[:, ::1],
):
    """Copy ``columns`` of rows from ``first`` onwards to ``short[:, count:]`` and ``long[:, count:]``.

    See ``record.take_numbers`` for these. The bytes of the rows are copied to ``texts[t:]``, and to ``bodies[b:]`` if
    ``with_bodies``. ``row`` is a work area. It ends with ``room`` rows in all, and before the first row for which
    ``texts`` or ``bodies`` has no room. Return (number of that row, and ``count``, ``t`` and ``b`` after the last
    copied row).
    """
    n: cython.Py_ssize_t = first
    k: cython.Py_ssize_t
    done: cython.int = _PACKED
    ends = cython.declare(cython.Py_ssize_t[2])
    _check_places(count, room, t, b, row, columns, short, long)
    if first < 0 or rows.shape[1] != C.COLUMNS:
        raise ValueError(f"first {first}, {rows.shape[1]} columns")
    ends[0] = t
    ends[1] = b
    with cython.nogil:
        while n < rows.shape[0] and count < room:
            for k in range(C.COLUMNS):
                row[0, k] = rows[n, k]
            done = _pack(buf, row, texts, bodies, ends, with_bodies)
            if done != _PACKED:
                break
            put_numbers(row, 0, columns, count, short, long)
            count += 1
            n += 1
    if done == _OUTSIDE:
        raise ValueError(f"row {n} leads out of the buffer")
    return n, count, ends[0], ends[1]


def pack_units(
    buf: cython.const[cython.uchar][::1],
    base: cython.longlong,
    until: cython.Py_ssize_t,
    units: cython.const[cython.uchar][::1],
    first: cython.Py_ssize_t,
    topic: cython.const[cython.uchar][::1],
    queue_id: cython.longlong,
    queue_offset: cython.longlong,
    seen: cython.uchar[::1],
    row: cython.longlong[:, ::1],
    count: cython.Py_ssize_t,
    room: cython.Py_ssize_t,
    texts: cython.uchar[::1],
    t: cython.Py_ssize_t,
    bodies: cython.uchar[::1],
    b: cython.Py_ssize_t,
    with_bodies: cython.bint,
    columns: cython.const[cython.longlong][::1],
    short: cython.int[:, ::1],
    long: cython.longlong[:, ::1],
):
    """Do what ``pack_rows`` does for the records that ``unit_records.read_units`` would copy, with any tags code.

    Return (``count``, ``t`` and ``b`` after the last record, index of the unit at which it ended, reason UNITS_*).
    """
    i: cython.Py_ssize_t = first
    at: cython.Py_ssize_t
    size: cython.longlong
    all_units: cython.Py_ssize_t = len(units) // L.UNIT_SIZE
    last: cython.Py_ssize_t = 0
    done: cython.int
    why: cython.int = C.UNITS_END
    ends = cython.declare(cython.Py_ssize_t[2])
    pages = cython.declare(cython.uchar[1024])
    window = cython.declare(cython.Py_ssize_t[2])
    _check_places(count, room, t, b, row, columns, short, long)
    if first < 0 or until < 0:
        raise ValueError(f"first {first}, until {until}")
    if until > len(buf):
        until = len(buf)
    ends[0] = t
    ends[1] = b
    with cython.nogil:
        if cython.compiled:
            last = look_ahead(buf, base, until, units, i, max(room - count, 0), seen, window)
        while i < all_units:
            if cython.compiled and i + EARLY < all_units and count + EARLY < room:
                load_record(buf, base, until, units, i + EARLY)
            size = be32(units, L.UNIT_SIZE * i + L.UNIT_AT_SIZE)
            if size == PRE_BLANK:
                i += 1
                continue
            if count >= room:
                why = C.UNITS_FULL
                break
            at = message_at(
                buf, base, until, units, i, topic, queue_id, queue_offset + i, seen, last, pages, window)
            if at < 0:
                why = cython.cast(cython.int, -at)
                break
            if fill_row(buf, at, size, base, C.LEAVE_HASHES, row, 0):
                why = C.UNITS_DAMAGED
                break
            done = _pack(buf, row, texts, bodies, ends, with_bodies)
            if done != _PACKED:
                why = C.UNITS_FULL if done == _NO_ROOM else C.UNITS_DAMAGED
                break
            put_numbers(row, 0, columns, count, short, long)
            count += 1
            i += 1
    return count, ends[0], ends[1], i, why
