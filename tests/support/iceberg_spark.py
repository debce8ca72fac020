"""Spark 4.1 with the Iceberg runtime, in an environment of its own below ~/.cache: Spark 4.3 has no runtime yet.

The first use downloads about 500 MB from the package index and by Maven.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import venv

import pytest

PYSPARK = "4.1.3"
JARS = {
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0":
        "3123c3798af642dd537230923548e013ef41cc28b6626e5225808cf5670a0f82",
    "org.xerial:sqlite-jdbc:3.50.3.0": "a3f53a2aa15ae9425a9e793bbe9c8e5288febeb4b65ef5c1a4e80d4c2045cf08",
}
"""Artifacts, and the SHA-256 of their files."""
_PLACE = pathlib.Path("~/.cache/tailrace-iceberg").expanduser()
_PROGRAM = """
import base64, json, sys
from pyspark.sql import SparkSession

catalog, jars = sys.argv[1:3]
made = (SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.log.level", "ERROR")
        .config("spark.jars", jars).config("spark.sql.session.timeZone", "UTC").config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2").config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.extensions", "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions")
        .config("spark.sql.catalog.tailrace", "org.apache.iceberg.spark.SparkCatalog")
        .config("spark.sql.catalog.tailrace.type", "jdbc")
        .config("spark.sql.catalog.tailrace.uri", f"jdbc:sqlite:{catalog}")
        .config("spark.sql.catalog.tailrace.cache-enabled", "false")
        .config("spark.sql.catalog.tailrace.warehouse", "file:///nowhere"))
spark = made.getOrCreate()
print("ready", spark.version, flush=True)
for line in sys.stdin:
    try:
        rows = [row.asDict(recursive=True) for row in spark.sql(json.loads(line)).collect()]
        answer = {"rows": rows}
    except Exception as error:
        answer = {"error": str(error)[:2000]}
    print(json.dumps(answer, default=lambda one: base64.b64encode(one).decode() if isinstance(
        one, (bytes, bytearray)) else one.isoformat()), flush=True)
spark.stop()
"""


def _jar(artifact, sha256):
    _, name, version = artifact.split(":")
    there = _PLACE / f"{name}-{version}.jar"
    if not there.exists():
        if not shutil.which("mvn"):
            pytest.skip("Maven is not installed")
        subprocess.run(
            ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={_PLACE}"], check=True,
            cwd=_PLACE, timeout=600)
    assert hashlib.sha256(there.read_bytes()).hexdigest() == sha256, f"{artifact} is another file than the one tried"
    return str(there)


def _python():
    place = _PLACE / f"pyspark-{PYSPARK}"
    if not (place / "done").exists():
        venv.create(place, with_pip=True, clear=True)
        subprocess.run([place / "bin/python", "-m", "pip", "install", "-q", f"pyspark=={PYSPARK}"], check=True)
        (place / "done").touch()
    return place / "bin/python"


class IcebergSpark:
    """A process with a session whose catalogue ``tailrace`` is an SQLite file; ``sql`` returns rows."""

    def __init__(self, process):
        self._process = process

    def sql(self, query):
        self._process.stdin.write(json.dumps(query) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        assert "error" not in answer, answer["error"]
        return answer["rows"]


@contextlib.contextmanager
def iceberg_spark(catalogue):
    """Yield a session that reads the tables of an SQLite catalogue."""
    _PLACE.mkdir(parents=True, exist_ok=True)
    jars = ",".join(_jar(*one) for one in JARS.items())
    from tailrace.spark.session import find_java_home

    python = _python()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    environment |= {"PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1", "TZ": "UTC"}
    if "JAVA_HOME" not in environment:
        environment["JAVA_HOME"] = str(find_java_home())
    with subprocess.Popen(
            [python, "-c", _PROGRAM, str(catalogue), jars], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=sys.stderr, text=True, env=environment) as process:
        try:
            line = process.stdout.readline()
            assert line.startswith("ready 4.1"), line
            yield IcebergSpark(process)
        finally:
            process.stdin.close()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
