# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Entries of an index file: put the keys of record rows, find a key.

The file is header, slots and entries as ``formats.indexfile`` declares them. Every number that is
read from it is compared with the geometry before it is used as a place.
"""

import cython

from tailrace.kernels.shared.big_endian import be32, be64, put32, put64
from tailrace.kernels.shared.java_hash import index_hash_of, java_hash_on

SOURCE_SHA256 = ""

# Columns of kernels.record; tests compare them.
_C_PHY = cython.declare(cython.int, 0)
_C_SYS_FLAG = cython.declare(cython.int, 4)
_C_STORE_TIMESTAMP = cython.declare(cython.int, 5)
_C_TOPIC_POS = cython.declare(cython.int, 14)
_C_TOPIC_LEN = cython.declare(cython.int, 15)
_C_KEYS_POS = cython.declare(cython.int, 22)
_C_KEYS_LEN = cython.declare(cython.int, 23)
_C_UNIQ_POS = cython.declare(cython.int, 24)
_C_UNIQ_LEN = cython.declare(cython.int, 25)
_C_TAGS_POS = cython.declare(cython.int, 26)
_C_TAGS_LEN = cython.declare(cython.int, 27)
_COLUMNS = cython.declare(cython.int, 28)

_WORK_ROWS = cython.declare(cython.Py_ssize_t, 1 << 16)
WORK_ROWS = _WORK_ROWS
# Rows and keys that are hashed before their entries are put. A property text has less than 65,536
# bytes, so that the keys of the last row of a block, half as many, always fit.
_BLOCK = cython.declare(cython.Py_ssize_t, 64)
_BLOCK_KEYS = cython.declare(cython.Py_ssize_t, 256)
_HEADER = cython.declare(cython.Py_ssize_t, 40)
_ENTRY = cython.declare(cython.Py_ssize_t, 20)
_MASK_32 = cython.declare(cython.longlong, 0xFFFFFFFF)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _touch(
    buf: cython.const[cython.uchar][::1],
    rows: cython.longlong[:, ::1],
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
) -> cython.int:
    """Read a byte of each cache line that ``_hash_keys`` will read: loads that wait for each other less."""
    r: cython.Py_ssize_t
    seen: cython.int = 0
    for r in range(first, last):
        if rows[r, _C_TOPIC_LEN] > 0:
            seen ^= buf[rows[r, _C_TOPIC_POS]]
        if rows[r, _C_UNIQ_POS] >= 0 and rows[r, _C_UNIQ_LEN] > 0:
            seen ^= buf[rows[r, _C_UNIQ_POS]] ^ buf[rows[r, _C_UNIQ_POS] + rows[r, _C_UNIQ_LEN] - 1]
        if rows[r, _C_KEYS_POS] >= 0 and rows[r, _C_KEYS_LEN] > 0:
            seen ^= buf[rows[r, _C_KEYS_POS] + rows[r, _C_KEYS_LEN] - 1]
    return seen


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _note(
    work: cython.longlong[:, ::1],
    n: cython.Py_ssize_t,
    h: cython.longlong,
    slots: cython.longlong,
    row: cython.Py_ssize_t,
    key: cython.longlong,
) -> cython.Py_ssize_t:
    h = index_hash_of(h)
    work[n, 0] = h
    work[n, 1] = (h % slots) * 4
    work[n, 2] = row
    work[n, 3] = key
    return n + 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _hash_keys(
    buf: cython.const[cython.uchar][::1],
    rows: cython.longlong[:, ::1],
    r: cython.Py_ssize_t,
    start: cython.longlong,
    slots: cython.longlong,
    work: cython.longlong[:, ::1],
    n: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Note the keys of a row from number ``start`` on; the number that are noted then."""
    key: cython.longlong = 0
    p: cython.Py_ssize_t = rows[r, _C_TOPIC_POS]
    e: cython.Py_ssize_t
    t: cython.Py_ssize_t
    topic: cython.longlong = java_hash_on(0, buf, p, p + rows[r, _C_TOPIC_LEN])
    h: cython.longlong
    topic = (topic * 31 + 35) & _MASK_32
    if rows[r, _C_UNIQ_POS] >= 0:
        if key >= start:
            p = rows[r, _C_UNIQ_POS]
            h = java_hash_on(topic, buf, p, p + rows[r, _C_UNIQ_LEN])
            n = _note(work, n, h, slots, r, key)
        key += 1
    if rows[r, _C_KEYS_POS] >= 0:
        p = rows[r, _C_KEYS_POS]
        e = p + rows[r, _C_KEYS_LEN]
        while p < e:
            t = p
            while t < e and buf[t] != 32:
                t += 1
            if t > p:
                if key >= start:
                    n = _note(work, n, java_hash_on(topic, buf, p, t), slots, r, key)
                key += 1
            p = t + 1
    if rows[r, _C_TAGS_POS] >= 0 and key >= start:
        p = rows[r, _C_TAGS_POS]
        h = (topic * 31 + 84) & _MASK_32
        h = (h * 31 + 35) & _MASK_32
        h = java_hash_on(h, buf, p, p + rows[r, _C_TAGS_LEN])
        n = _note(work, n, h, slots, r, key)
    return n


def put_rows(
    index: cython.uchar[::1],
    slots: cython.longlong,
    entries: cython.longlong,
    buf: cython.const[cython.uchar][::1],
    rows: cython.longlong[:, ::1],
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    first_key: cython.longlong,
    work: cython.longlong[:, ::1],
):
    """``put_rows_apart`` for a file that is in one piece, with so many slots and entries."""
    start: cython.Py_ssize_t
    if slots < 1 or entries < 1 or len(index) < 40 + slots * 4 + entries * 20:
        raise ValueError(f"{slots} slots and {entries} entries in {len(index)} bytes")
    start = _HEADER + cython.cast(cython.Py_ssize_t, slots * 4)
    if not cython.compiled:
        index = memoryview(index)  # a part of it is to be written to, not a copy
    return put_rows_apart(
        index[:_HEADER], index[_HEADER:start], index[start:], 0, entries, buf, rows, first, last,
        first_key, work)


def put_rows_apart(
    header: cython.uchar[::1],
    slot_bytes: cython.uchar[::1],
    entry_bytes: cython.uchar[::1],
    first_entry: cython.longlong,
    entries: cython.longlong,
    buf: cython.const[cython.uchar][::1],
    rows: cython.longlong[:, ::1],
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    first_key: cython.longlong,
    work: cython.longlong[:, ::1],
):
    """Index rows ``first`` to ``last``, of the first one only from key number ``first_key`` on.

    The keys of a row are, in this order, its unique key, its KEYS and its TAGS. A row not behind
    the file's last position was indexed before and is passed over, as are rolled back transactions.
    ``entry_bytes`` is room for entries from number ``first_entry`` on, of a file that has ``entries``.
    ``work`` is room for the keys of some rows, (WORK_ROWS, 4): what the keys and slots need of memory
    is asked for together, since one miss of the cache after the other takes most of the time.
    The header is written behind the entries of a block of rows. A reader that comes meanwhile finds
    entries by their slots, which may be ahead of the header's count.
    Returns (row, key number) of the first key that found no room; row is ``last`` when all did.
    """
    r: cython.Py_ssize_t = first
    until: cython.Py_ssize_t
    n: cython.Py_ssize_t
    k: cython.Py_ssize_t
    at: cython.Py_ssize_t
    seen: cython.int = 0
    start: cython.longlong = first_key
    full: cython.bint = False
    slots: cython.longlong = len(slot_bytes) // 4
    room: cython.longlong = first_entry + len(entry_bytes) // 20
    count: cython.longlong
    used: cython.longlong
    begin: cython.longlong
    last_phy: cython.longlong
    old: cython.longlong
    diff: cython.longlong
    if len(header) < 40 or slots < 1 or entries < 1 or first_entry < 0:
        raise ValueError(f"{slots} slots and {entries} entries, a header of {len(header)} bytes")
    if not 0 <= first <= last <= rows.shape[0] or (rows.shape[0] and rows.shape[1] < _COLUMNS):
        raise ValueError(f"rows {first} to {last} of {rows.shape[0]}")
    if work.shape[0] < _WORK_ROWS or work.shape[1] < 4:
        raise ValueError(f"room for {work.shape[0]} keys of {_WORK_ROWS}")
    if room > entries:
        room = entries
    with cython.nogil:
        begin = be64(header, 0)
        last_phy = be64(header, 24)
        used = be32(header, 32)
        count = be32(header, 36)
        if count <= 1:
            count = 1
            if last_phy <= 0:
                last_phy = -1
        if count < first_entry:
            room = 0  # entries would be in front of the room
        while r < last and not full:
            until = min(last, r + _BLOCK)
            seen ^= _touch(buf, rows, r, until)
            n = 0
            while r < until and n < _BLOCK_KEYS:
                if (start > 0 or rows[r, _C_PHY] > last_phy) and (rows[r, _C_SYS_FLAG] & 0xC) != 0xC:
                    n = _hash_keys(buf, rows, r, start, slots, work, n)
                r += 1
                start = 0
            for k in range(n):
                seen ^= slot_bytes[work[k, 1]]
            for k in range(n):
                if count >= room:
                    r, start = work[k, 2], work[k, 3]
                    n, full = k, True
                    break
                at = cython.cast(cython.Py_ssize_t, work[k, 2])
                if count <= 1:
                    begin = rows[at, _C_STORE_TIMESTAMP]
                    put64(header, 0, begin)
                    put64(header, 16, rows[at, _C_PHY])
                    diff = 0
                else:
                    diff = rows[at, _C_STORE_TIMESTAMP] - begin
                    diff = min(diff // 1000, 0x7FFFFFFF) if begin > 0 and diff > 0 else 0
                old = be32(slot_bytes, work[k, 1])
                if old <= 0 or old >= count:
                    old = 0
                    used += 1
                at = cython.cast(cython.Py_ssize_t, (count - first_entry) * _ENTRY)
                put32(entry_bytes, at, work[k, 0])
                put64(entry_bytes, at + 4, rows[work[k, 2], _C_PHY])
                put32(entry_bytes, at + 12, diff)
                put32(entry_bytes, at + 16, old)
                put32(slot_bytes, work[k, 1], count)
                count += 1
            if n > 0:
                at = cython.cast(cython.Py_ssize_t, work[n - 1, 2])
                put64(header, 8, rows[at, _C_STORE_TIMESTAMP])
                put64(header, 24, rows[at, _C_PHY])
                put32(header, 32, used)
                put32(header, 36, count)
        work[_WORK_ROWS - 1, 3] = seen  # else a compiler may leave out what only touches
    return r, start if full else 0


def search(
    index: cython.const[cython.uchar][::1],
    slots: cython.longlong,
    entries: cython.longlong,
    key_hash: cython.longlong,
    begin_ms: cython.longlong,
    end_ms: cython.longlong,
    found: cython.longlong[::1],
):
    """Positions of messages whose key has ``key_hash``, newest first; returns their number.

    Stops when ``found`` is full. Different keys can have equal hashes. Entries may be put meanwhile:
    slots are believed, also when they are ahead of the header's count.
    """
    n: cython.Py_ssize_t = 0
    at: cython.Py_ssize_t
    i: cython.longlong
    prev: cython.longlong
    steps: cython.longlong = 0
    when: cython.longlong
    diff: cython.longlong
    begin: cython.longlong
    if slots < 1 or entries < 1 or len(index) < 40 + slots * 4 + entries * 20:
        raise ValueError(f"{slots} slots and {entries} entries in {len(index)} bytes")
    if key_hash < 0:
        raise ValueError(f"hash {key_hash}")
    with cython.nogil:
        begin = be64(index, 0)
        i = be32(index, _HEADER + cython.cast(cython.Py_ssize_t, (key_hash % slots) * 4))
        while 0 < i < entries and n < found.shape[0] and steps < entries:
            steps += 1
            at = _HEADER + cython.cast(cython.Py_ssize_t, slots * 4 + i * _ENTRY)
            diff = be32(index, at + 12)
            if diff < 0:
                break
            when = begin + diff * 1000
            # Whole seconds were stored: a message may be up to 999 ms younger than it looks.
            if be32(index, at) == key_hash and when <= end_ms and when + 999 >= begin_ms:
                found[n] = be64(index, at + 4)
                n += 1
            if when + 999 < begin_ms:
                break
            prev = be32(index, at + 16)
            if prev == i:
                break
            i = prev
    return n
