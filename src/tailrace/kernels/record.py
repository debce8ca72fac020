# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Records of the CommitLog: ``encode`` writes one; ``scan`` finds and checks them and fills one row for each.

The same source runs interpreted or compiled, with the same results. ``buf`` is any contiguous buffer of bytes,
``rows`` a C-contiguous int64 array with ``C.COLUMNS`` columns. Positions in rows (*_POS) are indexes into
``buf``. A scan also reads damaged bytes, so every position is compared with the length before it is read.
"""

import cython

from tailrace.kernels.shared import constants as C
from tailrace.kernels.shared import layouts as L
from tailrace.kernels.shared.batch_items import item_at
from tailrace.kernels.shared.copying import inside
from tailrace.kernels.shared.crc32 import crc32, use_crc32
from tailrace.kernels.shared.kinds import kind_in
from tailrace.kernels.shared.record_encoding import RecordFields, put_record
from tailrace.kernels.shared.record_rows import fill_properties, fill_row, numbers_fit, put_numbers
from tailrace.kernels.shared.record_scan import scan

SOURCE_SHA256 = ""

REASON_NAMES = {
    0: "end", 1: "rows full", 2: "blank", 3: "zero", 4: "bad magic", 5: "bad length",
    6: "bad body checksum", 7: "wrong physical offset", 8: "cut off", 9: "bad record checksum",
    10: "torn after its body",
}
END_OF_FILE = -1


def encode(
    buf: cython.uchar[::1],
    pos: cython.Py_ssize_t,
    limit: cython.Py_ssize_t,
    phy_offset: cython.longlong,
    queue_id: cython.longlong,
    flag: cython.longlong,
    queue_offset: cython.longlong,
    sys_flag: cython.longlong,
    born_timestamp: cython.longlong,
    born_host: bytes,
    store_timestamp: cython.longlong,
    store_host: bytes,
    reconsume_times: cython.longlong,
    prepared: cython.longlong,
    body: bytes,
    body_crc: cython.longlong,
    topic: bytes,
    props: bytes,
    append_prop_crc: cython.bint,
):
    """Write a record at ``buf[pos:]`` and return its size, or END_OF_FILE if it does not fit.

    ``append_prop_crc`` adds the checksum of the record as last property. The caller has checked the lengths.
    """
    common: RecordFields = RecordFields()
    if born_host is None or store_host is None or body is None or topic is None or props is None:
        raise TypeError("a part of a record must not be None")
    common.queue_id, common.sys_flag, common.born_timestamp = queue_id, sys_flag, born_timestamp
    common.now, common.reconsume_times, common.prepared = store_timestamp, reconsume_times, prepared
    common.append_crc = append_prop_crc
    common.set_born_host(born_host)
    common.set_store_host(store_host)
    common.set_topic(topic)
    if pos < 0:
        return -1
    return put_record(
        buf, pos, min(limit, len(buf)), common, flag, queue_offset, phy_offset, body, len(body), body_crc,
        props, len(props))


def fill_rows(
    buf: cython.const[cython.uchar][::1],
    base: cython.longlong,
    places: cython.longlong[:, ::1],
    rows: cython.longlong[:, ::1],
    check: cython.int = 0,
):
    """Fill one row for each record in ``places`` (PLACE_*); ``check`` is as for ``scan``.

    ``buf[0]`` is at position ``base`` of the log. Checksums need no check where ``UnitWindow.find`` has verified
    them. Raises ValueError for a place without a record.
    """
    n: cython.Py_ssize_t
    count: cython.Py_ssize_t = places.shape[0]
    limit: cython.longlong = len(buf)
    bad: cython.Py_ssize_t = -1
    if count and (places.shape[1] < 2 or rows.shape[0] < count or rows.shape[1] < C.COLUMNS):
        raise ValueError(f"{count} places of {places.shape[1]}, {rows.shape[0]} rows of {rows.shape[1]}")
    with cython.nogil:
        for n in range(count):
            if (
                places[n, 1] < L.MIN_RECORD_SIZE or places[n, 0] < 0 or places[n, 0] > limit - places[n, 1]
                or fill_row(buf, cython.cast(cython.Py_ssize_t, places[n, 0]), places[n, 1], base, check, rows, n)
            ):
                bad = n
                break
    if bad >= 0:
        raise ValueError(f"there is no record at place {bad}")


def read_properties(buf: cython.const[cython.uchar][::1], rows: cython.longlong[:, ::1]):
    """Set the columns of each row that depend on its properties, from those at PROPS_POS.

    Raises ValueError for properties outside of ``buf``.
    """
    n: cython.Py_ssize_t
    for n in range(rows.shape[0]):
        if rows.shape[1] != C.COLUMNS or not inside(rows[n, C.PROPS_POS], rows[n, C.PROPS_LEN], len(buf)):
            raise ValueError(f"row {n} of {rows.shape[1]} columns leads out of the buffer")
        fill_properties(buf, rows[n, C.PROPS_POS], rows[n, C.PROPS_POS] + rows[n, C.PROPS_LEN], rows, n)


def take_numbers(
    rows: cython.longlong[:, ::1],
    columns: cython.const[cython.longlong][::1],
    short: cython.int[:, ::1],
    long: cython.longlong[:, ::1],
):
    """Copy columns of rows to ``short`` and ``long``, one column to each row of them.

    The first columns are copied to ``short``, with their low 32 bits, the others to ``long``.
    """
    n: cython.Py_ssize_t
    count: cython.Py_ssize_t = rows.shape[0]
    if rows.shape[1] != C.COLUMNS or not numbers_fit(columns, count, short, long):
        raise ValueError(
            f"{columns.shape[0]} columns of {count} rows of {rows.shape[1]} into {short.shape[0]} x {short.shape[1]} "
            f"and {long.shape[0]} x {long.shape[1]}")
    with cython.nogil:
        for n in range(count):
            put_numbers(rows, n, columns, n, short, long)


def check_batch(data: bytes):
    """Check the body of a batch request.

    Return (messages, longest body, longest properties, bytes of all bodies and properties, flags that a message has
    by ``kind_in``). The number of messages is -1 if lengths do not add up or the last message is cut off.
    """
    view: cython.const[cython.uchar][::1] = data
    limit: cython.Py_ssize_t = len(data)
    at: cython.Py_ssize_t = 0
    count: cython.Py_ssize_t = 0
    total: cython.longlong = 0
    longest: cython.longlong = 0
    most: cython.longlong = 0
    size: cython.longlong
    body: cython.longlong
    props: cython.longlong
    kind: cython.int = 0
    start = cython.declare(cython.p_const_uchar)
    start = data
    while at < limit:
        size, body, props = item_at(view, at, limit)
        if size < 0:
            return -1, 0, 0, 0, 0
        longest, most = max(longest, body), max(most, props)
        total += body + props
        at += cython.cast(cython.Py_ssize_t, size)
        kind |= kind_in(start, at - cython.cast(cython.Py_ssize_t, props), at)[0]
        count += 1
    return count, longest, most, total, kind
