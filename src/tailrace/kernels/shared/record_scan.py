# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Find and check the records in a part of the log."""

import cython

from tailrace.kernels.shared import constants as C
from tailrace.kernels.shared import layouts as L
from tailrace.kernels.shared.big_endian import be32, be32u
from tailrace.kernels.shared.record_rows import fill_row


@cython.ccall
def scan(
    buf: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    until: cython.Py_ssize_t,
    base: cython.longlong,
    check: cython.int,
    rows: cython.longlong[:, ::1],
):
    """Read the records in ``buf[start:until]`` and fill one row for each. ``buf[0]`` is at position ``base``.

    Return (count, stop, reason): the number of records, the index after the last one, and why the scan
    stopped, one of REASON_*. ``check`` is a sum of CHECK_* flags.
    """
    n: cython.Py_ssize_t = 0
    p: cython.Py_ssize_t = start
    room: cython.Py_ssize_t = rows.shape[0]
    size: cython.longlong
    magic: cython.longlong
    reason: cython.int = C.REASON_END
    if until > len(buf):
        until = len(buf)
    if start < 0 or (room and rows.shape[1] < C.COLUMNS):
        raise ValueError(f"start {start}, {rows.shape[1]} columns")
    with cython.nogil:
        while p < until:
            if n == room:
                reason = C.REASON_ROWS_FULL
                break
            if p + L.BLANK_SIZE > until:
                reason = C.REASON_SHORT
                break
            size = be32(buf, p)
            magic = be32u(buf, p + L.AT_MAGIC)
            if magic == L.BLANK_MAGIC:
                reason = C.REASON_BLANK if size >= L.BLANK_SIZE else C.REASON_BAD_LENGTH
                break
            if magic != L.MAGIC_V1 and magic != L.MAGIC_V2:
                reason = C.REASON_ZERO if magic == 0 and size == 0 else C.REASON_BAD_MAGIC
                break
            if size < L.MIN_RECORD_SIZE:
                reason = C.REASON_BAD_LENGTH
                break
            if size > until - p:
                reason = C.REASON_SHORT
                break
            reason = fill_row(buf, p, size, base, check, rows, n)
            if reason != 0:
                break
            n += 1
            p += cython.cast(cython.Py_ssize_t, size)
    return n, p, reason
