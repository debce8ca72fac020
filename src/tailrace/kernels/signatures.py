# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The signature of a request: HmacSHA1 in Base64 of the values of its fields, ordered by their names, and of its body.

It is computed by OpenSSL's functions after ``use_sha1``, otherwise by hashlib. hashlib makes and frees an object for
each hash, which takes longer than to hash a short request. `Proof` checks a request in one call, which makes no object.
"""

import binascii
import hmac

import cython

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.cpython.unicode import PyUnicode_AsUTF8AndSize
    from cython.cimports.libc.string import memcmp, memcpy

SOURCE_SHA256 = ""

FIELDS_MAX = 100
FIELD_NAME_MAX = 64
"""Number of fields of a signed request, and characters of their names."""
NAMES_MAX = 512
"""Characters of all names of a request that are remembered."""
_V4_9_3 = cython.declare(cython.longlong, 399)  # the last version whose clients do not sign _UNIQUE_KEY_QUERY

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
    """Return a key for the other functions. ``block`` is the secret, with zeros up to 64 bytes."""
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


def digest(key: bytes, content: bytes, body: bytes = b""):
    """Return the HmacSHA1 of two texts, one after the other."""
    if cython.compiled:
        if _is_begun(key):
            made = cython.declare("unsigned char[20]")
            state = cython.declare("unsigned char[96]")
            memcpy(state, cython.cast("const unsigned char *", key), 96)
            _sha1_update(state, cython.cast("const unsigned char *", content), len(content))
            _end(state, key, body, made)
            return PyBytes_FromStringAndSize(cython.cast(cython.p_char, made), 20)
    if len(key) != 64:
        raise ValueError(f"a key of {len(key)} bytes")
    begun = hmac.new(key, content, "sha1")
    begun.update(body)
    return begun.digest()


def signature(key: bytes, ext: dict, body: bytes, version: cython.longlong):
    """Return the signature that a request with these fields should have, from a client of this version."""
    if cython.compiled:
        text = cython.declare("char[28]")
        if _sign(key, ext, body, version <= _V4_9_3, text, None):
            return PyBytes_FromStringAndSize(text, 28)
    left_out = ("Signature", "_UNIQUE_KEY_QUERY") if version <= _V4_9_3 else ("Signature",)
    content = "".join([ext[name] for name in sorted(ext) if name not in left_out])
    return binascii.b2a_base64(digest(key, content.encode("utf-8", "surrogatepass"), body), newline=False)


@cython.ccall
def is_signed(key: bytes, ext: dict, body: bytes, version: cython.longlong) -> cython.bint:
    """Return whether a request has its signature; takes the same time for every wrong one.

    False for more than `FIELDS_MAX` fields, and for a name of more than `FIELD_NAME_MAX` characters.
    """
    if cython.compiled:
        text = cython.declare("char[28]")
        if _sign(key, ext, body, version <= _V4_9_3, text, None):
            return _is_text(ext.get("Signature"), text)
    if len(ext) > FIELDS_MAX or max(map(len, ext), default=0) > FIELD_NAME_MAX:
        return False
    found = ext.get("Signature", "").encode("utf-8", "surrogatepass")
    return hmac.compare_digest(signature(key, ext, body, version), found)


@cython.cclass
class _Kind:
    """Requests of one code: the names of the fields that name resources, and a tree of their allowed values.

    The tree is a dictionary for each field; the last one has True for each value. ``names`` are those of all fields of
    an earlier request, and ``order`` the numbers of those that are signed, by the order of their names. They are
    replaced ``changes`` times at most, because some clients send the fields in any order.
    """

    fields: tuple
    tree: dict
    names: list
    order: bytes
    old: cython.bint
    changes: cython.int

    def __init__(self, fields: tuple):
        self.fields = fields
        self.tree = {}
        self.names = []
        self.order = b""
        self.old = False
        self.changes = 100


@cython.cclass
class Proof:
    """A user that was proven from one address: the name, the key, and which requests are known to be allowed."""

    _name: str
    _scope: object
    _key: bytes
    _kinds: dict

    def __init__(self, scope, name: str, key: bytes):
        """``scope`` is an object that is replaced when users or permissions change."""
        self._scope = scope
        self._name = name
        self._key = key
        self._kinds = {}

    def allow(self, code, fields: tuple, ext: dict):
        """Remember that a request is allowed; ``fields`` are the names of those on which that depends."""
        kind: _Kind = self._kinds.get(code)
        if kind is None:
            kind = self._kinds[code] = _Kind(fields)
        tree: dict = kind.tree
        left: cython.Py_ssize_t = len(kind.fields)
        for field in kind.fields:
            left -= 1
            if left:
                tree = tree.setdefault(ext.get(field), {})
            else:
                tree[ext.get(field)] = True

    def knows(self, code):
        """Return whether any request of this code is known to be allowed."""
        return code in self._kinds

    def forget(self):
        """Forget which requests are allowed."""
        self._kinds = {}

    def allows(self, code, ext: dict):
        """Return whether it is known that a request is allowed."""
        kind: _Kind = self._kinds.get(code)
        return kind is not None and _is_allowed(kind, ext)

    def sender(self, scope, code, ext: dict, body: bytes, version: cython.longlong):
        """Return the name of the user if a request is known to be allowed and is signed by the user; otherwise None.

        Also None for another ``scope``, and for a request with a binding, which has to be checked.
        """
        kind: _Kind = self._kinds.get(code)
        if kind is None or scope is not self._scope or ext.get("AccessKey") != self._name or (
            "TailraceBinding" in ext or not _is_allowed(kind, ext)
        ):
            return None
        if cython.compiled:
            text = cython.declare("char[28]")
            if _sign(self._key, ext, body, version <= _V4_9_3, text, kind):
                return self._name if _is_text(ext.get("Signature"), text) else None
        return self._name if is_signed(self._key, ext, body, version) else None


@cython.cfunc
@cython.exceptval(-1)
def _is_allowed(kind: _Kind, ext: dict) -> cython.int:
    """Return whether the tree of a kind of requests has the values of a request."""
    found = kind.tree
    for field in kind.fields:
        found = cython.cast(dict, found).get(ext.get(field))
        if found is None:
            return 0
    return 1


if cython.compiled:
    @cython.cfunc
    @cython.inline
    def _is_begun(key: bytes) -> cython.bint:
        return len(key) == 192 and _sha1_init != cython.NULL

    @cython.cfunc
    @cython.exceptval(-1)
    def _end(
        state: cython.p_uchar, key: bytes, body: bytes, made: cython.p_uchar,
    ) -> cython.int:
        """Write the HmacSHA1 of what the inner ``state`` has hashed and a body."""
        inner = cython.declare("unsigned char[20]")
        start = cython.declare("const unsigned char *", body)
        size: cython.Py_ssize_t = len(body)
        if size > 16384:
            with cython.nogil:
                _sha1_update(state, start, size)
        elif size:
            _sha1_update(state, start, size)
        _sha1_final(inner, state)
        memcpy(state, cython.cast("const unsigned char *", key) + 96, 96)
        _sha1_update(state, inner, 20)
        _sha1_final(made, state)
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def _sign(
        key: bytes, ext: dict, body: bytes, old: cython.bint, out: cython.p_char, kind: _Kind | None,
    ) -> cython.int:
        """Write the signature of a request; return 0 if that needs the interpreter.

        This is so for more than 100 fields, a name of more than 64 bytes, and for text that is not Unicode. A request
        that has the same names as the last one of its kind has the same order.
        """
        values = cython.declare("const char *[100]")
        sizes = cython.declare("Py_ssize_t[100]")
        order = cython.declare("unsigned char[100]")
        count: cython.Py_ssize_t = -1
        if not _is_begun(key) or len(ext) > 100:
            return 0
        try:
            if kind is not None and kind.old == old and len(kind.names) == len(ext):
                count = _known_values(kind, ext, values, sizes, order)
            if count < 0:
                count = _sorted_values(ext, old, values, sizes, order)
                if count >= 0 and kind is not None and kind.changes > 0:
                    kind.changes -= 1
                    if len(ext) <= 32 and sum(map(len, ext)) <= NAMES_MAX:
                        kind.names, kind.old = list(ext), old
                        kind.order = PyBytes_FromStringAndSize(cython.cast(cython.p_char, order), count)
        except UnicodeEncodeError:
            return 0
        if count < 0:
            return 0
        _hash(key, body, values, sizes, order, count, out)
        return 1

    @cython.cfunc
    @cython.exceptval(-2)
    def _known_values(
        kind: _Kind, ext: dict, values: cython.pp_const_char, sizes: cython.p_Py_ssize_t, order: cython.p_uchar,
    ) -> cython.Py_ssize_t:
        """Find the values of all fields, and the order of the signed ones; return their number, -1 for other names."""
        names: list = kind.names
        count: cython.Py_ssize_t = 0
        for name, value in ext.items():
            known = names[count]
            if name is not known and name != known:
                return -1
            values[count] = PyUnicode_AsUTF8AndSize(value, cython.address(sizes[count]))
            count += 1
        count = len(kind.order)
        memcpy(order, cython.cast(cython.p_const_char, kind.order), count)
        return count

    @cython.cfunc
    @cython.exceptval(-2)
    def _sorted_values(
        ext: dict, old: cython.bint, values: cython.pp_const_char, sizes: cython.p_Py_ssize_t, order: cython.p_uchar,
    ) -> cython.Py_ssize_t:
        """Find the values of all fields, and the order of the signed ones; return their number, -1 for a long name."""
        names = cython.declare("const char *[100]")
        name_sizes = cython.declare("Py_ssize_t[100]")
        size: cython.Py_ssize_t = 0
        number: cython.Py_ssize_t = -1
        count: cython.Py_ssize_t = 0
        i: cython.Py_ssize_t
        k: cython.Py_ssize_t
        for name, value in ext.items():
            text = cython.declare(cython.p_const_char, PyUnicode_AsUTF8AndSize(name, cython.address(size)))
            if size > 64:
                return -1
            number += 1
            values[number] = PyUnicode_AsUTF8AndSize(value, cython.address(sizes[number]))
            if (size == 9 and memcmp(text, b"Signature", 9) == 0) or (
                old and size == 17 and memcmp(text, b"_UNIQUE_KEY_QUERY", 17) == 0
            ):
                continue
            names[number], name_sizes[number] = text, size
            i = count
            while i > 0:
                k = order[i - 1]
                if not _is_after(names[k], name_sizes[k], text, size):
                    break
                order[i] = k
                i -= 1
            order[i] = number
            count += 1
        return count

    @cython.cfunc
    @cython.exceptval(check=False)
    def _is_after(
        one: cython.p_const_char, its_size: cython.Py_ssize_t, other: cython.p_const_char, size: cython.Py_ssize_t,
    ) -> cython.bint:
        """Return whether a text comes after another."""
        found: cython.int = memcmp(one, other, its_size if its_size < size else size)
        return found > 0 or (found == 0 and its_size > size)

    @cython.cfunc
    @cython.exceptval(-1)
    def _hash(
        key: bytes, body: bytes, values: cython.pp_const_char, sizes: cython.p_Py_ssize_t, order: cython.p_uchar,
        count: cython.Py_ssize_t, out: cython.p_char,
    ) -> cython.int:
        """Write the HmacSHA1 of values and a body in Base64."""
        state = cython.declare("unsigned char[96]")
        made = cython.declare("unsigned char[21]")
        piece = cython.declare("unsigned char[1024]")
        size: cython.Py_ssize_t
        filled: cython.Py_ssize_t = 0
        i: cython.Py_ssize_t
        k: cython.Py_ssize_t
        word: cython.uint
        memcpy(state, cython.cast("const unsigned char *", key), 96)
        for i in range(count):
            k = order[i]
            size = sizes[k]
            if size > 1024 - filled:
                _sha1_update(state, piece, filled)
                filled = 0
            if size > 1024:
                _sha1_update(state, cython.cast("const unsigned char *", values[k]), size)
            else:
                memcpy(cython.address(piece[filled]), values[k], size)
                filled += size
        size = len(body)
        if size <= 1024 - filled:
            memcpy(cython.address(piece[filled]), cython.cast("const unsigned char *", body), size)
            filled += size
            body = b""
        _sha1_update(state, piece, filled)
        _end(state, key, body, made)
        made[20] = 0
        for i in range(7):
            word = (cython.cast(cython.uint, made[3 * i]) << 16) | (
                cython.cast(cython.uint, made[3 * i + 1]) << 8) | made[3 * i + 2]
            out[4 * i] = _BASE64[word >> 18]
            out[4 * i + 1] = _BASE64[(word >> 12) & 63]
            out[4 * i + 2] = _BASE64[(word >> 6) & 63]
            out[4 * i + 3] = _BASE64[word & 63]
        out[27] = 61  # =
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def _is_text(found: str | None, text: cython.p_char) -> cython.int:
        """Return whether a text is 28 given bytes; takes the same time for every difference."""
        different: cython.int = 0
        size: cython.Py_ssize_t = 0
        i: cython.Py_ssize_t
        if found is None:
            return 0
        given = cython.declare(cython.p_const_char, PyUnicode_AsUTF8AndSize(found, cython.address(size)))
        if size != 28:
            return 0
        for i in range(28):
            different |= given[i] ^ text[i]
        return different == 0
