"""Jobs on Spark that only read a directory leave every byte of it, also after a crash."""

import pytest
from command_lists import calls, snapshot
from crashed_directories import KINDS, OF_JAVA
from typer.testing import CliRunner

from tailrace.cli.app import app

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module", params=[
    kind if kind == "torn" else pytest.param(kind, marks=pytest.mark.long) for kind in KINDS])
def store(request, tmp_path_factory):
    return KINDS[request.param](tmp_path_factory.mktemp("looking") / "store")


@pytest.mark.long  # tests/integration/test_reading_commands.py has the commands that need no Spark
def test_no_byte_name_or_time_of_the_directory_changes(spark, store, tmp_path):
    names = {"STORE": str(store), **(OF_JAVA if (store / "consumequeue" / OF_JAVA["orders"]).exists() else {})}
    before = snapshot(store)
    for number, words in enumerate(calls(on_spark=True)):
        done = CliRunner().invoke(app, [
            str(tmp_path / str(number)) if word == "OUT" else names.get(word, word) for word in words])
        assert done.exit_code in {0, 1}, (words, done.output, done.exception)
        assert done.exception is None or isinstance(done.exception, SystemExit), (words, done.exception)
        after = snapshot(store)
        assert sorted(n for n in before.keys() | after.keys() if before.get(n) != after.get(n)) == [], words


def test_the_source_leaves_it_and_shows_what_recovery_finds(spark, store):
    names = OF_JAVA if (store / "consumequeue" / OF_JAVA["orders"]).exists() else {}
    before = snapshot(store)
    topic = names.get("orders", "orders")
    count = spark.read.format("tailrace").load(str(store)).where(f"topic = '{topic}'").count()
    assert snapshot(store) == before
    from tailrace import MessageStore

    with MessageStore.open(store, read_only=True) as opened:
        assert count == sum(high - low for name, _, low, high in opened.queues() if name == topic)
