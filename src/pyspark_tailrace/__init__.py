"""Lets Spark find the data source ``tailrace`` without ``spark.dataSource.register``."""

from __future__ import annotations

from tailrace.spark.data_source import TailraceDataSource as DefaultSource

__all__ = ["DefaultSource"]
