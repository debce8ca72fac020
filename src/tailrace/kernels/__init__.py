"""Loops over bytes: the only room that is compiled.

Each kernel is one ``.py`` file in Cython's pure-Python mode. Compiled, it is a module of the same
name below ``tailrace.kernels._compiled``, which carries the SHA-256 of the source it was made
from; one that does not match its source is refused, and the source runs interpreted instead, as it
does where there is no C compiler or when ``TAILRACE_INTERPRETED=1`` is set. Both give the same
results.
"""

from __future__ import annotations

import hashlib
import importlib
import logging
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

__all__ = [
    "column_records",
    "columns",
    "compiled",
    "hashes",
    "header",
    "index_chains",
    "index_entries",
    "queue_units",
    "record",
    "tag_filter",
]

_log = logging.getLogger(__name__)
_ROOM = Path(__file__).parent
_interpreted: list[str] = []


def _load(name: str) -> ModuleType:
    if os.environ.get("TAILRACE_INTERPRETED") != "1":
        try:
            twin = importlib.import_module(f"tailrace.kernels._compiled.{name}")
        except ImportError as error:
            _log.info("kernel is not compiled name=%s reason=%s", name, error)
        else:
            source = hashlib.sha256((_ROOM / f"{name}.py").read_bytes()).hexdigest()
            if twin.SOURCE_SHA256 == source:
                sys.modules[f"tailrace.kernels.{name}"] = twin
                return twin
            _log.warning("compiled kernel refused, its source has changed name=%s", name)
    _interpreted.append(name)
    return importlib.import_module(f"tailrace.kernels.{name}")


if TYPE_CHECKING:
    from tailrace.kernels import (
        column_records,
        columns,
        hashes,
        header,
        index_chains,
        index_entries,
        queue_units,
        record,
        tag_filter,
    )
else:
    record = _load("record")
    hashes = _load("hashes")
    queue_units = _load("queue_units")
    index_entries = _load("index_entries")
    index_chains = _load("index_chains")
    tag_filter = _load("tag_filter")
    header = _load("header")
    columns = _load("columns")
    column_records = _load("column_records")


def compiled() -> bool:
    """Whether every kernel runs compiled."""
    return not _interpreted
