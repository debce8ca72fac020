# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The signature of a request: HmacSHA1 in Base64, by OpenSSL's functions after ``use_sha1``, otherwise by hashlib.

hashlib makes and frees an object for each hash, which takes longer than to hash a short request.
"""

import binascii
import hmac

import cython

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.libc.string import memcpy

SOURCE_SHA256 = ""

# A state of SHA-1 (SHA_CTX) has 96 bytes: five words, the length as two, a block of 16, and the number of bytes in it.
# A key has two of them, after the inner and after the outer block. For bodies above 16 KiB the interpreter's lock is
# released.
if cython.compiled:
    _BASE64 = cython.declare(
        "const char *", b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
    _sha1_init = cython.declare("int (*)(unsigned char *) noexcept nogil")
    _sha1_update = cython.declare("int (*)(unsigned char *, const unsigned char *, size_t) noexcept nogil")
    _sha1_final = cython.declare("int (*)(unsigned char *, unsigned char *) noexcept nogil")
    _sha1_init = cython.NULL


def use_sha1(init: cython.size_t, update: cython.size_t, final: cython.size_t):
    """Hash with the functions SHA1_Init, SHA1_Update and SHA1_Final at these addresses; with 0 by hashlib again."""
    global _sha1_init, _sha1_update, _sha1_final
    if cython.compiled:
        _sha1_init = cython.cast("int (*)(unsigned char *) noexcept nogil", cython.cast(cython.p_void, init))
        _sha1_update = cython.cast(
            "int (*)(unsigned char *, const unsigned char *, size_t) noexcept nogil",
            cython.cast(cython.p_void, update))
        _sha1_final = cython.cast(
            "int (*)(unsigned char *, unsigned char *) noexcept nogil", cython.cast(cython.p_void, final))


def begin(block: bytes):
    """Return a key for `signature`. ``block`` is the secret, with zeros up to 64 bytes."""
    if len(block) != 64:
        raise ValueError(f"a key of {len(block)} bytes")
    if cython.compiled:
        if _sha1_init != cython.NULL:
            states = cython.declare("unsigned char[192]")
            pad = cython.declare("unsigned char[64]")
            source = cython.declare("const unsigned char *", block)
            i: cython.int
            half: cython.int
            for half in range(2):
                for i in range(64):
                    pad[i] = source[i] ^ (0x5C if half else 0x36)
                _sha1_init(cython.address(states[96 * half]))
                _sha1_update(cython.address(states[96 * half]), pad, 64)
            return PyBytes_FromStringAndSize(cython.cast(cython.p_char, states), 192)
    return block


def signature(key: bytes, fields: bytes, body: bytes):
    """Return the signature of the values of a request's fields, in order and in one piece, and its body."""
    if cython.compiled:
        if len(key) == 192 and _sha1_init != cython.NULL:
            return _signature(key, fields, body)
    if len(key) != 64:
        raise ValueError(f"a key of {len(key)} bytes")
    made = hmac.new(key, fields, "sha1")
    made.update(body)
    return binascii.b2a_base64(made.digest(), newline=False)


if cython.compiled:
    @cython.cfunc
    def _signature(key: bytes, fields: bytes, body: bytes):
        state = cython.declare("unsigned char[96]")
        digest = cython.declare("unsigned char[21]")
        states = cython.declare("const unsigned char *", key)
        start = cython.declare("const unsigned char *", body)
        text = cython.declare("const unsigned char *", fields)
        size: cython.Py_ssize_t = len(body)
        length: cython.Py_ssize_t = len(fields)
        i: cython.int
        word: cython.uint
        memcpy(state, states, 96)
        _sha1_update(state, text, length)
        if size > 16384:
            with cython.nogil:
                _sha1_update(state, start, size)
        else:
            _sha1_update(state, start, size)
        _sha1_final(digest, state)
        memcpy(state, states + 96, 96)
        _sha1_update(state, digest, 20)
        _sha1_final(digest, state)
        digest[20] = 0
        made: bytes = PyBytes_FromStringAndSize(cython.NULL, 28)
        out = cython.declare("char *", PyBytes_AS_STRING(made))
        for i in range(7):
            word = (cython.cast(cython.uint, digest[3 * i]) << 16) | (
                cython.cast(cython.uint, digest[3 * i + 1]) << 8) | digest[3 * i + 2]
            out[4 * i] = _BASE64[word >> 18]
            out[4 * i + 1] = _BASE64[(word >> 12) & 63]
            out[4 * i + 2] = _BASE64[(word >> 6) & 63]
            out[4 * i + 3] = _BASE64[word & 63]
        out[27] = 61  # =
        return made
