"""Executors whose Python has no Tailrace: one sentence, for the source and for jobs."""

import json
import os
import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path

import pytest

from tailrace.config import StoreConfig
from tailrace.model import Message
from tailrace.node.message_store import MessageStore
from tailrace.node.store_opening import StoreParts
from tailrace.spark.session import find_java_home

pytestmark = [pytest.mark.spark, pytest.mark.slow]
PROGRAM = textwrap.dedent("""
    import json, sys
    from pyspark.sql import SparkSession
    from tailrace.errors import StoreError
    from tailrace.spark.archive.job import archive_store
    from tailrace.spark.session import register, spark_reason
    spark = register(SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate())
    spark.sparkContext.setLogLevel("OFF")
    found = {}
    try:
        spark.read.format("tailrace").load(sys.argv[1]).collect()
    except Exception as error:
        found["source"] = str(error), spark_reason(error)
    try:
        archive_store(spark, sys.argv[1], sys.argv[2])
    except StoreError as error:
        found["job"] = type(error).__name__, str(error)
    print(json.dumps(found))
""")


@pytest.mark.long
def test_an_executor_without_the_package_is_one_sentence(spark_home, tmp_path):
    packages = tmp_path / "packages"
    packages.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if "tailrace" not in path.name and path.suffix != ".pth":
            (packages / path.name).symlink_to(path)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={packages} exec {Path(sys.executable).resolve()} "$@"\n')
    python.chmod(0o755)
    config = StoreConfig(mapped_file_size_commit_log=4096, commit_log_allocate_step=4096)
    with MessageStore.open(str(tmp_path / "s"), config=config, parts=StoreParts(services=False)) as store:
        for number in range(100):
            store.put(Message(topic="a", body=b"%d" % number))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "s"), str(tmp_path / "archive")],
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(spark_home),
             "JAVA_HOME": str(find_java_home()), "PYSPARK_PYTHON": str(python)},
        capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    name, text = found["job"]
    assert name == "TailraceNotInstalledError"
    assert text.startswith(f"the Python {Path(sys.executable).resolve()} of the executor on ")
    assert "has no module tailrace: install the driver's release of tailrace there, name a Python" in text
    assert "\n" not in text
    whole, reason = found["source"]
    assert reason == text
    assert "Traceback" not in whole
