"""The catalogue and its two tables, as the job sees them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, Self, final

import msgspec
import pyarrow as pa

from tailrace.env.filesystem import FileSystem
from tailrace.errors import ConfigError, MissingPackageError, StoreError
from tailrace.spark.lake.schemas import (
    DAY,
    MESSAGES_SCHEMA,
    RAW_SCHEMA,
    STORE_TIME,
    Ids,
    arrow_paths,
    ids_of,
    statistics_of,
)
from tailrace.spark.lake.task import Target

try:
    import pyiceberg  # noqa: F401 - the error names the extra
except ModuleNotFoundError as error:
    raise MissingPackageError("tables of Iceberg", error.name or "pyiceberg", "lake") from None
from pyiceberg import exceptions
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform
from pyiceberg.types import ListType, MapType
from pyiceberg.utils.config import Config
from sqlalchemy.exc import SQLAlchemyError

from tailrace.spark.lake.synced_io import SYNCED_IO, local_path

__all__ = ["DEFAULT_CATALOGUE", "TABLES", "Lake", "LakeTable", "Mark", "catalogue_errors"]

DEFAULT_CATALOGUE: Final = "tailrace"
TABLES: Final = "tables"
"""Directory of the archive with the default catalogue and the files of its tables."""
_MARK: Final = "tailrace.archived-until."
_TOPICS: Final = "tailrace.topics"
_ERRORS: Final = tuple(
    kind for _, kind in inspect.getmembers(exceptions, inspect.isclass) if issubclass(kind, Exception))
_PROPERTIES: Final = {
    "format-version": "2",
    "write.metadata.metrics.default": "none",
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "20",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
    # A compaction by another program is not refused because segments are added in the meantime.
    "write.delete.isolation-level": "snapshot",
}


class Mark(NamedTuple):
    """Up to where a table has the rows of a broker: all segments before the position ``until``, as they were
    archived up to the time ``archived_at``. ``sha256`` is of the last segment, which starts at ``segment``."""

    until: int
    segment: int
    """-1 before the first segment."""
    sha256: str
    archived_at: int
    open_until: int = 0
    """Up to where the table also has ranges of the segment at ``until``, which is still written; 0 without one."""
    open_rows: int = 0
    """Number of rows of these ranges."""

    @property
    def reached(self) -> int:
        """Position up to which the table has the rows of the broker."""
        return max(self.until, self.open_until)


@contextmanager
def catalogue_errors(what: str) -> Iterator[None]:
    """Turn errors of PyIceberg and its catalogues into StoreError with one line."""
    try:
        yield
    except StoreError:
        raise
    except (*_ERRORS, SQLAlchemyError, OSError, ValueError) as error:
        text = str(error).strip().splitlines()
        raise StoreError(f"{what}: {type(error).__name__}: {text[0] if text else ''}") from error


@final
class LakeTable:
    """One of the two tables; ``kind`` is ``raw`` or ``messages``."""

    def __init__(self, table: Table, kind: str, broker: str) -> None:
        self.table, self.kind, self.broker = table, kind, broker
        self.name = ".".join(table.name())

    def refresh(self) -> Mark | None:
        """Read the table again; return how far it is, None before its first rows of this broker."""
        with catalogue_errors(f"the table {self.name}"):
            self.table = self.table.refresh()
        marks = {key: value for key, value in self.table.properties.items() if key.startswith(_MARK)}
        own = marks.pop(self.mark_property, None)
        if self.kind == "raw" and marks:
            raise StoreError(
                f"the table {self.name} has rows of the broker {min(marks).removeprefix(_MARK)}, not of {self.broker}")
        try:
            return None if own is None else msgspec.json.decode(own, type=Mark)
        except msgspec.MsgspecError as error:
            raise StoreError(
                f"the property {self.mark_property} of the table {self.name} was changed: {own!r}") from error

    @property
    def mark_property(self) -> str:
        """Name of the table's property with the mark of the broker."""
        return _MARK + self.broker

    @property
    def ids(self) -> Ids:
        """Field ids of the table. Raises StoreError if its columns or partitions are not those of an archive."""
        schema = self.table.schema()
        found: dict[str, tuple[int, str]] = {}
        for one in schema.fields:
            _walk(one.name, one.field_id, one.field_type, found)
        ids = ids_of(
            self.name, found, frozenset(one.name for one in schema.fields if one.required),
            RAW_SCHEMA if self.kind == "raw" else MESSAGES_SCHEMA)
        wanted = [] if self.kind == "raw" else [(ids.of[STORE_TIME], "day")]
        there = [(one.source_id, str(one.transform)) for one in self.table.spec().fields]
        if there != wanted:
            raise StoreError(
                f"the table {self.name} is partitioned by {self.table.spec()}; rows can be added only with "
                f"{'days of ' + STORE_TIME if wanted else 'no partitions'}")
        return ids

    @property
    def target(self) -> Target:
        """What tasks need to make files for the table. Raises StoreError if it is not on a local disk."""
        location = self.table.location()
        path = local_path(location)
        if path is None:
            raise StoreError(
                f"the table {self.name} is at {location}: tables in object stores are not supported, use a directory "
                "that every executor sees")
        return Target(self.ids, f"{path}/data/{self.broker}")


def _walk(path: str, number: int, kind: Any, found: dict[str, tuple[int, str]]) -> str:
    if isinstance(kind, ListType):
        text = f"list<{_walk(f'{path}.element', kind.element_id, kind.element_type, found)}>"
    elif isinstance(kind, MapType):
        key = _walk(f"{path}.key", kind.key_id, kind.key_type, found)
        text = f"map<{key}, {_walk(f'{path}.value', kind.value_id, kind.value_type, found)}>"
    else:
        text = str(kind)
    found[path] = number, text
    return text


@final
class Lake:
    """The tables of one broker. Tables and namespace are created if they do not exist.

    ``catalogue`` is a name in PyIceberg's configuration. Only the default one need not be there: it is then an SQLite
    file in the archive. ``every_topic`` adds topics of the system and of retries to ``messages``; a table keeps the
    choice with which it was created. Raises ConfigError for a name that is not known or cannot be used, StoreError for
    a catalogue that cannot be reached or a table that does not fit.
    """

    def __init__(
        self, archive: str, namespace: str, broker: str, file_system: FileSystem, *,
        catalogue: str = DEFAULT_CATALOGUE, every_topic: bool = False,
    ) -> None:
        for name, value in (("the namespace", namespace), ("brokerName", broker)):
            if not re.fullmatch(r"[A-Za-z0-9_-]+", value):
                raise ConfigError(f"{name} {value!r} has other characters than letters, digits, _ and -")
        self.catalogue, self.every_topic = catalogue, every_topic
        with catalogue_errors(f"the catalogue {catalogue}"):
            self._catalogue = _opened(catalogue, archive, file_system)
            self._catalogue.create_namespace_if_not_exists(namespace)
            self.raw = self._table(f"{namespace}.raw_{re.sub('[^a-z0-9]', '_', broker.lower())}", "raw", broker)
            self.messages = self._table(f"{namespace}.messages", "messages", broker)
        there = self.messages.table.properties.get(_TOPICS)
        if there != self._topics:
            raise ConfigError(
                f"the table {self.messages.name} was created {'with' if there == 'all' else 'without'} "
                "--system-topics, and keeps that choice")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections to the catalogue."""
        self._catalogue.close()

    @property
    def _topics(self) -> str:
        return "all" if self.every_topic else "business"

    def _table(self, name: str, kind: str, broker: str) -> LakeTable:
        schema, spec, properties = RAW_SCHEMA, PartitionSpec(), dict(_PROPERTIES)
        for column in statistics_of(kind):
            properties[f"write.metadata.metrics.column.{column}"] = "full"
        if kind == "messages":
            schema = MESSAGES_SCHEMA
            number = _number(schema, STORE_TIME)
            spec = PartitionSpec(PartitionField(number, 1000, DayTransform(), DAY))
            properties[_TOPICS] = self._topics
        table = self._catalogue.create_table_if_not_exists(
            name, pyarrow_to_schema(schema), partition_spec=spec, properties=properties)
        return LakeTable(table, kind, broker)


def _number(schema: pa.Schema, column: str) -> int:
    number = arrow_paths(schema)[column][0]
    assert number is not None
    return number


def _opened(name: str, archive: str, file_system: FileSystem) -> Catalog:
    if known := Config().get_catalog_config(name):
        return load_catalog(name, **{"py-io-impl": SYNCED_IO, **known})
    if name != DEFAULT_CATALOGUE:
        raise ConfigError(
            f"PyIceberg's configuration has no catalogue {name}: set it in ~/.pyiceberg.yaml or by the variables "
            f"PYICEBERG_CATALOG__{name.upper()}__URI and so on")
    place = f"{archive}/{TABLES}"
    file_system.makedirs(place)
    return SqlCatalog(name, **{
        "uri": f"sqlite:///{place}/catalog.db", "warehouse": f"file://{place}", "py-io-impl": SYNCED_IO})
