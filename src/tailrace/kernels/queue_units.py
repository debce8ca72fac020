# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Sort record rows by queue, and make the ConsumeQueue units of the records."""

from typing import Any

import cython

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize

from tailrace.kernels.shared import constants as C
from tailrace.kernels.shared import layouts as L
from tailrace.kernels.shared.big_endian import be32, be64, put32, put64
from tailrace.kernels.shared.copying import copy_bytes
from tailrace.kernels.shared.fnv import queue_hash_of
from tailrace.kernels.shared.key_hashes import hash_keys
from tailrace.kernels.shared.names import known_name, known_start
from tailrace.kernels.shared.record_scan import scan

SOURCE_SHA256 = ""

_LAST_OFFSET = cython.declare(cython.longlong, 0x7FFFFFFFFFFFFFFF)
_FARTHEST = cython.declare(cython.longlong, 0x4000000000000000)  # no position is greater
_MASK_64 = cython.declare(cython.ulonglong, 0xFFFFFFFFFFFFFFFF)
_MIX_1 = cython.declare(cython.ulonglong, 0xBF58476D1CE4E5B9)
_MIX_2 = cython.declare(cython.ulonglong, 0x94D049BB133111EB)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _mix(x: cython.ulonglong) -> cython.ulonglong:
    """A mixing function (splitmix64's finisher)."""
    x = ((x ^ (x >> 30)) * _MIX_1) & _MASK_64
    x = ((x ^ (x >> 27)) * _MIX_2) & _MASK_64
    return x ^ (x >> 31)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _sum(a: cython.ulonglong, b: cython.ulonglong, c: cython.ulonglong) -> cython.ulonglong:
    """a + b + c + 1 modulo 2**64."""
    if cython.compiled:
        return a + b + c + 1
    return (int(a) + b + c + 1) & _MASK_64  # NumPy warns if its own integers overflow


def mix(value: cython.ulonglong):
    """Return the mixing function whose differences ``add_cover`` sums."""
    return _mix(value)


def add_cover(
    units: cython.const[cython.uchar][::1],
    last: cython.longlong,
    starts: cython.longlong[::1],
    sums: cython.ulonglong[::1],
    highs: cython.longlong[::1],
):
    """Add units to the sums of the segments that they name, up to the first invalid unit (``store.recovery.coverage``).

    A valid unit has a size above 0 and a position after ``last``, the position of the unit before it.
    ``starts`` are the first positions of the segments, in order. For each unit ``mix(end) - mix(position)``,
    modulo 2**64, is added to ``sums`` of its segment, and ``highs`` becomes the greatest end. Pre-blank units
    are skipped. Return (number of units before the invalid one, position of the last of them).
    """
    i: cython.Py_ssize_t = 0
    p: cython.Py_ssize_t
    count: cython.Py_ssize_t = len(units) // L.UNIT_SIZE
    low: cython.Py_ssize_t
    high: cython.Py_ssize_t
    middle: cython.Py_ssize_t
    files: cython.Py_ssize_t = starts.shape[0]
    place: cython.Py_ssize_t = -1
    phy: cython.longlong
    size: cython.longlong
    if sums.shape[0] < files or highs.shape[0] < files:
        raise ValueError(f"{files} segments in {sums.shape[0]} and {highs.shape[0]}")
    with cython.nogil:
        while i < count:
            p = i * L.UNIT_SIZE
            size = be32(units, p + L.UNIT_AT_SIZE)
            if size != L.PRE_BLANK_SIZE:
                phy = be64(units, p)
                if size <= 0 or phy <= last or phy < 0 or phy > _FARTHEST:
                    break
                last = phy
                if place < 0 or (place + 1 < files and phy >= starts[place + 1]):
                    low, high = 0, files
                    while low < high:
                        middle = (low + high) // 2
                        if starts[middle] <= phy:
                            low = middle + 1
                        else:
                            high = middle
                    place = low - 1
                if place >= 0:
                    sums[place] = _sum(
                        sums[place], _mix(cython.cast(cython.ulonglong, phy + size)),
                        _MASK_64 - _mix(cython.cast(cython.ulonglong, phy)))
                    if phy + size > highs[place]:
                        highs[place] = phy + size
            i += 1
    return i, last


@cython.cfunc
def _run_of(
    rows: cython.longlong[:, ::1], order: cython.longlong[::1], queue: cython.Py_ssize_t, first: cython.Py_ssize_t,
    until: cython.Py_ssize_t, following: cython.longlong, with_codes: cython.bint,
) -> tuple:
    """Return the run of the rows ``order[first:until]``, as `build_units` describes it."""
    i: cython.Py_ssize_t
    size: cython.longlong = 0
    last: cython.Py_ssize_t = order[until - 1]
    codes: list = []
    for i in range(first, until):
        size += rows[order[i], C.SIZE] if cython.compiled else int(rows[order[i], C.SIZE])
        if with_codes:
            codes.append(rows[order[i], C.TAGS_CODE] if cython.compiled else int(rows[order[i], C.TAGS_CODE]))
    made = (
        queue, first, until, rows[order[first], C.QUEUE_OFFSET], rows[last, C.QUEUE_OFFSET], following,
        rows[last, C.PHY], rows[last, C.STORE_TIMESTAMP], size, codes)
    return made if cython.compiled else (*map(int, made[:-1]), codes)


@cython.ccall
def build_units(
    rows: cython.longlong[:, ::1],
    order: cython.longlong[::1],
    bounds: cython.const[cython.longlong][::1],
    out: cython.uchar[::1],
    with_codes: cython.bint = False,
):
    """Pack the units of rows ``order`` into ``out``, and return the runs in them.

    ``order[bounds[q]:bounds[q + 1]]`` are the rows of queue ``q``. Rows of a queue whose queue offsets follow each
    other are one run, and a sound log has one run for each queue. A run is (queue, index of its first row in
    ``order``, index after its last row, queue offset of its first row, of its last row, and of the first row of the
    queue's next run or -1, position and store time of its last row, length of its records together, tags codes of its
    rows). Without ``with_codes`` the list of codes is empty.
    """
    i: cython.Py_ssize_t = 0
    q: cython.Py_ssize_t
    r: cython.Py_ssize_t
    p: cython.Py_ssize_t = 0
    first: cython.Py_ssize_t
    count: cython.Py_ssize_t = rows.shape[0]
    queues: cython.Py_ssize_t = bounds.shape[0] - 1
    last: cython.longlong = 0
    runs: list = []
    if queues < 0 or bounds[0] != 0 or bounds[queues] != order.shape[0] or len(out) < L.UNIT_SIZE * order.shape[0]:
        raise ValueError(f"rows of {queues} queues into {len(out)} bytes")
    if rows.shape[0] and rows.shape[1] <= C.TAGS_CODE:
        raise ValueError(f"{rows.shape[1]} columns")
    for q in range(queues):
        if not i <= bounds[q + 1] <= order.shape[0]:
            raise ValueError("bounds are not in order")
        first = i
        while i < bounds[q + 1]:
            r = order[i]
            if r < 0 or r >= count:
                raise ValueError("order names a row that does not exist")
            if i > first and (last == _LAST_OFFSET or rows[r, C.QUEUE_OFFSET] != last + 1):
                runs.append(_run_of(rows, order, q, first, i, rows[r, C.QUEUE_OFFSET], with_codes))
                first = i
            last = rows[r, C.QUEUE_OFFSET] if cython.compiled else int(rows[r, C.QUEUE_OFFSET])
            put64(out, p, rows[r, C.PHY])
            put32(out, p + L.UNIT_AT_SIZE, rows[r, C.SIZE])
            put64(out, p + L.UNIT_AT_TAGS_CODE, rows[r, C.TAGS_CODE])
            p += 20
            i += 1
        if i > first:
            runs.append(_run_of(rows, order, q, first, i, -1, with_codes))
    return runs


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _is_of_queue(
    b: cython.const[cython.uchar][::1],
    rows: cython.longlong[:, ::1],
    r: cython.Py_ssize_t,
    known: cython.longlong[:, ::1],
    names: cython.const[cython.uchar][::1],
    number: cython.Py_ssize_t,
) -> cython.bint:
    k: cython.Py_ssize_t
    p: cython.Py_ssize_t = rows[r, C.TOPIC_POS]
    q: cython.Py_ssize_t = known[number, 2]
    if (
        rows[r, C.QUEUE_HASH] != known[number, 0]
        or rows[r, C.QUEUE_ID] != known[number, 1]
        or rows[r, C.TOPIC_LEN] != known[number, 3]
    ):
        return False
    for k in range(known[number, 3]):
        if b[p + k] != names[q + k]:
            return False
    return True


@cython.ccall
def number_queues(
    buf: cython.const[cython.uchar][::1],
    rows: cython.longlong[:, ::1],
    first: cython.Py_ssize_t,
    numbers: cython.longlong[::1],
    queues: cython.Py_ssize_t,
    known: cython.longlong[:, ::1],
    names: cython.uchar[::1],
    table: cython.longlong[::1],
):
    """Number the queues of ``rows[first:]`` in the order in which they first appear. ``queues`` are known already.

    ``numbers[row]`` is set to the number of the row's queue, counted from 0, or -1 for a record without a unit
    (half messages and rolled back ones). A row of ``known`` has hash, queue id, and position and length of the
    topic in ``names``. ``table`` is a hash table with a power of two of places: 0, or the number of a queue
    plus 1, at the place of its hash or after it.
    Return (row, queues): the first row whose queue does not fit (the number of rows if all fit), and the
    number of known queues.
    """
    r: cython.Py_ssize_t = first
    count: cython.Py_ssize_t = rows.shape[0]
    mask: cython.Py_ssize_t = table.shape[0] - 1
    at: cython.Py_ssize_t
    size: cython.Py_ssize_t = len(buf)
    used: cython.Py_ssize_t = 0
    room: cython.Py_ssize_t = min(known.shape[0], table.shape[0] // 2)
    bad: cython.bint = False
    if mask < 0 or table.shape[0] & mask:
        raise ValueError(f"a table of {table.shape[0]}")
    if first < 0 or numbers.shape[0] < count or (count and rows.shape[1] < C.COLUMNS):
        raise ValueError(f"{count} rows of {rows.shape[1]} columns into {numbers.shape[0]}")
    if not 0 <= queues <= room or known.shape[1] < 4:
        raise ValueError(f"{queues} queues of {room}")
    if queues > 0:
        used = known[queues - 1, 2] + known[queues - 1, 3]
    with cython.nogil:
        while r < count:
            if rows[r, C.SYS_FLAG] & L.TRANSACTION_MASK not in (0, L.TRANSACTION_COMMIT):
                numbers[r] = -1
                r += 1
                continue
            if (
                rows[r, C.TOPIC_POS] < 0 or rows[r, C.TOPIC_LEN] < 0
                or rows[r, C.TOPIC_POS] + rows[r, C.TOPIC_LEN] > size
            ):
                bad = True
                break
            at = rows[r, C.QUEUE_HASH] & mask
            while table[at] > 0 and not _is_of_queue(buf, rows, r, known, names, table[at] - 1):
                at = (at + 1) & mask
            if table[at] == 0:
                if queues == room or rows[r, C.TOPIC_LEN] > len(names) - used:
                    break
                known[queues, 0] = rows[r, C.QUEUE_HASH]
                known[queues, 1] = rows[r, C.QUEUE_ID]
                known[queues, 2] = used
                known[queues, 3] = rows[r, C.TOPIC_LEN]
                used = copy_bytes(names, used, buf, rows[r, C.TOPIC_POS], rows[r, C.TOPIC_LEN])
                queues += 1
                table[at] = queues
            numbers[r] = table[at] - 1
            r += 1
    if bad:
        raise ValueError("a row has its topic outside of the bytes")
    return r, queues


def copy_columns(rows: cython.longlong[:, ::1], kept: cython.longlong[:, ::1]):
    """Copy the first columns of rows, as many as ``kept`` has."""
    r: cython.Py_ssize_t
    k: cython.Py_ssize_t
    columns: cython.Py_ssize_t = kept.shape[1]
    if kept.shape[0] < rows.shape[0] or rows.shape[1] < columns:
        raise ValueError(f"{rows.shape[0]} rows of {rows.shape[1]} columns into {kept.shape[0]} of {columns}")
    with cython.nogil:
        for r in range(rows.shape[0]):
            for k in range(columns):
                kept[r, k] = rows[r, k]


@cython.ccall
def sort_by_queue(
    numbers: cython.longlong[::1],
    queues: cython.Py_ssize_t,
    order: cython.longlong[::1],
    bounds: cython.longlong[::1],
):
    """Sort rows by the number of their queue, stably, into ``order``. Return the number of rows with a queue.

    The rows of queue ``q`` are ``order[bounds[q]:bounds[q + 1]]``.
    """
    r: cython.Py_ssize_t
    q: cython.longlong
    count: cython.Py_ssize_t = numbers.shape[0]
    total: cython.longlong = 0
    many: cython.longlong
    if queues < 0 or bounds.shape[0] < queues + 1 or order.shape[0] < count:
        raise ValueError(f"{count} rows and {queues} queues into {order.shape[0]} and {bounds.shape[0]}")
    for r in range(count):
        if numbers[r] >= queues:
            raise ValueError(f"queue {numbers[r]} of {queues}")
    with cython.nogil:
        for r in range(queues + 1):
            bounds[r] = 0
        for r in range(count):
            if numbers[r] >= 0:
                bounds[numbers[r]] += 1
        for r in range(queues + 1):
            many = bounds[r]
            bounds[r] = total
            total += many
        for r in range(count):
            q = numbers[r]
            if q >= 0:
                order[bounds[q]] = r
                bounds[q] += 1
        for r in range(queues, 0, -1):
            bounds[r] = bounds[r - 1]
        bounds[0] = 0
    return total


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _without_last_commas(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, e: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Return the end of a list without empty entries at its end, which Java's ``split`` drops."""
    while e > p and b[e - 1] == 44:
        e -= 1
    return e


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _commas(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, e: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Return the number of commas in ``b[p:e]``."""
    n: cython.Py_ssize_t = 0
    while p < e:
        if b[p] == 44:
            n += 1
        p += 1
    return n


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _number(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, e: cython.Py_ssize_t
) -> cython.longlong:
    """Return the decimal number ``b[p:e]``, -1 if it is not a number or above 2**62."""
    n: cython.longlong = 0
    if p >= e:
        return -1
    while p < e:
        if not 48 <= b[p] <= 57 or n > _FARTHEST // 10 - 1:
            return -1
        n = n * 10 + (b[p] - 48)
        p += 1
    return n


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _has_lmq_units(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, e: cython.Py_ssize_t
) -> cython.bint:
    """Return True if records of the topic ``b[p:e]`` have units in the LMQ queues that they name.

    Topics that start with %RETRY%, %DLQ% or rmq_sys_ and SCHEDULE_TOPIC_XXXX do not.
    """
    start: cython.int = known_start(b, p, e - p)
    return (
        start != L.START_RETRY_GROUP_TOPIC and start != L.START_DLQ_GROUP_TOPIC and start != L.START_SYSTEM_TOPIC
        and known_name(b, p, e - p) != L.NAME_SCHEDULE_TOPIC)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _is_lmq_name(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, e: cython.Py_ssize_t
) -> cython.bint:
    """Return True if ``b[p:e]`` starts with %LMQ% and has no slash."""
    if known_start(b, p, e - p) != L.START_LMQ:
        return False
    while p < e:
        if b[p] == 47:
            return False
        p += 1
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _add_lmq_rows(
    b: cython.const[cython.uchar][::1],
    rows: cython.longlong[:, ::1],
    r: cython.Py_ssize_t,
    out: cython.longlong[:, ::1],
    n: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Add the LMQ rows of row ``r`` to ``out[n:]``. Return the index after them, -1 if ``out`` is full."""
    p: cython.Py_ssize_t = rows[r, C.LMQ_POS]
    e: cython.Py_ssize_t = _without_last_commas(b, p, p + rows[r, C.LMQ_LEN])
    q: cython.Py_ssize_t = rows[r, C.LMQ_OFFSETS_POS]
    f: cython.Py_ssize_t = _without_last_commas(b, q, q + rows[r, C.LMQ_OFFSETS_LEN])
    name: cython.Py_ssize_t
    digits: cython.Py_ssize_t
    k: cython.Py_ssize_t
    offset: cython.longlong
    if p == e or q == f or _commas(b, p, e) != _commas(b, q, f):
        return n
    while p < e:
        name, digits = p, q
        while p < e and b[p] != 44:
            p += 1
        while q < f and b[q] != 44:
            q += 1
        offset = _number(b, digits, q)
        if offset >= 0 and _is_lmq_name(b, name, p):
            if n == out.shape[0]:
                return -1
            for k in range(C.COLUMNS):
                out[n, k] = rows[r, k]
            out[n, C.QUEUE_ID] = 0
            out[n, C.QUEUE_OFFSET] = offset
            out[n, C.TOPIC_POS] = name
            out[n, C.TOPIC_LEN] = p - name
            out[n, C.QUEUE_HASH] = queue_hash_of(b, name, p, 0)
            out[n, C.KEYS_POS] = out[n, C.UNIQ_POS] = out[n, C.TAGS_POS] = -1
            out[n, C.KEYS_LEN] = out[n, C.UNIQ_LEN] = out[n, C.TAGS_LEN] = 0
            out[n, C.LMQ_POS] = out[n, C.LMQ_OFFSETS_POS] = -1
            out[n, C.LMQ_LEN] = out[n, C.LMQ_OFFSETS_LEN] = 0
            n += 1
        p += 1
        q += 1
    return n


def add_lmq_rows(
    buf: cython.const[cython.uchar][::1],
    rows: cython.longlong[:, ::1],
    out: cython.longlong[:, ::1],
):
    """Copy rows to ``out``; add, after each, one row for each LMQ queue in which its record has a unit.

    Such a row has the position, size and tags code of its record, and the topic, queue id 0 and queue
    offset of the LMQ queue; it has no keys. INNER_MULTI_DISPATCH has the names of the queues and
    INNER_MULTI_QUEUE_OFFSET their queue offsets, both separated by commas. Lists of different lengths are
    ignored. Names without %LMQ% or with a slash, and offsets that are not a number, are skipped.
    Return the number of rows in ``out``.
    """
    r: cython.Py_ssize_t
    k: cython.Py_ssize_t
    n: cython.Py_ssize_t = 0
    count: cython.Py_ssize_t = rows.shape[0]
    limit: cython.Py_ssize_t = len(buf)
    bad: cython.bint = False
    if count and (rows.shape[1] < C.COLUMNS or out.shape[1] < C.COLUMNS):
        raise ValueError(f"{rows.shape[1]} and {out.shape[1]} columns")
    with cython.nogil:
        for r in range(count):
            if n == out.shape[0]:
                bad = True
                break
            for k in range(C.COLUMNS):
                out[n, k] = rows[r, k]
            n += 1
            if rows[r, C.LMQ_LEN] <= 0 or rows[r, C.LMQ_OFFSETS_LEN] <= 0:
                continue
            if (
                rows[r, C.LMQ_POS] < 0 or rows[r, C.LMQ_OFFSETS_POS] < 0
                or rows[r, C.TOPIC_POS] < 0 or rows[r, C.TOPIC_LEN] < 0
                or rows[r, C.LMQ_POS] > limit - rows[r, C.LMQ_LEN]
                or rows[r, C.LMQ_OFFSETS_POS] > limit - rows[r, C.LMQ_OFFSETS_LEN]
                or rows[r, C.TOPIC_POS] > limit - rows[r, C.TOPIC_LEN]
            ):
                bad = True
                break
            if _has_lmq_units(
                buf, rows[r, C.TOPIC_POS], rows[r, C.TOPIC_POS] + rows[r, C.TOPIC_LEN]
            ):
                n = _add_lmq_rows(buf, rows, r, out, n)
                if n < 0:
                    bad = True
                    break
    if bad:
        raise ValueError(f"{count} rows into {out.shape[0]}, or a part outside of the bytes")
    return n


@cython.cfunc
@cython.inline
def _plain_int(number: cython.longlong) -> int:
    """Return a number of an array as Python's own; interpreted arrays have numbers of NumPy."""
    return number if cython.compiled else int(number)


@cython.cclass
class ShortStep:
    """The records of a short step of dispatch: rows, keys and units, in memory that all steps use.

    `read` and `runs` do in two calls what a batch of rows does in a dozen, and leave the same numbers. ``rows``,
    ``ends`` and ``hashes`` are arrays for rows, for the number after the last key of each row and for the hashes of
    keys, ``order`` has the rows of the runs, ``bounds`` those of the queues in it, and ``units`` has the units.
    ``count`` rows are in use.
    """

    rows: Any = cython.declare(object, visibility="readonly")
    ends: Any = cython.declare(object, visibility="readonly")
    hashes: Any = cython.declare(object, visibility="readonly")
    order: Any = cython.declare(object, visibility="readonly")
    bounds: Any = cython.declare(object, visibility="readonly")
    units: bytearray = cython.declare(bytearray, visibility="readonly")
    count: int = cython.declare(cython.Py_ssize_t, visibility="readonly")
    _with_keys: cython.bint
    _check: cython.int
    _queues: cython.Py_ssize_t
    _rows: cython.longlong[:, ::1]
    _ends: cython.longlong[::1]
    _hashes: cython.int[::1]
    _order: cython.longlong[::1]
    _units: cython.uchar[::1]
    _numbers: cython.longlong[::1]
    _bounds: cython.longlong[::1]
    _known: cython.longlong[:, ::1]
    _table: cython.longlong[::1]
    _names: cython.uchar[::1]

    def __init__(
        self, rows: Any, ends: Any, hashes: Any, order: Any, numbers: Any, bounds: Any, known: Any, table: Any,
        with_keys: cython.bint, check: cython.int,
    ) -> None:
        """``numbers``, ``known`` and ``table`` are those of `number_queues`; ``check`` are flags C.CHECK_*."""
        self.rows, self.ends, self.hashes, self.order, self.bounds = rows, ends, hashes, order, bounds
        self.units = bytearray(L.UNIT_SIZE * len(rows))
        self._rows, self._ends, self._hashes, self._order, self._units = rows, ends, hashes, order, self.units
        self._numbers, self._bounds, self._known, self._table = numbers, bounds, known, table
        self._names = bytearray(64 * len(known))
        self._with_keys, self._check = with_keys, check
        self.count = self._queues = 0

    def read(
        self, buf: cython.const[cython.uchar][::1], until: cython.Py_ssize_t, base: cython.longlong,
    ) -> bool:
        """Read the records in ``buf[:until]``, which is at position ``base`` of the log.

        Return False, with ``count`` 0, unless they are whole records without damage that need no closer look and for
        which there is room.
        """
        n: cython.Py_ssize_t
        stop: cython.Py_ssize_t
        done: cython.Py_ssize_t
        reason: cython.int
        k: cython.Py_ssize_t
        self.count = self._queues = 0
        n, stop, reason = scan(buf, 0, until, base, self._check, self._rows)
        if not n or reason != C.REASON_END or stop != until:
            return False
        for k in range(n):
            if self._rows[k, C.KIND]:
                return False
        for k in range(self._table.shape[0]):
            self._table[k] = 0
        done, self._queues = number_queues(
            buf, self._rows[:n], 0, self._numbers, 0, self._known, self._names, self._table)
        if done < n or self._queues >= self._bounds.shape[0]:
            return False
        if self._with_keys:
            done, k = hash_keys(buf, self._rows[:n], 0, self._hashes, 0, self._ends)
            if done < n:
                return False
        self.count = n
        return True

    def runs(self, with_codes: cython.bint) -> tuple[list[tuple[bytes, int]], list[Any]]:
        """Return topic and id of each queue, and the runs as `build_units` returns them."""
        q: cython.Py_ssize_t
        at: cython.Py_ssize_t
        total: cython.Py_ssize_t = sort_by_queue(
            self._numbers[: self.count], self._queues, self._order, self._bounds)
        queues: list = []
        for q in range(self._queues):
            at = self._known[q, 2]
            if cython.compiled:
                name: bytes = PyBytes_FromStringAndSize(
                    cython.cast(cython.p_char, cython.address(self._names[at])), self._known[q, 3])
            else:
                name = bytes(self._names[at : at + self._known[q, 3]])
            queues.append((name, _plain_int(self._known[q, 1])))
        return queues, build_units(
            self._rows[: self.count], self._order[:total], self._bounds[: self._queues + 1], self._units, with_codes)

    def positions(self, most: cython.Py_ssize_t) -> list[int]:
        """Return the positions of the last ``most`` records."""
        n: cython.Py_ssize_t
        found: list = []
        for n in range(max(self.count - most, 0), self.count):
            found.append(_plain_int(self._rows[n, C.PHY]))
        return found

    def last(self) -> tuple[int, int, int]:
        """Return position, size and store time of the last record."""
        n: cython.Py_ssize_t = self.count - 1
        if n < 0:
            raise ValueError("there is no record")
        return tuple([_plain_int(self._rows[n, k]) for k in (C.PHY, C.SIZE, C.STORE_TIMESTAMP)])
