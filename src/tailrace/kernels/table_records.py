# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Make records, or the body of a batch request, of the rows of a table: first the stored properties of all rows.

Texts are three arrays: the start and the length of each text (int64), and the bytes of all texts. A list
is the index of its first text and the number of its texts. Every place is checked against the length of
its array before it is read.
"""

import cython

from tailrace.kernels.shared import constants as C
from tailrace.kernels.shared import layouts as L
from tailrace.kernels.shared.big_endian import put32
from tailrace.kernels.shared.copying import copy_bytes, copy_object, pointer_to
from tailrace.kernels.shared.crc32 import crc32, crc_at, use_crc32
from tailrace.kernels.shared.names import mark_of
from tailrace.kernels.shared.record_encoding import CRC_31_BITS, RecordFields, put_record

SOURCE_SHA256 = ""

_NO_TIME = cython.declare(cython.longlong, -0x8000000000000000)
# Reasons why a row is refused; 0: it is not refused.

NO_TIME = _NO_TIME


@cython.cclass
class Texts:
    """Texts of a column. Raises ValueError if a text is not inside ``data``."""

    starts = cython.declare(object, visibility="readonly")
    lengths = cython.declare(object, visibility="readonly")
    data = cython.declare(object, visibility="readonly")
    count = cython.declare(cython.Py_ssize_t, visibility="readonly")
    size = cython.declare(cython.longlong, visibility="readonly")
    _starts: cython.const[cython.longlong][::1]
    _lengths: cython.const[cython.longlong][::1]
    _data: cython.const[cython.uchar][::1]

    def __init__(self, starts, lengths, data):
        n: cython.Py_ssize_t
        limit: cython.longlong
        self._starts, self._lengths, self._data = starts, lengths, data
        self.starts, self.lengths, self.data = starts, lengths, data
        self.count, self.size = self._starts.shape[0], 0
        limit = len(self._data)
        if self._lengths.shape[0] != self.count:
            raise ValueError(f"{self.count} starts, {self._lengths.shape[0]} lengths")
        for n in range(self.count):
            if not 0 <= self._starts[n] <= limit or not 0 <= self._lengths[n] <= limit - self._starts[n]:
                raise ValueError(f"text {n} is outside its {limit} bytes")
            self.size += self._lengths[n]

    def some(self, rows):
        """Return the texts of the rows with the indexes in the array ``rows``."""
        return Texts(self.starts[rows], self.lengths[rows], self.data)

    def text(self, row: cython.Py_ssize_t):
        """Return the bytes of one text."""
        if not 0 <= row < self.count:
            raise IndexError(row)
        start: cython.Py_ssize_t = self._starts[row]
        return bytes(memoryview(self.data).cast("B")[start : start + self._lengths[row]])


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _has(texts: Texts, n: cython.Py_ssize_t, low: cython.int, blank: cython.bint) -> cython.bint:
    """Return True if a text has a byte 1 or ``low``, or with ``blank`` a blank."""
    k: cython.Py_ssize_t
    start: cython.Py_ssize_t = texts._starts[n]
    byte: cython.uchar
    for k in range(texts._lengths[n]):
        byte = texts._data[start + k]
        if byte == 1 or byte == low or (blank and byte == 32):
            return True
    return False


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _mark_of(texts: Texts, n: cython.Py_ssize_t) -> cython.int:
    """Return the mark of a name, which is not empty."""
    return mark_of(pointer_to(texts._data, texts._starts[n]), 0, texts._lengths[n])


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _is(texts: Texts, n: cython.Py_ssize_t, name: bytes) -> cython.bint:
    k: cython.Py_ssize_t
    start: cython.Py_ssize_t = texts._starts[n]
    if texts._lengths[n] != len(name):
        return False
    for k in range(len(name)):
        if texts._data[start + k] != name[k]:
            return False
    return True


@cython.cfunc
@cython.exceptval(check=False)
def _same(texts: Texts, a: cython.Py_ssize_t, b: cython.Py_ssize_t) -> cython.bint:
    k: cython.Py_ssize_t
    if texts._lengths[a] != texts._lengths[b]:
        return False
    for k in range(texts._lengths[a]):
        if texts._data[texts._starts[a] + k] != texts._data[texts._starts[b] + k]:
            return False
    return True


@cython.cfunc
@cython.exceptval(check=False)
def _put_text(
    out: cython.uchar[::1], q: cython.Py_ssize_t, texts: Texts, n: cython.Py_ssize_t, end: cython.uchar
) -> cython.Py_ssize_t:
    q = copy_bytes(out, q, texts._data, texts._starts[n], texts._lengths[n])
    out[q] = end
    return q + 1


@cython.cfunc
@cython.exceptval(check=False)
def _put_number(
    out: cython.uchar[::1], q: cython.Py_ssize_t, value: cython.longlong
) -> cython.Py_ssize_t:
    """Write a decimal number and a separator; return the place after it."""
    digits: cython.Py_ssize_t = 1
    k: cython.Py_ssize_t
    rest: cython.longlong = value
    if value < 0:
        return copy_object(out, q, b"%d\x02" % value)
    while rest >= 10:
        rest = rest // 10
        digits += 1
    for k in range(digits):
        out[q + digits - 1 - k] = 48 + value % 10
        value = value // 10
    out[q + digits] = 2
    return q + digits + 1


@cython.cfunc
@cython.exceptval(check=False)
def _put_unique_key(
    out: cython.uchar[::1], q: cython.Py_ssize_t, prefix: bytes, number: cython.longlong
) -> cython.Py_ssize_t:
    k: cython.Py_ssize_t
    digit: cython.longlong
    q = copy_object(out, copy_object(out, q, b"UNIQ_KEY\x01"), prefix)
    for k in range(12):
        digit = (number >> (4 * (11 - k))) & 15
        out[q + k] = (48 if digit < 10 else 55) + digit
    out[q + 12] = 2
    return q + 13


@cython.cclass
class PropertyColumns:
    """Columns that the stored properties of the rows are made of; None for a missing column.

    ``keys``, ``names`` and ``values`` have the texts of all rows: the keys of row n start at index
    ``key_starts[n]`` and are ``key_counts[n]``; its properties start at ``property_starts[n]`` and are
    ``property_counts[n]``.
    ``deliver_at`` is NO_TIME for a row without a delivery time.
    """

    tags: Texts
    keys: Texts
    names: Texts
    values: Texts
    key_starts: cython.const[cython.longlong][::1]
    key_counts: cython.const[cython.longlong][::1]
    property_starts: cython.const[cython.longlong][::1]
    property_counts: cython.const[cython.longlong][::1]
    deliver_at: cython.const[cython.longlong][::1]
    _has_properties: cython.bint
    _has_times: cython.bint

    def __init__(self, count: cython.Py_ssize_t, tags, keys, properties, deliver_at):
        """``keys``: (starts, counts, Texts); ``properties``: (starts, counts, Texts, Texts)."""
        self.tags, self.keys, self.names, self.values = tags, None, None, None
        self._has_properties = self._has_times = False
        if tags is not None and self.tags.count != count:
            raise ValueError(f"{self.tags.count} tags for {count} rows")
        if keys is not None:
            self.key_starts, self.key_counts, self.keys = keys
            _check_lists(self.key_starts, self.key_counts, count, self.keys.count)
        if properties is not None:
            self.property_starts, self.property_counts, self.names, self.values = properties
            self._has_properties = True
            _check_lists(
                self.property_starts, self.property_counts, count, min(self.names.count, self.values.count))
        if deliver_at is not None:
            self.deliver_at = deliver_at
            self._has_times = True
            if self.deliver_at.shape[0] != count:
                raise ValueError(f"{self.deliver_at.shape[0]} times for {count} rows")

    def encode(
        self, prefix: bytes, out: cython.uchar[::1], ends: cython.longlong[::1], kinds: cython.uchar[::1],
        counter: bytes = b"", start_of_counter: bytes = b"", number: cython.longlong = 0,
    ):
        """Write the stored properties of all rows to ``out``.

        Return (number of rows that were written, reason why the next row is refused, or 0). The
        properties of row n end at ``ends[n]``. A row without a unique key gets ``prefix`` and its number. With
        ``counter`` each row gets the property of that name with the text ``start_of_counter`` and a number that
        counts from ``number``; its own property of that name is left out.
        ``kinds`` gets the flags of ALONE of each row. ``out`` must have room for all texts plus 120 bytes per
        row and 2 per property, and per row for the property ``counter``.
        """
        n: cython.Py_ssize_t
        q: cython.Py_ssize_t = 0
        start: cython.Py_ssize_t
        i: cython.Py_ssize_t
        first: cython.Py_ssize_t
        why: cython.int
        unique: cython.bint
        counts: cython.bint = len(counter) > 0
        has_tags: cython.bint
        has_keys: cython.bint
        names: Texts = self.names
        for n in range(ends.shape[0]):
            start = q
            kinds[n] = 0
            unique = True
            has_tags = self.tags is not None and self.tags._lengths[n] > 0
            if has_tags:
                if _has(self.tags, n, 2, False):
                    return n, C.REFUSED_TAG_SEPARATOR
                q = _put_text(out, copy_object(out, q, b"TAGS\x01"), self.tags, n, 2)
            has_keys = self.keys is not None and self.key_counts[n] > 0
            if has_keys:
                q = copy_object(out, q, b"KEYS\x01")
                for i in range(self.key_starts[n], self.key_starts[n] + self.key_counts[n]):
                    why = _why_no_key(self.keys, i)
                    if why:
                        return n, why
                    q = _put_text(out, q, self.keys, i, 32)
                out[q - 1] = 2
            if self._has_properties:
                first = self.property_starts[n]
                for i in range(first, first + self.property_counts[n]):
                    if (has_tags and _is(names, i, b"TAGS")) or (has_keys and _is(names, i, b"KEYS")):
                        continue  # the columns for tags and keys are used instead
                    if counts and _is(names, i, counter):
                        continue
                    why = _why_no_property(names, self.values, first, i)
                    if why:
                        return n, why
                    if _is(names, i, b"UNIQ_KEY"):
                        unique = False
                    kinds[n] |= _mark_of(names, i) & C.ALONE
                    q = _put_text(out, _put_text(out, q, names, i, 1), self.values, i, 2)
                    if q - start > L.MAX_PROPERTIES:
                        return n, C.REFUSED_TOO_LONG
            if counts:
                q = copy_object(out, q, counter)
                out[q] = 1
                q = _put_number(out, copy_object(out, q + 1, start_of_counter), number + n)
            if self._has_times and self.deliver_at[n] != _NO_TIME:
                kinds[n] |= C.WAITS
                q = _put_number(out, copy_object(out, q, b"TIMER_DELIVER_MS\x01"), self.deliver_at[n])
            if unique:
                q = _put_unique_key(out, q, prefix, n)
            if q - start > L.MAX_PROPERTIES:
                return n, C.REFUSED_TOO_LONG
            ends[n] = q
        return ends.shape[0], 0


@cython.cfunc
def _check_lists(
    starts: cython.const[cython.longlong][::1], counts: cython.const[cython.longlong][::1],
    rows: cython.Py_ssize_t, limit: cython.longlong,
):
    n: cython.Py_ssize_t
    if starts.shape[0] != rows or counts.shape[0] != rows:
        raise ValueError(f"{starts.shape[0]} and {counts.shape[0]} lists for {rows} rows")
    for n in range(rows):
        if not 0 <= starts[n] <= limit or not 0 <= counts[n] <= limit - starts[n]:
            raise ValueError(f"list {n} is outside its {limit} texts")


@cython.cfunc
@cython.exceptval(check=False)
def _why_no_key(keys: Texts, i: cython.Py_ssize_t) -> cython.int:
    if not keys._lengths[i]:
        return C.REFUSED_KEY_EMPTY
    if not _has(keys, i, 2, True):
        return 0
    return C.REFUSED_KEY_SEPARATOR if _has(keys, i, 2, False) else C.REFUSED_KEY_BLANK


@cython.cfunc
@cython.exceptval(check=False)
def _why_no_property(
    names: Texts, values: Texts, first: cython.Py_ssize_t, i: cython.Py_ssize_t
) -> cython.int:
    k: cython.Py_ssize_t
    if not names._lengths[i] or not values._lengths[i]:
        return C.REFUSED_PROPERTY_EMPTY
    if _has(names, i, 2, False) or _has(values, i, 2, False):
        return C.REFUSED_PROPERTY_SEPARATOR
    for k in range(first, i):
        if _same(names, k, i):
            return C.REFUSED_PROPERTY_TWICE
    return 0


def put_rows(
    first: cython.Py_ssize_t,
    until: cython.Py_ssize_t,
    bodies: Texts,
    properties: Texts,
    flags: cython.const[cython.longlong][::1],
    queues: cython.const[cython.longlong][::1],
    queue_ids: cython.const[cython.longlong][::1],
    topics: Texts,
    born_timestamp: cython.longlong,
    born_host: bytes,
    store_timestamp: cython.longlong,
    store_host: bytes,
    append_crc: cython.bint,
    out: cython.uchar[::1],
    pos: cython.Py_ssize_t,
    limit: cython.Py_ssize_t,
    phy_offset: cython.longlong,
    queue_offsets: cython.longlong[::1],
    phy_offsets: cython.longlong[::1],
    row_offsets: cython.longlong[::1],
):
    """Write the records of rows [first, until) at ``out[pos:]``, which is position ``phy_offset`` of the log.

    Row n belongs to queue number ``queues[n]``: ``queue_ids``, ``topics`` and the next ``queue_offsets``
    have an element per queue; the offsets are incremented. ``phy_offsets[n]`` and ``row_offsets[n]``
    receive the position and the queue offset of its record. Records are written while they fit and
    eight bytes stay free for the blank record. Return (number of records, bytes).
    """
    n: cython.Py_ssize_t
    p: cython.Py_ssize_t = pos
    queue: cython.Py_ssize_t
    size: cython.Py_ssize_t
    rows: cython.Py_ssize_t = bodies.count
    common: RecordFields = RecordFields()
    body = cython.declare(cython.p_const_uchar)
    body_starts: cython.const[cython.longlong][::1] = bodies._starts
    body_lengths: cython.const[cython.longlong][::1] = bodies._lengths
    body_data: cython.const[cython.uchar][::1] = bodies._data
    props_starts: cython.const[cython.longlong][::1] = properties._starts
    props_lengths: cython.const[cython.longlong][::1] = properties._lengths
    props_data: cython.const[cython.uchar][::1] = properties._data
    topic_starts: cython.const[cython.longlong][::1] = topics._starts
    topic_lengths: cython.const[cython.longlong][::1] = topics._lengths
    topic_data: cython.const[cython.uchar][::1] = topics._data
    if limit > len(out):
        limit = len(out)
    if not 0 <= first <= until <= rows or pos < 0 or min(
        properties.count, flags.shape[0], queues.shape[0], phy_offsets.shape[0],
        row_offsets.shape[0],
    ) < rows or min(queue_ids.shape[0], queue_offsets.shape[0]) < topics.count:
        raise ValueError(f"rows {first} to {until} of {rows} at {pos}")
    for n in range(first, until):
        if not 0 <= queues[n] < topics.count:
            raise ValueError(f"row {n} is of queue {queues[n]} of {topics.count}")
    common.set_born_host(born_host)
    common.set_store_host(store_host)
    common.born_timestamp, common.now, common.append_crc = born_timestamp, store_timestamp, append_crc
    common.sys_flag = common.reconsume_times = common.prepared = 0
    with cython.nogil:
        for n in range(first, until):
            queue = queues[n]
            common.queue_id = queue_ids[queue]
            common.topic, common.topic_length = pointer_to(topic_data, topic_starts[queue]), topic_lengths[queue]
            body = pointer_to(body_data, body_starts[n])
            size = put_record(
                out, p, limit, common, flags[n], queue_offsets[queue], phy_offset + (p - pos), body, body_lengths[n],
                crc_at(body, body_lengths[n]) & CRC_31_BITS, pointer_to(props_data, props_starts[n]), props_lengths[n])
            if size < 0:
                until = n
                break
            phy_offsets[n] = phy_offset + (p - pos)
            row_offsets[n] = queue_offsets[queue]
            queue_offsets[queue] += 1
            p += size
    return until - first, p - pos


def put_items(
    first: cython.Py_ssize_t, until: cython.Py_ssize_t, bodies: Texts, properties: Texts, out: cython.uchar[::1],
):
    """Write rows [first, until) to ``out`` as the body of a batch request. Return its length.

    Raises ValueError if ``out`` is too short.
    """
    n: cython.Py_ssize_t
    p: cython.Py_ssize_t = 0
    size: cython.longlong = 0
    body: cython.longlong
    props: cython.longlong
    if not 0 <= first <= until <= min(bodies.count, properties.count):
        raise ValueError(f"rows {first} to {until} of {bodies.count} and {properties.count}")
    for n in range(first, until):
        if properties._lengths[n] > L.MAX_PROPERTIES:
            raise ValueError(f"row {n} has {properties._lengths[n]} bytes of properties")
        size += L.ITEM_SIZE + 2 + bodies._lengths[n] + properties._lengths[n]
    if size > len(out):
        raise ValueError(f"{size} bytes for a buffer of {len(out)}")
    for n in range(first, until):
        body, props = bodies._lengths[n], properties._lengths[n]
        size = L.ITEM_SIZE + 2 + body + props
        put32(out, p, size)
        put32(out, p + L.ITEM_AT_MAGIC, 0)
        put32(out, p + L.ITEM_AT_BODY_CRC, 0)
        put32(out, p + L.ITEM_AT_FLAG, 0)
        put32(out, p + L.ITEM_AT_BODY_LENGTH, body)
        p = copy_bytes(out, p + L.ITEM_SIZE, bodies._data, bodies._starts[n], body)
        out[p] = props >> 8
        out[p + 1] = props & 255
        p = copy_bytes(out, p + 2, properties._data, properties._starts[n], props)
    return p
