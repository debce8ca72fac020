# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Read and verify the records that the units of a queue name.

A unit has 20 bytes: position and size of a record, and tags code. Units and records may be damaged, so every
position is compared with the length before it is read.
"""

import array
import itertools

import cython

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.cpython.mem import PyMem_Free, PyMem_Malloc
    from cython.cimports.cpython.unicode import PyUnicode_DecodeUTF8
    from cython.cimports.libc.string import memcpy
    from cython.cimports.posix.mman import mincore

from tailrace.kernels.shared.big_endian import be16, be32, be32u, be64
from tailrace.kernels.shared.copying import find_byte, load_early
from tailrace.kernels.shared.crc32 import crc32, crc_of, own_crc_is_wrong, use_crc32
from tailrace.kernels.shared.record_layout import (
    AT_BODY_CRC,
    AT_BODY_LENGTH,
    AT_MAGIC,
    AT_PHY_OFFSET,
    AT_QUEUE_ID,
    AT_QUEUE_OFFSET,
    AT_SYS_FLAG,
    BORNHOST_V6,
    HEAD_SIZE,
    HOST_V4_SIZE,
    HOST_V6_SIZE,
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD_SIZE,
    STORE_TIME_SIZE,
    STOREHOST_V6,
)

SOURCE_SHA256 = ""

_MASK_31 = cython.declare(cython.longlong, 0x7FFFFFFF)
_PRE_BLANK_SIZE = cython.declare(cython.longlong, 0x7FFFFFFF)
_PAGE = cython.declare(cython.Py_ssize_t, 4096)
_BLOCK = cython.declare(cython.Py_ssize_t, 64)  # pages per byte of `seen`
_EARLY = cython.declare(cython.Py_ssize_t, 6)  # records that are loaded while one is verified
_LOOK = cython.declare(cython.Py_ssize_t, 1024)  # pages per mincore call at most; the call costs more than the pages

_UNITS_END = cython.declare(cython.int, 0)  # all units were read
_UNITS_FULL = cython.declare(cython.int, 1)  # the next record exceeds the number or the bytes that were requested
_UNITS_ELSEWHERE = cython.declare(cython.int, 2)  # the next unit's record starts outside of the buffer
_UNITS_CUT_OFF = cython.declare(cython.int, 3)  # the next unit's record ends after the buffer
_UNITS_DAMAGED = cython.declare(cython.int, 4)  # the bytes are not the record of the next unit
_UNITS_COLD = cython.declare(cython.int, 5)  # the next unit's record is not in the page cache
_PROPERTY_WEIGHT = cython.declare(cython.longlong, 16)
_PLACE_AT = cython.declare(cython.int, 0)  # index of the record in the buffer
_PLACE_SIZE = cython.declare(cython.int, 1)
_PLACE_OFFSET = cython.declare(cython.int, 2)  # queue offset of the unit
_PLACE_COLUMNS = cython.declare(cython.int, 3)

# The same numbers for other modules; in the compiled module the names above are C integers and cannot be imported.
SEEN_BYTES = 64 * 4096
UNITS_END = _UNITS_END
UNITS_FULL = _UNITS_FULL
UNITS_ELSEWHERE = _UNITS_ELSEWHERE
UNITS_CUT_OFF = _UNITS_CUT_OFF
UNITS_DAMAGED = _UNITS_DAMAGED
UNITS_COLD = _UNITS_COLD
PROPERTY_WEIGHT = _PROPERTY_WEIGHT
PLACE_AT = _PLACE_AT
PLACE_SIZE = _PLACE_SIZE
PLACE_OFFSET = _PLACE_OFFSET
PLACE_COLUMNS = _PLACE_COLUMNS


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _body_at(b: cython.const[cython.uchar][::1], at: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Return the index of the body length field of the record at ``at``."""
    sys_flag: cython.longlong = be32(b, at + AT_SYS_FLAG)
    return (
        at + HEAD_SIZE + (HOST_V6_SIZE if sys_flag & BORNHOST_V6 else HOST_V4_SIZE) + STORE_TIME_SIZE
        + (HOST_V6_SIZE if sys_flag & STOREHOST_V6 else HOST_V4_SIZE) + AT_BODY_LENGTH)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _properties_at(
    b: cython.const[cython.uchar][::1],
    at: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    phy_offset: cython.longlong,
    topic: cython.const[cython.uchar][::1],
    queue_id: cython.longlong,
    queue_offset: cython.longlong,
) -> cython.Py_ssize_t:
    """Return the index of the properties of the record ``b[at:at + size]``, -1 if it is not the expected record.

    Magic, lengths and position are checked, and topic, queue id and queue offset unless ``topic`` is empty.
    Checksums are not checked.
    """
    end: cython.Py_ssize_t = at + size
    p: cython.Py_ssize_t
    n: cython.Py_ssize_t
    k: cython.Py_ssize_t
    length: cython.longlong
    v2: cython.bint
    if size < MIN_RECORD_SIZE or be32(b, at) != size or be64(b, at + AT_PHY_OFFSET) != phy_offset:
        return -1
    v2 = be32u(b, at + AT_MAGIC) == MAGIC_V2
    if not v2 and be32u(b, at + AT_MAGIC) != MAGIC_V1:
        return -1
    p = _body_at(b, at)
    if p + 7 + v2 > end:
        return -1
    length = be32(b, p)
    p += 4
    if length < 0 or length > end - p - 3 - v2:
        return -1
    p += cython.cast(cython.Py_ssize_t, length)
    n = be16(b, p) if v2 else b[p]
    k = p + 1 + v2
    if n > end - k - 2 or k + n + 2 + be16(b, k + n) != end:
        return -1
    if len(topic):
        if n != len(topic) or be32(b, at + AT_QUEUE_ID) != queue_id or be64(b, at + AT_QUEUE_OFFSET) != queue_offset:
            return -1
        for p in range(n):
            if b[k + p] != topic[p]:
                return -1
    return k + n + 2


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _checksums_are_right(
    b: cython.const[cython.uchar][::1], at: cython.Py_ssize_t, properties: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.bint:
    """Return True if the checksums of a record match; its lengths were checked before."""
    p: cython.Py_ssize_t = _body_at(b, at)
    length: cython.Py_ssize_t = cython.cast(cython.Py_ssize_t, be32(b, p))
    if length and (crc_of(b, p + 4, p + 4 + length) & _MASK_31) != be32(b, at + AT_BODY_CRC):
        return False
    return not own_crc_is_wrong(b, at, properties, end)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _is_message(
    b: cython.const[cython.uchar][::1],
    at: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    phy_offset: cython.longlong,
    topic: cython.const[cython.uchar][::1],
    queue_id: cython.longlong,
    queue_offset: cython.longlong,
) -> cython.bint:
    """Return True if ``b[at:at + size]`` is the expected record with right checksums, see ``_properties_at``."""
    properties: cython.Py_ssize_t = _properties_at(b, at, size, phy_offset, topic, queue_id, queue_offset)
    return properties >= 0 and _checksums_are_right(b, at, properties, at + size)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _pages_of(
    units: cython.const[cython.uchar][::1], first: cython.Py_ssize_t, until: cython.Py_ssize_t,
    base: cython.longlong, limit: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Return the number of pages of the buffer up to the end of the last record of units [first, until)."""
    k: cython.Py_ssize_t
    end: cython.longlong = 0
    at: cython.longlong
    for k in range(first, until):
        at = be64(units, 20 * k)
        if base >= 0 and at >= base and at - base < limit:  # otherwise the difference may overflow
            end = max(end, at - base + be32(units, 20 * k + 8))
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
def _load_record(
    buf: cython.const[cython.uchar][::1], base: cython.longlong, until: cython.Py_ssize_t,
    units: cython.const[cython.uchar][::1], i: cython.Py_ssize_t,
) -> cython.void:
    """Start to load the record of unit ``i``: it is far from the records before it, so the processor does not."""
    phy_offset: cython.longlong = be64(units, 20 * i)
    if base >= 0 and phy_offset >= base and phy_offset - base < until:
        load_early(buf, phy_offset - base, be32(units, 20 * i + 8), _PAGE)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _located(
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
        return -_UNITS_ELSEWHERE
    at = cython.cast(cython.Py_ssize_t, phy_offset - base)
    if size <= 0 or size > until - at:
        return -_UNITS_CUT_OFF
    if cython.compiled:
        if len(seen) and not _is_cached(
            buf, at // _PAGE, (at + cython.cast(cython.Py_ssize_t, size) + _PAGE - 1) // _PAGE, last, pages, window,
            seen
        ):
            return -_UNITS_COLD
    return at


@cython.cfunc
@cython.returns((cython.Py_ssize_t, cython.Py_ssize_t, cython.int))
@cython.nogil
@cython.exceptval(check=False)
def _find(
    buf: cython.const[cython.uchar][::1],
    base: cython.longlong,
    until: cython.Py_ssize_t,
    units: cython.const[cython.uchar][::1],
    first: cython.Py_ssize_t,
    codes: cython.const[cython.longlong][::1],
    topic: cython.const[cython.uchar][::1],
    queue_id: cython.longlong,
    queue_offset: cython.longlong,
    most: cython.Py_ssize_t,
    room: cython.longlong,
    started: cython.bint,
    seen: cython.uchar[::1],
    places: cython.p_longlong,
):
    """Fill three numbers of ``places`` per verified record. Return (records, index of the next unit, UNITS_*)."""
    count: cython.Py_ssize_t = len(units) // 20
    i: cython.Py_ssize_t = first
    k: cython.Py_ssize_t
    n: cython.Py_ssize_t = 0
    at: cython.Py_ssize_t
    total: cython.longlong = 0
    size: cython.longlong
    phy_offset: cython.longlong
    code: cython.longlong
    known: cython.Py_ssize_t = codes.shape[0]
    why: cython.int = _UNITS_END
    last: cython.Py_ssize_t = 0
    pages = cython.declare(cython.uchar[1024])
    window = cython.declare(cython.Py_ssize_t[2])
    if until > len(buf):
        until = len(buf)
    if cython.compiled:
        window[0] = window[1] = 0
        if len(seen):
            last = _pages_of(units, i, count if count - i < most else i + most, base, until)
        for k in range(i, min(i + _EARLY, count, i + most)):
            _load_record(buf, base, until, units, k)
    while i < count:
        if cython.compiled and i + _EARLY < count and n + _EARLY < most:
            _load_record(buf, base, until, units, i + _EARLY)
        size = be32(units, 20 * i + 8)
        if size == _PRE_BLANK_SIZE:
            i += 1
            continue
        if known:
            code = be64(units, 20 * i + 12)
            k = 0
            while k < known and codes[k] != code:
                k += 1
            if k == known:
                i += 1
                continue
        if n >= most or (total + size > room and (started or n > 0)):
            why = _UNITS_FULL
            break
        phy_offset = be64(units, 20 * i)
        at = _located(buf, base, until, phy_offset, size, seen, last, pages, window)
        if at < 0:
            why = cython.cast(cython.int, -at)
            break
        if not _is_message(
            buf, at, cython.cast(cython.Py_ssize_t, size), phy_offset, topic, queue_id, queue_offset + i
        ):
            why = _UNITS_DAMAGED
            break
        places[3 * n] = at
        places[3 * n + 1] = size
        places[3 * n + 2] = queue_offset + i
        total += size
        n += 1
        i += 1
    return n, i, why


def find_units(
    buf: cython.const[cython.uchar][::1],
    base: cython.longlong,
    until: cython.Py_ssize_t,
    units: cython.const[cython.uchar][::1],
    first: cython.Py_ssize_t,
    codes: cython.const[cython.longlong][::1],
    topic: cython.const[cython.uchar][::1],
    queue_id: cython.longlong,
    queue_offset: cython.longlong,
    room: cython.longlong,
    started: cython.bint,
    seen: cython.uchar[::1],
    places: cython.longlong[:, ::1],
):
    """Verify the records that ``read_units`` would copy, and fill a row of ``places`` (PLACE_*) for each.

    There are at most as many records as rows. Unless ``started``, the first record may be longer than ``room``.
    Return (number of records, index of the unit at which reading stopped, reason UNITS_*).
    """
    n: cython.Py_ssize_t
    i: cython.Py_ssize_t
    why: cython.int
    most: cython.Py_ssize_t = places.shape[0]
    if first < 0 or until < 0 or most < 1 or places.shape[1] != _PLACE_COLUMNS:
        raise ValueError(f"first {first}, until {until}, {most} places of {places.shape[1]}")
    if cython.compiled:
        flat: cython.p_longlong = cython.address(places[0, 0])
    else:
        flat = places.reshape(-1)
    with cython.nogil:
        n, i, why = _find(
            buf, base, until, units, first, codes, topic, queue_id, queue_offset, most, room, started,
            seen, flat)
    return n, i, why


def read_units(
    buf: cython.const[cython.uchar][::1],
    base: cython.longlong,
    until: cython.Py_ssize_t,
    units: cython.const[cython.uchar][::1],
    first: cython.Py_ssize_t,
    codes: cython.const[cython.longlong][::1],
    topic: cython.const[cython.uchar][::1],
    queue_id: cython.longlong,
    queue_offset: cython.longlong,
    most: cython.Py_ssize_t,
    room: cython.longlong,
    started: cython.bint,
    seen: cython.uchar[::1],
):
    """Verify and copy the records of queue units, up to the first one that is not in ``buf[:until]``.

    ``buf[0]`` is at position ``base`` of the log. ``units[0]`` has the queue offset ``queue_offset``. Reading
    starts at the unit with index ``first``. Pre-blank units and units whose tags code is not one of ``codes``
    (empty: any code) are skipped. At most ``most`` records with at most ``room`` bytes together are copied;
    unless ``started``, the first record may be longer than ``room``. Unless ``seen`` is empty, reading stops before
    the first record that is not in the page cache; ``buf`` must then be the start of a mapping. ``seen`` has a byte
    for each `SEEN_BYTES` of the mapping, zero at first. It remembers pages that were in the page cache, so that
    several calls need one system call; use it for a short time only. The interpreted form ignores ``seen``.

    Return (the records as one bytes object; two native 64-bit numbers per record: its end in that object and its
    queue offset; number of records; index of the unit at which reading stopped; reason UNITS_*).
    """
    n: cython.Py_ssize_t
    i: cython.Py_ssize_t
    k: cython.Py_ssize_t
    why: cython.int
    total: cython.Py_ssize_t = 0
    data: bytes
    if first < 0 or until < 0:
        raise ValueError(f"first {first}, until {until}")
    most = min(max(most, 0), len(units) // 20)
    if cython.compiled:
        places = cython.declare(cython.p_longlong)
        places = cython.cast(cython.p_longlong, PyMem_Malloc(24 * (most + 1)))
        if places == cython.NULL:
            raise MemoryError
    else:
        places = [0] * (3 * most)
    try:
        with cython.nogil:
            n, i, why = _find(
                buf, base, until, units, first, codes, topic, queue_id, queue_offset, most, room,
                started, seen, places)
        # Use the sizes that were checked, because another process may have changed the file since.
        for k in range(n):
            total += places[3 * k + 1]
        if cython.compiled:
            data = PyBytes_FromStringAndSize(cython.NULL, total)
            to: cython.p_char = PyBytes_AS_STRING(data)
            total = 0
            for k in range(n):
                memcpy(to + total, cython.address(buf[places[3 * k]]), places[3 * k + 1])
                total += places[3 * k + 1]
                places[2 * k] = total  # overwrites only numbers of records up to k, which are no longer needed
                places[2 * k + 1] = places[3 * k + 2]
            return data, PyBytes_FromStringAndSize(cython.cast(cython.p_char, places), 16 * n), n, i, why
        data = b"".join([
            bytes(buf[places[3 * k] : places[3 * k] + places[3 * k + 1]]) for k in range(n)])
        ends = itertools.accumulate(places[1 : 3 * n : 3])
        pairs = itertools.chain.from_iterable(zip(ends, places[2 : 3 * n : 3], strict=True))
        return data, array.array("q", pairs).tobytes(), n, i, why
    finally:
        if cython.compiled:
            PyMem_Free(places)


@cython.cfunc
def _values(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, end: cython.Py_ssize_t, names: tuple) -> tuple:
    """Return the texts of the properties ``names`` in ``b[p:end]``, None for a missing one.

    Reads them as RocketMQ's MessageDecoder does: the last value of a repeated name counts, and a property
    without a value is missing.
    """
    k: cython.Py_ssize_t
    i: cython.Py_ssize_t
    until: cython.Py_ssize_t
    separator: cython.Py_ssize_t
    size: cython.Py_ssize_t
    count: cython.Py_ssize_t = len(names)
    found: list = [None] * count
    name: bytes
    while p < end:
        until = find_byte(b, p, end, 2)
        separator = find_byte(b, p, until, 1)
        if p < separator < until - 1:
            size = separator - p
            for i in range(count):
                name = names[i]
                if len(name) != size:
                    continue
                k = 0
                while k < size and b[p + k] == cython.cast(cython.uchar, name[k]):
                    k += 1
                if k == size:
                    if cython.compiled:
                        found[i] = PyUnicode_DecodeUTF8(
                            cython.cast(cython.p_char, cython.address(b[separator + 1])),
                            until - separator - 1, b"replace")
                    else:
                        found[i] = bytes(b[separator + 1 : until]).decode("utf-8", "replace")
        p = until + 1
    return tuple(found)


def property_values(properties: cython.const[cython.uchar][::1], names: tuple):
    """Return the texts of the properties ``names`` (bytes) in stored properties, None for one that is missing."""
    return _values(properties, 0, len(properties), names)


def read_matching(
    buf: cython.const[cython.uchar][::1],
    base: cython.longlong,
    until: cython.Py_ssize_t,
    units: cython.const[cython.uchar][::1],
    first: cython.Py_ssize_t,
    names: tuple,
    matches,
    topic: cython.const[cython.uchar][::1],
    queue_id: cython.longlong,
    queue_offset: cython.longlong,
    most: cython.Py_ssize_t,
    room: cython.longlong,
    look: cython.longlong,
    started: cython.bint,
    seen: cython.uchar[::1],
):
    """Do what ``read_units`` does for the records that ``matches`` selects, and skip the others.

    ``matches`` is called with the texts of the properties ``names``, None for a missing property. Only selected
    records are verified and copied. Reading also stops (UNITS_FULL) before a record with which more than ``look``
    bytes would be examined; at least one record is examined. A byte of the properties counts as `PROPERTY_WEIGHT`
    bytes, because properties are compared with the names.

    Return what ``read_units`` returns, and the number of examined bytes.
    """
    count: cython.Py_ssize_t = len(units) // 20
    i: cython.Py_ssize_t = first
    at: cython.Py_ssize_t
    properties: cython.Py_ssize_t
    last: cython.Py_ssize_t = 0
    total: cython.longlong = 0
    examined: cython.longlong = 0
    weight: cython.longlong
    size: cython.longlong
    phy_offset: cython.longlong
    why: cython.int = _UNITS_END
    pages = cython.declare(cython.uchar[1024])
    window = cython.declare(cython.Py_ssize_t[2])
    records: list = []
    places = array.array("q")
    if first < 0 or until < 0:
        raise ValueError(f"first {first}, until {until}")
    if until > len(buf):
        until = len(buf)
    if cython.compiled:
        window[0] = window[1] = 0
        if len(seen):
            last = _pages_of(units, i, count, base, until)
    while i < count:
        size = be32(units, 20 * i + 8)
        if size == _PRE_BLANK_SIZE:
            i += 1
            continue
        phy_offset = be64(units, 20 * i)
        at = _located(buf, base, until, phy_offset, size, seen, last, pages, window)
        if at < 0:
            why = cython.cast(cython.int, -at)
            break
        properties = _properties_at(
            buf, at, cython.cast(cython.Py_ssize_t, size), phy_offset, topic, queue_id, queue_offset + i)
        if properties < 0:
            why = _UNITS_DAMAGED
            break
        weight = size + (at + size - properties) * _PROPERTY_WEIGHT
        if examined and examined + weight > look:
            why = _UNITS_FULL
            break
        if matches(_values(buf, properties, at + size, names)):
            if len(records) >= most or (total + size > room and (started or total > 0)):
                why = _UNITS_FULL
                break
            if not _checksums_are_right(buf, at, properties, at + size):
                why = _UNITS_DAMAGED
                break
            if cython.compiled:
                records.append(PyBytes_FromStringAndSize(
                    cython.cast(cython.p_char, cython.address(buf[at])), cython.cast(cython.Py_ssize_t, size)))
            else:
                records.append(bytes(buf[at : at + size]))
            total += size
            places.append(total)
            places.append(queue_offset + i)
        examined += weight
        i += 1
        if len(records) >= most:
            why = _UNITS_FULL if i < count else _UNITS_END
            break
    return b"".join(records), places.tobytes(), len(records), i, why, examined
