"""Spark's daemon for Python workers (``spark.python.daemon.module``), which imports what they use before it makes them.

A daemon makes a worker, by a fork, for each question about a data source, and each worker would import this again, in
half a second. Sessions of their own, as in tests/spark/test_cluster.py, start workers as those of users do.
"""

import gc
import importlib

from pyspark import daemon

from tailrace.spark.quiet_daemon import QUIET_TRACEBACK

IMPORTED = (
    "pandas", "pyarrow.compute", "pyspark.worker", "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.plan_data_source_read", "pyspark.sql.worker.data_source_pushdown_filters",
    "pyspark.sql.worker.write_into_data_source", "pyspark.sql.worker.commit_data_source_write",
    "pyspark.sql.streaming.python_streaming_source_runner", "tailrace.spark.data_source", "tailrace.node.message_store")

if __name__ == "__main__":
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()
    vars(daemon)["traceback"] = QUIET_TRACEBACK
    daemon.manager()
