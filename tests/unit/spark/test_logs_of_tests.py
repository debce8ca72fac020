"""An error of Spark in one test leaves the log of the next ones as it is."""

import logging

from pyspark.logger import PySparkLogger


def test_a_query_fails():
    PySparkLogger.getLogger("SQLQueryContextLogger").propagate = False


def test_the_next_test_has_its_log_as_text(caplog):
    logging.getLogger("tailrace.test").warning("a line")
    assert caplog.text.endswith("a line\n")
    assert not caplog.text.startswith("{")
