# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Copy the numbers and bytes of records that Arrow columns are made of."""

import cython

from tailrace.kernels.shared import constants as C
from tailrace.kernels.shared import layouts as L
from tailrace.kernels.shared.copying import copy_bytes, inside
from tailrace.kernels.shared.record_rows import fill_row, numbers_fit, put_numbers

PACKED = cython.declare(cython.int, 0)
NO_ROOM = cython.declare(cython.int, 1)
OUTSIDE = cython.declare(cython.int, 2)  # a position or length of the row leads out of the buffer


@cython.cclass
class Packer:
    """Memory for up to ``room`` rows of records (``kernels.record``), and for their bytes.

    ``columns`` of row ``n`` are copied to ``short[:, n]`` and ``long[:, n]``, see ``record.take_numbers``. Hosts, topic
    and properties are copied to ``texts``, bodies to ``bodies`` if ``with_bodies``. The positions of these, and of
    keys, unique key and tags, are indexes into the two; other positions are those of the record and are not used.
    ``count`` is the number of rows so far; ``texts_end`` and ``bodies_end`` are the numbers of bytes.
    """

    count = cython.declare(cython.Py_ssize_t, visibility="readonly")
    texts_end = cython.declare(cython.Py_ssize_t, visibility="readonly")
    bodies_end = cython.declare(cython.Py_ssize_t, visibility="readonly")
    _room: cython.Py_ssize_t
    _row: cython.longlong[:, ::1]
    _texts: cython.uchar[::1]
    _bodies: cython.uchar[::1]
    _with_bodies: cython.bint
    _columns: cython.const[cython.longlong][::1]
    _short: cython.int[:, ::1]
    _long: cython.longlong[:, ::1]

    def __init__(
        self, room: cython.Py_ssize_t, row: cython.longlong[:, ::1], texts: cython.uchar[::1],
        bodies: cython.uchar[::1], with_bodies: cython.bint, columns: cython.const[cython.longlong][::1],
        short: cython.int[:, ::1], long: cython.longlong[:, ::1],
    ):
        """``row`` is a work area. Raises ValueError if arrays are too small."""
        if row.shape[0] < 1 or row.shape[1] != C.COLUMNS or not numbers_fit(columns, room, short, long):
            raise ValueError(f"{columns.shape[0]} columns of {room} rows, a row of {row.shape[1]} columns")
        self.count = self.texts_end = self.bodies_end = 0
        self._room, self._row, self._texts, self._bodies = room, row, texts, bodies
        self._with_bodies, self._columns, self._short, self._long = with_bodies, columns, short, long

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _put(self, buf: cython.const[cython.uchar][::1]) -> cython.int:
        """Add the row in the work area. Return PACKED, or what is in the way."""
        k: cython.Py_ssize_t
        t: cython.Py_ssize_t = self.texts_end
        limit: cython.longlong = len(buf)
        born_host: cython.longlong = self._row[0, C.BORN_HOST_POS]
        store_host: cython.longlong = self._row[0, C.STORE_HOST_POS]
        host: cython.longlong = L.HOST_V6_SIZE if self._row[0, C.SYS_FLAG] & L.STOREHOST_V6 else L.HOST_V4_SIZE
        hosts: cython.longlong = store_host + host - born_host
        topic: cython.longlong = self._row[0, C.TOPIC_LEN]
        props_at: cython.longlong = self._row[0, C.PROPS_POS]
        props: cython.longlong = self._row[0, C.PROPS_LEN]
        body: cython.longlong = self._row[0, C.BODY_LEN] if self._with_bodies else 0
        if (
            not inside(born_host, 0, limit) or not inside(store_host, host, limit) or born_host > store_host
            or not inside(self._row[0, C.TOPIC_POS], topic, limit) or not inside(props_at, props, limit)
            or (self._with_bodies and not inside(self._row[0, C.BODY_POS], body, limit))
        ):
            return OUTSIDE
        for k in range(C.KEYS_POS, C.TAGS_LEN, 2):
            if self._row[0, k] >= 0 and not inside(self._row[0, k] - props_at, self._row[0, k + 1], props):
                return OUTSIDE
        if (
            self.count >= self._room or hosts + topic + props > len(self._texts) - t
            or body > len(self._bodies) - self.bodies_end
        ):
            return NO_ROOM
        if self._with_bodies:
            k = self.bodies_end
            self.bodies_end = copy_bytes(self._bodies, k, buf, self._row[0, C.BODY_POS], body)
            self._row[0, C.BODY_POS] = k
        self._row[0, C.BORN_HOST_POS] = t
        self._row[0, C.STORE_HOST_POS] = t + hosts - host
        t = copy_bytes(self._texts, t, buf, born_host, hosts)
        k = t
        t = copy_bytes(self._texts, t, buf, self._row[0, C.TOPIC_POS], topic)
        self._row[0, C.TOPIC_POS] = k
        for k in range(C.KEYS_POS, C.TAGS_LEN, 2):
            if self._row[0, k] >= 0:
                self._row[0, k] += t - props_at
        self._row[0, C.PROPS_POS] = t
        self.texts_end = copy_bytes(self._texts, t, buf, props_at, props)
        put_numbers(self._row, 0, self._columns, self.count, self._short, self._long)
        self.count += 1
        return PACKED

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def put_record(
        self, buf: cython.const[cython.uchar][::1], at: cython.Py_ssize_t, size: cython.longlong,
        base: cython.longlong,
    ) -> cython.int:
        """Add a verified record, see ``fill_row``. Return PACKED, or what is in the way."""
        if fill_row(buf, at, size, base, C.LEAVE_HASHES, self._row, 0):
            return OUTSIDE
        return self._put(buf)

    def put_rows(self, buf: cython.const[cython.uchar][::1], rows: cython.longlong[:, ::1], first: cython.Py_ssize_t):
        """Add ``rows`` from ``first`` onwards, whose bytes are in ``buf``. Return the first row without room."""
        k: cython.Py_ssize_t
        done: cython.int = PACKED
        if first < 0 or rows.shape[1] != C.COLUMNS:
            raise ValueError(f"first {first}, {rows.shape[1]} columns")
        while first < rows.shape[0]:
            for k in range(C.COLUMNS):
                self._row[0, k] = rows[first, k]
            done = self._put(buf)
            if done != PACKED:
                break
            first += 1
        if done == OUTSIDE:
            raise ValueError(f"row {first} leads out of the buffer")
        return first
