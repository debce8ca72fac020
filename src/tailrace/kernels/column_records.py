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
from tailrace.kernels.shared.copying import copy_bytes
from tailrace.kernels.shared.record_parts import (
    put_body_head,
    put_head,
    put_properties_length,
    put_store_time,
    put_topic_length,
)

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


def differing_rows(
    one: cython.const[cython.uchar][::1],
    other: cython.const[cython.uchar][::1],
    places: cython.const[cython.longlong][::1],
    sizes: cython.const[cython.longlong][::1],
    differ: cython.uchar[::1],
):
    """Compare ranges of two buffers, each of ``sizes`` bytes at ``places``. Return how many differ.

    ``differ`` is set to 1 for a range that differs or is not inside both buffers, else to 0.
    """
    n: cython.Py_ssize_t
    k: cython.Py_ssize_t
    p: cython.Py_ssize_t
    size: cython.Py_ssize_t
    count: cython.Py_ssize_t = places.shape[0]
    limit: cython.longlong = min(len(one), len(other))
    found: cython.Py_ssize_t = 0
    bits: cython.uchar
    if sizes.shape[0] < count or len(differ) < count:
        raise ValueError(f"{count} ranges need more sizes or flags")
    with cython.nogil:
        for n in range(count):
            differ[n] = 1
            if 0 <= sizes[n] <= limit and 0 <= places[n] <= limit - sizes[n]:
                p = cython.cast(cython.Py_ssize_t, places[n])
                size = cython.cast(cython.Py_ssize_t, sizes[n])
                if cython.compiled:
                    bits = 0  # a loop without a break is compiled to compare many bytes at a time
                    for k in range(size):
                        bits |= one[p + k] ^ other[p + k]
                    differ[n] = bits != 0
                else:
                    differ[n] = bytes(one[p : p + size]) != bytes(other[p : p + size])
            found += differ[n]
    return found


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
    p: cython.Py_ssize_t
    q: cython.Py_ssize_t
    count: cython.Py_ssize_t = numbers.shape[0]
    room: cython.Py_ssize_t = len(out)
    written: cython.Py_ssize_t = 0
    born: cython.Py_ssize_t
    store: cython.Py_ssize_t
    body: cython.Py_ssize_t
    topic: cython.Py_ssize_t
    prop: cython.Py_ssize_t
    v2: cython.bint
    size: cython.longlong
    if count and numbers.shape[1] < C.N_COLUMNS:
        raise ValueError(f"{numbers.shape[1]} columns")
    if base < 0:  # differences of positions must not overflow
        raise ValueError(f"position {base}")
    if len(fits) < count or min(
        born_offsets.shape[0], store_offsets.shape[0], body_offsets.shape[0],
        topic_offsets.shape[0], prop_offsets.shape[0],
    ) < count + 1:
        raise ValueError(f"{count} rows need more offsets or flags")
    with cython.nogil:
        for n in range(count):
            fits[n] = 0
            size = numbers[n, C.N_SIZE]
            born = _length(born_offsets, n, len(born_hosts))
            store = _length(store_offsets, n, len(store_hosts))
            body = _length(body_offsets, n, len(bodies))
            topic = _length(topic_offsets, n, len(topics))
            prop = _length(prop_offsets, n, len(props))
            v2 = numbers[n, C.N_MAGIC] == L.MAGIC_V2
            if size <= 0 or born < 0 or store < 0 or body < 0 or topic < 0 or prop < 0:
                continue
            if topic > (65535 if v2 else 255) or prop > 65535:
                continue
            if size != L.FIXED_SIZE + born + store + body + topic + v2 + prop:
                continue
            if numbers[n, C.N_PHY] < base or numbers[n, C.N_PHY] - base > room - size:
                continue
            p = cython.cast(cython.Py_ssize_t, numbers[n, C.N_PHY] - base)
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
            fits[n] = 1
            written += 1
    return written
