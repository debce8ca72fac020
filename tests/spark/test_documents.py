"""The Python blocks of the pages about Spark run as they stand, in one session."""

import itertools
import pathlib
import re

import pytest
from page_runner import blocks

from tailrace.client import PullConsumer
from tailrace.model import Message
from tailrace.node.message_store import MessageStore

DOCS = pathlib.Path(__file__).parents[2] / "docs"
pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.spark]
COUNT = 20


def programs(page):
    return [block.text for block in blocks((DOCS / page).read_text()) if block.language == "python"]


def fill(path, count):
    with MessageStore.open(path) as store:
        store.put_many([
            Message(topic="orders", body=b"%d" % n, tags="even" if n % 2 == 0 else "odd", keys=[f"k{n}"])
            for n in range(count)])


def test_the_source_the_stream_its_lag_and_the_sink(spark, tmp_path, tailrace_broker, capsys):
    data = tmp_path / "data"
    data.mkdir()
    fill(data / "store", COUNT)
    names = {}

    def run(code, *changes):
        for old, new in (("/data/", f"{data}/"), ("127.0.0.1:9876", tailrace_broker.namesrv), *changes):
            code = code.replace(old, new)
        exec(compile(code, "spark.md", "exec"), names)

    read, registered, explained, stream, lag, sink, batch = programs("how-to/data/spark.md")
    run(read)
    assert re.search(r"even\|\s+10\|", capsys.readouterr().out)
    run(registered)
    run(explained)
    assert names["plan"].messages == COUNT
    assert re.search(rf"orders .* {COUNT} ", capsys.readouterr().out)
    run(stream)
    names["query"].awaitTermination(60)
    assert spark.read.parquet(f"{data}/orders").count() == COUNT
    try:
        run(lag)
        assert names["messages"] == 0
        # A query that ends; the page's starts with new messages and continues.
        run(sink, (".start()", ".trigger(availableNow=True).start()"),
            ('"orders").load', '"orders").option("startingOffsets", "earliest").load'))
        names["sending"].awaitTermination(60)
        run(batch)
    finally:
        for listener in list(getattr(spark.streams, "_listeners", ())):
            spark.streams.removeListener(listener)
    with PullConsumer(namesrv=tailrace_broker.namesrv, group="reader") as consumer:
        found = list(consumer.messages("copies", start="first", follow=False))
    [one] = [m for m in found if m.tags == "paid"]
    assert one.body == b"42 apples"
    copies = [m for m in found if m is not one]
    assert sorted(m.keys[0] for m in copies) == sorted(f"k{n}" for n in range(COUNT))
    assert {m.properties["source"] for m in copies} == {"spark"}


def test_the_audit_from_python(spark, tmp_path, capsys):
    fill(tmp_path / "store", COUNT)
    [code] = programs("how-to/data/jobs.md")
    exec(compile(code.replace("/data/store", str(tmp_path / "store")), "pipeline.md", "exec"), {})
    assert re.search(r"kind\|\s*count\|", capsys.readouterr().out)


def test_the_tutorial_leads_from_an_empty_folder_to_a_query(spark, tmp_path, capsys):
    found = blocks((DOCS / "tutorials/first-spark-query.md").read_text())
    shown = [(one.text, after.text) for one, after in itertools.pairwise(found) if one.language == "python"]
    assert len(shown) == 3
    names = {}
    for code, printed in shown:
        # Spark's processes were started in another folder.
        exec(compile(code.replace("./store", str(tmp_path / "store")), "first-spark-query.md", "exec"), names)
        assert capsys.readouterr().out.strip() == printed.strip()
