"""Errors of the source and the sink without the lines of their code, where PySpark allows that.

PySpark shows the traceback of a Python data source in front of its error, unless SPARK_HIDE_TRACEBACK is in the
environment of the worker. A worker ends after an error, so the variable changes no other error. The traceback of an
error that is not a StoreError stays, because it shows a defect.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from typing import Final, ParamSpec, TypeVar

from tailrace.errors import StoreError

__all__ = ["plain_errors", "plain_errors_of_rows"]

_HIDE: Final = "SPARK_HIDE_TRACEBACK"
_WORKERS: Final = ("pyspark.", "tailrace.spark.")
"""Names with which the main module of a worker begins."""
_P = ParamSpec("_P")
_T = TypeVar("_T")


def _hide_traceback() -> None:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name.startswith(_WORKERS):
        os.environ[_HIDE] = "1"


def plain_errors(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Return the function; in a worker of Spark a StoreError that it raises is shown without a traceback."""
    @functools.wraps(function)
    def called(*args: _P.args, **options: _P.kwargs) -> _T:
        try:
            return function(*args, **options)
        except StoreError:
            _hide_traceback()
            raise

    return called


def plain_errors_of_rows(function: Callable[_P, Iterator[_T]]) -> Callable[_P, Iterator[_T]]:
    """Do the same for a function that yields."""
    @functools.wraps(function)
    def called(*args: _P.args, **options: _P.kwargs) -> Iterator[_T]:
        try:
            yield from function(*args, **options)
        except StoreError:
            _hide_traceback()
            raise

    return called
