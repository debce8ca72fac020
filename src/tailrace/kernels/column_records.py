# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Write records from columns: the columns of the archive become the bytes of the log again.

``numbers`` is a C-contiguous int64 array with one row per record; its columns are the N_* names. Parts of
variable length are as in Arrow: int32 offsets, one more than rows, and the bytes one after the other.
Checksums and flags are copied and not computed, so a record gets the same bytes as before. Every position is
compared with the length of its buffer before it is read or written.
"""

import cython

from tailrace.kernels.shared import constants as C
from tailrace.kernels.shared import layouts as L
from tailrace.kernels.shared.big_endian import put32
from tailrace.kernels.shared.copying import copy_bytes, inside
from tailrace.kernels.shared.record_parts import (
    put_body_head,
    put_head,
    put_properties_length,
    put_store_time,
    put_topic_length,
)

if cython.compiled:
    from cython.cimports.libc.string import memcmp

SOURCE_SHA256 = ""


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _length(
    offsets: cython.const[cython.int][::1], n: cython.Py_ssize_t, limit: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Return the length of part ``n``, or -1 if it is not inside its buffer."""
    if offsets[n] < 0 or offsets[n + 1] < offsets[n] or offsets[n + 1] > limit:
        return -1
    return offsets[n + 1] - offsets[n]


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _differ(
    one: cython.const[cython.uchar][::1], other: cython.const[cython.uchar][::1], at: cython.Py_ssize_t,
    n: cython.Py_ssize_t,
) -> cython.bint:
    """Return whether ``one[:n]`` and ``other[at:at + n]`` differ; ``n`` is not 0."""
    if cython.compiled:
        return memcmp(cython.address(one[0]), cython.address(other[at]), n) != 0
    return bytes(one[:n]) != bytes(other[at : at + n])


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _put_row(
    numbers: cython.const[cython.longlong][:, ::1],
    n: cython.Py_ssize_t,
    born_offsets: cython.const[cython.int][::1],
    born_hosts: cython.const[cython.uchar][::1],
    store_offsets: cython.const[cython.int][::1],
    store_hosts: cython.const[cython.uchar][::1],
    body_offsets: cython.const[cython.int][::1],
    bodies: cython.const[cython.uchar][::1],
    topic_offsets: cython.const[cython.int][::1],
    topics: cython.const[cython.uchar][::1],
    prop_offsets: cython.const[cython.int][::1],
    props: cython.const[cython.uchar][::1],
    out: cython.uchar[::1],
    at: cython.longlong,
) -> cython.longlong:
    """Write the record of row ``n`` at ``out[at:]`` and return its size, or 0 if it does not fit.

    It does not fit if it or one of its parts is not inside a buffer, or if its parts do not have its size.
    """
    p: cython.Py_ssize_t
    q: cython.Py_ssize_t
    born: cython.Py_ssize_t = _length(born_offsets, n, len(born_hosts))
    store: cython.Py_ssize_t = _length(store_offsets, n, len(store_hosts))
    body: cython.Py_ssize_t = _length(body_offsets, n, len(bodies))
    topic: cython.Py_ssize_t = _length(topic_offsets, n, len(topics))
    prop: cython.Py_ssize_t = _length(prop_offsets, n, len(props))
    v2: cython.bint = numbers[n, C.N_MAGIC] == L.MAGIC_V2
    size: cython.longlong = numbers[n, C.N_SIZE]
    if size <= 0 or born < 0 or store < 0 or body < 0 or topic < 0 or prop < 0:
        return 0
    if topic > (65535 if v2 else 255) or prop > 65535:
        return 0
    if size != L.FIXED_SIZE + born + store + body + topic + v2 + prop:
        return 0
    if at < 0 or at > len(out) - size:
        return 0
    p = cython.cast(cython.Py_ssize_t, at)
    q = put_head(
        out, p, numbers[n, C.N_MAGIC], numbers[n, C.N_BODY_CRC], numbers[n, C.N_QUEUE_ID],
        numbers[n, C.N_FLAG], numbers[n, C.N_QUEUE_OFFSET], numbers[n, C.N_PHY],
        numbers[n, C.N_SYS_FLAG], numbers[n, C.N_BORN_TIMESTAMP])
    q = copy_bytes(out, q, born_hosts, born_offsets[n], born)
    q = put_store_time(out, q, numbers[n, C.N_STORE_TIMESTAMP])
    q = copy_bytes(out, q, store_hosts, store_offsets[n], store)
    q = put_body_head(out, q, numbers[n, C.N_RECONSUME_TIMES], numbers[n, C.N_PREPARED], body)
    q = copy_bytes(out, q, bodies, body_offsets[n], body)
    q = copy_bytes(out, put_topic_length(out, q, topic, v2), topics, topic_offsets[n], topic)
    copy_bytes(out, put_properties_length(out, q, prop), props, prop_offsets[n], prop)
    put32(out, p, size)
    return size


@cython.cfunc
@cython.exceptval(-1)
def _check_rows(
    numbers: cython.const[cython.longlong][:, ::1], base: cython.longlong, flags: cython.Py_ssize_t,
    offsets: cython.Py_ssize_t,
) -> cython.int:
    """Raise ValueError unless there are enough columns, flags and offsets for the rows, and a position."""
    count: cython.Py_ssize_t = numbers.shape[0]
    if count and numbers.shape[1] < C.N_COLUMNS:
        raise ValueError(f"{numbers.shape[1]} columns")
    if base < 0:  # differences of positions must not overflow
        raise ValueError(f"position {base}")
    if flags < count or offsets < count + 1:
        raise ValueError(f"{count} rows need more offsets or flags")
    return 0


def encode_rows(
    numbers: cython.const[cython.longlong][:, ::1],
    born_offsets: cython.const[cython.int][::1],
    born_hosts: cython.const[cython.uchar][::1],
    store_offsets: cython.const[cython.int][::1],
    store_hosts: cython.const[cython.uchar][::1],
    body_offsets: cython.const[cython.int][::1],
    bodies: cython.const[cython.uchar][::1],
    topic_offsets: cython.const[cython.int][::1],
    topics: cython.const[cython.uchar][::1],
    prop_offsets: cython.const[cython.int][::1],
    props: cython.const[cython.uchar][::1],
    base: cython.longlong,
    out: cython.uchar[::1],
    fits: cython.uchar[::1],
):
    """Write every row's record at its position; ``out[0]`` is at position ``base``. Return the number written.

    ``fits`` is set to 1 for a row that was written, and to 0 for a row that is skipped, is not inside a
    buffer, or whose parts do not have the size of its record.
    """
    n: cython.Py_ssize_t
    count: cython.Py_ssize_t = numbers.shape[0]
    written: cython.Py_ssize_t = 0
    _check_rows(numbers, base, len(fits), min(
        born_offsets.shape[0], store_offsets.shape[0], body_offsets.shape[0],
        topic_offsets.shape[0], prop_offsets.shape[0]))
    with cython.nogil:
        for n in range(count):
            fits[n] = numbers[n, C.N_PHY] >= base and _put_row(
                numbers, n, born_offsets, born_hosts, store_offsets, store_hosts, body_offsets, bodies, topic_offsets,
                topics, prop_offsets, props, out, numbers[n, C.N_PHY] - base) > 0
            written += fits[n]
    return written


def differing_rows(
    numbers: cython.const[cython.longlong][:, ::1],
    born_offsets: cython.const[cython.int][::1],
    born_hosts: cython.const[cython.uchar][::1],
    store_offsets: cython.const[cython.int][::1],
    store_hosts: cython.const[cython.uchar][::1],
    body_offsets: cython.const[cython.int][::1],
    bodies: cython.const[cython.uchar][::1],
    topic_offsets: cython.const[cython.int][::1],
    topics: cython.const[cython.uchar][::1],
    prop_offsets: cython.const[cython.int][::1],
    props: cython.const[cython.uchar][::1],
    base: cython.longlong,
    data: cython.const[cython.uchar][::1],
    room: cython.uchar[::1],
    differ: cython.uchar[::1],
):
    """Compare every row's record with the bytes at its position; ``data[0]`` is at ``base``. Return how many differ.

    ``differ`` is set to 1 for a row that differs, or whose record is not inside ``data`` or does not have the size of
    its parts, else to 0. ``room`` has a record at a time, so it must be as long as the longest one: it stays in the
    processor's cache, which a copy of all of ``data`` would not.
    """
    n: cython.Py_ssize_t
    count: cython.Py_ssize_t = numbers.shape[0]
    size: cython.longlong
    found: cython.Py_ssize_t = 0
    _check_rows(numbers, base, len(differ), min(
        born_offsets.shape[0], store_offsets.shape[0], body_offsets.shape[0],
        topic_offsets.shape[0], prop_offsets.shape[0]))
    with cython.nogil:
        for n in range(count):
            differ[n] = 1
            if numbers[n, C.N_PHY] >= base and inside(numbers[n, C.N_PHY] - base, numbers[n, C.N_SIZE], len(data)):
                size = _put_row(
                    numbers, n, born_offsets, born_hosts, store_offsets, store_hosts, body_offsets, bodies,
                    topic_offsets, topics, prop_offsets, props, room, 0)
                differ[n] = size == 0 or _differ(
                    room, data, cython.cast(cython.Py_ssize_t, numbers[n, C.N_PHY] - base),
                    cython.cast(cython.Py_ssize_t, size))
            found += differ[n]
    return found
