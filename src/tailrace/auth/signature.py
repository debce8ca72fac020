"""The signature of requests: HmacSHA1 of the values of their fields and of their body (AclUtils, AclSigner)."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, final

from tailrace.errors import ConfigError
from tailrace.kernels import signatures

__all__ = [
    "ACCESS_KEY", "FIELDS_MAX", "FIELD_NAME_MAX", "SIGNATURE", "Credentials", "Signer", "problem_of_fields",
    "sign", "without_proof",
]

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
PROOF: Final = frozenset({ACCESS_KEY, SIGNATURE, "SecurityToken", "TailraceBinding"})
"""Fields that prove who sent a request, and that bind the proof to the request."""
FIELDS_MAX: Final = signatures.FIELDS_MAX
FIELD_NAME_MAX: Final = signatures.FIELD_NAME_MAX
BLOCK: Final = 64
"""Bytes of a block of SHA-1."""


def problem_of_fields(names: Collection[str]) -> bool:
    """Return whether a request has too many fields, or one with too long a name."""
    return len(names) > FIELDS_MAX or any(len(name) > FIELD_NAME_MAX for name in names)


@final
class Signer:
    """The key of a user. Its two hashes are begun once (RFC 2104), which takes most of the time of a short HMAC."""

    __slots__ = ("key",)

    def __init__(self, secret: str) -> None:
        key = secret.encode("utf-8", "surrogatepass")
        if len(key) > BLOCK:
            key = hashlib.sha1(key, usedforsecurity=False).digest()
        self.key: bytes = signatures.begin(key.ljust(BLOCK, b"\0"))
        """The key as `tailrace.kernels.signatures` takes it."""

    def signature(self, ext: dict[str, str], body: bytes, version: int) -> bytes:
        """Return the signature that a request should have: the values in the order of their names, then the body."""
        made: bytes = signatures.signature(self.key, ext, body, version)
        return made

    def has_signed(self, ext: dict[str, str], body: bytes, version: int) -> bool:
        """Return whether a request has this signature; takes the same time for every wrong one."""
        return bool(signatures.is_signed(self.key, ext, body, version))

    def has_signed_bytes(self, content: bytes, found: bytes) -> bool:
        """Return whether ``found`` is the HmacSHA1 of bytes; takes the same time for every wrong one."""
        return hmac.compare_digest(signatures.digest(self.key, content), found)

    def is_of(self, secret: str) -> bool:
        """Return whether this is the signer of a secret."""
        return hmac.compare_digest(self.key, Signer(secret).key)


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user and its password, with which a client signs its requests."""

    access_key: str
    secret_key: str = field(repr=False)
    signer: Signer = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("access_key", "secret_key"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise ConfigError(f"{name} of Credentials is a text that is not empty, not {type(value).__name__}")
        object.__setattr__(self, "signer", Signer(self.secret_key))


def sign(ext: Mapping[str, str], body: bytes, credentials: Credentials, version: int) -> dict[str, str]:
    """Return the fields of a request with those that prove who sent it."""
    made = {**ext, ACCESS_KEY: credentials.access_key}
    made[SIGNATURE] = credentials.signer.signature(made, body, version).decode()
    return made


def without_proof(ext: Mapping[str, str]) -> dict[str, str]:
    """Return the fields of a request that a server passes on: the receiver could send others again as the user."""
    return {name: value for name, value in ext.items() if name not in PROOF}
