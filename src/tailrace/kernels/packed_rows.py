# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Rows of records (``kernels.record``), and copies of the bytes that columns are made of.

Hosts, topic and properties are copied to ``texts``, bodies to ``bodies``. The positions of these, and of keys, unique
key and tags, are indexes into the two; other positions in a row are those of the record and are not used.
"""

import cython

from tailrace.kernels.shared.big_endian import be32
from tailrace.kernels.shared.copying import copy_bytes, inside
from tailrace.kernels.shared.crc32 import crc32, use_crc32
from tailrace.kernels.shared.record_columns import (
    _C_BODY_LEN,
    _C_BODY_POS,
    _C_BORN_HOST_POS,
    _C_KEYS_POS,
    _C_PROPS_LEN,
    _C_PROPS_POS,
    _C_STORE_HOST_POS,
    _C_SYS_FLAG,
    _C_TAGS_LEN,
    _C_TOPIC_LEN,
    _C_TOPIC_POS,
    _COLUMNS,
)
from tailrace.kernels.shared.record_layout import HOST_V4_SIZE, HOST_V6_SIZE, STOREHOST_V6
from tailrace.kernels.shared.record_rows import fill_row, numbers_fit, put_numbers
from tailrace.kernels.shared.unit_reading import (
    _UNITS_DAMAGED,
    _UNITS_END,
    _UNITS_FULL,
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
    kept: cython.longlong[:, ::1],
    n: cython.Py_ssize_t,
    texts: cython.uchar[::1],
    bodies: cython.uchar[::1],
    ends: cython.p_Py_ssize_t,
    with_bodies: cython.bint,
) -> cython.int:
    """Copy the bytes of row ``n`` and set its positions to those of the copies.

    ``ends`` are the numbers of bytes in ``texts`` and ``bodies``. They change only if the row is copied.
    """
    k: cython.Py_ssize_t
    t: cython.Py_ssize_t = ends[0]
    limit: cython.longlong = len(buf)
    born_host: cython.longlong = kept[n, _C_BORN_HOST_POS]
    store_host: cython.longlong = kept[n, _C_STORE_HOST_POS]
    host: cython.longlong = HOST_V6_SIZE if kept[n, _C_SYS_FLAG] & STOREHOST_V6 else HOST_V4_SIZE
    hosts: cython.longlong = store_host + host - born_host
    topic: cython.longlong = kept[n, _C_TOPIC_LEN]
    props_at: cython.longlong = kept[n, _C_PROPS_POS]
    props: cython.longlong = kept[n, _C_PROPS_LEN]
    body: cython.longlong = kept[n, _C_BODY_LEN] if with_bodies else 0
    if (
        not inside(born_host, 0, limit) or not inside(store_host, host, limit) or born_host > store_host
        or not inside(kept[n, _C_TOPIC_POS], topic, limit) or not inside(props_at, props, limit)
        or (with_bodies and not inside(kept[n, _C_BODY_POS], body, limit))
    ):
        return _OUTSIDE
    for k in range(_C_KEYS_POS, _C_TAGS_LEN, 2):
        if kept[n, k] >= 0 and not inside(kept[n, k] - props_at, kept[n, k + 1], props):
            return _OUTSIDE
    if hosts + topic + props > len(texts) - t or body > len(bodies) - ends[1]:
        return _NO_ROOM
    if with_bodies:
        k = ends[1]
        ends[1] = copy_bytes(bodies, k, buf, kept[n, _C_BODY_POS], body)
        kept[n, _C_BODY_POS] = k
    kept[n, _C_BORN_HOST_POS] = t
    kept[n, _C_STORE_HOST_POS] = t + hosts - host
    t = copy_bytes(texts, t, buf, born_host, hosts)
    k = t
    t = copy_bytes(texts, t, buf, kept[n, _C_TOPIC_POS], topic)
    kept[n, _C_TOPIC_POS] = k
    for k in range(_C_KEYS_POS, _C_TAGS_LEN, 2):
        if kept[n, k] >= 0:
            kept[n, k] += t - props_at
    kept[n, _C_PROPS_POS] = t
    ends[0] = copy_bytes(texts, t, buf, props_at, props)
    return _PACKED


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
    columns: cython.const[cython.longlong][::1],
    short: cython.int[:, ::1],
    long: cython.longlong[:, ::1],
):
    """Copy rows from ``first`` onwards to ``kept[count:]``, and their bytes to ``texts[t:]`` and ``bodies[b:]``.

    Bodies are copied if ``with_bodies``. ``columns`` of the rows are copied to ``short[:, count:]`` and
    ``long[:, count:]``, see ``record.take_numbers``. It ends before the first row for which ``kept``, ``texts`` or
    ``bodies`` has no room. Return (number of that row, and ``count``, ``t`` and ``b`` after the last copied row).
    """
    n: cython.Py_ssize_t = first
    k: cython.Py_ssize_t
    done: cython.int = _PACKED
    ends = cython.declare(cython.Py_ssize_t[2])
    if first < 0 or t < 0 or b < 0 or count < 0 or rows.shape[1] != _COLUMNS or kept.shape[1] != _COLUMNS:
        raise ValueError(f"first {first}, at {count}, {t}, {b}, {rows.shape[1]} and {kept.shape[1]} columns")
    if not numbers_fit(columns, kept.shape[0], short, long):
        raise ValueError(f"{columns.shape[0]} columns of {kept.shape[0]} rows")
    ends[0] = t
    ends[1] = b
    with cython.nogil:
        while n < rows.shape[0] and count < kept.shape[0]:
            for k in range(_COLUMNS):
                kept[count, k] = rows[n, k]
            done = _pack(buf, kept, count, texts, bodies, ends, with_bodies)
            if done != _PACKED:
                break
            put_numbers(kept, count, columns, count, short, long)
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
    most: cython.Py_ssize_t,
    seen: cython.uchar[::1],
    kept: cython.longlong[:, ::1],
    count: cython.Py_ssize_t,
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

    It ends before the first record for which ``kept``, ``texts`` or ``bodies`` has no room, and after ``most`` records.
    Return (``count``, ``t`` and ``b`` after the last record, index of the unit at which it ended, reason UNITS_*).
    """
    i: cython.Py_ssize_t = first
    at: cython.Py_ssize_t
    size: cython.longlong
    all_units: cython.Py_ssize_t = len(units) // 20
    last: cython.Py_ssize_t = 0
    done: cython.int
    why: cython.int = _UNITS_END
    ends = cython.declare(cython.Py_ssize_t[2])
    pages = cython.declare(cython.uchar[1024])
    window = cython.declare(cython.Py_ssize_t[2])
    if first < 0 or until < 0 or t < 0 or b < 0 or count < 0 or kept.shape[1] != _COLUMNS:
        raise ValueError(f"first {first}, until {until}, at {count}, {t}, {b}, {kept.shape[1]} columns")
    if not numbers_fit(columns, kept.shape[0], short, long):
        raise ValueError(f"{columns.shape[0]} columns of {kept.shape[0]} rows")
    if until > len(buf):
        until = len(buf)
    most = count + min(max(most, 0), max(kept.shape[0] - count, 0))
    ends[0] = t
    ends[1] = b
    with cython.nogil:
        if cython.compiled:
            last = look_ahead(buf, base, until, units, i, most - count, seen, window)
        while i < all_units:
            if cython.compiled and i + EARLY < all_units and count + EARLY < most:
                load_record(buf, base, until, units, i + EARLY)
            size = be32(units, 20 * i + 8)
            if size == PRE_BLANK:
                i += 1
                continue
            if count >= most:
                why = _UNITS_FULL
                break
            at = message_at(
                buf, base, until, units, i, topic, queue_id, queue_offset + i, seen, last, pages, window)
            if at < 0:
                why = cython.cast(cython.int, -at)
                break
            if fill_row(buf, at, size, base, 0, kept, count):
                why = _UNITS_DAMAGED
                break
            done = _pack(buf, kept, count, texts, bodies, ends, with_bodies)
            if done != _PACKED:
                why = _UNITS_FULL if done == _NO_ROOM else _UNITS_DAMAGED
                break
            put_numbers(kept, count, columns, count, short, long)
            count += 1
            i += 1
    return count, ends[0], ends[1], i, why
