"""Store directories as Spark DataFrames: the only room with pyspark and pyarrow."""
