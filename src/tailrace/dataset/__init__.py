"""Messages of a directory, of an archive or of brokers as an Arrow dataset, and SQL over them, without Spark.

    opening     ``tailrace.scan``
    rows        the dataset: parts that filters prune, and a scanner that reads columns
    narrowing   bounds of a column that a filter allows
    brokers     rows of brokers
    store       rows of a directory and its archive, by the tasks of the Spark source
    sql         the tables of ``tailrace sql``, and queries of DuckDB over them
"""

from __future__ import annotations
