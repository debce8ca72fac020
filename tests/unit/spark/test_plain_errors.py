"""Errors are plain in a worker of Spark alone, and only errors that speak to the user."""

import os
import sys
from types import SimpleNamespace

import pytest

from tailrace.errors import ConfigError
from tailrace.spark.plain_errors import plain_errors, plain_errors_of_rows

HIDE = "SPARK_HIDE_TRACEBACK"


@plain_errors
def fails(error):
    raise error


@plain_errors_of_rows
def fails_late(error):
    yield 1
    raise error


@pytest.mark.parametrize(("main", "error", "hidden"), [
    ("pyspark.daemon", ConfigError("unknown option"), True), ("tailrace.spark.quiet_daemon", ConfigError("x"), True),
    ("pyspark.daemon", KeyError("a defect"), False), ("program", ConfigError("x"), False),
])
@pytest.mark.parametrize("late", [False, True])
def test_a_worker_hides_the_traceback_of_a_store_error(monkeypatch, main, error, hidden, late):
    monkeypatch.setenv(HIDE, "")
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", SimpleNamespace(name=main))
    with pytest.raises(type(error)) as caught:
        _ = [*fails_late(error)] if late else fails(error)
    assert caught.value is error
    assert os.environ[HIDE] == ("1" if hidden else "")
