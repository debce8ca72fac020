"""SQL92 filters beside the reference: its consumers against `tailrace serve`, and consumerFilter.json."""

from __future__ import annotations

import json
import subprocess
import time

import pytest

from tailrace.config import BrokerConfig
from tailrace.env.clock import SystemClock
from tailrace.env.filesystem import OsFileSystem
from tailrace.filters.consumer_filters import ConsumerFilterManager
from tailrace.pytest_plugin import TailraceBroker

pytestmark = [pytest.mark.slow, pytest.mark.interop, pytest.mark.integration]


@pytest.fixture
def sql_broker(tmp_path):
    config = tmp_path / "broker.properties"
    config.write_text("enablePropertyFilter=true\n")
    broker = TailraceBroker(tmp_path / "store", "--config", str(config))
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


def ran(reference, *arguments):
    done = subprocess.run(
        [reference, *map(str, arguments)], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    return done.stdout


def test_the_consumers_of_the_reference_get_what_their_expressions_keep(reference, sql_broker, tmp_path):
    said = ran(reference, "sql-clients", sql_broker.namesrv, "filtered", 60)
    assert said.splitlines() == [
        "pushed true", "woken true", "polled true", "pulled [7, 8]", "refused 23", "done true"]
    sql_broker.stop()
    path = tmp_path / "store/config/consumerFilter.json"
    entries = json.loads(path.read_text())["filterDataByTopic"]["filtered"]["groupFilterData"]
    assert sorted(entries) == ["sql_clients_c", "sql_clients_l"]
    # topic, group, type, expression, version, whether dead, compiled, and with valid bloom filter data
    rows = [line.split("\t") for line in ran(reference, "consumer-filters", "read", path).splitlines()]
    assert sorted(row[1] for row in rows) == ["sql_clients_c", "sql_clients_l"]
    for topic, group, kind, expression, version, *truths in rows:
        assert (topic, kind, truths) == ("filtered", "SQL92", ["true"] * 3)
        assert expression == entries[group]["expression"]
        assert int(version) == entries[group]["clientVersion"] > 0


def test_the_expressions_of_a_java_broker_are_taken_over(reference, tmp_path):
    path = tmp_path / "config/consumerFilter.json"
    path.parent.mkdir()
    ran(reference, "consumer-filters", "write", path, "g", "t", "a > 1", "h", "t", "b = 'x'", "h", "u", "c IS NULL")
    written = json.loads(path.read_text())
    manager = ConsumerFilterManager(
        OsFileSystem(), str(path.parent), BrokerConfig(enable_property_filter=True), SystemClock())
    assert manager.load()
    # the group h gave up topic t when it registered u
    assert [manager.find(topic, group).compiled.matches(["x"]) for topic, group in
            (("t", "g"), ("t", "h"), ("u", "h"))] == [False, True, False]
    manager.persist()
    again = json.loads(path.read_text())
    for topic, member in written["filterDataByTopic"].items():
        for group, entry in member["groupFilterData"].items():
            found = again["filterDataByTopic"][topic]["groupFilterData"][group]
            assert {**entry, "dead": True, "deadTime": 0} == {**found, "deadTime": 0}
            assert found["deadTime"] <= time.time() * 1000
