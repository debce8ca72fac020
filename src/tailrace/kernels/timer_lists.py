# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Read the list of a slot from the timer log, and a hash table of the timers that were delivered.

A list is read from its newest unit backwards, within the part of the log that was read. Every position is
compared with the length of that part. The hash table is a C-contiguous int64 array with three columns, hash, value
and slot. Its number of rows is a power of two. A hash of 0 is an empty row.
"""

import cython

from tailrace.kernels.shared import layouts as L
from tailrace.kernels.shared.big_endian import be32, be64

SOURCE_SHA256 = ""


def walk(
    buf: cython.const[cython.uchar][::1],
    base: cython.longlong,
    pos: cython.longlong,
    slot_ms: cython.longlong,
    precision_ms: cython.longlong,
    out: cython.uchar[::1],
):
    """Follow the list of the slot at ``slot_ms`` from position ``pos`` backwards; ``buf[0]`` is at position ``base``.

    Copies the units into ``out`` until it is full. Return (number of units, position of the next unit or -1 at
    the end of the list, good). ``good`` is False if there is no unit of the slot at that position.
    """
    n: cython.Py_ssize_t = 0
    k: cython.Py_ssize_t
    p: cython.Py_ssize_t
    size: cython.Py_ssize_t = len(buf)
    room: cython.Py_ssize_t = len(out)
    previous: cython.longlong
    time: cython.longlong
    good: cython.bint = True
    if precision_ms <= 0 or base < 0:
        raise ValueError(f"precision {precision_ms}, base {base}")
    with cython.nogil:
        while pos >= base and pos - base <= size - L.TIMER_UNIT_SIZE and (n + 1) * L.TIMER_UNIT_SIZE <= room:
            p = cython.cast(cython.Py_ssize_t, pos - base)
            previous = be64(buf, p + L.TIMER_AT_PREV_POS)
            time = be64(buf, p + L.TIMER_AT_WRITE_TIME_MS) + be32(buf, p + L.TIMER_AT_DELAY_MS)
            if be32(buf, p) != L.TIMER_UNIT_SIZE or previous >= pos or time < slot_ms or (
                time - slot_ms >= precision_ms
            ):
                good = False
                break
            for k in range(L.TIMER_UNIT_SIZE):
                out[n * L.TIMER_UNIT_SIZE + k] = buf[p + k]
            n += 1
            pos = previous if previous >= 0 else -1
    return n, pos, good


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _place(table: cython.const[cython.longlong][:, ::1], h: cython.longlong) -> cython.Py_ssize_t:
    mask: cython.longlong = table.shape[0] - 1
    i: cython.longlong = (h >> 1) & mask
    while table[cython.cast(cython.Py_ssize_t, i), 0] != 0 and table[
        cython.cast(cython.Py_ssize_t, i), 0
    ] != h:
        i = (i + 1) & mask
    return cython.cast(cython.Py_ssize_t, i)


def find(
    table: cython.const[cython.longlong][:, ::1], hashes: cython.const[cython.longlong][::1],
    found: cython.longlong[::1],
):
    """Write to ``found`` the value of each hash in a table that ``add`` filled, or -1."""
    n: cython.Py_ssize_t
    i: cython.Py_ssize_t
    if found.shape[0] != hashes.shape[0] or table.shape[0] & (table.shape[0] - 1) or (
        table.shape[0] == 0 or table.shape[1] != 3
    ):
        raise ValueError(f"table of {table.shape[0]}, {hashes.shape[0]} hashes")
    for n in range(hashes.shape[0]):
        i = _place(table, hashes[n])
        found[n] = table[i, 1] if table[i, 0] != 0 else -1


def add(
    table: cython.longlong[:, ::1], rows: cython.const[cython.longlong][:, ::1], used: cython.Py_ssize_t,
):
    """Add rows whose hash is not 0 and not there yet to a table with ``used`` entries. Return the new number.

    The table must stay at least half empty.
    """
    n: cython.Py_ssize_t
    i: cython.Py_ssize_t
    if table.shape[0] & (table.shape[0] - 1) or table.shape[1] != 3 or rows.shape[1] != 3 or (
        used < 0 or 2 * (used + rows.shape[0]) > table.shape[0]
    ):
        raise ValueError(f"table of {table.shape[0]}, {used} used, {rows.shape[0]} rows")
    for n in range(rows.shape[0]):
        i = _place(table, rows[n, 0])
        if rows[n, 0] != 0 and table[i, 0] == 0:
            used += 1
            table[i, 0] = rows[n, 0]
            table[i, 1] = rows[n, 1]
            table[i, 2] = rows[n, 2]
    return used
