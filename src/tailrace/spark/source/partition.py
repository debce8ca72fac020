"""The base class of tasks. Spark only accepts its own; ``tailrace.dataset`` runs the same tasks without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["InputPartition"]

if TYPE_CHECKING:
    from pyspark.sql.datasource import InputPartition
else:
    try:
        from pyspark.sql.datasource import InputPartition
    except ModuleNotFoundError as error:
        if error.name != "pyspark":
            raise

        class InputPartition:
            """Has what tasks use of Spark's class."""

            def __init__(self, value: Any) -> None:
                self.value = value
