"""Bodies of messages: as a tree if they are JSON, as text, or as bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple
from xml.etree.ElementTree import Element

from tailrace.console.elements import Child, fold, h, plural
from tailrace.errors import CorruptionError
from tailrace.formats.commitlog import SysFlag, decompress_body
from tailrace.model import MessageExt
from tailrace.spellings import size_text

__all__ = ["Body", "body_of", "preview", "shown_body"]

PREVIEW_MAX: Final = 300
"""Characters of a body in a list of messages."""
TEXT_MAX: Final = 20_000
"""Characters of a body on the page of a message."""
BYTES_MAX: Final = 2_048
"""Bytes of a body that is not text."""
_DECOMPRESSED_MAX: Final = 1 << 20
PARSED_MAX: Final = 1 << 18
"""Characters of a body that may become a tree."""
NODES_MAX: Final = 1_000
"""Values of a JSON body that its tree shows."""
DEPTH_MAX: Final = 32
VALUE_MAX: Final = 500
"""Characters of a value in a tree."""
OPEN_DEPTH: Final = 3
"""Parts of a tree that are open at first."""


class Body(NamedTuple):
    """The body of a message as its producer wrote it, decompressed."""

    data: bytes
    text: str | None
    """None if it is not UTF-8 text."""
    problem: str = ""
    """Why it could not be decompressed."""


def body_of(message: MessageExt) -> Body:
    """Return the body of a message. A body over 1 MiB that is compressed stays compressed."""
    data = message.body
    if message.sys_flag & SysFlag.COMPRESSED:
        try:
            data = decompress_body(data, message.sys_flag, _DECOMPRESSED_MAX)
        except CorruptionError as error:
            return Body(data, None, f"compressed: {error}")
    try:
        return Body(data, data.decode())
    except UnicodeDecodeError:
        return Body(data, None)


def preview(message: MessageExt) -> str:
    """Return the beginning of a body."""
    body = body_of(message)
    if body.problem:
        return f"{size_text(len(body.data))}, {body.problem}"
    if body.text is None:
        begin = body.data[: PREVIEW_MAX // 3].hex(" ")
        return f"{begin}…" if len(body.data) > PREVIEW_MAX // 3 else begin
    return body.text if len(body.text) <= PREVIEW_MAX else f"{body.text[:PREVIEW_MAX]}…"


class _Number(str):
    """A number as it is written, so that no digit changes."""

    __slots__ = ()


class _Object(list[tuple[str, Any]]):
    """Members of an object in their order, including repeated ones."""


def _parsed(text: str) -> Any:
    """Return an object or a list, or None if the text is no JSON or has neither."""
    if text.lstrip()[:1] not in {"{", "["} or len(text) > PARSED_MAX:
        return None
    try:
        return json.loads(text, parse_int=_Number, parse_float=_Number, parse_constant=_Number,
                          object_pairs_hook=_Object)
    except (ValueError, RecursionError):
        return None


def shown_body(message: MessageExt) -> list[Child]:
    """Return the body of a message for its page."""
    body = body_of(message)
    size = size_text(len(body.data))
    if body.text is None:
        begin = body.data[:BYTES_MAX]
        more = f", the first {size_text(BYTES_MAX)} are shown" if len(body.data) > BYTES_MAX else ""
        return [h("p", f"{size}{f', {body.problem}' if body.problem else ', no text'}{more}"),
                h("pre", "\n".join(_dump(begin)), class_="body", tabindex=0)]
    more = f", the first {TEXT_MAX:,} characters are shown" if len(body.text) > TEXT_MAX else ""
    text = h("pre", body.text[:TEXT_MAX], class_="body", tabindex=0)
    found = _parsed(body.text)
    if found is None:
        return [h("p", f"{size} of text{more}"), text]
    left = [NODES_MAX]
    return [h("p", f"{size} of JSON"), h("div", _tree(found, 0, left), class_="tree"),
            h("p", f"The first {NODES_MAX:,} values are shown.") if left[0] <= 0 else None,
            fold(f"As text{more}", text)]


def _dump(data: bytes) -> Iterator[str]:
    for at in range(0, len(data), 16):
        part = data[at : at + 16]
        signs = "".join(chr(one) if 32 <= one < 127 else "." for one in part)
        yield f"{at:06x}  {part.hex(' '):47}  {signs}"


def _tree(value: Any, depth: int, left: list[int], name: str | None = None) -> Element:
    """Return a value with its name as an element. ``left[0]`` is the number of values that may still be shown."""
    left[0] -= 1
    named: list[Child] = [] if name is None else [h("span", name[:VALUE_MAX], class_="k"), ": "]
    if not isinstance(value, list):
        return h("span", *named, h("span", _leaf(value), class_=f"is-{_kind(value)}"))
    is_object = isinstance(value, _Object)
    if not value:
        return h("span", *named, "{}" if is_object else "[]")
    count = plural(len(value), "member") if is_object else plural(len(value), "value")
    if depth >= DEPTH_MAX:
        return h("span", *named, f"… {count}")
    rows: list[Child] = []
    for number, one in enumerate(value):
        if left[0] <= 0:
            rows.append(h("li", f"… {len(value) - number:,} more"))
            break
        member, inner = one if is_object else (f"{number}", one)
        rows.append(h("li", _tree(inner, depth + 1, left, member)))
    return h("details", h("summary", *named, f"{{{count}}}" if is_object else f"[{count}]"), h("ul", *rows),
             open="open" if depth < OPEN_DEPTH else None)


def _leaf(value: Any) -> str:
    text = value if isinstance(value, _Number) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= VALUE_MAX else f"{text[:VALUE_MAX]}… ({len(text):,} characters)"


def _kind(value: Any) -> str:
    return "number" if isinstance(value, _Number) else "string" if isinstance(value, str) else "word"
