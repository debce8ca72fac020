# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Find and verify the record that a unit of a queue names.

Units and records may be damaged, so every position is compared with the length before it is read.
"""

import cython

from tailrace.kernels.shared import constants as C
from tailrace.kernels.shared import layouts as L

if cython.compiled:
    from cython.cimports.posix.mman import mincore

from tailrace.kernels.shared.big_endian import be32, be32u, be64
from tailrace.kernels.shared.copying import load_early
from tailrace.kernels.shared.crc32 import crc_of, own_crc_is_wrong
from tailrace.kernels.shared.record_walk import parts_at

_MASK_31 = cython.declare(cython.longlong, 0x7FFFFFFF)
_PAGE = cython.declare(cython.Py_ssize_t, 4096)
_BLOCK = cython.declare(cython.Py_ssize_t, 64)  # pages per byte of `seen`
_LOOK = cython.declare(cython.Py_ssize_t, 1024)  # pages per mincore call at most; the call costs more than the pages
PRE_BLANK = cython.declare(cython.longlong, 0x7FFFFFFF)  # size in a unit that stands for no message
EARLY = cython.declare(cython.Py_ssize_t, 6)  # records that are loaded while one is verified


@cython.cfunc
@cython.inline
@cython.returns((cython.Py_ssize_t, cython.Py_ssize_t, cython.Py_ssize_t, cython.Py_ssize_t))
@cython.nogil
@cython.exceptval(check=False)
def record_parts_at(
    b: cython.const[cython.uchar][::1], at: cython.Py_ssize_t, size: cython.Py_ssize_t, phy_offset: cython.longlong
):
    """Return ``parts_at`` of the record ``b[at:at + size]``. All are -1 if it is not one at ``phy_offset``.

    Magic, lengths and position are checked. Checksums are not checked.
    """
    magic: cython.longlong
    if size >= L.MIN_RECORD_SIZE and be32(b, at) == size and be64(b, at + L.AT_PHY_OFFSET) == phy_offset:
        magic = be32u(b, at + L.AT_MAGIC)
        if magic == L.MAGIC_V1 or magic == L.MAGIC_V2:
            return parts_at(b, at, at + size)
    return -1, -1, -1, -1


@cython.cfunc
@cython.returns((cython.Py_ssize_t, cython.Py_ssize_t))
@cython.nogil
@cython.exceptval(check=False)
def message_at(
    b: cython.const[cython.uchar][::1],
    at: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    phy_offset: cython.longlong,
    topic: cython.const[cython.uchar][::1],
    queue_id: cython.longlong,
    queue_offset: cython.longlong,
):
    """Return the starts of body and properties of the record ``b[at:at + size]``, -1 if it is not the expected one.

    What ``record_parts_at`` checks is checked, and topic, queue id and queue offset unless ``topic`` is empty.
    """
    body: cython.Py_ssize_t
    p: cython.Py_ssize_t
    properties: cython.Py_ssize_t
    k: cython.Py_ssize_t
    _, body, p, properties = record_parts_at(b, at, size, phy_offset)
    if properties < 0 or not len(topic):
        return body, properties
    if (
        properties - L.PROPERTIES_LENGTH_SIZE - p != len(topic) or be32(b, at + L.AT_QUEUE_ID) != queue_id
        or be64(b, at + L.AT_QUEUE_OFFSET) != queue_offset
    ):
        return -1, -1
    for k in range(len(topic)):
        if b[p + k] != topic[k]:
            return -1, -1
    return body, properties


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def checksums_are_right(
    b: cython.const[cython.uchar][::1], at: cython.Py_ssize_t, body: cython.Py_ssize_t, properties: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
) -> cython.bint:
    """Return True if the checksums of a record match; its lengths were checked before."""
    length: cython.Py_ssize_t = cython.cast(cython.Py_ssize_t, be32(b, body - 4))
    if length and (crc_of(b, body, body + length) & _MASK_31) != be32(b, at + L.AT_BODY_CRC):
        return False
    return not own_crc_is_wrong(b, at, properties, end)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def pages_of(
    units: cython.const[cython.uchar][::1], first: cython.Py_ssize_t, until: cython.Py_ssize_t,
    base: cython.longlong, limit: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Return the number of pages of the buffer up to the end of the last record of units [first, until)."""
    k: cython.Py_ssize_t
    end: cython.longlong = 0
    at: cython.longlong
    for k in range(first, until):
        at = be64(units, L.UNIT_SIZE * k)
        if base >= 0 and at >= base and at - base < limit:  # otherwise the difference may overflow
            end = max(end, at - base + be32(units, L.UNIT_SIZE * k + L.UNIT_AT_SIZE))
    if end > limit:
        end = limit
    return cython.cast(cython.Py_ssize_t, (end + _PAGE - 1) // _PAGE)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _is_cached(
    b: cython.const[cython.uchar][::1], first: cython.Py_ssize_t, until: cython.Py_ssize_t,
    last: cython.Py_ssize_t, pages: cython.p_uchar, window: cython.p_Py_ssize_t,
    seen: cython.uchar[::1],
) -> cython.bint:
    """Return True if the mapped pages [``first``, ``until``) of ``b`` are in memory.

    ``pages`` has the result of the last mincore call, for the pages [``window[0]``, ``window[1]``). A call asks for
    the pages up to ``last``, so that several records need one call. ``seen`` has for each block the number of pages at
    its start that were in memory; these pages are not asked for again.
    """
    k: cython.Py_ssize_t
    n: cython.Py_ssize_t
    i: cython.Py_ssize_t
    start: cython.Py_ssize_t
    if last < until:
        last = until
    last = min((last + _BLOCK - 1) // _BLOCK * _BLOCK, (len(b) + _PAGE - 1) // _PAGE)  # whole blocks
    while first < until:
        k = first // _BLOCK
        if k < len(seen) and first - k * _BLOCK < seen[k]:
            first = k * _BLOCK + seen[k]
            continue
        if not window[0] <= first < window[1]:
            start = k * _BLOCK
            n = last - start
            if n > _LOOK:
                n = _LOOK
            if mincore(cython.cast(cython.p_void, cython.cast(cython.p_uchar, cython.address(b[0])) + start * _PAGE),
                       n * _PAGE, pages):
                return True  # it is not known, so the record is read
            window[0] = start
            window[1] = start + n
            for k in range(n):
                i = (start + k) // _BLOCK
                if pages[k] & 1 and i < len(seen) and seen[i] == (start + k) % _BLOCK:
                    seen[i] = (start + k) % _BLOCK + 1  # not += 1: another thread may do the same
        if not pages[first - window[0]] & 1:
            return False
        first += 1
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def load_record(
    buf: cython.const[cython.uchar][::1], base: cython.longlong, until: cython.Py_ssize_t,
    units: cython.const[cython.uchar][::1], i: cython.Py_ssize_t,
) -> cython.void:
    """Start to load the record of unit ``i``: it is far from the records before it, so the processor does not."""
    phy_offset: cython.longlong = be64(units, L.UNIT_SIZE * i)
    if base >= 0 and phy_offset >= base and phy_offset - base < until:
        load_early(buf, phy_offset - base, be32(units, L.UNIT_SIZE * i + L.UNIT_AT_SIZE), _PAGE)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def located(
    buf: cython.const[cython.uchar][::1],
    base: cython.longlong,
    until: cython.Py_ssize_t,
    phy_offset: cython.longlong,
    size: cython.longlong,
    seen: cython.uchar[::1],
    last: cython.Py_ssize_t,
    pages: cython.p_uchar,
    window: cython.p_Py_ssize_t,
) -> cython.Py_ssize_t:
    """Return the index of a unit's record in ``buf[:until]``, or a negative UNITS_* if it cannot be read there."""
    at: cython.Py_ssize_t
    # `base` may be negative because of a damaged unit; then the difference would overflow.
    if base < 0 or phy_offset < base or phy_offset - base >= until:
        return -C.UNITS_ELSEWHERE
    at = cython.cast(cython.Py_ssize_t, phy_offset - base)
    if size <= 0 or size > until - at:
        return -C.UNITS_CUT_OFF
    if cython.compiled:
        if len(seen) and not _is_cached(
            buf, at // _PAGE, (at + cython.cast(cython.Py_ssize_t, size) + _PAGE - 1) // _PAGE, last, pages, window,
            seen
        ):
            return -C.UNITS_COLD
    return at


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def look_ahead(
    buf: cython.const[cython.uchar][::1], base: cython.longlong, until: cython.Py_ssize_t,
    units: cython.const[cython.uchar][::1], first: cython.Py_ssize_t, most: cython.Py_ssize_t,
    seen: cython.uchar[::1], window: cython.p_Py_ssize_t,
) -> cython.Py_ssize_t:
    """Prepare to read up to ``most`` records of units from ``first`` onwards. Return ``last`` for ``located``.

    Compiled only.
    """
    k: cython.Py_ssize_t
    end: cython.Py_ssize_t = min(len(units) // L.UNIT_SIZE, first + most)
    window[0] = window[1] = 0
    for k in range(first, min(first + EARLY, end)):
        load_record(buf, base, until, units, k)
    return pages_of(units, first, end, base, until) if len(seen) else 0
