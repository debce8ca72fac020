"""The file that names the schema of each topic with a typed table, in TOML.

    [orders]
    format = "avro"                      # or json, protobuf
    schema = "orders.avsc"               # a path, from the directory of this file

    [clicks]
    registry = "http://registry:8081"    # and subject, if it is not clicks-value
"""

from __future__ import annotations

import tomllib
from pathlib import PurePath
from typing import Final

import msgspec

from tailrace.env.filesystem import FileSystem
from tailrace.env.whole_files import read_file
from tailrace.errors import ConfigError
from tailrace.spark.lake.bodies.registry import Registry
from tailrace.spark.lake.bodies.rows import FORMATS, Schema, TopicSchema

__all__ = ["TopicSchemas"]

_SCHEMA_MAX: Final = 4 << 20


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    format: str = ""
    schema: str = ""
    message: str = ""
    """Full name of the message in Protobuf; default: the first one."""
    registry: str = ""
    subject: str = ""
    header: bool = False
    """Bodies start with the header of a registry, although the schema is a file."""


class TopicSchemas:
    """The schemas of a file. Raises ConfigError that names the topic and what is wrong."""

    def __init__(self, path: str, file_system: FileSystem) -> None:
        self._path, self._file_system = path, file_system
        try:
            found = tomllib.loads(read_file(file_system, path).decode())
            self._entries = msgspec.convert(found, dict[str, _Entry])
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
            raise ConfigError(f"{path}: {error}") from None
        if not self._entries:
            raise ConfigError(f"{path} names no topic")
        self._registries: dict[str, Registry] = {}
        for topic, one in self._entries.items():
            self._check(topic, one)
        for topic, one in self._entries.items():
            if not one.registry:
                self.schema_of(topic)

    @property
    def topics(self) -> list[str]:
        """The topics that the file names."""
        return list(self._entries)

    def schema_of(self, topic: str) -> TopicSchema:
        """Return the schemas of a topic, from its registry as they are now.

        Raises ConfigError for a schema that cannot be columns, StoreError for a registry that does not answer.
        """
        one = self._entries[topic]
        if not one.registry:
            path = str(PurePath(self._path).parent / one.schema)
            data = read_file(self._file_system, path, _SCHEMA_MAX)
            return TopicSchema(topic, one.message, one.header, (Schema(0, one.format, data, path),)).checked()
        registry = self._registries[one.registry]
        subject = one.subject or f"{topic}-value"
        return TopicSchema(topic, one.message, header=True, schemas=tuple(
            Schema(found.id, found.format, found.schema, f"version {number} of {subject}", found.others)
            for number, found in enumerate(registry.versions(subject), 1))).checked()

    def _check(self, topic: str, one: _Entry) -> None:
        where = f"{self._path}: topic {topic}"
        if bool(one.schema) == bool(one.registry):
            raise ConfigError(f"{where}: give either schema or registry")
        if one.registry:
            if one.format or one.header:
                raise ConfigError(f"{where}: format and header are of a schema in a file; the registry says the format")
            self._registries.setdefault(one.registry, Registry(one.registry))
        elif one.format not in FORMATS:
            raise ConfigError(f"{where}: format {one.format!r} is not {', '.join(FORMATS)}")
        if one.subject and not one.registry:
            raise ConfigError(f"{where}: subject needs registry")
        if one.message and one.format not in {"", "protobuf"}:
            raise ConfigError(f"{where}: message is of the format protobuf")
