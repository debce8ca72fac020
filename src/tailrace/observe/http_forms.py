"""Forms that browsers post to the HTTP port.

A browser sends user and password by itself, also with a form of a foreign page. So a form counts only if the browser
says that it comes from a page of this server: its field ``Origin`` must name the host of its field ``Host``, and
``Sec-Fetch-Site``, which browsers send on encrypted connections and to localhost, must be ``same-origin``.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qs, urlsplit

__all__ = ["FORM_MAX", "FormRefusedError", "fields_of", "foreign", "read_form"]

FORM_MAX: Final = 256 << 10
"""Bytes of a posted form."""
FIELDS_MAX: Final = 1_000
DIGITS_MAX: Final = 10
FORM: Final = "application/x-www-form-urlencoded"


class FormRefusedError(Exception):
    """A posted form is not read; the answer is ``status`` with the text of the error."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        self.status = status
        super().__init__(why)


def fields_of(head: bytes, wanted: str) -> list[str]:
    """Return the values of all fields of a request's head with a name, given in small letters."""
    fields = (line.partition(":") for line in head.decode("latin-1").split("\r\n")[1:])
    return [value for name, _, value in fields if name.lower() == wanted]


def foreign(head: bytes) -> str:
    """Return why a form may come from a foreign page; empty if it comes from a page of this server."""
    site, origin, host = (
        [value.strip() for value in fields_of(head, name)] for name in ("sec-fetch-site", "origin", "host"))
    if site not in ([], ["same-origin"]):
        return f"the form comes from another site (Sec-Fetch-Site: {', '.join(site)[:100]})"
    if len(origin) != 1 or len(host) != 1:
        return "the request does not say with one field Origin from which page it comes"
    try:
        parts = urlsplit(origin[0])
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in {"http", "https"} or not parts.netloc or parts.netloc.lower() != host[0].lower():
        return (f"the form comes from {origin[0][:100]} and not from {host[0][:100]}; a proxy in between must pass on "
                "the field Host")
    return ""


def _length(head: bytes) -> int:
    """Return the length of a form. Raises FormRefusedError."""
    kinds, lengths = fields_of(head, "content-type"), [value.strip() for value in fields_of(head, "content-length")]
    if [kind.partition(";")[0].strip().lower() for kind in kinds] != [FORM]:
        raise FormRefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"a form is sent as {FORM}")
    if fields_of(head, "transfer-encoding") or len(lengths) != 1 or not (
        lengths[0].isascii() and lengths[0].isdecimal() and len(lengths[0]) <= DIGITS_MAX
    ):
        raise FormRefusedError(HTTPStatus.LENGTH_REQUIRED, "a form needs one field Content-Length")
    if (length := int(lengths[0])) > FORM_MAX:
        raise FormRefusedError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the form has {length:,} bytes, over the limit of {FORM_MAX:,}")
    return length


async def read_form(head: bytes, reader: asyncio.StreamReader) -> dict[str, list[str]]:
    """Return the fields of the form that follows a head. Raises FormRefusedError, or what the connection raises."""
    body = await reader.readexactly(_length(head))
    try:
        return parse_qs(
            body.decode("ascii"), keep_blank_values=True, strict_parsing=bool(body), errors="strict",
            max_num_fields=FIELDS_MAX)
    except ValueError:
        raise FormRefusedError(
            HTTPStatus.BAD_REQUEST, f"the form is not UTF-8 text of at most {FIELDS_MAX:,} fields") from None
