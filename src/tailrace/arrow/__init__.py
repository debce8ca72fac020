"""Messages as Arrow columns: their schema, and arrays made of rows of records.

The package pyarrow is optional and is imported when it is first used.
"""

from __future__ import annotations

from typing import Any

from tailrace.errors import MissingPackageError

__all__ = ["pyarrow"]


def pyarrow() -> Any:
    """Return the module pyarrow. Raises MissingPackageError if the package is not installed."""
    try:
        import pyarrow as pa  # noqa: PLC0415 - an optional package
    except ImportError as error:
        raise MissingPackageError("Arrow tables", "pyarrow", "arrow") from error
    return pa
