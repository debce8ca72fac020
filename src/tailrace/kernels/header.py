# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The binary header of the remoting protocol (RocketMQSerializable)."""

import cython

from tailrace.kernels.shared.big_endian import be32

SOURCE_SHA256 = ""

HEAD_LENGTH = 17  # code 2, language 1, version 2, opaque 4, flag 4, length of the remark 4


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
    if until - start < 21:
        raise ValueError(f"binary header of {until - start} bytes, 21 are the least")
    code = (((b[p] << 8) | b[p + 1]) ^ 0x8000) - 0x8000
    version = (((b[p + 3] << 8) | b[p + 4]) ^ 0x8000) - 0x8000
    n = be32(b, p + 13)
    language = b[p + 2]
    opaque = be32(b, p + 5)
    flag = be32(b, p + 9)
    p += 17
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


def encode_header(
    code: cython.int,
    language: cython.int,
    version: cython.int,
    opaque: cython.longlong,
    flag: cython.longlong,
    remark,
    ext: dict,
):
    """Return the bytes of a header. Raises OverflowError if a number or a key does not fit."""
    text: bytes = remark.encode() if remark else b""
    fields: list = []
    for key, value in ext.items():
        raw_key: bytes = key.encode()
        raw_value: bytes = value.encode()
        fields.append(len(raw_key).to_bytes(2, "big"))
        fields.append(raw_key)
        fields.append(len(raw_value).to_bytes(4, "big"))
        fields.append(raw_value)
    packed: bytes = b"".join(fields)
    return b"".join(
        (
            int(code).to_bytes(2, "big", signed=True),
            int(language).to_bytes(1, "big"),
            int(version).to_bytes(2, "big", signed=True),
            int(opaque).to_bytes(4, "big", signed=True),
            int(flag).to_bytes(4, "big", signed=True),
            len(text).to_bytes(4, "big"),
            text,
            len(packed).to_bytes(4, "big"),
            packed,
        )
    )
