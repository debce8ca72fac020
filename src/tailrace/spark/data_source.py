"""The data source ``tailrace``: ``spark.read.format("tailrace").load(DIRECTORY)``."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from tailrace.spark.plain_errors import plain_errors
from tailrace.spark.sink.options import parse_write_options
from tailrace.spark.sink.writers import TailraceBatchWriter, TailraceStreamWriter
from tailrace.spark.source.batch_reader import FilteringBatchReader, TailraceBatchReader
from tailrace.spark.source.broker_readers import BrokerBatchReader, BrokerStreamReader
from tailrace.spark.source.options import ReadOptions, parse_options
from tailrace.spark.source.schema import column_names, columns_of, spark_schema
from tailrace.spark.source.stream_reader import TailraceStreamReader

__all__ = ["TailraceDataSource"]


class TailraceDataSource(DataSource):
    """Store directories, read without their lock, and brokers, read and written to by the client."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "tailrace"

    def _parsed(self, schema: StructType | None = None) -> ReadOptions:
        """Return the parsed options. If the query names a schema, its columns are read, in its order."""
        options = parse_options(dict(self.options), column_names)
        if schema is None:
            return options
        return replace(options, columns=columns_of(
            [(field.name, field.dataType.simpleString()) for field in schema.fields],
            column_names(options.mode)))

    @plain_errors
    def schema(self) -> str:
        """Return the schema: all columns, or those of the option ``columns``. Raises ConfigError for bad options."""
        return spark_schema(self._parsed().columns)

    @plain_errors
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the batch reader. Raises ConfigError if the schema has other columns than the source."""
        options = self._parsed(schema)
        if options.brokers is not None:
            return BrokerBatchReader(options)
        return (FilteringBatchReader if options.push_filters else TailraceBatchReader)(options)

    @plain_errors
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the batch writer. Raises ConfigError for options or columns that cannot be written."""
        return TailraceBatchWriter(parse_write_options(
            dict(self.options), schema, stream=False, overwrite=overwrite))

    @plain_errors
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return the streaming writer. Raises ConfigError as ``writer`` does."""
        return TailraceStreamWriter(parse_write_options(
            dict(self.options), schema, stream=True, overwrite=overwrite))

    @plain_errors
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the streaming reader. Raises ConfigError as ``reader`` does."""
        options = self._parsed(schema)
        return TailraceStreamReader(options) if options.brokers is None else BrokerStreamReader(options)
