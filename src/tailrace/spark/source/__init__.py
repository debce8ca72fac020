"""The reading side of the data source: options, offsets, tasks, and the batch and streaming readers."""
