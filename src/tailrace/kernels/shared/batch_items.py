# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Messages in the body of a batch request: their lengths, and their records."""

import cython

from tailrace.kernels.shared import layouts as L
from tailrace.kernels.shared.big_endian import be16, be32
from tailrace.kernels.shared.copying import pointer_to
from tailrace.kernels.shared.crc32 import crc_at
from tailrace.kernels.shared.record_encoding import CRC_31_BITS, RecordFields, put_record


@cython.cfunc
@cython.returns((cython.longlong, cython.longlong, cython.longlong))
@cython.nogil
@cython.exceptval(check=False)
def item_at(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, e: cython.Py_ssize_t):
    """Return the sizes of the message at ``p`` of a batch that ends at ``e``: all of it, its body, its properties.

    They are -1 if its lengths do not add up, or if it ends after ``e``.
    """
    body: cython.longlong
    props: cython.longlong
    if e - p < L.ITEM_SIZE + 2:
        return -1, -1, -1
    body = be32(b, p + L.ITEM_AT_BODY_LENGTH)
    if body < 0 or body > e - p - L.ITEM_SIZE - 2:
        return -1, -1, -1
    props = be16(b, p + L.ITEM_SIZE + cython.cast(cython.Py_ssize_t, body))
    if props > L.MAX_PROPERTIES or L.ITEM_SIZE + body + 2 + props != be32(b, p) or be32(b, p) > e - p:
        return -1, -1, -1
    return be32(b, p), body, props


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def put_item(
    out: cython.uchar[::1], pos: cython.Py_ssize_t, limit: cython.Py_ssize_t, common: RecordFields,
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, queue_offset: cython.longlong,
    phy_offset: cython.longlong,
) -> cython.Py_ssize_t:
    """Write the record of the message at ``p``, which `item_at` has accepted. Return what `put_record` does."""
    body: cython.Py_ssize_t = cython.cast(cython.Py_ssize_t, be32(b, p + L.ITEM_AT_BODY_LENGTH))
    q: cython.Py_ssize_t = p + L.ITEM_SIZE
    return put_record(
        out, pos, limit, common, be32(b, p + L.ITEM_AT_FLAG), queue_offset, phy_offset, pointer_to(b, q), body,
        crc_at(pointer_to(b, q), body) & CRC_31_BITS, pointer_to(b, q + body + 2),
        cython.cast(cython.Py_ssize_t, be16(b, q + body)))
