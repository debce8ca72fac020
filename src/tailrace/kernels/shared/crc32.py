# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""CRC-32 as in zlib, computed by ISA-L after ``use_crc32``, otherwise by the module zlib."""

import zlib

import cython

from tailrace.kernels.shared import layouts as L
from tailrace.kernels.shared.big_endian import be64
from tailrace.kernels.shared.copying import pointer_to

if cython.compiled:
    # ISA-L's crc32_gzip_refl(start, bytes, length). If it is NULL, zlib is called, which needs the interpreter's lock.
    _isal_crc32 = cython.declare(
        "unsigned int (*)(unsigned int, const unsigned char *, unsigned long long) noexcept nogil")
    _isal_crc32 = cython.NULL


def use_crc32(address: cython.size_t):
    """Compute checksums with the C function of ISA-L at an address; with 0 use zlib again."""
    global _isal_crc32
    if cython.compiled:
        _isal_crc32 = cython.cast(
            "unsigned int (*)(unsigned int, const unsigned char *, unsigned long long) noexcept nogil",
            cython.cast(cython.p_void, address))


@cython.cfunc
@cython.with_gil
@cython.exceptval(check=False)
def _crc_by_zlib(start: cython.p_const_uchar, n: cython.Py_ssize_t) -> cython.longlong:
    return zlib.crc32(start[:n])


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def crc_at(start: cython.p_const_uchar, n: cython.Py_ssize_t) -> cython.longlong:
    """Return the checksum of ``n`` bytes at a pointer."""
    if cython.compiled:
        if _isal_crc32 != cython.NULL:
            return _isal_crc32(0, start, n)
    return _crc_by_zlib(start, n)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def crc_of(
    b: cython.const[cython.uchar][::1], i: cython.Py_ssize_t, e: cython.Py_ssize_t
) -> cython.longlong:
    """Return the checksum of ``b[i:e]``."""
    return crc_at(pointer_to(b, i), e - i) if i < e else 0


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
    if at < props or b[end - 1] != 2 or b[at + 8] != 1 or be64(b, at) != L.CRC_NAME:
        return False
    for k in range(10):
        if not 48 <= b[at + 18 - k] <= 57:
            return True
        value = value * 10 + (b[at + 18 - k] - 48)
    return value != (crc_of(b, start, at) & 0x7FFFFFFF)
