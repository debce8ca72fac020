# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The binary header of the remoting protocol (RocketMQSerializable), and the ids in the answer to a batch."""

import cython

from tailrace.kernels.shared import layouts as L

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.libc.string import memcpy

from tailrace.kernels.shared.big_endian import be32

SOURCE_SHA256 = ""


@cython.ccall
def code_at(frames: bytes, pos: cython.Py_ssize_t) -> cython.longlong:
    """Return the code of the request whose frame is at ``pos``, from its first bytes only; -1 if they do not tell it.

    A JSON header that begins with the code tells it. The rest of the frame may be anything.
    """
    b = cython.declare(cython.p_const_uchar)  # a view would take longer than all of the rest
    p: cython.Py_ssize_t = pos + L.PREFIX_SIZE
    e: cython.Py_ssize_t
    code: cython.longlong = 0
    if pos < 0 or len(frames) - p < L.BINARY_HEAD_SIZE:
        return -1
    b = frames
    if b[pos + L.PREFIX_AT_WORD] == 1:
        return (b[p] << 8) | b[p + 1]
    if b[p + 1] != 34 or b[p + 2] != 99 or b[p + 6] != 34:  # "c..."
        return -1
    p += 8  # after the colon
    e = p + 6
    while p < e and 48 <= b[p] <= 57:
        code = 10 * code + (b[p] - 48)
        p += 1
    return code if b[p] == 44 else -1


def decode_header(data: bytes, start: cython.Py_ssize_t, until: cython.Py_ssize_t):
    """Decode the header in ``data[start:until]``.

    Return (code, language, version, opaque, flag, remark or None, ext fields). Of several equal keys the last
    one counts. An empty value counts as absent. Raises ValueError if a length leads out of the header.
    """
    b: cython.const[cython.uchar][::1] = data
    p: cython.Py_ssize_t = start
    end: cython.Py_ssize_t
    n: cython.longlong
    code: cython.longlong
    version: cython.longlong
    if not 0 <= start <= until <= len(b):
        raise ValueError(f"{start} to {until} of {len(b)} bytes")
    if until - start < L.BINARY_HEAD_SIZE + 4:
        raise ValueError(f"binary header of {until - start} bytes, {L.BINARY_HEAD_SIZE + 4} are the least")
    code = (((b[p] << 8) | b[p + 1]) ^ 0x8000) - 0x8000
    version = (((b[p + L.BINARY_AT_VERSION] << 8) | b[p + L.BINARY_AT_VERSION + 1]) ^ 0x8000) - 0x8000
    n = be32(b, p + L.BINARY_AT_REMARK_LENGTH)
    language = b[p + L.BINARY_AT_LANGUAGE]
    opaque = be32(b, p + L.BINARY_AT_OPAQUE)
    flag = be32(b, p + L.BINARY_AT_FLAG)
    p += L.BINARY_HEAD_SIZE
    remark = None
    if n > 0:
        if n > until - p - 4:
            raise ValueError(f"remark of {n} bytes leaves the header")
        remark = data[p : p + n].decode("utf-8", "replace")
        p += cython.cast(cython.Py_ssize_t, n)
    elif n < 0:
        raise ValueError(f"remark of {n} bytes")
    n = be32(b, p)
    p += 4
    if n < 0 or n > until - p:
        raise ValueError(f"ext fields of {n} bytes leave the header")
    end = p + cython.cast(cython.Py_ssize_t, n)
    ext: dict = {}
    while p < end:
        if end - p < 2:
            raise ValueError("ext field is cut off")
        n = (b[p] << 8) | b[p + 1]
        p += 2
        if n > end - p - 4:
            raise ValueError(f"ext key of {n} bytes leaves the header")
        key = data[p : p + n].decode("utf-8", "replace")
        p += cython.cast(cython.Py_ssize_t, n)
        n = be32(b, p)
        p += 4
        if n < 0 or n > end - p:
            raise ValueError(f"ext value of {n} bytes leaves the header")
        if n:
            ext[key] = data[p : p + n].decode("utf-8", "replace")
            p += cython.cast(cython.Py_ssize_t, n)
    return code, language, version, opaque, flag, remark, ext


def message_ids(host: bytes, phy_offsets):
    """Return the broker's ids of messages: ``host`` in hexadecimal and the position, with commas between them.

    Positions must not be negative.
    """
    count: cython.Py_ssize_t = len(phy_offsets)
    size: cython.Py_ssize_t = len(host)
    n: cython.Py_ssize_t
    k: cython.Py_ssize_t
    value: cython.longlong
    digit: cython.int
    if not cython.compiled:
        return b",".join([b"%b%016X" % (host, phy_offset) for phy_offset in phy_offsets])
    if not count:
        return b""
    made: bytes = PyBytes_FromStringAndSize(cython.NULL, count * (size + 17) - 1)
    to: cython.p_char = PyBytes_AS_STRING(made)
    for n in range(count):
        value = phy_offsets[n]
        if n:
            to[0] = 44  # a comma
            to += 1
        memcpy(to, PyBytes_AS_STRING(host), size)
        to += size
        for k in range(16):
            digit = (value >> (60 - 4 * k)) & 15
            to[k] = 48 + digit if digit < 10 else 55 + digit
        to += 16
    return made
