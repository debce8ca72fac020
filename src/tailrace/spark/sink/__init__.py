"""The sink: rows are staged by tasks and published to a broker once."""
