# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Rebuild the wheel from the timer log: find valid units, add them to the lists of slots, find listed units.

``buf`` starts with a unit, whose position in the timer log is ``base``. Bytes after the last whole unit are
ignored. ``wheel`` is a ring of slots as in the wheel file.
"""

import cython

from tailrace.kernels.shared.big_endian import be32, be32u, be64, put32, put64

SOURCE_SHA256 = ""

_UNIT = cython.declare(cython.int, 52)
_SLOT = cython.declare(cython.int, 32)
_PAGE = cython.declare(cython.int, 4096)
_DELETE = cython.declare(cython.int, 4)  # a bit of a unit's magic
_KNOWN = cython.declare(cython.int, 0xF)
_ENDLESS = cython.declare(cython.longlong, 0x7FFFFFFFFFFFFFFF)

_DONE = cython.declare(cython.int, 0)
_BEGINS_ANEW = cython.declare(cython.int, 1)
_BROKEN = cython.declare(cython.int, 2)
_TAKEN = cython.declare(cython.int, 3)

DONE = _DONE
BEGINS_ANEW = _BEGINS_ANEW
BROKEN = _BROKEN
TAKEN = _TAKEN
ENDLESS = _ENDLESS


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
        while (n + 1) * _UNIT <= size:
            p = n * _UNIT
            magic = be32u(buf, p + 12)
            phy_offset = be64(buf, p + 28)
            length = be32(buf, p + 36)
            if be32(buf, p) != _UNIT or magic == 0 or magic > _KNOWN or phy_offset < 0 or (
                length <= 0 or length > limit - phy_offset or be64(buf, p + 4) >= base + p
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
    slots: cython.longlong = len(wheel) // _SLOT
    number: cython.longlong
    held: cython.longlong
    last: cython.longlong
    time: cython.longlong
    previous: cython.longlong
    why: cython.int = _DONE
    if precision_ms <= 0 or base < 0 or begin_ms < 0 or slots == 0 or (
        len(pages) * _PAGE < len(wheel)
    ):
        raise ValueError(f"from {begin_ms} in steps of {precision_ms}, {slots} slots")
    with cython.nogil:
        while (n + 1) * _UNIT <= size:
            p = n * _UNIT
            time = be64(buf, p + 16) + be32(buf, p + 24)
            if time >= begin_ms:
                number = time // precision_ms
                at = cython.cast(cython.Py_ssize_t, number % slots) * _SLOT
                held = be64(wheel, at)
                last = be64(wheel, at + 16)
                previous = be64(buf, p + 4)
                if held == 0 or (held == number and last < 0):
                    if previous >= 0:
                        why = _BROKEN
                        break
                    put64(wheel, at, number)
                    put64(wheel, at + 8, base + p)
                    put64(wheel, at + 24, 0)
                elif held != number:
                    why = _TAKEN
                    break
                elif previous != last:
                    why = _BEGINS_ANEW if previous < 0 else _BROKEN
                    break
                put64(wheel, at + 16, base + p)
                put32(wheel, at + 24, be32(wheel, at + 24) + (-1 if buf[p + 15] & _DELETE else 1))
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
    slots: cython.longlong = len(wheel) // _SLOT
    time: cython.longlong
    if precision_ms <= 0 or begin_ms < 0 or slots == 0 or len(out) * _UNIT < size - _UNIT + 1:
        raise ValueError(f"from {begin_ms} in steps of {precision_ms}, {slots} slots")
    with cython.nogil:
        while (n + 1) * _UNIT <= size:
            p = n * _UNIT
            time = be64(buf, p + 16) + be32(buf, p + 24)
            out[n] = 0
            if time >= begin_ms:
                at = cython.cast(cython.Py_ssize_t, time // precision_ms % slots) * _SLOT
                if be64(wheel, at) == time // precision_ms and be64(wheel, at + 16) >= 0 and (
                    be64(wheel, at + 8) <= base + p
                ):
                    out[n] = 1
            n += 1
