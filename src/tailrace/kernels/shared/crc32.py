# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""CRC-32 as in zlib, computed by ISA-L after ``use_crc32``, otherwise with a table."""

import zlib

import cython

from tailrace.kernels.shared import layouts as L
from tailrace.kernels.shared.names import is_crc_property

if cython.compiled:
    _TABLE = cython.declare(cython.uint[4096])


def _fill_table():
    i: cython.int
    j: cython.int
    c: cython.uint
    for i in range(256):
        c = i
        for j in range(8):
            c = (c >> 1) ^ 0xEDB88320 if c & 1 else c >> 1
        _TABLE[i] = c
    for i in range(256):
        c = _TABLE[i]
        for j in range(1, 16):
            c = _TABLE[c & 255] ^ (c >> 8)
            _TABLE[j * 256 + i] = c


if cython.compiled:
    _fill_table()
    # ISA-L's crc32_gzip_refl(start, bytes, length). If it is NULL, the table is used.
    _isal_crc32 = cython.declare(
        "unsigned int (*)(unsigned int, const unsigned char *, unsigned long long) noexcept nogil")
    _isal_crc32 = cython.NULL


def use_crc32(address: cython.size_t):
    """Compute checksums with the C function of ISA-L at an address; with 0 use the table again."""
    global _isal_crc32
    if cython.compiled:
        _isal_crc32 = cython.cast(
            "unsigned int (*)(unsigned int, const unsigned char *, unsigned long long) noexcept nogil",
            cython.cast(cython.p_void, address))


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _crc_by_table(
    b: cython.const[cython.uchar][::1], i: cython.Py_ssize_t, e: cython.Py_ssize_t
) -> cython.longlong:
    """Return the checksum of ``b[i:e]``, 16 bytes a step: row j of the table is for a byte with j bytes after it."""
    c: cython.uint = 0xFFFFFFFF
    a: cython.uint
    while i + 16 <= e:
        a = c ^ (
            cython.cast(cython.uint, b[i])
            | (cython.cast(cython.uint, b[i + 1]) << 8)
            | (cython.cast(cython.uint, b[i + 2]) << 16)
            | (cython.cast(cython.uint, b[i + 3]) << 24)
        )
        c = (
            _TABLE[3840 + (a & 255)] ^ _TABLE[3584 + ((a >> 8) & 255)]
            ^ _TABLE[3328 + ((a >> 16) & 255)] ^ _TABLE[3072 + (a >> 24)]
            ^ _TABLE[2816 + b[i + 4]] ^ _TABLE[2560 + b[i + 5]]
            ^ _TABLE[2304 + b[i + 6]] ^ _TABLE[2048 + b[i + 7]]
            ^ _TABLE[1792 + b[i + 8]] ^ _TABLE[1536 + b[i + 9]]
            ^ _TABLE[1280 + b[i + 10]] ^ _TABLE[1024 + b[i + 11]]
            ^ _TABLE[768 + b[i + 12]] ^ _TABLE[512 + b[i + 13]]
            ^ _TABLE[256 + b[i + 14]] ^ _TABLE[b[i + 15]]
        )
        i += 16
    while i < e:
        c = _TABLE[(c ^ b[i]) & 255] ^ (c >> 8)
        i += 1
    return cython.cast(cython.longlong, c ^ cython.cast(cython.uint, 0xFFFFFFFF))


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def crc_of(
    b: cython.const[cython.uchar][::1], i: cython.Py_ssize_t, e: cython.Py_ssize_t
) -> cython.longlong:
    """Return the checksum of ``b[i:e]``."""
    if cython.compiled:
        if i < e and _isal_crc32 != cython.NULL:
            return _isal_crc32(0, cython.address(b[i]), e - i)
        return _crc_by_table(b, i, e)
    return zlib.crc32(memoryview(b)[i:e])


@cython.cfunc
def crc_of_object(data: bytes) -> cython.longlong:
    """Return the checksum of a bytes object."""
    if cython.compiled:
        start = cython.declare("const unsigned char *")
        start = data
        if _isal_crc32 != cython.NULL:
            return _isal_crc32(0, start, len(data))
    return crc_of(data, 0, len(data))


def crc32(buf: cython.const[cython.uchar][::1], start: cython.Py_ssize_t, until: cython.Py_ssize_t):
    """Return the CRC-32 of ``buf[start:until]``."""
    if not 0 <= start <= until <= len(buf):
        raise ValueError(f"{start} to {until} of {len(buf)}")
    return crc_of(buf, start, until)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def own_crc_is_wrong(
    b: cython.const[cython.uchar][::1],
    start: cython.Py_ssize_t,
    props: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
) -> cython.bint:
    """Return True if a record ends with the checksum property and that checksum does not match."""
    # The property is "__CRC32#", byte 1, ten digits, byte 2.
    at: cython.Py_ssize_t = end - L.CRC_SIZE
    value: cython.longlong = 0
    k: cython.Py_ssize_t
    if at < props or b[end - 1] != 2 or b[at + 8] != 1 or not is_crc_property(b, at, 8):
        return False
    for k in range(10):
        if not 48 <= b[at + 18 - k] <= 57:
            return True
        value = value * 10 + (b[at + 18 - k] - 48)
    return value != (crc_of(b, start, at) & 0x7FFFFFFF)
