"""The signature of requests: HmacSHA1 of the values of their fields and of their body (AclUtils, AclSigner)."""

from __future__ import annotations

import binascii
import hashlib
import hmac
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final, Protocol, final

__all__ = [
    "ACCESS_KEY", "FIELDS_MAX", "FIELD_NAME_MAX", "SIGNATURE", "Credentials", "SignatureKernel", "Signer",
    "problem_of_fields", "sign", "without_proof",
]

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
PROOF: Final = frozenset({ACCESS_KEY, SIGNATURE, "SecurityToken", "TailraceBinding"})
"""Fields that prove who sent a request, and that bind the proof to the request."""
VERSION_V4_9_3: Final = 399
"""Ordinal of V4_9_3: clients up to it do not sign `UNIQUE_KEY_QUERY`."""
UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"


FIELDS_MAX: Final = 100
FIELD_NAME_MAX: Final = 64
"""Number of fields of a signed request, and characters of their names."""
ORDERS_MAX: Final = 500
"""Kinds of requests whose fields are remembered in the order of their names; only those with a valid signature are."""
BLOCK: Final = 64
"""Bytes of a block of SHA-1."""
PART: Final = 31 * BLOCK
"""Bytes that hashlib hashes without a release of the interpreter's lock: below 2,048.

A release costs more than the hash of a few KiB, because another thread may take the lock.
"""
IN_PARTS_MAX: Final = 16 << 10
_INNER: Final = bytes(byte ^ 0x36 for byte in range(256))
_OUTER: Final = bytes(byte ^ 0x5C for byte in range(256))
_Values = Callable[[Mapping[str, str]], tuple[str, ...]]
_Orders = dict[tuple[str, ...], _Values]
_orders: _Orders = {}
"""What returns the signed values of a request, in order, by the names of its fields as they came."""
_old_orders: _Orders = {}
"""The same for clients that do not sign `UNIQUE_KEY_QUERY`."""


def problem_of_fields(names: Collection[str]) -> bool:
    """Return whether a request has too many fields, or one with too long a name."""
    return len(names) > FIELDS_MAX or any(len(name) > FIELD_NAME_MAX for name in names)


def _values_of(names: tuple[str, ...], orders: _Orders) -> _Values:
    """Return what gives the signed values of requests with these fields."""
    left_out = {SIGNATURE, UNIQUE_KEY_QUERY} if orders is _old_orders else {SIGNATURE}
    signed = sorted(set(names) - left_out)
    if len(signed) > 1:
        return itemgetter(*signed)

    def take(ext: Mapping[str, str]) -> tuple[str, ...]:  # an itemgetter of one name gives no tuple
        return tuple(ext[name] for name in signed)

    return take


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _remember(names: tuple[str, ...], take: _Values, orders: _Orders) -> None:
    if len(orders) >= ORDERS_MAX:
        orders.clear()
    orders[names] = take


class SignatureKernel(Protocol):
    """Computes signatures, as `tailrace.kernels.signatures`."""

    def begin(self, block: bytes, /) -> bytes:
        """Return what `signature` takes as the key; ``block`` is the secret, with zeros up to 64 bytes."""
        ...

    def signature(self, key: bytes, fields: bytes, body: bytes, /) -> bytes:
        """Return the HmacSHA1 of both texts, in Base64."""
        ...


@final
class Signer:
    """The key of a user. Its two hashes are begun once (RFC 2104), which takes most of the time of a short HMAC."""

    __slots__ = ("_inner", "_kernel", "_key", "_outer")

    def __init__(self, secret: str, kernel: SignatureKernel | None = None) -> None:
        """``kernel`` computes signatures faster than hashlib; a server has it."""
        key = secret.encode("utf-8", "surrogatepass")
        if len(key) > BLOCK:
            key = hashlib.sha1(key, usedforsecurity=False).digest()
        key = key.ljust(BLOCK, b"\0")
        self._kernel = None if kernel is None else kernel.signature
        self._key = b"" if kernel is None else kernel.begin(key)
        self._inner = hashlib.sha1(key.translate(_INNER), usedforsecurity=False)
        self._outer = hashlib.sha1(key.translate(_OUTER), usedforsecurity=False)

    def signature(self, ext: Mapping[str, str], body: bytes, version: int) -> bytes:
        """Return the signature that a request should have: the values in the order of their names, then the body."""
        names, orders = tuple(ext), _old_orders if version <= VERSION_V4_9_3 else _orders
        values = orders.get(names)
        if values is None:
            values = _values_of(names, orders)
            if not problem_of_fields(names):
                _remember(names, values, orders)
        return self._signature(values(ext), body)

    def _signature(self, values: tuple[str, ...], body: bytes) -> bytes:
        fields = _encoded("".join(values))
        if self._kernel is not None:
            return self._kernel(self._key, fields, body)
        return binascii.b2a_base64(self._hmac(fields, body), newline=False)

    def _hmac(self, content: bytes, body: bytes = b"") -> bytes:
        """Return the HmacSHA1 of ``content`` followed by ``body``."""
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(content)
        if len(body) <= PART or len(body) > IN_PARTS_MAX:
            inner.update(body)
        else:
            view = memoryview(body)
            for start in range(0, len(body), PART):
                inner.update(view[start : start + PART])
        outer.update(inner.digest())
        return outer.digest()

    def has_signed_bytes(self, content: bytes, found: bytes) -> bool:
        """Return whether ``found`` is the HmacSHA1 of bytes; takes the same time for every wrong one."""
        return hmac.compare_digest(self._hmac(content), found)

    def is_of(self, secret: str) -> bool:
        """Return whether this is the signer of a secret."""
        return hmac.compare_digest(self._hmac(b"is_of"), Signer(secret)._hmac(b"is_of"))

    def has_signed(self, ext: Mapping[str, str], body: bytes, version: int) -> bool:
        """Return whether a request has this signature; takes the same time for every wrong one."""
        names, orders = tuple(ext), _old_orders if version <= VERSION_V4_9_3 else _orders
        values = known = orders.get(names)
        if values is None:
            if problem_of_fields(names):
                return False
            values = _values_of(names, orders)
        found, fields = ext.get(SIGNATURE, ""), "".join(values(ext))
        if fields.isascii() and found.isascii() and self._kernel is not None:  # as nearly always
            made = self._kernel(self._key, fields.encode(), body)
            is_signed = hmac.compare_digest(made, found.encode())
        else:
            is_signed = hmac.compare_digest(self._signature(values(ext), body), _encoded(found))
        if not is_signed:
            return False
        if known is None:
            _remember(names, values, orders)
        return True


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user and its password, with which a client signs its requests."""

    access_key: str
    secret_key: str = field(repr=False)
    signer: Signer = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "signer", Signer(self.secret_key))


def sign(ext: Mapping[str, str], body: bytes, credentials: Credentials, version: int) -> dict[str, str]:
    """Return the fields of a request with those that prove who sent it."""
    made = {**ext, ACCESS_KEY: credentials.access_key}
    made[SIGNATURE] = credentials.signer.signature(made, body, version).decode()
    return made


def without_proof(ext: Mapping[str, str]) -> dict[str, str]:
    """Return the fields of a request that a server passes on: the receiver could send others again as the user."""
    return {name: value for name, value in ext.items() if name not in PROOF}
