"""Store directories as Spark DataFrames. Only this room imports pyspark; pyarrow is imported here and in ``arrow``.

    plan          what a read will read: ``tailrace.spark.explain(options)``
    session       make a Spark session, or register the data source in one
    data_source   the data source ``tailrace``, over ``source`` and ``sink``
    progress      lag of a stream
    source        read: options, offsets, tasks, Spark's two reading interfaces
    archive       write sealed segments to Parquet files, verify and restore them
    sink          write: stage rows, publish a batch once, Spark's two writing interfaces
    pipeline      jobs over whole stores: audit, recovery, replay, tables
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.lazy_names import lazy_names

if TYPE_CHECKING:
    from tailrace.spark.plan import ReadPlan, explain

__all__ = ["ReadPlan", "explain"]

__getattr__, __dir__ = lazy_names(__name__, dict.fromkeys(__all__, f"{__name__}.plan"))
