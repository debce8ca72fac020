# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The list of a slot in the timer log, and which timers of it went in bulk.

A list is read from its newest unit backwards, through as much of the log as was read; every place is
compared with the length of that before it is looked at. A table of timers is a C-contiguous int64 array
of two columns, hash and value, a power of two long; a hash of 0 is an empty place.
"""

import cython

from tailrace.kernels.shared.big_endian import be32, be64

SOURCE_SHA256 = ""

_UNIT = cython.declare(cython.int, 52)


def walk(
    buf: cython.const[cython.uchar][::1],
    base: cython.longlong,
    pos: cython.longlong,
    slot_ms: cython.longlong,
    precision_ms: cython.longlong,
    out: cython.uchar[::1],
):
    """Follow a slot's list from the unit at ``pos`` backwards through ``buf``, which begins at ``base``.

    Copies the units into ``out`` as far as it has room. Returns (units, position of the next one, good):
    -1 is the end of the list; not good means that there is no unit of the slot at that position.
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
        while pos >= base and pos - base <= size - _UNIT and (n + 1) * _UNIT <= room:
            p = cython.cast(cython.Py_ssize_t, pos - base)
            previous = be64(buf, p + 4)
            time = be64(buf, p + 16) + be32(buf, p + 24)
            if be32(buf, p) != _UNIT or previous >= pos or time < slot_ms or (
                time - slot_ms >= precision_ms
            ):
                good = False
                break
            for k in range(_UNIT):
                out[n * _UNIT + k] = buf[p + k]
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
    """The value of each hash in a table that ``add`` filled, or -1."""
    n: cython.Py_ssize_t
    i: cython.Py_ssize_t
    if found.shape[0] != hashes.shape[0] or table.shape[0] & (table.shape[0] - 1) or (
        table.shape[0] == 0 or table.shape[1] != 2
    ):
        raise ValueError(f"table of {table.shape[0]}, {hashes.shape[0]} hashes")
    for n in range(hashes.shape[0]):
        i = _place(table, hashes[n])
        found[n] = table[i, 1] if table[i, 0] != 0 else -1


def add(
    table: cython.longlong[:, ::1], hashes: cython.const[cython.longlong][::1],
    values: cython.const[cython.longlong][::1], used: cython.Py_ssize_t,
):
    """Note values of hashes that are not 0 in a table with ``used`` entries; how many it has then.

    The table is a power of two long and stays at least half empty; the last value of a hash counts.
    """
    n: cython.Py_ssize_t
    i: cython.Py_ssize_t
    if values.shape[0] != hashes.shape[0] or table.shape[0] & (table.shape[0] - 1) or (
        table.shape[1] != 2 or used < 0 or 2 * (used + hashes.shape[0]) > table.shape[0]
    ):
        raise ValueError(f"table of {table.shape[0]}, {used} used, {hashes.shape[0]} hashes")
    for n in range(hashes.shape[0]):
        i = _place(table, hashes[n])
        if hashes[n] != 0:
            used += table[i, 0] == 0
            table[i, 0] = hashes[n]
            table[i, 1] = values[n]
    return used
