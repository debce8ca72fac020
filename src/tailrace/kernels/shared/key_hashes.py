# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Hash the keys of records, as index entries have them."""

import cython

from tailrace.kernels.shared import constants as C
from tailrace.kernels.shared import layouts as L
from tailrace.kernels.shared.java_hash import index_hash_of, java_hash_on

KEY_MASK = cython.declare(cython.longlong, 0xFFFFFFFF)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def hash_row(
    buf: cython.const[cython.uchar][::1],
    rows: cython.longlong[:, ::1],
    r: cython.Py_ssize_t,
    hashes: cython.int[::1],
    n: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Hash the keys of a row into ``hashes[n:]``. Return the index after the last one."""
    p: cython.Py_ssize_t = rows[r, C.TOPIC_POS]
    e: cython.Py_ssize_t
    t: cython.Py_ssize_t
    h: cython.longlong
    topic: cython.longlong = java_hash_on(0, buf, p, p + rows[r, C.TOPIC_LEN])
    topic = (topic * 31 + 35) & KEY_MASK
    if rows[r, C.UNIQ_POS] >= 0:
        p = rows[r, C.UNIQ_POS]
        hashes[n] = index_hash_of(java_hash_on(topic, buf, p, p + rows[r, C.UNIQ_LEN]))
        n += 1
    if rows[r, C.KEYS_POS] >= 0:
        p = rows[r, C.KEYS_POS]
        e = p + rows[r, C.KEYS_LEN]
        while p < e:
            t = p
            while t < e and buf[t] != 32:
                t += 1
            if t > p:
                hashes[n] = index_hash_of(java_hash_on(topic, buf, p, t))
                n += 1
            p = t + 1
    if rows[r, C.TAGS_POS] >= 0:
        p = rows[r, C.TAGS_POS]
        h = (topic * 31 + 84) & KEY_MASK
        h = (h * 31 + 35) & KEY_MASK
        hashes[n] = index_hash_of(java_hash_on(h, buf, p, p + rows[r, C.TAGS_LEN]))
        n += 1
    return n


@cython.ccall
def hash_keys(
    buf: cython.const[cython.uchar][::1],
    rows: cython.longlong[:, ::1],
    first: cython.Py_ssize_t,
    hashes: cython.int[::1],
    at: cython.Py_ssize_t,
    ends: cython.longlong[::1],
):
    """Hash the keys of ``rows[first:]`` into ``hashes[at:]``.

    The keys of a row are its unique key, its KEYS and its TAGS, in this order. A rolled back transaction has
    no keys. ``ends[row]`` is set to the index in ``hashes`` after the keys of the row.
    Return (row, place): the first row for which ``hashes`` may be too short (or the number of rows), and the
    index after the last key.
    """
    r: cython.Py_ssize_t = first
    n: cython.Py_ssize_t = at
    count: cython.Py_ssize_t = rows.shape[0]
    room: cython.Py_ssize_t = hashes.shape[0]
    if first < 0 or at < 0 or ends.shape[0] < count or (count and rows.shape[1] < C.COLUMNS):
        raise ValueError(f"{count} rows of {rows.shape[1]} columns into {ends.shape[0]}")
    with cython.nogil:
        while r < count:
            if (rows[r, C.SYS_FLAG] & L.TRANSACTION_MASK) != L.TRANSACTION_ROLLBACK:
                if room - n < rows[r, C.KEYS_LEN] // 2 + 3:
                    break
                n = hash_row(buf, rows, r, hashes, n)
            ends[r] = n
            r += 1
    return r, n
