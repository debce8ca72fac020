"""Dates of certificates and of lists of revoked certificates (RFC 5280), without a library for them.

Both are ASN.1 in DER: an element is a tag, a length and its content. Only the few elements before the dates are read;
whether the rest is valid is decided by OpenSSL, which loads the same files.
"""

from __future__ import annotations

import binascii
import datetime as dt
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

__all__ = ["Validity", "certificate_dates", "crl_dates"]

_BLOCK: Final = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----([^-]*)-----END \1-----")
_CERTIFICATES: Final = frozenset((b"CERTIFICATE", b"X509 CERTIFICATE", b"TRUSTED CERTIFICATE"))
_CRLS: Final = frozenset((b"X509 CRL",))
_INTEGER: Final = 0x02
_UTC_TIME: Final = 0x17
_GENERALIZED_TIME: Final = 0x18
_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0
_LONG: Final = 0x80
_CENTURY: Final = 50
"""Two digits of a year below it are of 2000 to 2049, others of 1950 to 1999."""


class Validity(NamedTuple):
    """The time from which and until which something is valid, in ms since 1970."""

    start_ms: int
    end_ms: int


def certificate_dates(pem: bytes) -> list[Validity]:
    """Return the validity of each certificate in a PEM file. Raises ValueError if one cannot be read."""
    found = []
    for der in _blocks(pem, _CERTIFICATES):
        parts = _parts(der, _VERSION)[3:]  # after serial number, algorithm and issuer
        if not parts:
            raise ValueError("the certificate is cut off")
        start, end = (_time(tag, text) for tag, text in _elements(parts[0][1]))
        found.append(Validity(start, end))
    return found


def crl_dates(pem: bytes) -> list[Validity]:
    """Return the times of this and the next update of each list in a PEM file, without those that name no next one.

    Raises ValueError if a list cannot be read.
    """
    found = []
    for der in _blocks(pem, _CRLS):
        times = [_time(tag, text) for tag, text in _parts(der, _INTEGER)[2:4] if tag in _TIMES]  # after the issuer
        if len(times) > 1:
            found.append(Validity(*times))
    return found


_TIMES: Final = frozenset((_UTC_TIME, _GENERALIZED_TIME))


def _blocks(pem: bytes, kinds: frozenset[bytes]) -> Iterator[bytes]:
    for kind, text in _BLOCK.findall(pem):
        if kind in kinds:
            yield binascii.a2b_base64(text)


def _parts(der: bytes, version: int) -> list[tuple[int, bytes]]:
    """Return the elements of what is signed, without the number of its version."""
    parts = list(_elements(_content(_content(der, _SEQUENCE), _SEQUENCE)))
    return parts[1:] if parts and parts[0][0] == version else parts


def _content(data: bytes, tag: int) -> bytes:
    """Return the content of the first element, which must have this tag."""
    found, content = next(_elements(data), (None, b""))
    if found != tag:
        raise ValueError(f"element {found} where {tag} is expected")
    return content


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield tag and content of each element. Raises ValueError if one is cut off."""
    place = 0
    while place < len(data):
        if place + 2 > len(data):
            raise ValueError("an element is cut off")
        tag, size, start = data[place], data[place + 1], place + 2
        if size & _LONG:
            width = size & ~_LONG
            size, start = int.from_bytes(data[start : start + width], "big"), start + width
        if start + size > len(data):
            raise ValueError("an element is cut off")
        yield tag, data[start : start + size]
        place = start + size


def _time(tag: int, text: bytes) -> int:
    digits = text.decode("ascii").removesuffix("Z")
    if tag == _UTC_TIME:
        digits = ("20" if int(digits[:2]) < _CENTURY else "19") + digits
    elif tag != _GENERALIZED_TIME:
        raise ValueError(f"element {tag} where a time is expected")
    return int(dt.datetime.strptime(digits, "%Y%m%d%H%M%S").replace(tzinfo=dt.UTC).timestamp()) * 1000
