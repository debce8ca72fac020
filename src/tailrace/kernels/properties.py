# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Stored properties of messages of the usual shape: a tag, keys and a unique key."""

import cython

SOURCE_SHA256 = ""


@cython.ccall
def plain_properties(message, prefix: str, number: cython.longlong):
    """Stored properties of a message that has at most a tag and keys, with a unique key.

    The key is ``prefix`` and ``number`` in twelve hexadecimal digits. None for a message of another
    shape, and for texts that cannot be stored: a closer look then finds out which.
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
    """(flag, body, stored properties) of each message; None when one is of another shape."""
    items: list = []
    for message in messages:
        stored = plain_properties(message, prefix, next(numbers))
        if stored is None:
            return None
        items.append((message.flag, message.body, stored))
    return items
