"""Reads that do not take the short way of `unit_records.CachedReader`."""


class NothingIsCached:
    """Stands for a `CachedReader` that finds nothing in memory, so each read takes the longer way."""

    def __init__(self, *_: object) -> None:
        pass

    def read(self, *_: object) -> None:
        """Return no result."""
