"""Options and columns of writes to a broker. All problems are reported together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from tailrace.config import LONG_MAX, whole_number
from tailrace.errors import ConfigError
from tailrace.remoting.tls import TlsOptions
from tailrace.spark.local_path import local_path
from tailrace.spark.option_names import unknown_options
from tailrace.spark.tls_in_options import TLS_NAMES, tls_in

__all__ = ["WriteOptions", "local_checkpoint", "parse_write_options"]

_NAMES: Final = ("broker", "namesrv", "topic", "group", "checkpointLocation", "timeoutMs", "credentials")
_OF_SPARK: Final = frozenset({"queryname", "path", "outputmode"})
_WHOLE: Final = (ByteType, ShortType, IntegerType, LongType)
_COLUMNS: Final[Mapping[str, tuple[type[DataType], ...]]] = {
    "topic": (StringType,), "tags": (StringType,), "keys": (ArrayType, StringType),
    "properties": (MapType,), "body": (BinaryType, StringType),
    "deliverAt": (TimestampType, LongType), "queueId": _WHOLE,
}


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Target of messages. ``topic`` is for rows without a topic.

    ``checkpoint`` is empty for a batch, and for a stream whose checkpoint is set by
    ``spark.sql.streaming.checkpointLocation``; ``writers`` finds that checkpoint.
    """

    broker: str
    namesrv: str
    topic: str
    group: str
    timeout_ms: int
    checkpoint: str
    tls: TlsOptions | None = None
    credentials: str = ""
    """Path of the credentials file on the driver; empty: the file that the environment names."""


def local_checkpoint(text: str, problems: list[str]) -> str:
    """Return the path of a checkpoint; add a problem if rows cannot be staged there."""
    found: list[str] = []
    checkpoint = local_path("checkpointLocation", text, found).rstrip("/")
    if found:
        found = [f"{found[0]}, because rows are staged there as files"]
    elif checkpoint and not Path(checkpoint).is_absolute():
        found = [f"checkpointLocation={checkpoint} is not an absolute path"]
    problems += found
    return checkpoint


def _check_columns(schema: StructType, topic: str, problems: list[str]) -> None:
    for field in schema.fields:
        wanted = _COLUMNS.get(field.name)
        if wanted is None:
            problems.append(f"column {field.name} is not written: known are {', '.join(_COLUMNS)}")
        elif not isinstance(field.dataType, wanted) or (
            isinstance(field.dataType, ArrayType)
            and not isinstance(field.dataType.elementType, StringType)
        ) or (
            isinstance(field.dataType, MapType)
            and not (isinstance(field.dataType.keyType, StringType)
                     and isinstance(field.dataType.valueType, StringType))
        ):
            problems.append(f"column {field.name} cannot be {field.dataType.simpleString()}")
    names = set(schema.fieldNames())
    if "body" not in names:
        problems.append("there is no column body")
    if "topic" not in names and not topic:
        problems.append("there is no column topic and no option topic")


def parse_write_options(
    options: Mapping[str, str], schema: StructType, *, stream: bool, overwrite: bool
) -> WriteOptions:
    """Return the parsed options. Raises ConfigError with every problem."""
    texts = {name.lower(): value for name, value in options.items()}
    problems = unknown_options(options, (*_NAMES, "tls", *TLS_NAMES), _OF_SPARK)
    if overwrite:
        problems.append("messages can only be appended: use mode('append')")
    if texts.get("path"):
        problems.append("messages are written to a broker: set the option broker or namesrv, not a path")
    if bool(texts.get("broker")) == bool(texts.get("namesrv")):
        problems.append("set one of the options broker and namesrv, as HOST:PORT")
    timeout = texts.get("timeoutms", "3000")
    if not whole_number(timeout):
        problems.append(f"timeoutMs={timeout} is not a whole number from 1 to {LONG_MAX}")
        timeout = "3000"
    tls = tls_in(texts, problems)
    checkpoint = ""
    if stream:
        checkpoint = local_checkpoint(texts.get("checkpointlocation", ""), problems)
    topic = texts.get("topic", "")
    _check_columns(schema, topic, problems)
    if problems:
        raise ConfigError(*problems)
    return WriteOptions(
        texts.get("broker", ""), texts.get("namesrv", ""), topic,
        texts.get("group", "tailrace-spark"), int(timeout), checkpoint, tls, texts.get("credentials", ""))
