"""Catalogues of Hive and Glue get PyIceberg's configuration as it is; an absent package or server is one error.

The Hive metastore here is in memory, with Hive's own Thrift interface. Nothing serves Glue: boto3 needs an
older python-dateutil than other packages of these tests.
"""

import os
import socket
import sys
import types

import pytest

from tailrace.errors import ConfigError, StoreError

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")
pytest.importorskip("pyiceberg")
from lake_tables import FILES, add, archive, assert_whole, fill, lake

from tailrace.spark.lake import client_times
from tailrace.spark.lake.catalogue import Namespace
from tailrace.spark.lake.rewrite import run_task
from tailrace.spark.lake.swap import local_runner
from tailrace.spark.lake.table_io import TABLE_IO
from tailrace.spark.lake.upkeep import compact

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")]


@pytest.fixture
def configured(monkeypatch, tmp_path):
    """Return a function that sets the options of the catalogue ``other``."""
    for name in [name for name in os.environ if name.startswith(("PYICEBERG_", "AWS_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))

    def configure(**options):
        lines = "".join(f"    {name}: {value}\n" for name, value in options.items())
        (tmp_path / ".pyiceberg.yaml").write_text(f"catalog:\n  other:\n{lines}")

    return configure


@pytest.fixture
def places(tmp_path):
    fill(tmp_path / "s")
    archive(tmp_path / "s", tmp_path / "a")
    return tmp_path / "s", tmp_path / "a"


@pytest.mark.parametrize(("options", "module", "package"), [
    ({"type": "hive", "uri": "thrift://127.0.0.1:1"}, "thrift", "pyiceberg[hive]"),
    ({"uri": "thrift://127.0.0.1:1"}, "thrift", "pyiceberg[hive]"),
    ({"type": "glue"}, "boto3", "pyiceberg[glue]")])
def test_a_package_that_is_missing_is_named(configured, tmp_path, monkeypatch, options, module, package):
    for name in [name for name in sys.modules if name.partition(".")[0] in {module, "hive_metastore", "fb303"}]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    for name in ("pyiceberg.catalog.hive", "pyiceberg.catalog.glue", "tailrace.spark.lake.hive_catalogue"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    configured(**options)
    with pytest.raises(StoreError, match=r"the catalogue other: NotInstalledError: .*pip install") as caught:
        lake(tmp_path / "a", catalogue="other")
    assert package in str(caught.value)


def test_options_reach_a_catalogue_as_they_are(configured, tmp_path, monkeypatch):
    class Refuses(Exception):
        pass

    def refuse(name, **options):
        raise Refuses(f"{name} {sorted(options.items())}")

    for name, attribute, value in (
            ("pyiceberg.catalog.glue", "GlueCatalog", refuse), ("botocore.exceptions", "BotoCoreError", Refuses)):
        made = types.ModuleType(name)
        setattr(made, attribute, value)
        monkeypatch.setitem(sys.modules, name, made)
    configured(**{"type": "glue", "glue.region": "eu-north-1", "glue.id": "'0123'", "warehouse": "file:///w"})
    with pytest.raises(StoreError) as caught:
        lake(tmp_path / "a", catalogue="other")
    assert str(caught.value) == "the catalogue other: Refuses: other " + str([
        ("glue.id", "0123"), ("glue.region", "eu-north-1"), ("py-io-impl", TABLE_IO), ("type", "glue"),
        ("warehouse", "file:///w")])


def test_a_configuration_that_is_not_valid_is_one_error(configured, tmp_path):
    configured(auth="{type: oauth2}")
    with pytest.raises(ConfigError, match=r"PyIceberg's configuration is not valid: .*line: 3") as caught:
        lake(tmp_path / "a", catalogue="other")
    assert "\n" not in str(caught.value)


def keep(path, target):
    """Make tables in the catalogue, add to them and compact them."""
    add(path, target, catalogue="other")
    assert_whole(path, target, catalogue="other")
    fill(path, 160, 320)
    archive(path, target)
    add(path, target, catalogue="other")
    assert add(path, target, catalogue="other").commits == 0
    assert_whole(path, target, catalogue="other")
    with Namespace(str(target), "tailrace", FILES, catalogue="other") as tables:
        assert sorted(one.kind for one in tables.tables) == ["messages", "raw"]
        assert compact(next(one for one in tables.tables if one.kind == "messages"), local_runner(run_task)).files_after
    assert_whole(path, target, catalogue="other")


@pytest.fixture
def hive(tmp_path):
    pytest.importorskip("thrift", reason="make object-store installs thrift")
    from hive_metastore_server import HiveMetastore

    made = HiveMetastore(f"file://{tmp_path}/warehouse")
    yield made
    made.close()


@pytest.mark.long
def test_tables_are_kept_in_a_hive_metastore(configured, hive, places):
    configured(uri=hive.url)
    keep(*places)
    assert {name for _, name in hive.tables} == {"messages", "raw_broker_a"}
    assert hive.asked.count("lock") >= 4
    hive.locked = 100
    fill(places[0], 320, 480)
    archive(*places)
    with pytest.raises(StoreError, match=r"the commit to the table tailrace.raw_broker_a: .*Failed to acquire lock"):
        add(*places, catalogue="other")
    hive.locked = 0
    add(*places, catalogue="other")
    assert_whole(*places, catalogue="other")


@pytest.mark.long
def test_a_hive_metastore_that_is_silent_or_away_is_one_error(configured, hive, places, monkeypatch):
    monkeypatch.setattr(client_times, "ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        configured(uri=f"thrift://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(StoreError, match=r"the catalogue other: TTransportException: .*read timeout"):
            lake(places[1], catalogue="other")
    configured(uri="thrift://127.0.0.1:1")
    with pytest.raises(StoreError, match=r"the catalogue other: TTransportException: Could not connect"):
        lake(places[1], catalogue="other")
