# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Entries of an index file: hash the keys of records, put their entries, find the entries of a key.

A file has header, slots and entries as ``formats.indexfile`` declares them. Every number that is read from a
file is compared with the number of slots or entries before it is used as an index.
"""

import cython

from tailrace.kernels.shared import constants as C
from tailrace.kernels.shared import layouts as L
from tailrace.kernels.shared.big_endian import be32, be64, put32, put64
from tailrace.kernels.shared.key_hashes import hash_keys

SOURCE_SHA256 = ""

_BLOCK = cython.declare(cython.Py_ssize_t, 256)  # number of keys whose slots are loaded together
WORK = _BLOCK + 1
_MASK_31 = cython.declare(cython.longlong, 0x7FFFFFFF)


def put_keys(
    index: cython.uchar[::1],
    slots: cython.longlong,
    entries: cython.longlong,
    rows: cython.longlong[:, ::1],
    ends: cython.longlong[::1],
    hashes: cython.const[cython.int][::1],
    key: cython.longlong,
    work: cython.longlong[::1],
):
    """Do what ``put_keys_apart`` does, in the buffer ``index`` of a whole file."""
    start: cython.Py_ssize_t
    if slots < 1 or entries < 1 or len(index) < (
        L.INDEX_HEADER_SIZE + slots * L.INDEX_SLOT_SIZE + entries * L.INDEX_ENTRY_SIZE
    ):
        raise ValueError(f"{slots} slots and {entries} entries in {len(index)} bytes")
    start = L.INDEX_HEADER_SIZE + cython.cast(cython.Py_ssize_t, slots * L.INDEX_SLOT_SIZE)
    if not cython.compiled:
        index = memoryview(index)  # slices of a memoryview are not copies
    return put_keys_apart(
        index[:L.INDEX_HEADER_SIZE], index[L.INDEX_HEADER_SIZE:start], index[start:], 0, entries, rows, ends, hashes,
        key, work)


def put_keys_apart(
    header: cython.uchar[::1],
    slot_bytes: cython.uchar[::1],
    entry_bytes: cython.uchar[::1],
    first_entry: cython.longlong,
    entries: cython.longlong,
    rows: cython.longlong[:, ::1],
    ends: cython.longlong[::1],
    hashes: cython.const[cython.int][::1],
    key: cython.longlong,
    work: cython.longlong[::1],
):
    """Put entries for the keys from number ``key`` onwards, whose hashes ``hash_keys`` made from ``rows``.

    Only position and store time of ``rows`` are read. A row at or before the last position of the file was
    indexed before and is skipped, except a row whose keys were put only in part (``key`` is one of them).
    ``header``, ``slot_bytes`` and ``entry_bytes`` are the parts of a file with ``entries`` entries.
    ``entry_bytes`` starts with entry number ``first_entry``. ``work`` is an array of WORK numbers for
    internal use: the slots of a block of keys are loaded together, because waiting for one cache miss after
    the other takes most of the time.
    The header is written after the entries of a block. A concurrent reader finds entries by their slots,
    which may be ahead of the count in the header.
    Return the first key that did not fit, or the number of keys.
    """
    r: cython.Py_ssize_t = 0
    count_of_rows: cython.Py_ssize_t = ends.shape[0]
    until: cython.longlong
    total: cython.longlong
    k: cython.longlong
    at: cython.Py_ssize_t
    seen: cython.int = 0
    full: cython.bint = False
    slots: cython.longlong = len(slot_bytes) // 4
    room: cython.longlong = first_entry + len(entry_bytes) // L.INDEX_ENTRY_SIZE
    count: cython.longlong
    used: cython.longlong
    begin: cython.longlong
    last_phy: cython.longlong
    old: cython.longlong
    diff: cython.longlong
    if len(header) < 40 or slots < 1 or entries < 1 or first_entry < 0:
        raise ValueError(f"{slots} slots and {entries} entries, a header of {len(header)} bytes")
    total = ends[count_of_rows - 1] if count_of_rows else 0
    if (
        rows.shape[0] < count_of_rows or (count_of_rows and rows.shape[1] <= C.STORE_TIMESTAMP)
        or not 0 <= key <= total <= hashes.shape[0]
    ):
        raise ValueError(f"key {key} of {total} in {hashes.shape[0]}, {count_of_rows} rows")
    if work.shape[0] <= _BLOCK:
        raise ValueError(f"room for {work.shape[0]} numbers")
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
            room = 0  # the next entry would be before `entry_bytes`
        while r < count_of_rows and ends[r] <= key:
            r += 1
        if key == (ends[r - 1] if r > 0 else 0):
            while r < count_of_rows and rows[r, C.PHY] <= last_phy:
                key = ends[r]
                r += 1
        while key < total and not full:
            until = min(total, key + _BLOCK)
            for k in range(key, until):
                work[k - key] = ((hashes[k] & _MASK_31) % slots) * L.INDEX_SLOT_SIZE
                seen ^= slot_bytes[work[k - key]]
            for k in range(key, until):
                if count >= room:
                    until, full = k, True
                    break
                while r < count_of_rows and ends[r] <= k:
                    r += 1
                if count <= 1:
                    begin = rows[r, C.STORE_TIMESTAMP]
                    put64(header, 0, begin)
                    put64(header, 16, rows[r, C.PHY])
                    diff = 0
                else:
                    diff = rows[r, C.STORE_TIMESTAMP] - begin
                    diff = min(diff // 1000, 0x7FFFFFFF) if begin > 0 and diff > 0 else 0
                at = cython.cast(cython.Py_ssize_t, work[k - key])
                old = be32(slot_bytes, at)
                if old <= 0 or old >= count:
                    old = 0
                    used += 1
                put32(slot_bytes, at, count)
                at = cython.cast(cython.Py_ssize_t, (count - first_entry) * L.INDEX_ENTRY_SIZE)
                put32(entry_bytes, at, hashes[k])
                put64(entry_bytes, at + L.ENTRY_AT_PHY_OFFSET, rows[r, C.PHY])
                put32(entry_bytes, at + L.ENTRY_AT_TIME_DIFF_SECONDS, diff)
                put32(entry_bytes, at + L.ENTRY_AT_PREV_INDEX, old)
                count += 1
            if until > key:
                put64(header, 8, rows[r, C.STORE_TIMESTAMP])
                put64(header, 24, rows[r, C.PHY])
                put32(header, 32, used)
                put32(header, 36, count)
            key = until
        work[_BLOCK] = seen  # uses the loaded bytes, otherwise a compiler may remove the loads
    return key


def search(
    index: cython.const[cython.uchar][::1],
    slots: cython.longlong,
    entries: cython.longlong,
    key_hash: cython.longlong,
    begin_ms: cython.longlong,
    end_ms: cython.longlong,
    found: cython.longlong[::1],
):
    """Write the positions of messages whose key has ``key_hash`` to ``found``, newest first.

    Return their number. Stops when ``found`` is full. Different keys can have the same hash. Another thread
    may put entries during the search, so slots may name entries after the count in the header.
    """
    n: cython.Py_ssize_t = 0
    at: cython.Py_ssize_t
    i: cython.longlong
    prev: cython.longlong
    steps: cython.longlong = 0
    when: cython.longlong
    diff: cython.longlong
    begin: cython.longlong
    if slots < 1 or entries < 1 or len(index) < (
        L.INDEX_HEADER_SIZE + slots * L.INDEX_SLOT_SIZE + entries * L.INDEX_ENTRY_SIZE
    ):
        raise ValueError(f"{slots} slots and {entries} entries in {len(index)} bytes")
    if key_hash < 0:
        raise ValueError(f"hash {key_hash}")
    with cython.nogil:
        begin = be64(index, 0)
        i = be32(index, L.INDEX_HEADER_SIZE + cython.cast(cython.Py_ssize_t, (key_hash % slots) * L.INDEX_SLOT_SIZE))
        while 0 < i < entries and n < found.shape[0] and steps < entries:
            steps += 1
            at = L.INDEX_HEADER_SIZE + cython.cast(
                cython.Py_ssize_t, slots * L.INDEX_SLOT_SIZE + i * L.INDEX_ENTRY_SIZE)
            diff = be32(index, at + L.ENTRY_AT_TIME_DIFF_SECONDS)
            if diff < 0:
                break
            when = begin + diff * 1000
            # The entry has whole seconds: a message may be up to 999 ms younger than its entry says.
            if be32(index, at) == key_hash and when <= end_ms and when + 999 >= begin_ms:
                found[n] = be64(index, at + L.ENTRY_AT_PHY_OFFSET)
                n += 1
            if when + 999 < begin_ms:
                break
            prev = be32(index, at + L.ENTRY_AT_PREV_INDEX)
            if prev == i:
                break
            i = prev
    return n
