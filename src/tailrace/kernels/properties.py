# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Encode stored properties from a dict or from the fields of a message. All writers use these functions."""

import cython

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.cpython.unicode import PyUnicode_AsUTF8AndSize

from tailrace.errors import MessageIllegalError
from tailrace.kernels.shared.kinds import kind_in
from tailrace.model import whole_ms

SOURCE_SHA256 = ""


@cython.cfunc
@cython.exceptval(-1)
def _length_of(text: str) -> cython.Py_ssize_t:
    """Return the length of a text in UTF-8. Raises UnicodeEncodeError."""
    size: cython.Py_ssize_t = 0
    if cython.compiled:
        PyUnicode_AsUTF8AndSize(text, cython.address(size))
    else:
        size = len(text.encode())
    return size


@cython.cfunc
@cython.exceptval(-1)
def _has_separator(text: str, further: cython.uchar) -> cython.int:
    """Return 1 if a text has a byte that separates properties, or the byte ``further``; else 0."""
    k: cython.Py_ssize_t
    size: cython.Py_ssize_t = 0
    if cython.compiled:
        data = cython.declare("const char *")
        data = PyUnicode_AsUTF8AndSize(text, cython.address(size))
    else:
        data = text.encode()
        size = len(data)
    for k in range(size):
        if data[k] == 1 or data[k] == 2 or data[k] == further:
            return 1
    return 0


@cython.cfunc
@cython.exceptval(-1)
def _put(out: cython.p_uchar, q: cython.Py_ssize_t, text: str, after: cython.uchar) -> cython.Py_ssize_t:
    """Write a text and the byte ``after`` to ``out[q:]``. Return the index after them."""
    k: cython.Py_ssize_t
    size: cython.Py_ssize_t = 0
    if cython.compiled:
        data = cython.declare("const char *")
        data = PyUnicode_AsUTF8AndSize(text, cython.address(size))
    else:
        data = text.encode()
        size = len(data)
    for k in range(size):  # a call of memcpy takes longer for such short texts
        out[q + k] = data[k]
    out[q + size] = after
    return q + size + 1


def kind_and_key(stored: bytes):
    """Return the kind of a message from its stored properties (``kind_in``), and its unique key, b"" without one."""
    kind: cython.int
    key: cython.Py_ssize_t
    end: cython.Py_ssize_t
    start = cython.declare(cython.p_const_uchar)
    start = stored
    kind, key, end = kind_in(start, 0, len(stored))
    return kind, stored[key:end] if key >= 0 else b""


@cython.ccall
def encode_properties(properties) -> bytes:
    """Return the stored form of properties: ``name 0x01 value 0x02``, repeated."""
    size: cython.Py_ssize_t = 0
    q: cython.Py_ssize_t = 0
    if cython.compiled and type(properties) is dict:
        for name, value in cython.cast(dict, properties).items():
            if type(name) is not str or type(value) is not str:
                break
            size += _length_of(name) + _length_of(value) + 2
        else:
            stored: bytes = PyBytes_FromStringAndSize(cython.NULL, size)
            out: cython.p_uchar = cython.cast(cython.p_uchar, PyBytes_AS_STRING(stored))
            for name, value in cython.cast(dict, properties).items():
                q = _put(out, _put(out, q, name, 1), value, 2)
            return stored
    return "".join([f"{name}\x01{value}\x02" for name, value in properties.items()]).encode()


def message_properties(message, unique_key: str) -> bytes:
    """Return the stored form of a message's tag, keys and properties, with ``unique_key`` unless it has one.

    Raises MessageIllegalError if a field cannot be stored.
    """
    fields: dict = {}
    tags, keys, own = message.tags, message.keys, message.properties
    if tags:
        fields["TAGS"] = tags
    if keys:
        if isinstance(keys, str):
            raise MessageIllegalError("keys", "must be a list of strings, not a string")
        for key in keys:
            if not key or " " in key:
                raise MessageIllegalError("keys", f"{key!r} is empty or has a blank")
        fields["KEYS"] = " ".join(keys)
    for name, value in own.items():
        if name in {"TAGS", "KEYS"} and name in fields:
            continue
        if not name or not value:
            raise MessageIllegalError("properties", f"{name!r}: name and value must not be empty")
        fields[name] = value
    if message.deliver_at is not None:
        fields["TIMER_DELIVER_MS"] = whole_ms("deliver_at", message.deliver_at)
    if message.delay is not None:
        fields["TIMER_DELAY_MS"] = whole_ms("delay", message.delay, 1000)
    if message.delay_level:
        if message.delay_level < 0 or "DELAY" in own:
            raise MessageIllegalError("delay_level", f"{message.delay_level} is negative or given twice")
        fields["DELAY"] = message.delay_level
    if unique_key and "UNIQ_KEY" not in own:
        fields["UNIQ_KEY"] = unique_key
    if not message.wait_store_msg_ok and "WAIT" not in own:
        fields["WAIT"] = "false"
    try:
        stored: bytes = encode_properties(fields)
    except UnicodeEncodeError as error:
        raise MessageIllegalError("properties", f"cannot be stored as UTF-8: {error}") from None
    if stored.count(b"\x01") != len(fields) or stored.count(b"\x02") != len(fields):
        raise MessageIllegalError("properties", "tag, keys, names and values must not hold 0x01 or 0x02")
    return stored


@cython.ccall
def plain_properties(message, prefix: str, number: cython.longlong):
    """Return the stored properties of a message that has only a tag and keys, with a unique key.

    The unique key is ``prefix`` and ``number`` in twelve hexadecimal digits. Return None for other messages and
    for texts that cannot be stored; ``message_properties`` then handles the message or raises the error.
    """
    tags = message.tags
    keys = message.keys
    size: cython.Py_ssize_t
    q: cython.Py_ssize_t = 0
    k: cython.Py_ssize_t
    if (
        message.properties or message.delay_level or not message.wait_store_msg_ok
        or message.deliver_at is not None or message.delay is not None
    ):
        return None
    try:
        size = len("UNIQ_KEY") + _length_of(prefix) + 12 + 2
        if _has_separator(prefix, 1):
            return None
        if keys:
            if type(keys) is not list and type(keys) is not tuple:
                return None
            size += len("KEYS") + 1
            for key in keys:
                if type(key) is not str or not key or _has_separator(key, 32):
                    return None
                size += _length_of(key) + 1
        if tags:
            if type(tags) is not str or _has_separator(tags, 1):
                return None
            size += len("TAGS") + _length_of(tags) + 2
    except UnicodeEncodeError:
        return None
    if cython.compiled:
        stored: bytes = PyBytes_FromStringAndSize(cython.NULL, size)
        out: cython.p_uchar = cython.cast(cython.p_uchar, PyBytes_AS_STRING(stored))
    else:
        out = bytearray(size)
    if tags:
        q = _put(out, _put(out, q, "TAGS", 1), tags, 2)
    if keys:
        q = _put(out, q, "KEYS", 1)
        for key in keys:
            q = _put(out, q, key, 32)
        out[q - 1] = 2  # in the place of the blank after the last key
    q = _put(out, _put(out, q, "UNIQ_KEY", 1), prefix, 0) - 1
    for k in range(12):
        out[q + k] = ord("0123456789ABCDEF"[(number >> (44 - 4 * k)) & 15])
    out[q + 12] = 2
    return stored if cython.compiled else bytes(out)


def message_items(messages: list, prefix: str, numbers, otherwise):
    """Return (flag, body, stored properties) of each message, and their kinds (``kind_in``) together.

    A message that is not plain gets the properties that ``otherwise(message, prefix, number)`` returns.
    """
    items: list = []
    kinds: cython.int = 0
    for message in messages:
        number = next(numbers)
        stored = plain_properties(message, prefix, number)
        if stored is None:
            stored = otherwise(message, prefix, number)
            kinds |= kind_and_key(stored)[0]
        items.append((message.flag, message.body, stored))
    return items, kinds
