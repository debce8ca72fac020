"""The catalogue and its tables, as the jobs see them."""

from __future__ import annotations

import inspect
import re
import struct
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, Self, final

import msgspec
import pyarrow as pa

from tailrace import events
from tailrace.env.filesystem import FileSystem
from tailrace.env.object_store import place_of
from tailrace.errors import ConfigError, MissingPackageError, StoreError
from tailrace.logs import get_logger
from tailrace.spark.archive.layout import FIELD_ID
from tailrace.spark.lake.bodies.rows import TopicSchema, merged_type
from tailrace.spark.lake.conditions import Condition
from tailrace.spark.lake.schemas import (
    DAY,
    FORMS,
    MESSAGES_SCHEMA,
    RAW_SCHEMA,
    STORE_TIME,
    Form,
    Ids,
    arrow_paths,
    ids_of,
    marked,
    statistics_of,
)
from tailrace.spark.lake.task import Target
from tailrace.store.archive_store import is_remote
from tailrace.store.archive_tables import CommitCounts

try:
    import pyiceberg  # noqa: F401 - the error names the extra
except ModuleNotFoundError as error:
    raise MissingPackageError("tables of Iceberg", error.name or "pyiceberg", "lake") from None
from pyiceberg import exceptions
from pyiceberg.catalog import Catalog, CatalogType, infer_catalog_type, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import _ConvertToIcebergWithoutIDs, pyarrow_to_schema, visit_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import assign_fresh_schema_ids
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)
from pyiceberg.utils.config import Config
from sqlalchemy.exc import SQLAlchemyError
from strictyaml import YAMLError

from tailrace.spark.lake.places import (
    SERVER_OPTIONS,
    S3Server,
    TableFiles,
    files_of,
    path_of,
    server_of,
)
from tailrace.spark.lake.rest_catalogue import TimedRestCatalog
from tailrace.spark.lake.table_io import TABLE_IO, TableIO

__all__ = [
    "DEFAULT_CATALOGUE", "FORGOTTEN", "TABLES", "Forgotten", "Lake", "LakeTable", "Mark", "Namespace",
    "catalogue_errors",
]

_log = get_logger(__name__)
DEFAULT_CATALOGUE: Final = "tailrace"
TABLES: Final = "tables"
"""Directory of the archive with the default catalogue and the files of its tables."""
_CATALOGUE_FILE: Final = "catalog.db"
_MARK: Final = "tailrace.archived-until."
_TOPICS: Final = "tailrace.topics"
_TOPIC: Final = "tailrace.topic"
"""Property of a typed table: its topic."""
FORGOTTEN: Final = "tailrace.forgotten"
"""Property with the rows that were forgotten, so that no job adds them again from the archive."""
_ERRORS: Final = tuple(
    kind for _, kind in inspect.getmembers(exceptions, inspect.isclass) if issubclass(kind, Exception))
_DAMAGE: Final = (
    ArithmeticError, AssertionError, AttributeError, EOFError, LookupError, MemoryError, SystemError, TypeError,
    struct.error, zlib.error)
"""What PyIceberg raises for files of metadata with changed bits, besides ValueError: they have no checksums."""
_CLIENTS: Final = (
    ("thrift.Thrift", "TException"), ("botocore.exceptions", "BotoCoreError"), ("botocore.exceptions", "ClientError"))
"""Modules and the errors in them which PyIceberg's catalogues of Hive and Glue let through."""
_OTHER_PLACES: Final = frozenset({
    "write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path"})
"""Properties by which a table has its files outside of its own directory."""
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


class Forgotten(NamedTuple):
    """Rows that a user has removed: of a topic, of a key, or of a key in a topic.

    For each broker all records before the position in ``until`` count.
    """

    topic: str
    key: str
    until: dict[str, int]

    @property
    def condition(self) -> Condition:
        """The rows of all brokers, at any position."""
        return Condition(self.topic, self.key)


def _errors_of_clients() -> tuple[type[Exception], ...]:
    """Return what the clients of Hive and AWS raise, of those that are in use."""
    return tuple(
        getattr(sys.modules[module], name) for module, name in _CLIENTS if hasattr(sys.modules.get(module), name))


@contextmanager
def catalogue_errors(what: str) -> Iterator[None]:
    """Turn errors of PyIceberg and its catalogues into StoreError with one line."""
    try:
        yield
    except StoreError:
        raise
    except (*_ERRORS, *_DAMAGE, SQLAlchemyError, OSError, ValueError, NotImplementedError,
            *_errors_of_clients()) as error:
        text = str(error).strip().splitlines()
        raise StoreError(f"{what}: {type(error).__name__}: {text[0] if text else ''}") from error


@final
class LakeTable:
    """One of the tables; ``kind`` is ``raw``, ``messages`` or ``typed``."""

    def __init__(self, table: Table, kind: str, broker: str) -> None:
        self.table, self.kind, self.broker = table, kind, broker
        self.name = ".".join(table.name())
        self.counts = CommitCounts()
        """How the commits of this process to the table went."""

    def count(self, *, commits: int = 0, retries: int = 0, conflicts: int = 0) -> None:
        """Count a commit, a try that is repeated, or a commit that is given up because others changed the table."""
        self.counts = self.counts.plus(CommitCounts(commits, retries, conflicts))

    def may_try_again(self, error: StoreError, left: int) -> bool:
        """Return whether a commit that failed may be tried again, with ``left`` tries, and count it if it was refused.
        """
        if not isinstance(error.__cause__, exceptions.CommitFailedException):
            return False
        self.count(retries=1 if left else 0, conflicts=0 if left else 1)
        return left > 0

    @property
    def form(self) -> Form:
        """Names of the columns that jobs need."""
        return FORMS[self.kind]

    @property
    def topic(self) -> str:
        """The topic of a typed table, "" for another table."""
        return str(self.table.properties.get(_TOPIC, ""))

    @property
    def forgotten(self) -> list[Forgotten]:
        """The rows that a user has removed. Raises StoreError if the property was changed."""
        try:
            return msgspec.json.decode(self.table.properties.get(FORGOTTEN, "[]"), type=list[Forgotten])
        except msgspec.MsgspecError as error:
            raise StoreError(f"the property {FORGOTTEN} of the table {self.name} was changed: {error}") from error

    def reload(self) -> None:
        """Read the table again."""
        with catalogue_errors(f"the table {self.name}"):
            self.table = self.table.refresh()

    def marks(self) -> dict[str, Mark]:
        """Return the marks of all brokers. Raises StoreError if one was changed."""
        return {
            key.removeprefix(_MARK): self._mark(key, value)
            for key, value in self.table.properties.items() if key.startswith(_MARK)}

    def _mark(self, key: str, value: str) -> Mark:
        try:
            return msgspec.json.decode(value, type=Mark)
        except msgspec.MsgspecError as error:
            raise StoreError(f"the property {key} of the table {self.name} was changed: {value!r}") from error

    def refresh(self) -> Mark | None:
        """Read the table again; return how far it is, None before its first rows of this broker."""
        with catalogue_errors(f"the table {self.name}"):
            self.table = self.table.refresh()
        marks = {key: value for key, value in self.table.properties.items() if key.startswith(_MARK)}
        own = marks.pop(self.mark_property, None)
        if self.kind == "raw" and marks:
            raise StoreError(
                f"the table {self.name} has rows of the broker {min(marks).removeprefix(_MARK)}, not of {self.broker}")
        return None if own is None else self._mark(self.mark_property, own)

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
        if self.kind == "typed":
            ids = Ids(self.name, {path: number for path, (number, _) in found.items()})
        else:
            ids = ids_of(
                self.name, found, frozenset(one.name for one in schema.fields if one.required),
                RAW_SCHEMA if self.kind == "raw" else MESSAGES_SCHEMA)
        wanted = [] if self.kind == "raw" else [(ids.of[self.form.time], "day")]
        there = [(one.source_id, str(one.transform)) for one in self.table.spec().fields]
        if there != wanted:
            raise StoreError(
                f"the table {self.name} is partitioned by {self.table.spec()}; rows can be added only with "
                f"{'days of ' + self.form.time if wanted else 'no partitions'}")
        return ids

    @property
    def whole_schema(self) -> pa.Schema:
        """The columns that a rewritten file has, with field ids. Raises StoreError if others have added a column."""
        if self.kind == "typed":
            return pa.schema([_arrow_field(one) for one in self.table.schema().fields])
        added = {one.name for one in self.table.schema().fields} - set(MESSAGES_SCHEMA.names)
        if added:
            raise StoreError(
                f"the table {self.name} has a column {min(added)} of another program, whose values would be lost: "
                "use that program for maintenance")
        return marked(MESSAGES_SCHEMA, self.ids)

    @property
    def place(self) -> str:
        """The path of the table's directory. Raises StoreError if its files are, or have to be, somewhere else."""
        location = self.table.location()
        path = path_of(location)
        if path is None:
            raise StoreError(
                f"the table {self.name} is at {location}: tables are in a directory that every executor sees, or at "
                "s3://BUCKET/PREFIX")
        if elsewhere := sorted(set(self.table.properties) & _OTHER_PLACES):
            raise StoreError(
                f"the table {self.name} has the property {elsewhere[0]}, which is not supported: its files are in the "
                f"directories data and metadata of {location}")
        return path.rstrip("/")

    @property
    def server(self) -> S3Server | None:
        """The server of the table's bucket; None for a disk. Raises ConfigError for options that are not supported."""
        if not isinstance(self.table.io, TableIO):
            raise ConfigError(
                f"the catalogue of {self.name} sets py-io-impl, which is not supported: Tailrace writes files itself")
        return server_of(self.table.io.properties, self.name) if is_remote(self.place) else None

    def files(self, file_system: FileSystem) -> TableFiles:
        """Return the files of the table."""
        return files_of(self.server, file_system)

    @property
    def target(self) -> Target:
        """What tasks need to make files for the table. Raises StoreError as ``place`` and ``server``."""
        gone = tuple(
            (Condition("" if self.topic else one.topic, one.key), one.until[self.broker]) for one in self.forgotten
            if self.broker in one.until and (not self.topic or one.topic in {"", self.topic}))
        return Target(self.ids, f"{self.place}/data/{self.broker}", gone, self.server)


def _walk(path: str, number: int, kind: Any, found: dict[str, tuple[int, str]]) -> str:
    if isinstance(kind, ListType):
        text = f"list<{_walk(f'{path}.element', kind.element_id, kind.element_type, found)}>"
    elif isinstance(kind, MapType):
        key = _walk(f"{path}.key", kind.key_id, kind.key_type, found)
        text = f"map<{key}, {_walk(f'{path}.value', kind.value_id, kind.value_type, found)}>"
    elif isinstance(kind, StructType):
        inner = [_walk(f"{path}.{one.name}", one.field_id, one.field_type, found) for one in kind.fields]
        text = f"struct<{', '.join(inner)}>"
    else:
        text = str(kind)
    found[path] = number, text
    return text


_ARROW: Final = {
    StringType: pa.string(), BinaryType: pa.binary(), IntegerType: pa.int32(), LongType: pa.int64(),
    TimestamptzType: pa.timestamp("us", tz="UTC"), TimestampType: pa.timestamp("us"), BooleanType: pa.bool_(),
    FloatType: pa.float32(), DoubleType: pa.float64(), DateType: pa.date32(),
}


def _arrow_field(one: NestedField) -> pa.Field:
    """Return a field of a table with its field id. Raises StoreError for a type that no job writes."""
    kind = one.field_type
    if isinstance(kind, ListType):
        made = pa.list_(_arrow_field(kind.element_field).with_name("element"))
    elif isinstance(kind, MapType):
        made = pa.map_(_arrow_field(kind.key_field), _arrow_field(kind.value_field))
    elif isinstance(kind, StructType):
        made = pa.struct([_arrow_field(inner) for inner in kind.fields])
    elif isinstance(kind, DecimalType):
        made = pa.decimal128(kind.precision, kind.scale)
    elif (known := _ARROW.get(type(kind))) is not None:
        made = known
    else:
        raise StoreError(f"the column {one.name} is {kind}, which Tailrace does not write: it was changed")
    return pa.field(one.name, made, nullable=not one.required, metadata={FIELD_ID: str(one.field_id)})


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
        self.catalogue, self.namespace, self.every_topic = catalogue, namespace, every_topic
        with catalogue_errors(f"the catalogue {catalogue}"):
            self._catalogue = _opened(catalogue, archive, file_system)
            self._catalogue.create_namespace_if_not_exists(namespace)
            self.raw = self._table(f"{namespace}.raw_{re.sub('[^a-z0-9]', '_', broker.lower())}", "raw", broker)
            self.messages = self._table(f"{namespace}.messages", "messages", broker)
        self._broker = broker
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

    def typed(self, topic: TopicSchema) -> LakeTable:
        """Return the table with the bodies of a topic as columns. It is created, or gets new columns, if needed.

        Raises ConfigError if a field has another type than its column, StoreError for a table that does not fit.
        """
        name = f"{self.namespace}.topic_{re.sub('[^a-z0-9]', '_', topic.topic.lower())}"
        wanted = topic.table_schema
        with catalogue_errors(f"the table {name}"):
            if not self._catalogue.table_exists(name):
                self._create_typed(name, topic, wanted)
            table = LakeTable(self._catalogue.load_table(name), "typed", self._broker)
            if table.topic != topic.topic:
                raise ConfigError(
                    f"the table {name} is of the topic {table.topic or 'of another program'}: the topic {topic.topic} "
                    "needs a namespace of its own")
            self._add_columns(table, topic, wanted)
            return table

    def _create_typed(self, name: str, topic: TopicSchema, wanted: pa.Schema) -> None:
        properties = {**_PROPERTIES, _TOPIC: topic.topic}
        self.messages.reload()
        if forgotten := self.messages.table.properties.get(FORGOTTEN):
            properties[FORGOTTEN] = forgotten
        for column in statistics_of("typed"):
            properties[f"write.metadata.metrics.column.{column}"] = "full"
        fresh = assign_fresh_schema_ids(visit_pyarrow(wanted, _ConvertToIcebergWithoutIDs()))
        time = fresh.find_field(FORMS["typed"].time).field_id
        self._catalogue.create_table_if_not_exists(
            name, fresh, partition_spec=PartitionSpec(PartitionField(time, 1000, DayTransform(), DAY)),
            properties=properties)

    def _add_columns(self, table: LakeTable, topic: TopicSchema, wanted: pa.Schema) -> None:
        there = table.whole_schema
        grown = {one.name: one.type for one in there}
        for one in wanted:
            grown[one.name] = one.type if one.name not in grown else merged_type(
                grown[one.name], one.type, one.name, f"topic {topic.topic} and the table {table.name}")
        changed = [name for name, kind in grown.items() if name not in there.names or kind != there.field(name).type]
        if changed:
            with table.table.update_schema() as change:
                change.union_by_name(pa.schema([pa.field(name, grown[name]) for name in changed]))
            table.reload()
            events.ADDED_COLUMNS_TO_A_TABLE.log(_log, table=table.name, columns=",".join(changed))

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
        if self._catalogue.table_exists(name):  # the next call would leave a file of metadata each time
            return LakeTable(self._catalogue.load_table(name), kind, broker)
        table = self._catalogue.create_table_if_not_exists(
            name, pyarrow_to_schema(schema), partition_spec=spec, properties=properties)
        return LakeTable(table, kind, broker)


@final
class Namespace:
    """The tables of all brokers in a namespace, for jobs that need no archive. No table is created.

    Raises ConfigError for a catalogue that is not known, StoreError if the namespace has no table of ``kind``.
    """

    def __init__(
        self, archive: str, namespace: str, file_system: FileSystem, *, catalogue: str = DEFAULT_CATALOGUE,
        kind: str = "messages",
    ) -> None:
        self.namespace = namespace
        if catalogue == DEFAULT_CATALOGUE and not _configured(catalogue) and not (
                is_remote(archive) or file_system.exists(f"{archive}/{TABLES}/{_CATALOGUE_FILE}")):
            raise StoreError(f"{archive} has no tables: run tailrace pipeline archive with --table first")
        with catalogue_errors(f"the catalogue {catalogue}"):
            self._catalogue = _opened(catalogue, archive, file_system)
            names = sorted(one[-1] for one in self._catalogue.list_tables(namespace)) if (
                self._catalogue.namespace_exists(namespace)) else []
            found = [self._catalogue.load_table(f"{namespace}.{name}") for name in names]
        self.tables = [
            LakeTable(table, known, "") for name, table in zip(names, found, strict=True)
            if (known := _kind(name, table))]
        """The tables that ``pipeline archive`` has made, by name."""
        if not any(one.kind == kind for one in self.tables):
            self.close()
            name = "raw_BROKER" if kind == "raw" else kind
            raise StoreError(f"the catalogue {catalogue} has no table {namespace}.{name}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections to the catalogue."""
        self._catalogue.close()


def _kind(name: str, table: Table) -> str:
    if _TOPIC in table.properties:
        return "typed"
    if name == "messages":
        return "messages" if _TOPICS in table.properties else ""
    # A table of another program may also have such a name; a job must not remove its snapshots.
    return "raw" if name.startswith("raw_") and any(one.startswith(_MARK) for one in table.properties) else ""


def _number(schema: pa.Schema, column: str) -> int:
    number = arrow_paths(schema)[column][0]
    assert number is not None
    return number


def _configured(name: str) -> dict[str, Any]:
    """Return the options that PyIceberg's configuration has for a catalogue, {} without one."""
    try:
        return dict(Config().get_catalog_config(name) or {})
    except YAMLError as error:
        raise ConfigError(f"PyIceberg's configuration is not valid: {' '.join(str(error).split())}") from None


def _opened(name: str, archive: str, file_system: FileSystem) -> Catalog:
    if known := _configured(name):
        if known.get("py-io-impl", TABLE_IO) != TABLE_IO:
            raise ConfigError(
                f"the catalogue {name} sets py-io-impl, which is not supported: Tailrace writes files itself")
        options = {
            **({} if known.keys() & SERVER_OPTIONS else _server_options(archive)), **known, "py-io-impl": TABLE_IO}
        return _client(name, options)
    if name != DEFAULT_CATALOGUE:
        raise ConfigError(
            f"PyIceberg's configuration has no catalogue {name}: set it in ~/.pyiceberg.yaml or by the variables "
            f"PYICEBERG_CATALOG__{name.upper()}__URI and so on")
    if is_remote(archive):
        raise ConfigError(
            f"{archive} is in a bucket, where the default catalogue cannot be, because it is a file of SQLite: name a "
            "catalogue of PyIceberg's configuration with --catalog")
    place = f"{archive}/{TABLES}"
    file_system.makedirs(place)
    return SqlCatalog(name, **{
        "uri": f"sqlite:///{place}/{_CATALOGUE_FILE}", "warehouse": f"file://{place}", "py-io-impl": TABLE_IO})


def _client(name: str, options: dict[str, Any]) -> Catalog:
    """Return PyIceberg's client of a catalogue; those of REST and Hive end a wait for a silent server."""
    kind = _type_of(name, options)
    if kind == CatalogType.REST.value:
        return TimedRestCatalog(name, **options)
    if kind == CatalogType.HIVE.value:
        try:
            from tailrace.spark.lake.hive_catalogue import TimedHiveCatalog  # noqa: PLC0415 - needs thrift
        except ImportError:
            return load_catalog(name, **options)  # its error names the package
        return TimedHiveCatalog(name, **options)
    return load_catalog(name, **options)


def _type_of(name: str, options: dict[str, Any]) -> str:
    if "py-catalog-impl" in options:
        return ""
    kind = options.get("type")
    if isinstance(kind, str):
        return kind.lower()
    found = infer_catalog_type(name, options)
    return found.value if found else ""


def _server_options(archive: str) -> dict[str, str]:
    """Return the options that lead to the server of an archive in a bucket, for a catalogue that has none."""
    if not is_remote(archive):
        return {}
    found = place_of(archive)
    return {"s3.region": found.region, **({"s3.endpoint": found.endpoint} if found.endpoint else {})}
