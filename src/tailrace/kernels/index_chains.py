# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The chains of an index file, followed from its entries alone.

Entries come in the order of the log and each names the one before it in its slot, so the entries
tell what the slots must hold: a file whose slots are torn or stale is put right from them.
"""

import cython

from tailrace.kernels.shared.big_endian import be32, be64

SOURCE_SHA256 = ""

_ENTRY = cython.declare(cython.Py_ssize_t, 20)


def follow(
    entries: cython.const[cython.uchar][::1],
    count: cython.longlong,
    before: cython.longlong,
    heads: cython.int[::1],
):
    """Check entries 1 to ``count`` in turn and leave in ``heads`` the newest entry of each slot.

    Stops at the first one that cannot be right (hash, position, time, or the entry it names) or
    whose position is not below ``before``. Returns (number of the entry it stopped at, position
    of the last good one or -1). ``heads`` has a place for every slot and is cleared first.
    """
    i: cython.longlong = 1
    at: cython.Py_ssize_t
    slots: cython.Py_ssize_t = heads.shape[0]
    slot: cython.Py_ssize_t
    h: cython.longlong
    phy: cython.longlong
    last: cython.longlong = -1
    if slots < 1 or count < 0 or len(entries) < count * 20:
        raise ValueError(f"{count} entries in {len(entries)} bytes, {slots} slots")
    with cython.nogil:
        for slot in range(slots):
            heads[slot] = 0
        while i < count:
            at = cython.cast(cython.Py_ssize_t, i) * _ENTRY
            h = be32(entries, at)
            phy = be64(entries, at + 4)
            if h < 0 or phy < 0 or phy < last or phy >= before or be32(entries, at + 12) < 0:
                break
            slot = cython.cast(cython.Py_ssize_t, h % slots)
            if be32(entries, at + 16) != heads[slot]:
                break
            heads[slot] = cython.cast(cython.int, i)
            last = phy
            i += 1
    return i, last
