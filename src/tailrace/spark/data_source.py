"""The data source ``tailrace``: ``spark.read.format("tailrace").load(DIRECTORY)``."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from tailrace.spark.batch_reader import TailraceBatchReader
from tailrace.spark.options import ReadOptions, parse_options
from tailrace.spark.schema import column_names, spark_schema
from tailrace.spark.stream_reader import TailraceStreamReader

__all__ = ["TailraceDataSource"]


class TailraceDataSource(DataSource):
    """Store directories of Tailrace and of RocketMQ 5 brokers, read without their lock."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "tailrace"

    def _parsed(self) -> ReadOptions:
        return parse_options(dict(self.options), column_names)

    def schema(self) -> str:
        """All columns, or those of the option ``columns``; raises ConfigError for bad options."""
        return spark_schema(self._parsed().columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """The batch reader; Spark calls it with the keyword ``schema``."""
        _ = schema
        return TailraceBatchReader(self._parsed())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """The streaming reader; Spark calls it with the keyword ``schema``."""
        _ = schema
        return TailraceStreamReader(self._parsed())
