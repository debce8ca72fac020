"""The data source as Spark reads it: options, offsets, tasks and both readers."""
