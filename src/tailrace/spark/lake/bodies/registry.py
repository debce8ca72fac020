"""Schemas of a subject in a schema registry, by the REST interface that Confluent's has.

A body starts with a zero and the id of its schema in four bytes, most significant first. In Protobuf the place of the
message in its file follows: the number of indexes and the indexes, as zigzag varints; a single zero is the first
message. Source: the wire format in Confluent's documentation of its Schema Registry.
"""

from __future__ import annotations

import base64
import binascii
import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Final, NamedTuple

from tailrace.errors import ConfigError, StoreError
from tailrace.spark.lake.bodies.values import BodyError

__all__ = ["HEADER_BYTES", "Registry", "Version", "message_indexes", "schema_id"]

HEADER_BYTES: Final = 5
_TIMEOUT_S: Final = 10
_ANSWER_MAX: Final = 16 << 20
_VERSIONS_MAX: Final = 1_000
_FORMATS: Final = {"AVRO": "avro", "JSON": "json", "PROTOBUF": "protobuf"}


class Version(NamedTuple):
    """A schema of a subject: its id, its format, its text or descriptor, and what it refers to, first what others need.

    What it refers to has a name, which is that of a file in Protobuf."""

    id: int
    format: str
    schema: bytes
    others: tuple[tuple[str, bytes], ...]


class Registry:
    """Reads the versions of subjects. Versions never change, so each is read once.

    ``url`` may have a user and a password. Raises ConfigError for another URL than of http or https.
    """

    def __init__(self, url: str) -> None:
        parsed = urllib.parse.urlsplit(url)
        if parsed.scheme not in {"http", "https"} or not parsed.hostname:
            raise ConfigError("the registry is not a URL of http or https")
        host = parsed.netloc.rpartition("@")[2]
        self.name: Final = f"{parsed.scheme}://{host}{parsed.path.rstrip('/')}"
        """The URL without user and password."""
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if parsed.username is not None:
            user = f"{urllib.parse.unquote(parsed.username)}:{urllib.parse.unquote(parsed.password or '')}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(user.encode()).decode()}"
        self._known: dict[tuple[str, int], Version] = {}

    def versions(self, subject: str) -> list[Version]:
        """Return all versions of a subject, the oldest first.

        Raises StoreError if the registry does not answer, ConfigError for a subject without versions.
        """
        numbers = self._get(f"/subjects/{urllib.parse.quote(subject, safe='')}/versions")
        if not isinstance(numbers, list) or not numbers or not all(isinstance(one, int) for one in numbers):
            raise ConfigError(f"{self.name} has no versions of the subject {subject}")
        if len(numbers) > _VERSIONS_MAX:
            raise ConfigError(f"{self.name} has more than {_VERSIONS_MAX} versions of the subject {subject}")
        return [self._version(subject, one, ()) for one in sorted(numbers)]

    def _version(self, subject: str, number: int, above: tuple[tuple[str, int], ...]) -> Version:
        key = subject, number
        if (known := self._known.get(key)) is not None:
            return known
        if key in above:
            raise ConfigError(f"{self.name}: the subject {subject} refers to itself")
        path = f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/{number}"
        found = self._get(path)
        try:
            form = _FORMATS[found.get("schemaType") or "AVRO"]
            others: dict[tuple[str, bytes], None] = {}
            for one in found.get("references") or ():
                inner = self._version(one["subject"], one["version"], (*above, key))
                others |= dict.fromkeys([*inner.others, (one["name"], inner.schema)])
            text = found["schema"].encode()
            if form == "protobuf":
                text = base64.b64decode(self._get(f"{path}?format=serialized")["schema"], validate=True)
            if form == "json" and others:
                raise ConfigError(f"{self.name}: the subject {subject} has references, which JSON Schema cannot have")
            made = Version(int(found["id"]), form, text, tuple(others))
        except (AttributeError, KeyError, TypeError, ValueError, binascii.Error) as error:
            raise StoreError(
                f"{self.name}: the answer for version {number} of the subject {subject} is not one of a schema "
                f"registry: {type(error).__name__} {error}") from None
        self._known[key] = made
        return made

    def _get(self, path: str) -> Any:
        request = urllib.request.Request(f"{self.name}{path}", headers=self._headers)
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
                data = answer.read(_ANSWER_MAX + 1)
        except urllib.error.HTTPError as error:
            error.close()
            raise StoreError(f"{self.name}{path}: HTTP status {error.code}") from None
        except (OSError, ValueError) as error:
            raise StoreError(f"{self.name}{path}: {getattr(error, 'reason', error)}") from None
        if len(data) > _ANSWER_MAX:
            raise StoreError(f"{self.name}{path}: the answer is longer than {_ANSWER_MAX} bytes")
        try:
            return json.loads(data)
        except ValueError:
            raise StoreError(f"{self.name}{path}: the answer is not JSON") from None


def schema_id(body: bytes) -> int:
    """Return the id in the header of a body. Raises BodyError for a body without a header."""
    if len(body) < HEADER_BYTES or body[0]:
        raise BodyError("the body does not start with the header of a schema registry")
    return int.from_bytes(body[1:HEADER_BYTES], "big")


def message_indexes(body: bytes) -> tuple[tuple[int, ...], int]:
    """Return the place of the message in its file, and where the message starts. Raises BodyError."""
    def varint(at: int) -> tuple[int, int]:
        value = 0
        for count in range(5):
            if at + count >= len(body):
                break
            value |= (body[at + count] & 0x7F) << 7 * count
            if not body[at + count] & 0x80:
                return (value >> 1) ^ -(value & 1), at + count + 1
        raise BodyError("the header of the body has no place of a message")

    count, at = varint(HEADER_BYTES)
    if count == 0:
        return (0,), at
    if not 0 < count <= 32:
        raise BodyError(f"the header of the body has {count} indexes of a message")
    found = []
    for _ in range(count):
        one, at = varint(at)
        if one < 0:
            raise BodyError("the header of the body has a negative index of a message")
        found.append(one)
    return tuple(found), at
