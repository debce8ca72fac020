# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Look for characters in texts, and write numbers as text. The caller has checked positions and the room."""

import cython

if cython.compiled:
    from cython.cimports.processor import load64

_ONES = cython.declare(cython.ulonglong, 0x0101010101010101)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def ascii_end(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, e: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Return the index of the first byte of ``b[p:e]`` that is special in a JSON text, or ``e``.

    Special are a quotation mark, a backslash, a control character and a byte above 127.
    """
    w: cython.ulonglong
    quote: cython.ulonglong
    back: cython.ulonglong
    if cython.compiled:
        while e - p >= 8:  # a byte that is zero in one of these words has its high bit set after the subtraction
            w = cython.cast(cython.ulonglong, load64(cython.address(b[p])))
            quote, back = w ^ (_ONES * 34), w ^ (_ONES * 92)
            if (
                (quote - _ONES) & ~quote | (back - _ONES) & ~back | (w - _ONES * 32) & ~w | w
            ) & (_ONES * 128):
                break
            p += 8
    while p < e and b[p] != 34 and b[p] != 92 and 32 <= b[p] < 128:
        p += 1
    return p


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def is_utf8(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, e: cython.Py_ssize_t) -> cython.bint:
    """Return True if ``b[p:e]`` is UTF-8, without surrogates and in the shortest form, as Python decodes it."""
    n: cython.Py_ssize_t
    k: cython.Py_ssize_t
    while p < e:
        if cython.compiled:
            while e - p >= 8 and not load64(cython.address(b[p])) & cython.cast(cython.longlong, _ONES * 128):
                p += 8
            if p >= e:
                break
        if b[p] < 0x80:
            p += 1
            continue
        if b[p] < 0xC2 or b[p] > 0xF4:
            return False
        n = 2 if b[p] < 0xE0 else 3 if b[p] < 0xF0 else 4
        if e - p < n:
            return False
        for k in range(1, n):
            if b[p + k] & 0xC0 != 0x80:
                return False
        if (
            (b[p] == 0xE0 and b[p + 1] < 0xA0) or (b[p] == 0xED and b[p + 1] > 0x9F)
            or (b[p] == 0xF0 and b[p + 1] < 0x90) or (b[p] == 0xF4 and b[p + 1] > 0x8F)
        ):
            return False
        p += n
    return True


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def hexadecimal_digit(byte: cython.uchar) -> cython.int:
    """Return the value of a hexadecimal digit in either case, -1 for another character."""
    if 48 <= byte <= 57:
        return byte - 48
    if 65 <= byte <= 70:
        return byte - 55
    return byte - 87 if 97 <= byte <= 102 else -1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def put_decimal(out: cython.uchar[::1], q: cython.Py_ssize_t, value: cython.longlong) -> cython.Py_ssize_t:
    """Write a number from 0 on in decimal digits. Return the index after it."""
    rest: cython.longlong = value
    end: cython.Py_ssize_t = q + 1
    while rest > 9:
        rest //= 10
        end += 1
    q = end
    while True:
        q -= 1
        out[q] = cython.cast(cython.uchar, 48 + value % 10)
        value //= 10
        if not value:
            return end


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def put_hexadecimal(out: cython.uchar[::1], q: cython.Py_ssize_t, value: cython.longlong) -> cython.Py_ssize_t:
    """Write the sixteen hexadecimal digits of a number from 0 on. Return the index after them."""
    digit: cython.int
    k: cython.Py_ssize_t
    for k in range(16):
        digit = (value >> (60 - 4 * k)) & 15
        out[q + k] = cython.cast(cython.uchar, 48 + digit if digit < 10 else 55 + digit)
    return q + 16
