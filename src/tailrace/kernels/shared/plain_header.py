# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Read the header of a request in place, in both encodings, if it has the form in which clients write it."""

import cython

from tailrace.kernels.shared import layouts as L
from tailrace.kernels.shared.big_endian import be32, be32u
from tailrace.kernels.shared.copying import copy_bytes
from tailrace.kernels.shared.field_names import json_member
from tailrace.kernels.shared.texts import ascii_end, hexadecimal_digit

UNESCAPED_SIZE = cython.declare(cython.Py_ssize_t, 65536)
INT_MAX = cython.declare(cython.longlong, 0x7FFFFFFF)
_HEADER_MAX = cython.declare(cython.longlong, 65536)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def number_at(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, n: cython.Py_ssize_t) -> cython.longlong:
    """Return the number whose ``n`` decimal digits are at ``p``; -1 for other texts, and for zeros at the start."""
    value: cython.longlong = 0
    k: cython.Py_ssize_t
    if n < 1 or n > 18 or (n > 1 and b[p] == 48):
        return -1
    for k in range(p, p + n):
        if b[k] < 48 or b[k] > 57:
            return -1
        value = value * 10 + (b[k] - 48)
    return value


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def bare_end(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, e: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Return the index after the whole number, true or false of JSON that starts at ``p``, or ``p`` without one.

    Such a value counts as the same text in quotation marks. So a number has up to 18 digits, and -0 does not count. The
    byte after it may belong to it, as in 1.5: the caller looks.
    """
    first: cython.Py_ssize_t = p + 1 if p < e and b[p] == 45 else p  # after a minus
    q: cython.Py_ssize_t = first
    if e - p > 4 and b[p] == 116 and b[p + 1] == 114 and b[p + 2] == 117 and b[p + 3] == 101:
        return p + 4
    if e - p > 5 and b[p] == 102 and b[p + 1] == 97 and b[p + 2] == 108 and b[p + 3] == 115 and b[p + 4] == 101:
        return p + 5
    while q < e and 48 <= b[q] <= 57:
        q += 1
    return q if number_at(b, first, q - first) >= first - p else p


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _escaped(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, e: cython.Py_ssize_t) -> cython.int:
    r"""Return the character of ASCII for which the escape at ``p`` stands, -1 for others. One of \u has six bytes."""
    high: cython.int
    low: cython.int
    if e - p < 2:
        return -1
    if b[p + 1] == 34 or b[p + 1] == 92 or b[p + 1] == 47:
        return b[p + 1]
    if b[p + 1] == 110:
        return 10
    if b[p + 1] == 116:
        return 9
    if b[p + 1] == 114:
        return 13
    if b[p + 1] == 98:
        return 8
    if b[p + 1] == 102:
        return 12
    if b[p + 1] != 117 or e - p < 6 or b[p + 2] != 48 or b[p + 3] != 48:
        return -1
    high, low = hexadecimal_digit(b[p + 4]), hexadecimal_digit(b[p + 5])
    return -1 if low < 0 or high < 0 or high > 7 else high << 4 | low


@cython.cclass
class PlainHeader:
    """The header that was read last: ``_at[n]`` and ``_size[n]`` are the place of field ``n`` of `_number`.

    ``_seen`` has a bit for each field that is there. ``_body`` and ``_end`` are the indexes of the body and after the
    frame. Requests with one of the three ``_codes`` are read. Of their fields only ``_free``, -1 for none, may have
    escapes and other bytes than those of ASCII. In a JSON header its place is in ``_unescaped`` if ``_is_unescaped`` is
    set; the first ``_used`` bytes of that buffer belong to frames before.
    """

    _at = cython.declare(cython.Py_ssize_t[16])
    _size = cython.declare(cython.Py_ssize_t[16])
    _seen: cython.uint
    _code: cython.longlong
    _flag: cython.longlong
    _opaque: cython.longlong
    _body: cython.Py_ssize_t
    _end: cython.Py_ssize_t
    _is_binary: cython.bint
    _codes = cython.declare(cython.longlong[3])
    _free: cython.int
    _unescaped: cython.uchar[::1]
    _used: cython.Py_ssize_t
    _is_unescaped: cython.bint

    @cython.cfunc
    def _begin(
        self, code: cython.longlong, second: cython.longlong, third: cython.longlong, free: cython.int,
    ):
        """Set what is read: requests with these codes, and of which field ``_unescaped`` has the text."""
        if not cython.compiled:
            self._codes, self._at, self._size = [0, 0, 0], [0] * 16, [0] * 16
        self._codes[0], self._codes[1], self._codes[2], self._free, self._used = code, second, third, free, 0
        self._unescaped = bytearray(UNESCAPED_SIZE if free >= 0 else 1)

    @cython.cfunc
    def _is_read(self) -> cython.bint:
        """Return True if requests with ``_code`` are read."""
        return self._code == self._codes[0] or self._code == self._codes[1] or self._code == self._codes[2]

    @cython.cfunc
    def _number(
        self, b: cython.const[cython.uchar][::1], name: cython.Py_ssize_t, size: cython.Py_ssize_t,
    ) -> cython.int:
        """Return the number of the field of a request ``_code`` with the name ``b[name:name + size]``, else -1."""
        return -1

    @cython.cfunc
    def _read_frame(self, b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t) -> cython.bint:
        """Read the header of the frame at ``p``. Return False if the frame is not whole or its header not plain."""
        length: cython.longlong
        word: cython.longlong
        if p < 0 or len(b) - p < L.PREFIX_SIZE:
            return False
        length, word = be32(b, p), be32u(b, p + L.PREFIX_AT_WORD)
        if length > len(b) - p - L.PREFIX_AT_WORD or (word & 0xFFFFFF) > min(length - L.PREFIX_AT_WORD, _HEADER_MAX):
            return False
        self._end = p + L.PREFIX_AT_WORD + cython.cast(cython.Py_ssize_t, length)
        p += L.PREFIX_SIZE
        self._body = p + cython.cast(cython.Py_ssize_t, word & 0xFFFFFF)
        self._is_binary = word >> 24 == 1
        if self._is_binary:
            return self._read_binary(b, p, self._body)
        return word >> 24 == 0 and self._read_json(b, p, self._body)

    @cython.cfunc
    def _add_field(
        self, b: cython.const[cython.uchar][::1], name: cython.Py_ssize_t, name_size: cython.Py_ssize_t,
        value: cython.Py_ssize_t, size: cython.Py_ssize_t,
    ) -> cython.int:
        """Note a field; return its number, -1 for an unknown, repeated or empty one."""
        field: cython.int = self._number(b, name, name_size)
        if field < 0 or self._seen >> field & 1 or size < 1:
            return -1
        self._seen |= cython.cast(cython.uint, 1) << field
        self._at[field], self._size[field] = value, size
        return field

    @cython.cfunc
    def _read_binary(
        self, b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, e: cython.Py_ssize_t,
    ) -> cython.bint:
        """Read the binary header ``b[p:e]``. Return False if it is not plain."""
        name: cython.Py_ssize_t
        n: cython.longlong
        self._seen, self._is_unescaped = 0, False
        if e - p < L.BINARY_HEAD_SIZE + 4:
            return False
        self._code = b[p] << 8 | b[p + 1]
        self._opaque, self._flag = be32(b, p + L.BINARY_AT_OPAQUE), be32(b, p + L.BINARY_AT_FLAG)
        if (
            be32(b, p + L.BINARY_AT_REMARK_LENGTH) or be32(b, p + L.BINARY_HEAD_SIZE) != e - p - L.BINARY_HEAD_SIZE - 4
            or not self._is_read()
        ):
            return False
        p += L.BINARY_HEAD_SIZE + 4
        while p < e:
            if e - p < 6:
                return False
            n, name = b[p] << 8 | b[p + 1], p + 2
            if n > e - p - 6:
                return False
            p = name + cython.cast(cython.Py_ssize_t, n) + 4
            n = be32(b, p - 4)
            if n < 0 or n > e - p or self._add_field(b, name, p - 4 - name, p, n) < 0:
                return False
            p += cython.cast(cython.Py_ssize_t, n)
        return True

    @cython.cfunc
    def _read_json(
        self, b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, e: cython.Py_ssize_t,
    ) -> cython.bint:
        """Read the JSON header ``b[p:e]`` as clients write it. Return False if it is not plain.

        It has no blanks, and ``code`` comes first.
        """
        name: cython.Py_ssize_t
        value: cython.longlong
        member: cython.int
        members: cython.uint = 0
        self._seen, self._is_unescaped = 0, False
        self._flag = self._opaque = 0
        e -= 1  # the closing brace
        if e - p < 8 or b[e] != 125 or b[p] != 123:
            return False
        while True:  # p is at the brace or comma before a name
            name = p + 2
            if p + 1 >= e or b[p + 1] != 34:
                return False
            p = ascii_end(b, name, e)
            member = json_member(cython.address(b[0]), name, p - name)
            if e - p < 3 or b[p] != 34 or b[p + 1] != 58 or member < 0 or members >> member & 1:
                return False
            if not members and member != L.MEMBER_CODE:
                return False
            members |= cython.cast(cython.uint, 1) << member
            p += 2
            name = p
            if member == L.MEMBER_EXT_FIELDS:
                p = self._read_ext(b, p, e)
                if not p:
                    return False
            elif L.MEMBERS_TEXT >> member & 1:
                if b[p] != 34:
                    return False
                p = ascii_end(b, p + 1, e) + 1
                if p > e or b[p - 1] != 34:
                    return False
            else:
                while p < e and 48 <= b[p] <= 57:
                    p += 1
                value = number_at(b, name, p - name)
                if value < 0 or value > INT_MAX:
                    return False
                if member == L.MEMBER_CODE:
                    self._code = value
                    if not self._is_read():
                        return False
                elif member == L.MEMBER_FLAG:
                    self._flag = value
                elif member == L.MEMBER_OPAQUE:
                    self._opaque = value
            if p == e:
                return members >> L.MEMBER_EXT_FIELDS & 1
            if b[p] != 44:
                return False

    @cython.cfunc
    def _read_ext(
        self, b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, e: cython.Py_ssize_t,
    ) -> cython.Py_ssize_t:
        """Read the object of ext fields at ``p``. Return the index after it, 0 if it is not plain."""
        name: cython.Py_ssize_t
        value: cython.Py_ssize_t
        field: cython.int
        is_text: cython.bint
        if b[p] != 123:
            return 0
        while True:  # p is at the brace or comma before a name
            name = p + 2
            if p + 1 >= e or b[p + 1] != 34:
                return 0
            p = ascii_end(b, name, e)
            if e - p < 4 or b[p] != 34 or b[p + 1] != 58:
                return 0
            is_text = b[p + 2] == 34
            value = p + 3 if is_text else p + 2
            field = self._add_field(b, name, p - name, value, 1)
            if field < 0:
                return 0
            p = ascii_end(b, value, e) if is_text else bare_end(b, value, e)
            if field != self._free:
                self._size[field] = p - value
            elif is_text:
                p = self._unescape(b, value, p, e)
            else:
                return 0
            if p == value:
                return 0
            if is_text:
                if p >= e - 1 or b[p] != 34:
                    return 0
                p += 1
            elif p >= e:
                return 0
            if b[p] != 44:
                return p + 1 if b[p] == 125 else 0

    @cython.cfunc
    def _unescape(
        self, b: cython.const[cython.uchar][::1], start: cython.Py_ssize_t, p: cython.Py_ssize_t, e: cython.Py_ssize_t,
    ) -> cython.Py_ssize_t:
        """Write the field ``_free``, a JSON text that begins at ``start``, without its escapes.

        ``b[start:p]`` has none. Return the index of the first byte that is not part of the text; ``e`` if there is no
        room for it.
        """
        q: cython.Py_ssize_t = self._used
        n: cython.Py_ssize_t
        begins: cython.Py_ssize_t = start
        byte: cython.int
        while True:
            n = p - begins
            if n + 1 > UNESCAPED_SIZE - q:
                return e
            q = copy_bytes(self._unescaped, q, b, begins, n)
            if p >= e or b[p] == 34 or b[p] < 32:
                break
            if b[p] != 92:  # not ASCII; whether it is UTF-8 is checked later
                self._unescaped[q] = b[p]
                p += 1
            else:
                byte = _escaped(b, p, e)
                if byte < 0:
                    break
                self._unescaped[q] = byte
                p += 6 if b[p + 1] == 117 else 2
            q += 1
            begins = p
            p = ascii_end(b, p, e)
        self._is_unescaped = True
        self._at[self._free], self._size[self._free] = self._used, q - self._used
        return p
