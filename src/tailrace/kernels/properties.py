# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Encode stored properties from a dict or from the fields of a message. All writers use these functions."""

import cython

from tailrace.errors import MessageIllegalError
from tailrace.model import whole_ms

SOURCE_SHA256 = ""


@cython.ccall
def encode_properties(properties) -> bytes:
    """Return the stored form of properties: ``name 0x01 value 0x02``, repeated."""
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
    text: str
    separators: cython.Py_ssize_t = 1
    if (
        message.properties or message.delay_level or not message.wait_store_msg_ok
        or message.deliver_at is not None or message.delay is not None
    ):
        return None
    text = f"UNIQ_KEY\x01{prefix}{number:012X}\x02"
    if keys:
        if type(keys) is not list and type(keys) is not tuple:
            return None
        for key in keys:
            if type(key) is not str or not key or " " in cython.cast(str, key):
                return None
        text = f"KEYS\x01{keys[0] if len(keys) == 1 else ' '.join(keys)}\x02{text}"
        separators += 1
    if tags:
        if type(tags) is not str:
            return None
        text = f"TAGS\x01{tags}\x02{text}"
        separators += 1
    if text.count("\x01") != separators or text.count("\x02") != separators:
        return None
    try:
        return text.encode()
    except UnicodeEncodeError:
        return None


def plain_items(messages: list, prefix: str, numbers):
    """Return (flag, body, stored properties) of each message; None if ``plain_properties`` returns None for one."""
    items: list = []
    for message in messages:
        stored = plain_properties(message, prefix, next(numbers))
        if stored is None:
            return None
        items.append((message.flag, message.body, stored))
    return items
