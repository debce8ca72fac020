# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Read and verify the records that the units of a queue name.

A unit has 20 bytes: position and size of a record, and tags code. Units and records may be damaged, so every
position is compared with the length before it is read.
"""

import array

import cython

from tailrace.kernels.shared import constants as C
from tailrace.kernels.shared import layouts as L

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.cpython.unicode import PyUnicode_DecodeUTF8
    from cython.cimports.libc.string import memcpy

from tailrace.kernels.shared.big_endian import be32, be64
from tailrace.kernels.shared.copying import copy_bytes
from tailrace.kernels.shared.crc32 import crc32, use_crc32
from tailrace.kernels.shared.pull_head import PULL_HEAD_SIZE, PULL_PARTS_MAX, put_pull_head
from tailrace.kernels.shared.record_walk import next_property
from tailrace.kernels.shared.row_packing import NO_ROOM, PACKED, Packer
from tailrace.kernels.shared.unit_reading import (
    EARLY,
    PRE_BLANK,
    checksums_are_right,
    load_record,
    located,
    look_ahead,
    message_at,
)
from tailrace.model import GetMessageResult, GetMessageStatus

SOURCE_SHA256 = ""

_PROPERTY_WEIGHT = cython.declare(cython.longlong, 16)
_SEEN_NS = cython.declare(cython.longlong, 100_000_000)
_NEXT = cython.declare(cython.Py_ssize_t, 16)  # records that are loaded for a reader that reads on
_NOT_MAPPED = bytearray()
_LOOK_BYTES = 16 << 20  # bytes that one read with a property filter examines; bytes of properties count several times
_WORK = 25_600  # messages that one read with a property filter examines, times the cost of the filter: some ms
# Members of an enumeration are kept in variables, because looking one up takes a third of the read of one message.
_FOUND = GetMessageStatus.FOUND
_NO_MATCHED_MESSAGE = GetMessageStatus.NO_MATCHED_MESSAGE
_OFFSET_FOUND_NULL = GetMessageStatus.OFFSET_FOUND_NULL
_MESSAGE_WAS_REMOVING = GetMessageStatus.MESSAGE_WAS_REMOVING

# The same numbers for other modules; in the compiled module the names above are C integers and cannot be imported.
SEEN_BYTES = 64 * 4096
PROPERTY_WEIGHT = _PROPERTY_WEIGHT


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


@cython.cclass
class UnitWindow:
    """Units of a queue, and a buffer with the records of some of them: from units to verified places of records.

    ``units`` have 20 bytes each, and the first one has the queue offset ``offset``. ``at`` is the index of the next
    unit, and reading ends before the unit with the index ``end``. Pre-blank units and units whose tags code is not one
    of ``codes`` are skipped; None or no codes select any code. ``keep`` is None or a filter with ``names`` and
    ``matches``: a record is skipped without verification if ``matches`` returns false for the texts of its properties
    ``names``, None for a missing property. ``find`` then examines at most about ``look`` more bytes. A byte of the
    properties counts as `PROPERTY_WEIGHT` bytes, because properties are compared with the names.

    ``buffer`` and ``start``, the position in the log of its first byte, are valid during a call of ``take`` of a sink.
    """

    queue = cython.declare(object, visibility="readonly")
    units = cython.declare(bytes, visibility="readonly")
    offset = cython.declare(cython.longlong, visibility="readonly")
    at = cython.declare(cython.Py_ssize_t, visibility="public")
    end = cython.declare(cython.Py_ssize_t, visibility="readonly")
    codes = cython.declare(object, visibility="readonly")
    keep = cython.declare(object, visibility="readonly")
    look = cython.declare(cython.longlong, visibility="readonly")
    buffer = cython.declare(object, visibility="readonly")
    start = cython.declare(cython.longlong, visibility="readonly")
    why = cython.declare(cython.int, visibility="readonly")  # reason UNITS_* why the last ``find`` ended
    count = cython.declare(cython.Py_ssize_t, visibility="readonly")  # number of records that it found
    removed = cython.declare(cython.bint, visibility="readonly")  # a unit was skipped whose record is not in the log
    _buf: cython.const[cython.uchar][::1]
    _until: cython.Py_ssize_t
    _seen: cython.uchar[::1]
    _units: cython.const[cython.uchar][::1]
    _codes: cython.const[cython.longlong][::1]
    _topic: cython.const[cython.uchar][::1]
    _queue_id: cython.longlong
    _known: cython.Py_ssize_t
    _reader: object
    _packer: Packer
    _memory: bytes
    _places: cython.p_longlong  # in _memory, three numbers per record: index in the buffer, size, queue offset

    def __init__(self, queue, units: bytes, offset, at, end, codes=None, keep=None, look=0):
        self._begin(queue, units, offset, at, end, codes, keep, look)

    @cython.cfunc
    def _begin(
        self, queue, units: bytes, offset: cython.longlong, at: cython.Py_ssize_t, end: cython.Py_ssize_t,
        codes, keep, look: cython.longlong
    ):
        if at < 0:
            raise ValueError(f"unit {at}")
        self.queue, self.units, self.offset, self.at = queue, units, offset, at
        self.end = min(end, len(units) // L.UNIT_SIZE)
        self.codes, self.keep, self.look = codes, keep, look
        self.why, self.removed, self.count = C.UNITS_END, False, 0
        self._units, self._topic, self._queue_id = units, queue.record_topic, queue.queue_id
        if codes is not None:
            self._codes = codes
        self._known = 0 if codes is None else len(self._codes)
        self._reader = self._packer = None
        if not cython.compiled:
            self._places = []
        self.leave()

    @cython.ccall
    def enter(self, buffer, start: cython.longlong, until: cython.Py_ssize_t, seen: cython.uchar[::1]):
        """Take records from ``buffer[:until]``, whose first byte is at position ``start`` of the log.

        Unless ``seen`` is empty, ``buffer`` is the start of a mapping, and ``find`` ends before the first record
        that is not in the page cache. ``seen`` has a byte for each `SEEN_BYTES` of the mapping, zero at first. It
        remembers pages that were in the page cache, so that several calls need one system call; use it for a short time
        only. The interpreted form ignores ``seen``.
        """
        if until < 0:
            raise ValueError(f"until {until}")
        self.buffer, self.start, self._buf, self._seen, self.count = buffer, start, buffer, seen, 0
        self._until = min(until, len(self._buf))

    @cython.ccall
    def leave(self):
        """Forget the buffer and the records that were found in it."""
        self.buffer, self._buf, self._until, self.count = None, self._units, 0, 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1)
    def _find(
        self, most: cython.Py_ssize_t, room: cython.longlong, started: cython.bint, filtered: cython.bint
    ) -> cython.int:
        """Fill ``_places`` and return the reason UNITS_*. With ``filtered`` the caller holds the interpreter's lock."""
        buf: cython.const[cython.uchar][::1] = self._buf
        units: cython.const[cython.uchar][::1] = self._units
        topic: cython.const[cython.uchar][::1] = self._topic
        seen: cython.uchar[::1] = self._seen
        places: cython.p_longlong = self._places
        base: cython.longlong = self.start
        queue_offset: cython.longlong = self.offset
        queue_id: cython.longlong = self._queue_id
        until: cython.Py_ssize_t = self._until
        end: cython.Py_ssize_t = self.end
        i: cython.Py_ssize_t = self.at
        n: cython.Py_ssize_t = 0
        k: cython.Py_ssize_t
        at: cython.Py_ssize_t
        body: cython.Py_ssize_t
        properties: cython.Py_ssize_t
        phy_offset: cython.longlong
        size: cython.longlong
        code: cython.longlong
        weight: cython.longlong
        selected: cython.bint
        full: cython.bint
        named: cython.bint = len(topic) == 0
        packing: cython.bint = self._packer is not None
        done: cython.int
        total: cython.longlong = 0
        examined: cython.longlong = 0
        why: cython.int = C.UNITS_END
        last: cython.Py_ssize_t = 0
        pages = cython.declare(cython.uchar[1024])
        window = cython.declare(cython.Py_ssize_t[2])
        if cython.compiled:
            last = look_ahead(buf, base, until, units, i, end if filtered else min(end, i + most), seen, window)
        while i < end:
            if cython.compiled and i + EARLY < end and n + EARLY < most:
                load_record(buf, base, until, units, i + EARLY)
            size = be32(units, L.UNIT_SIZE * i + L.UNIT_AT_SIZE)
            if size == PRE_BLANK:
                i += 1
                continue
            if self._known:
                code = be64(units, L.UNIT_SIZE * i + L.UNIT_AT_TAGS_CODE)
                k = 0
                while k < self._known and self._codes[k] != code:
                    k += 1
                if k == self._known:
                    i += 1
                    continue
            full = n >= most or (total + size > room and (started or n > 0))
            if full and not (filtered and n < most):
                why = C.UNITS_FULL
                if cython.compiled:
                    for k in range(i, min(i + _NEXT, end)):
                        load_record(buf, base, until, units, k)
                break
            phy_offset = be64(units, L.UNIT_SIZE * i)
            at = located(buf, base, until, phy_offset, size, seen, last, pages, window)
            if at < 0:
                why = cython.cast(cython.int, -at)
                break
            body, properties = message_at(
                buf, at, cython.cast(cython.Py_ssize_t, size), phy_offset, topic, queue_id, queue_offset + i)
            if properties < 0:
                why = C.UNITS_DAMAGED
                break
            if filtered:
                weight = size + (at + size - properties) * _PROPERTY_WEIGHT
                if examined and examined + weight > self.look:
                    why = C.UNITS_FULL
                    break
                examined += weight
                with cython.gil:
                    selected = self.keep.matches(_values(buf, properties, at + size, self.keep.names))
                if not selected:
                    i += 1
                    continue
                if full:
                    why = C.UNITS_FULL
                    break
            if not checksums_are_right(buf, at, body, properties, at + cython.cast(cython.Py_ssize_t, size)):
                why = C.UNITS_DAMAGED
                break
            if named:
                with cython.gil:
                    selected = self._belongs(at, cython.cast(cython.Py_ssize_t, size), queue_offset + i)
                if not selected:
                    i += 1
                    continue
            if packing:
                done = self._packer.put_record(buf, at, size, base)
                if done != PACKED:
                    why = C.UNITS_FULL if done == NO_ROOM else C.UNITS_DAMAGED
                    break
            else:
                places[3 * n] = at
                places[3 * n + 1] = size
                places[3 * n + 2] = queue_offset + i
            total += size
            n += 1
            i += 1
        self.at, self.look = i, self.look - examined
        self.count = 0 if packing else n
        return why

    @cython.ccall
    def find(self, most: cython.Py_ssize_t, room: cython.longlong, started: cython.bint):
        """Find and verify records of the next units in the buffer, up to ``most`` with at most ``room`` bytes together.

        Unless ``started``, the first record may be longer than ``room``. Set ``at``, ``why`` and ``count``, the number
        of records that were found. A record that does not belong to its place in an LMQ queue is logged and left out.
        """
        most = min(max(most, 0), self.end - self.at)
        if cython.compiled:
            self._memory = PyBytes_FromStringAndSize(cython.NULL, 24 * max(most, 0))
            self._places = cython.cast(cython.p_longlong, PyBytes_AS_STRING(self._memory))
        else:
            self._places = [0] * (3 * most)
        if self.keep is None:
            with cython.nogil:
                self.why = self._find(most, room, started, False)
        else:
            self.why = self._find(most, room, started, True)

    @cython.cfunc
    @cython.exceptval(-1)
    def _belongs(self, at: cython.Py_ssize_t, size: cython.Py_ssize_t, place: cython.longlong) -> cython.bint:
        """Return True if a record names the LMQ queue and its queue offset in it."""
        if self._reader is None or self._reader.holds_unit(
            bytes(self._buf[at : at + size]), self.queue.topic, place
        ):
            return True
        self._reader.tell(self.queue, place, self.start + at)
        return False

    @cython.cfunc
    def _total(self) -> cython.longlong:
        """Return the bytes of the found records together."""
        k: cython.Py_ssize_t
        total: cython.longlong = 0
        for k in range(self.count):
            total += self._places[3 * k + 1]
        return total

    @cython.cfunc
    def _copied_after(self, head: cython.uchar[::1], n: cython.Py_ssize_t, total: cython.longlong) -> bytes:
        """Return ``head[:n]`` and the found records, which have ``total`` bytes, as one bytes object."""
        k: cython.Py_ssize_t
        if cython.compiled:
            data: bytes = PyBytes_FromStringAndSize(cython.NULL, n + cython.cast(cython.Py_ssize_t, total))
            to: cython.p_char = PyBytes_AS_STRING(data)
            memcpy(to, cython.address(head[0]), n)
            to += n
            for k in range(self.count):
                memcpy(to, cython.address(self._buf[self._places[3 * k]]), self._places[3 * k + 1])
                to += self._places[3 * k + 1]
            return data
        return bytes(head[:n]) + self.copied(0)[0]

    @cython.ccall
    def copied(self, before: cython.longlong) -> tuple:
        """Return the found records as one bytes object, and two native 64-bit numbers per record.

        The numbers are the end of the record, ``before`` bytes after its end in that object, and its queue offset.
        """
        k: cython.Py_ssize_t
        data: bytes
        # Use the sizes that were checked, because another process may have changed the file since.
        total: cython.Py_ssize_t = cython.cast(cython.Py_ssize_t, self._total())
        if cython.compiled:
            data = PyBytes_FromStringAndSize(cython.NULL, total)
            to: cython.p_char = PyBytes_AS_STRING(data)
            ends: bytes = PyBytes_FromStringAndSize(cython.NULL, 16 * self.count)
            numbers: cython.p_longlong = cython.cast(cython.p_longlong, PyBytes_AS_STRING(ends))
            total = 0
            for k in range(self.count):
                memcpy(to + total, cython.address(self._buf[self._places[3 * k]]), self._places[3 * k + 1])
                total += self._places[3 * k + 1]
                numbers[2 * k] = before + total
                numbers[2 * k + 1] = self._places[3 * k + 2]
            return data, ends
        records: list = []
        pairs = array.array("q")
        for k in range(self.count):
            at, size = self._places[3 * k], self._places[3 * k + 1]
            records.append(bytes(self._buf[at : at + size]))
            before += size
            pairs.append(before)
            pairs.append(self._places[3 * k + 2])
        return b"".join(records), pairs.tobytes()

    def pack(self, packer: Packer, most: cython.Py_ssize_t):
        """Do what ``find`` does, and add the records to ``packer`` instead; stop if it has no room."""
        self._packer = packer
        with cython.nogil:
            self.why = self._find(most, 1 << 62, False, False)
        self._packer = None

    def take_places(self, places: cython.longlong[:, ::1]):
        """Copy the places of the found records (PLACE_*) to the first rows of ``places``, which has enough of them."""
        k: cython.Py_ssize_t
        i: cython.Py_ssize_t
        if places.shape[0] < self.count or places.shape[1] != C.PLACE_COLUMNS:
            raise ValueError(f"{self.count} places into {places.shape[0]} of {places.shape[1]}")
        for k in range(self.count):
            for i in range(C.PLACE_COLUMNS):
                places[k, i] = self._places[3 * k + i]


@cython.cclass
class SeenPages:
    """``seen`` of ``UnitWindow.enter`` for each segment, for 100 ms.

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
class Sink:
    """Takes the messages of a read of a queue."""

    left: int = cython.declare(cython.Py_ssize_t, visibility="public")  # number of messages that it may still take
    count: int = cython.declare(cython.Py_ssize_t, visibility="readonly")  # number of messages that it has, if partial
    partial: bool = cython.declare(cython.bint, visibility="readonly")  # it may end at a record that is unreadable
    gives_way: bool = cython.declare(cython.bint, visibility="readonly")  # another read follows one that fails

    @cython.ccall
    def take(self, window: UnitWindow) -> cython.bint:
        """Take messages of the next units from the buffer, at least one if there is one. Return False if it is full."""
        raise NotImplementedError

    @cython.ccall
    def span(self, window: UnitWindow):
        """Return the number of bytes to read from the disk in one call, from the record of the next unit onwards."""
        raise NotImplementedError


@cython.cclass
class Answer(Sink):
    """Copies records to the answer of a read, up to ``left`` of them with ``room`` bytes together; one always fits.

    ``disk`` says how much to read from the disk, and loads ahead. With ``only_cached`` the answer ends instead before
    the first record that is not in the page cache.
    """

    is_cold = cython.declare(cython.bint, visibility="readonly")
    _parts: list
    _total: cython.longlong
    _room: cython.longlong
    _only_cached: cython.bint
    _disk: object
    _asked: object

    @cython.cfunc
    def _begin(self, most: cython.Py_ssize_t, room: cython.longlong, only_cached: cython.bint, disk):
        self.left, self._room, self._only_cached, self._disk = most, room, only_cached, disk
        self.count, self.is_cold, self.partial, self._asked = 0, False, True, None
        self._parts, self._total = [], 0

    @cython.ccall
    def take(self, window: UnitWindow) -> cython.bint:
        """Copy records from the buffer of a window. Return True if the answer may have more."""
        window.find(self.left, self._room - self._total, self._total > 0)
        return self._keep(window)

    @cython.cfunc
    def _keep(self, window: UnitWindow) -> cython.bint:
        """Copy the records that a window has found. Return True if the answer may have more."""
        part: tuple
        if window.count:
            part = window.copied(self._total)
            self._parts.append(part)
            self._total += len(part[0])
            self.count += window.count
            self.left -= window.count
        if window.why == C.UNITS_FULL:
            self.left = 0
        elif window.why == C.UNITS_COLD:
            if self._only_cached:
                self.left = 0
                self.is_cold = True
            elif self._asked != window.start:
                self._asked = window.start
                self._disk.load_ahead(window, self.left)
        return self.left > 0

    @cython.ccall
    def span(self, window: UnitWindow):
        """Return the number of bytes to read from the disk in one call."""
        return self._disk.span(window, self.left, self._room - self._total)

    @cython.cfunc
    def _whole(self) -> tuple:
        """Return the records, and two native 64-bit numbers per record: its end in them and its queue offset."""
        if len(self._parts) == 1:
            return self._parts[0]
        return b"".join([data for data, _ in self._parts]), b"".join([places for _, places in self._parts])


@cython.cclass
class AnswerFrame(Answer):
    """The frame of an answer to a pull: header and records, which are copied once, next to it.

    `UnitReader.fill` makes it. ``record_count`` is the number of its messages, ``size`` that of their bytes, and
    ``next_offset`` the place of the next pull. One thread uses an object for many answers.
    """

    record_count = cython.declare(cython.Py_ssize_t, visibility="readonly")
    size = cython.declare(cython.longlong, visibility="readonly")
    next_offset = cython.declare(cython.longlong, visibility="readonly")
    _head: cython.uchar[::1]
    _around: tuple
    _is_binary: cython.bint
    _opaque: cython.longlong
    _low: cython.longlong
    _high: cython.longlong
    _frame: bytes

    def __init__(self):
        self._head = bytearray(PULL_HEAD_SIZE)
        self._around, self._frame, self._parts, self.gives_way = (), None, [], True

    @cython.ccall
    def begin(self, around: tuple, is_binary: cython.bint, opaque: cython.longlong):
        """Set the parts of the next header, as ``shared.pull_head`` has them. Raises ValueError for others."""
        n: cython.Py_ssize_t = 0
        part: bytes
        for part in around:
            n += len(part)
        if len(around) != 5 or n > PULL_PARTS_MAX:
            raise ValueError(f"{len(around)} parts of {n} bytes")
        self._around, self._is_binary, self._opaque = around, is_binary, opaque

    @cython.ccall
    def take(self, window: UnitWindow) -> cython.bint:
        """Copy records from the buffer of a window. Return True if the answer may have more."""
        n: cython.Py_ssize_t
        window.find(self.left, self._room - self._total, self._total > 0)
        if self.count or not window.count or (
            window.why != C.UNITS_END and window.why != C.UNITS_FULL and window.why != C.UNITS_COLD
        ):
            return self._keep(window)
        self._total, self.count = window._total(), window.count  # there are no more, so one copy is enough
        n = self._begin_frame(window)
        if n:
            self._frame = window._copied_after(self._head, n, self._total)
        return False

    @cython.cfunc
    def _begin_frame(self, window: UnitWindow) -> cython.Py_ssize_t:
        """Write the header. Return its size, 0 if the frame is too long."""
        self.record_count, self.size, self.next_offset = self.count, self._total, window.offset + window.at
        if self._total > L.FRAME_MAX - PULL_HEAD_SIZE:
            return 0
        return put_pull_head(
            self._head, self._around, self._is_binary, self._opaque, self.next_offset, self._low, self._high,
            self._total)

    @cython.cfunc
    def _taken(self, window: UnitWindow):
        """Return the frame, None without a record in it, and forget it."""
        n: cython.Py_ssize_t
        frame: bytes = self._frame
        self._frame = None
        if frame is None and self._parts:
            n = self._begin_frame(window)
            if n:
                frame = bytes(self._head[:n]) + self._whole()[0]
        self._parts = []
        return frame


def outside(offset, low, high):
    """Return the result of a read at an offset outside [``low``, ``high``)."""
    if offset < low:
        return GetMessageResult(GetMessageStatus.OFFSET_TOO_SMALL, low, low, high)
    if offset == high:
        return GetMessageResult(GetMessageStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
    return GetMessageResult(GetMessageStatus.OFFSET_OVERFLOW_BADLY, high, low, high)


@cython.cclass
class UnitReader:
    """Reads the records that units name, from one segment after the other: the rules of every read of a queue.

    A unit is skipped whose record was deleted, is damaged, or could not be read by the disk several times. ``log`` is
    the CommitLog. ``disk`` is that of `Answer`. ``tell`` is called for each damaged record with its queue, its queue
    offset and its position.
    ``holds_unit`` returns true if a record belongs to a place in an LMQ queue.
    """

    holds_unit = cython.declare(object, visibility="readonly")
    tell = cython.declare(object, visibility="readonly")
    _disk: object
    _most: cython.Py_ssize_t
    _room: object
    _look: cython.Py_ssize_t
    _log: object
    _files: object
    _file: object  # the file that was read last
    _seen: SeenPages

    def __init__(self, log, seen: SeenPages, config, disk, tell, holds_unit):
        self._most = config.max_transfer_count_on_message_in_memory
        self._room = config.max_transfer_bytes_on_message_in_memory
        self._look = config.max_filter_message_size // L.UNIT_SIZE
        self._disk = disk
        self._log, self._files, self._file = log, log.queue, None
        self._seen, self.tell, self.holds_unit = seen, tell, holds_unit

    def get_message(
        self, queue, offset, max_msg_nums: cython.Py_ssize_t, max_bytes, codes, keep, only_cached: cython.bint
    ):
        """Return the result of ``MessageReader.get_message`` for a queue that has messages."""
        at: cython.longlong
        first: cython.longlong
        most: cython.Py_ssize_t
        count: cython.Py_ssize_t
        least: cython.Py_ssize_t
        low: cython.longlong = queue.min_offset
        high: cython.longlong = queue.max_offset
        units: bytes
        if not low <= offset < high:
            return outside(offset, low, high)
        at = offset
        most = max(min(max_msg_nums, self._most), 1)
        count, least = 2 * most, most
        if codes is not None:
            codes = array.array("q", codes) or None  # no codes select any code
            count = least = min(max(self._look, max_msg_nums), high)
        if keep is not None:
            count = least = max(1, min(max(self._look, max_msg_nums), _WORK // keep.cost))
        batches = None
        if queue.is_batch:
            batches = queue.window(offset, count, most, codes, only_cached=only_cached)
            first, units = (batches.begin, batches.units) if batches is not None else (at, None)
            at = first
        else:
            first, units = self._units(queue, at, high, count, least, only_cached)
        if not units:
            if units is None:
                return GetMessageResult(_NO_MATCHED_MESSAGE, at, low, high, is_cold=True)
            return GetMessageResult(_OFFSET_FOUND_NULL, queue.offset_after_file(at), low, high)
        at -= first
        window: UnitWindow = UnitWindow.__new__(UnitWindow)
        window._begin(queue, units, first, at, at + count, codes, keep, _LOOK_BYTES)
        answer: Answer = Answer.__new__(Answer)
        answer._begin(most, min(max_bytes, self._room), only_cached, self._disk)
        self.read(window, answer)
        data, places = answer._whole()
        result = GetMessageResult(
            _FOUND if answer.count else _MESSAGE_WAS_REMOVING if window.removed else _NO_MATCHED_MESSAGE,
            first + window.at, low, high, data, answer.count, places)
        if answer.is_cold:
            result.is_cold = answer.count == 0 and window.at == at
        if batches is not None:
            batches.take_whole(result)
        return result

    @cython.cfunc
    def _units(
        self, queue, at: cython.Py_ssize_t, high: cython.longlong, count: cython.Py_ssize_t, least: cython.Py_ssize_t,
        only_cached: cython.bint
    ) -> tuple:
        """Return the number of the first unit, and units that begin with it, from ``at`` or before on."""
        version, first, units = queue.ahead
        if (
            version != queue.version or first > at
            or len(units) < L.UNIT_SIZE * (at - first + min(least, high - at))
        ):
            return at, queue.units_ahead(at, count, only_cached=only_cached)
        return first, units

    def fill(
        self, queue, offset: cython.longlong, max_msg_nums: cython.Py_ssize_t, max_bytes, codes, answer: AnswerFrame
    ):
        """Return the frame ``answer`` with what `get_message` of these values returns with ``only_cached``.

        ``codes`` is an array of q, or None. Return None if that has no message, or the queue has other units; then
        nothing is counted. Raises OSError for an error of the disk, which is not counted as one of a record.
        """
        first: cython.longlong
        at: cython.Py_ssize_t
        most: cython.Py_ssize_t = max(min(max_msg_nums, self._most), 1)
        count: cython.Py_ssize_t = 2 * most
        least: cython.Py_ssize_t = most
        low: cython.longlong = queue.min_offset
        high: cython.longlong = queue.max_offset
        units: bytes
        if queue.is_batch or not low <= offset < high:
            return None
        if codes is not None:
            count = least = min(max(self._look, max_msg_nums), high)
        first, units = self._units(queue, offset, high, count, least, True)
        if not units:
            return None
        at = offset - first
        window: UnitWindow = UnitWindow.__new__(UnitWindow)
        window._begin(queue, units, first, at, at + count, codes, None, _LOOK_BYTES)
        answer._begin(most, min(max_bytes, self._room), True, self._disk)
        answer._low, answer._high = low, high
        self.read(window, answer)
        return answer._taken(window)

    @cython.cfunc
    def _enter(
        self, window: UnitWindow, phy_offset: cython.longlong, size: cython.longlong, sink: Sink, mapped: cython.bint
    ):
        """Give the window a buffer with the record at a position. Return the file to release, or None."""
        at: cython.longlong
        wrote: cython.longlong
        file = self._file
        if mapped and file is not None:
            at, wrote = file.file_from_offset, file.wrote_position
            if at <= phy_offset < at + wrote:
                view = file.hold_view()
                if view is not None:
                    window.enter(view, at, wrote, self._seen.of(at))
                    return file
                self._file = None  # it is closed, and another one may have its place
        span = max(sink.span(window), size)
        try:
            file, view, start, until = self._files.hold_around(phy_offset, span, mapped=mapped)
        except OSError:
            if span <= size:
                raise
            # A record that cannot be read does not keep the records before it from being read.
            file, view, start, until = self._files.hold_around(phy_offset, size, mapped=mapped)
        if file is not None:
            self._file = file
        window.enter(view, start, until, _NOT_MAPPED if file is None else self._seen.of(start))
        return file

    @cython.ccall
    def read(self, window: UnitWindow, sink: Sink):
        """Let ``sink`` take the messages of the window's units until it has enough, and move ``window.at``."""
        first: cython.Py_ssize_t
        size: cython.longlong
        phy_offset: cython.longlong
        there: cython.Py_ssize_t
        more: cython.bint
        mapped: cython.bint = True
        window._reader = self
        while window.at < window.end:
            first = window.at
            size = be32(window._units, L.UNIT_SIZE * first + L.UNIT_AT_SIZE)
            if size == PRE_BLANK:
                window.at += 1
                continue
            phy_offset = be64(window._units, L.UNIT_SIZE * first)
            try:
                file = self._enter(window, phy_offset, size, sink, mapped)
            except OSError as error:
                if sink.partial and sink.count:
                    break  # the next read starts with the record that cannot be read
                if sink.gives_way or not self._log.unreadable.gives_up(phy_offset, error):
                    raise
                self.tell(window.queue, window.offset + first, phy_offset)
                window.removed = True
                window.at += 1
                if sink.partial:
                    break
                continue
            there = window._until
            try:
                more = sink.take(window)
            finally:
                window.leave()
                if file is not None:
                    file.release()
            if not more:
                break
            mapped = window.why != C.UNITS_COLD  # a record outside the page cache is read by a system call
            if window.why == C.UNITS_DAMAGED or (window.at == first and (
                window.why == C.UNITS_CUT_OFF or (window.why == C.UNITS_ELSEWHERE and not there)
            )):
                phy_offset = be64(window._units, L.UNIT_SIZE * window.at)
                if window.why == C.UNITS_DAMAGED or not 0 <= phy_offset < self._log.min_offset:
                    # If it was not deleted, the unit names no record.
                    self.tell(window.queue, window.offset + window.at, phy_offset)
                window.removed = window.removed or window.why != C.UNITS_DAMAGED
                window.at += 1
