# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Units of the timer log: read the list of a slot, find valid and listed units, rebuild the wheel; hash tables.

``buf`` starts with a unit, whose position in the timer log is ``base``. Bytes after the last whole unit are
ignored. ``wheel`` is a ring of slots as in the wheel file. Every position is compared with the length of its buffer.

A table is a C-contiguous int64 array whose number of rows is a power of two. That of delivered timers has three
columns, hash, value and slot. A hash of 0 is an empty row.
"""

import cython

from tailrace.kernels.shared import constants as C
from tailrace.kernels.shared import layouts as L
from tailrace.kernels.shared.big_endian import be32, be32u, be64, put32, put64

SOURCE_SHA256 = ""

_PAGE = cython.declare(cython.int, 4096)


def walk(
    buf: cython.const[cython.uchar][::1],
    base: cython.longlong,
    pos: cython.longlong,
    slot_ms: cython.longlong,
    precision_ms: cython.longlong,
    out: cython.uchar[::1],
):
    """Follow the list of the slot at ``slot_ms`` from position ``pos`` backwards; ``buf[0]`` is at position ``base``.

    Copies the units into ``out`` until it is full: the first one to its end, each further one before it. Return (number
    of units, position of the next unit or -1 at the end of the list, good). ``good`` is False if there is no unit of
    the slot at that position.
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
            n += 1
            for k in range(L.TIMER_UNIT_SIZE):
                out[room - n * L.TIMER_UNIT_SIZE + k] = buf[p + k]
            pos = previous if previous >= 0 else -1
    return n, pos, good


def extent(
    positions: cython.const[cython.longlong][:], sizes: cython.const[cython.longlong][:], first: cython.Py_ssize_t,
    gap: cython.longlong,
):
    """Return the index after the records from ``first`` on that are at most ``gap`` bytes apart, and their end."""
    n: cython.Py_ssize_t = first + 1
    end: cython.longlong
    if not 0 <= first < positions.shape[0] or sizes.shape[0] < positions.shape[0]:
        raise ValueError(f"record {first} of {positions.shape[0]}, {sizes.shape[0]} sizes")
    until: cython.longlong = positions[first] + max(sizes[first], 0)
    end = until
    while n < positions.shape[0] and positions[n] - end <= gap:
        end = positions[n] + max(sizes[n], 0)
        until = max(until, end)
        n += 1
    return n, until


def locate(
    positions: cython.const[cython.longlong][:], first: cython.Py_ssize_t, until: cython.Py_ssize_t,
    size: cython.longlong, at: cython.longlong, found: cython.longlong[:],
):
    """Set ``found`` for records of an extent that start in its first ``size`` bytes, which are at index ``at``.

    Return the index after these records.
    """
    n: cython.Py_ssize_t = first
    if not 0 <= first < until <= positions.shape[0] or found.shape[0] < until:
        raise ValueError(f"records {first} to {until} of {positions.shape[0]}")
    while n < until and positions[n] - positions[first] < size:
        found[n] = positions[n] - positions[first] + at
        n += 1
    return n


def whole(sizes: cython.const[cython.longlong][:], window: cython.longlong):
    """Return how many of the first records have together at most ``window`` bytes, at least one."""
    n: cython.Py_ssize_t = 0
    while n < sizes.shape[0] and max(sizes[n], 0) <= window:
        window -= max(sizes[n], 0)
        n += 1
    return max(n, 1)


def requests(units: cython.const[cython.uchar][::1]):
    """Return how many of the units are requests to delete timers whose own slot has come."""
    n: cython.Py_ssize_t = 0
    p: cython.Py_ssize_t = 0
    while p + L.TIMER_UNIT_SIZE <= len(units):
        n += (be32u(units, p + L.TIMER_AT_MAGIC) & (L.TIMER_MAGIC_DELETE | L.TIMER_MAGIC_ROLL)) == L.TIMER_MAGIC_DELETE
        p += L.TIMER_UNIT_SIZE
    return n


def good(buf: cython.const[cython.uchar][::1], base: cython.longlong, limit: cython.longlong):
    """Return (number of units before the first invalid one, number of the unit whose record is last in the log).

    A unit is valid if its list leads backwards and its record ends at or before ``limit`` of the CommitLog.
    """
    n: cython.Py_ssize_t = 0
    p: cython.Py_ssize_t
    last: cython.Py_ssize_t = -1
    size: cython.Py_ssize_t = len(buf)
    phy_offset: cython.longlong
    highest: cython.longlong = -1
    length: cython.longlong
    magic: cython.longlong
    with cython.nogil:
        while (n + 1) * L.TIMER_UNIT_SIZE <= size:
            p = n * L.TIMER_UNIT_SIZE
            magic = be32u(buf, p + L.TIMER_AT_MAGIC)
            phy_offset = be64(buf, p + L.TIMER_AT_PHY_OFFSET)
            length = be32(buf, p + L.TIMER_AT_MSG_SIZE)
            if be32(buf, p) != L.TIMER_UNIT_SIZE or magic == 0 or magic > L.TIMER_MAGIC_MASK or phy_offset < 0 or (
                length <= 0 or length > limit - phy_offset or be64(buf, p + L.TIMER_AT_PREV_POS) >= base + p
            ):
                break
            if phy_offset > highest:
                highest = phy_offset
                last = n
            n += 1
    return n, last


def replay(
    buf: cython.const[cython.uchar][::1],
    base: cython.longlong,
    begin_ms: cython.longlong,
    precision_ms: cython.longlong,
    wheel: cython.uchar[::1],
    pages: cython.uchar[::1],
):
    """Add units that are due at ``begin_ms`` or later to the lists of their slots, one after the other.

    Return (number of units, why it stopped). DONE: all units were added. Or the next unit starts a list although
    its slot has one (BEGINS_ANEW), does not continue the list of its slot (BROKEN), or its slot is used for
    another time (TAKEN). ``pages`` of the ring that were changed are set to 1.
    """
    n: cython.Py_ssize_t = 0
    p: cython.Py_ssize_t
    at: cython.Py_ssize_t
    size: cython.Py_ssize_t = len(buf)
    slots: cython.longlong = len(wheel) // L.SLOT_SIZE
    number: cython.longlong
    held: cython.longlong
    last: cython.longlong
    time: cython.longlong
    previous: cython.longlong
    why: cython.int = C.REPLAY_DONE
    change: cython.longlong
    if precision_ms <= 0 or base < 0 or begin_ms < 0 or slots == 0 or (
        len(pages) * _PAGE < len(wheel)
    ):
        raise ValueError(f"from {begin_ms} in steps of {precision_ms}, {slots} slots")
    with cython.nogil:
        while (n + 1) * L.TIMER_UNIT_SIZE <= size:
            p = n * L.TIMER_UNIT_SIZE
            time = be64(buf, p + L.TIMER_AT_WRITE_TIME_MS) + be32(buf, p + L.TIMER_AT_DELAY_MS)
            if time >= begin_ms:
                number = time // precision_ms
                at = cython.cast(cython.Py_ssize_t, number % slots) * L.SLOT_SIZE
                held = be64(wheel, at)
                last = be64(wheel, at + L.SLOT_AT_LAST_POS)
                previous = be64(buf, p + L.TIMER_AT_PREV_POS)
                if held == 0 or (held == number and last < 0):
                    if previous >= 0:
                        why = C.REPLAY_BROKEN
                        break
                    put64(wheel, at, number)
                    put64(wheel, at + L.SLOT_AT_FIRST_POS, base + p)
                    put64(wheel, at + L.SLOT_AT_NUM, 0)
                elif held != number:
                    why = C.REPLAY_TAKEN
                    break
                elif previous != last:
                    why = C.REPLAY_BEGINS_ANEW if previous < 0 else C.REPLAY_BROKEN
                    break
                put64(wheel, at + L.SLOT_AT_LAST_POS, base + p)
                change = -1 if be32u(buf, p + L.TIMER_AT_MAGIC) & L.TIMER_MAGIC_DELETE else 1
                put32(wheel, at + L.SLOT_AT_NUM, be32(wheel, at + L.SLOT_AT_NUM) + change)
                pages[at // _PAGE] = 1
            n += 1
    return n, why


def listed(
    buf: cython.const[cython.uchar][::1],
    base: cython.longlong,
    begin_ms: cython.longlong,
    precision_ms: cython.longlong,
    wheel: cython.const[cython.uchar][::1],
    out: cython.uchar[::1],
):
    """Set ``out`` to 1 for each unit that is in the list of a slot at or after ``begin_ms``, else to 0."""
    n: cython.Py_ssize_t = 0
    p: cython.Py_ssize_t
    at: cython.Py_ssize_t
    size: cython.Py_ssize_t = len(buf)
    slots: cython.longlong = len(wheel) // L.SLOT_SIZE
    time: cython.longlong
    if precision_ms <= 0 or begin_ms < 0 or slots == 0 or len(out) * L.TIMER_UNIT_SIZE < size - L.TIMER_UNIT_SIZE + 1:
        raise ValueError(f"from {begin_ms} in steps of {precision_ms}, {slots} slots")
    with cython.nogil:
        while (n + 1) * L.TIMER_UNIT_SIZE <= size:
            p = n * L.TIMER_UNIT_SIZE
            time = be64(buf, p + L.TIMER_AT_WRITE_TIME_MS) + be32(buf, p + L.TIMER_AT_DELAY_MS)
            out[n] = 0
            if time >= begin_ms:
                at = cython.cast(cython.Py_ssize_t, time // precision_ms % slots) * L.SLOT_SIZE
                if be64(wheel, at) == time // precision_ms and be64(wheel, at + L.SLOT_AT_LAST_POS) >= 0 and (
                    be64(wheel, at + L.SLOT_AT_FIRST_POS) <= base + p
                ):
                    out[n] = 1
            n += 1


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
    table: cython.const[cython.longlong][:, ::1], hashes: cython.const[cython.longlong][:],
    found: cython.longlong[::1],
):
    """Write to ``found`` the value of each hash in a table that ``add`` filled, or -1. Return how many were found."""
    n: cython.Py_ssize_t
    count: cython.Py_ssize_t = 0
    i: cython.Py_ssize_t
    if found.shape[0] != hashes.shape[0] or table.shape[0] & (table.shape[0] - 1) or (
        table.shape[0] == 0 or table.shape[1] != 3
    ):
        raise ValueError(f"table of {table.shape[0]}, {hashes.shape[0]} hashes")
    for n in range(hashes.shape[0]):
        i = _place(table, hashes[n])
        found[n] = table[i, 1] if table[i, 0] != 0 else -1
        count += table[i, 0] != 0
    return count


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


def number(
    values: cython.const[cython.longlong][:], work: cython.longlong[:, ::1], numbers: cython.longlong[::1],
):
    """Number the different values in the order of their first indexes. Return how many values are different.

    ``numbers`` gets the number of each value. ``work`` has three rows of zeros, longer than ``values``: a table, the
    first index of each different value, and how often it comes.
    """
    n: cython.Py_ssize_t
    i: cython.Py_ssize_t
    k: cython.longlong
    v: cython.longlong
    found: cython.Py_ssize_t = 0
    mask: cython.longlong = work.shape[1] - 1
    if work.shape[1] <= values.shape[0] or work.shape[1] & (work.shape[1] - 1) or (
        numbers.shape[0] < values.shape[0] or work.shape[0] != 3
    ):
        raise ValueError(f"table of {work.shape[1]}, {values.shape[0]} values")
    for n in range(values.shape[0]):
        v = values[n]
        i = cython.cast(cython.Py_ssize_t, (v ^ (v >> 7) ^ (v >> 17) ^ (v >> 33)) & mask)
        while work[0, i] != 0 and values[work[1, work[0, i] - 1]] != v:
            i = (i + 1) & mask
        if work[0, i] == 0:
            work[1, found] = n
            found += 1
            work[0, i] = found
        k = work[0, i] - 1
        work[2, k] += 1
        numbers[n] = k
    return found
