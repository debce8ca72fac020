# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Check the entries of an index file, and compute its slots from them.

Entries are in the order of the log, and each names the entry before it in its slot. So the entries say what the
slots must contain, and torn or old slots can be rebuilt.
"""

import cython

from tailrace.kernels.shared import layouts as L
from tailrace.kernels.shared.big_endian import be32, be64

SOURCE_SHA256 = ""


def follow(
    entries: cython.const[cython.uchar][::1],
    count: cython.longlong,
    before: cython.longlong,
    heads: cython.int[::1],
):
    """Check entries 1 to ``count`` (excluded), and set ``heads`` to the newest valid entry of each slot.

    Stops at the first entry with an invalid hash, position, time or predecessor, or with a position not below
    ``before``. ``heads`` has one place per slot and is cleared first. Return (number of the entry where the
    check stopped, position in the last valid entry or -1).
    """
    i: cython.longlong = 1
    at: cython.Py_ssize_t
    slots: cython.Py_ssize_t = heads.shape[0]
    slot: cython.Py_ssize_t
    h: cython.longlong
    phy: cython.longlong
    last: cython.longlong = -1
    if slots < 1 or count < 0 or len(entries) < count * L.INDEX_ENTRY_SIZE:
        raise ValueError(f"{count} entries in {len(entries)} bytes, {slots} slots")
    with cython.nogil:
        for slot in range(slots):
            heads[slot] = 0
        while i < count:
            at = cython.cast(cython.Py_ssize_t, i) * L.INDEX_ENTRY_SIZE
            h = be32(entries, at)
            phy = be64(entries, at + L.ENTRY_AT_PHY_OFFSET)
            if h < 0 or phy < 0 or phy < last or phy >= before or be32(entries, at + L.ENTRY_AT_TIME_DIFF_SECONDS) < 0:
                break
            slot = cython.cast(cython.Py_ssize_t, h % slots)
            if be32(entries, at + L.ENTRY_AT_PREV_INDEX) != heads[slot]:
                break
            heads[slot] = cython.cast(cython.int, i)
            last = phy
            i += 1
    return i, last
