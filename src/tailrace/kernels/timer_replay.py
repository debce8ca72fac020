# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The wheel out of the timer log: where its units end, their lists, and which of them are in one.

``buf`` begins with a unit, whose position in the log is ``base``; what is behind the last whole unit
is not looked at. ``wheel`` is a ring of slots as the wheel file has them.
"""

import cython

SOURCE_SHA256 = ""

_UNIT = cython.declare(cython.int, 52)
_SLOT = cython.declare(cython.int, 32)
_PAGE = cython.declare(cython.int, 4096)
_DELETE = cython.declare(cython.int, 4)  # a bit of a unit's magic
_KNOWN = cython.declare(cython.int, 0xF)
_SIGN_32 = cython.declare(cython.longlong, 0x80000000)
_MASK_32 = cython.declare(cython.longlong, 0xFFFFFFFF)
_TWO_32 = cython.declare(cython.longlong, 0x100000000)
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


def good(buf: cython.const[cython.uchar][::1], base: cython.longlong, limit: cython.longlong):
    """(how many units there are before the first that is none, the one whose record comes last).

    A unit's list leads backwards, and its record ends at ``limit`` in the CommitLog at the latest.
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
            magic = _be32u(buf, p + 12)
            phy_offset = _be64(buf, p + 28)
            length = _be32(buf, p + 36)
            if _be32(buf, p) != _UNIT or magic == 0 or magic > _KNOWN or phy_offset < 0 or (
                length <= 0 or length > limit - phy_offset or _be64(buf, p + 4) >= base + p
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
    """Put units that are due from ``begin_ms`` on into the lists of their slots, one after the other.

    Returns (units, why it ended): DONE, or before a unit that begins a list although its slot has one
    (BEGINS_ANEW), does not go on where its list ended (BROKEN), or whose place has another time
    (TAKEN). ``pages`` of the ring that were changed are set to 1.
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
            time = _be64(buf, p + 16) + _be32(buf, p + 24)
            if time >= begin_ms:
                number = time // precision_ms
                at = cython.cast(cython.Py_ssize_t, number % slots) * _SLOT
                held = _be64(wheel, at)
                last = _be64(wheel, at + 16)
                previous = _be64(buf, p + 4)
                if held == 0 or (held == number and last < 0):
                    if previous >= 0:
                        why = _BROKEN
                        break
                    _put64(wheel, at, number)
                    _put64(wheel, at + 8, base + p)
                    _put64(wheel, at + 24, 0)
                elif held != number:
                    why = _TAKEN
                    break
                elif previous != last:
                    why = _BEGINS_ANEW if previous < 0 else _BROKEN
                    break
                _put64(wheel, at + 16, base + p)
                _put32(wheel, at + 24, (
                    _be32(wheel, at + 24) + (-1 if buf[p + 15] & _DELETE else 1)) & _MASK_32)
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
    """Set ``out`` to 1 for each unit that is in the list of a slot from ``begin_ms`` on, else to 0."""
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
            time = _be64(buf, p + 16) + _be32(buf, p + 24)
            out[n] = 0
            if time >= begin_ms:
                at = cython.cast(cython.Py_ssize_t, time // precision_ms % slots) * _SLOT
                if _be64(wheel, at) == time // precision_ms and _be64(wheel, at + 16) >= 0 and (
                    _be64(wheel, at + 8) <= base + p
                ):
                    out[n] = 1
            n += 1
