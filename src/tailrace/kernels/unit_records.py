# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Read and verify the records that the units of a queue name.

A unit has 20 bytes: position and size of a record, and tags code. Units and records may be damaged, so every
position is compared with the length before it is read.
"""

import array
import itertools

import cython

from tailrace.kernels.shared import constants as C
from tailrace.kernels.shared import layouts as L

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.cpython.mem import PyMem_Free, PyMem_Malloc
    from cython.cimports.cpython.unicode import PyUnicode_DecodeUTF8
    from cython.cimports.libc.string import memcpy

from tailrace.kernels.shared.big_endian import be32, be64
from tailrace.kernels.shared.crc32 import crc32, use_crc32
from tailrace.kernels.shared.record_walk import next_property
from tailrace.kernels.shared.unit_reading import (
    EARLY,
    PRE_BLANK,
    checksums_are_right,
    load_record,
    located,
    look_ahead,
    message_at,
    properties_at,
)
from tailrace.model import GetMessageResult, GetMessageStatus

SOURCE_SHA256 = ""

_FOUND = GetMessageStatus.FOUND  # in a variable, because looking up a member takes longer
_PROPERTY_WEIGHT = cython.declare(cython.longlong, 16)
_SEEN_NS = cython.declare(cython.longlong, 100_000_000)
_NEXT = cython.declare(cython.Py_ssize_t, 16)  # records that are loaded for a reader that reads on

# The same numbers for other modules; in the compiled module the names above are C integers and cannot be imported.
SEEN_BYTES = 64 * 4096
PROPERTY_WEIGHT = _PROPERTY_WEIGHT


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
    count: cython.Py_ssize_t = len(units) // L.UNIT_SIZE
    i: cython.Py_ssize_t = first
    k: cython.Py_ssize_t
    n: cython.Py_ssize_t = 0
    at: cython.Py_ssize_t
    total: cython.longlong = 0
    size: cython.longlong
    code: cython.longlong
    known: cython.Py_ssize_t = codes.shape[0]
    why: cython.int = C.UNITS_END
    last: cython.Py_ssize_t = 0
    pages = cython.declare(cython.uchar[1024])
    window = cython.declare(cython.Py_ssize_t[2])
    if until > len(buf):
        until = len(buf)
    if cython.compiled:
        last = look_ahead(buf, base, until, units, i, most, seen, window)
    while i < count:
        if cython.compiled and i + EARLY < count and n + EARLY < most:
            load_record(buf, base, until, units, i + EARLY)
        size = be32(units, L.UNIT_SIZE * i + L.UNIT_AT_SIZE)
        if size == PRE_BLANK:
            i += 1
            continue
        if known:
            code = be64(units, L.UNIT_SIZE * i + L.UNIT_AT_TAGS_CODE)
            k = 0
            while k < known and codes[k] != code:
                k += 1
            if k == known:
                i += 1
                continue
        if n >= most or (total + size > room and (started or n > 0)):
            why = C.UNITS_FULL
            if cython.compiled:
                for k in range(i, min(i + _NEXT, count)):
                    load_record(buf, base, until, units, k)
            break
        at = message_at(
            buf, base, until, units, i, topic, queue_id, queue_offset + i, seen, last, pages, window)
        if at < 0:
            why = cython.cast(cython.int, -at)
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
    if first < 0 or until < 0 or most < 1 or places.shape[1] != C.PLACE_COLUMNS:
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


@cython.ccall
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
) -> tuple:
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
    most = min(max(most, 0), len(units) // L.UNIT_SIZE)
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


@cython.cclass
class SeenPages:
    """``seen`` of ``read_units`` for each segment, for 100 ms.

    The system call that tells which pages are in the page cache takes 1 to 3 us, a fifth of a read. A page that was
    evicted in the meantime is still read right, but that read waits for the disk.
    """

    _monotonic_ns: object
    _length: cython.Py_ssize_t
    _since: cython.longlong
    _segments: dict

    def __init__(self, file_size: cython.longlong, monotonic_ns):
        """``monotonic_ns`` is that of the clock; no segment is longer than ``file_size`` bytes."""
        self._monotonic_ns = monotonic_ns
        self._length = (file_size + SEEN_BYTES - 1) // SEEN_BYTES
        self._since, self._segments = 0, {}

    @cython.ccall
    def of(self, start) -> bytearray:
        """Return ``seen`` of the segment at position ``start``."""
        now: cython.longlong = self._monotonic_ns()
        if not 0 <= now - self._since < _SEEN_NS:
            self._segments, self._since = {}, now
        segments: dict = self._segments  # another thread may replace it
        pages: bytearray = segments.get(start)
        return segments.setdefault(start, bytearray(self._length)) if pages is None else pages


@cython.cclass
class CachedReader:
    """Reads messages of a queue that are in the page cache, all in one segment of the log.

    Most reads are of this kind. Those that are not take the longer way, ``MessageReader``, which spends more time in
    the interpreter.
    """

    _find_file: object
    _file: object
    _seen: SeenPages
    _most: object
    _room: object
    _any_code: cython.const[cython.longlong][::1]

    def __init__(self, find_file, seen: SeenPages, most, room):
        """Read at most ``most`` records with ``room`` bytes.

        ``find_file`` is ``find`` of the log's `MappedFileQueue`.
        """
        self._find_file = find_file
        self._file = None  # the file that was read last
        self._seen = seen
        self._most = most
        self._room = room
        self._any_code = memoryview(array.array("q"))

    def read(self, queue, offset, most, room, only_cached):
        """Return the result of ``MessageReader.get_message`` for a `ConsumeQueue`, or None if it reads no record.

        It is also None if a record is damaged, missing, in another segment or not in the page cache. With
        ``only_cached`` the units are not read from the disk either.
        """
        found: tuple
        units: bytes
        at: cython.Py_ssize_t
        phy_offset: cython.longlong
        count: cython.Py_ssize_t = max(min(most, self._most), 1)
        topic: bytes = queue.record_topic
        low = queue.min_offset
        high = queue.max_offset
        if not topic or not low <= offset < high:  # records of an LMQ queue have other topics
            return None
        version, first, units = queue.ahead
        at = offset - first if version == queue.version else -1
        if at < 0 or len(units) < L.UNIT_SIZE * (at + min(count, high - offset)):
            if queue.is_batch:
                return None
            units, first, at = queue.units_ahead(offset, 2 * count, only_cached=only_cached), offset, 0
        if not units or len(units) < L.UNIT_SIZE * (at + 1):
            return None
        phy_offset = be64(units, L.UNIT_SIZE * at)
        file = self._file
        if file is None or not file.file_from_offset <= phy_offset < file.file_from_offset + file.size:
            file = self._file = self._find_file(phy_offset)
            if file is None:
                return None
        view = file.hold_view()
        if view is None:
            self._file = None  # it is closed, and another one may have its place
            return None
        try:
            base = file.file_from_offset
            found = read_units(
                view, base, file.wrote_position, units, at, self._any_code, topic, queue.queue_id, first, count,
                min(room, self._room), False, self._seen.of(base))
        finally:
            file.release()
        data, places, n, at, why = found
        if n == 0 or (why != C.UNITS_FULL and why != C.UNITS_END):
            return None
        return GetMessageResult(_FOUND, first + at, low, high, data, n, places)


@cython.cfunc
def _values(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, end: cython.Py_ssize_t, names: tuple) -> tuple:
    """Return the texts of the properties ``names`` in ``b[p:end]``, None for a missing one.

    Reads them as RocketMQ's MessageDecoder does: the last value of a repeated name counts, and a property
    without a value is missing.
    """
    k: cython.Py_ssize_t
    i: cython.Py_ssize_t
    value: cython.Py_ssize_t
    until: cython.Py_ssize_t
    size: cython.Py_ssize_t
    count: cython.Py_ssize_t = len(names)
    found: list = [None] * count
    name: bytes
    p, value, until = next_property(b, p, end)
    while p < end:
        size = value - 1 - p
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
                        cython.cast(cython.p_char, cython.address(b[value])), until - value, b"replace")
                else:
                    found[i] = bytes(b[value:until]).decode("utf-8", "replace")
        p, value, until = next_property(b, until + 1, end)
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
    count: cython.Py_ssize_t = len(units) // L.UNIT_SIZE
    i: cython.Py_ssize_t = first
    at: cython.Py_ssize_t
    properties: cython.Py_ssize_t
    last: cython.Py_ssize_t = 0
    total: cython.longlong = 0
    examined: cython.longlong = 0
    weight: cython.longlong
    size: cython.longlong
    phy_offset: cython.longlong
    why: cython.int = C.UNITS_END
    pages = cython.declare(cython.uchar[1024])
    window = cython.declare(cython.Py_ssize_t[2])
    records: list = []
    places = array.array("q")
    if first < 0 or until < 0:
        raise ValueError(f"first {first}, until {until}")
    if until > len(buf):
        until = len(buf)
    if cython.compiled:
        last = look_ahead(buf, base, until, units, i, count, seen, window)
    while i < count:
        size = be32(units, L.UNIT_SIZE * i + L.UNIT_AT_SIZE)
        if size == PRE_BLANK:
            i += 1
            continue
        phy_offset = be64(units, L.UNIT_SIZE * i)
        at = located(buf, base, until, phy_offset, size, seen, last, pages, window)
        if at < 0:
            why = cython.cast(cython.int, -at)
            break
        properties = properties_at(
            buf, at, cython.cast(cython.Py_ssize_t, size), phy_offset, topic, queue_id, queue_offset + i)
        if properties < 0:
            why = C.UNITS_DAMAGED
            break
        weight = size + (at + size - properties) * _PROPERTY_WEIGHT
        if examined and examined + weight > look:
            why = C.UNITS_FULL
            break
        if matches(_values(buf, properties, at + size, names)):
            if len(records) >= most or (total + size > room and (started or total > 0)):
                why = C.UNITS_FULL
                break
            if not checksums_are_right(buf, at, properties, at + size):
                why = C.UNITS_DAMAGED
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
            why = C.UNITS_FULL if i < count else C.UNITS_END
            break
    return b"".join(records), places.tobytes(), len(records), i, why, examined
