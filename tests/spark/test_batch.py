"""Spark reads a directory as the reference sees it."""

import hashlib
import json
import lzma
import pathlib
import tarfile

import pytest
from releases import CLEAN, CRASHED

from tailrace.spark.session import spark_reason

pytestmark = pytest.mark.spark
FIXTURES = pathlib.Path(__file__).parents[1] / "interop" / "fixtures"


@pytest.fixture(scope="session", params=[CLEAN, CRASHED])
def store(request, tmp_path_factory):
    where = tmp_path_factory.mktemp("spark")
    with tarfile.open(FIXTURES / f"{request.param}.tar.xz") as archive:
        archive.extractall(where, filter="data")
    with lzma.open(FIXTURES / f"{request.param}.jsonl.xz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return where / request.param, [r["message"] for r in rows if "message" in r]


def load(spark, path, **options):
    reader = spark.read.format("tailrace")
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load(str(path))


def test_every_message_is_a_row(spark, store):
    path, messages = store
    rows = load(spark, path, splitBytes=700_000).collect()
    found = {(r["topic"], r["queueId"], r["queueOffset"]): r for r in rows}
    assert len(rows) == len(found) == len(messages)
    for m in messages:
        r = found[m["topic"], m["queueId"], m["queueOffset"]]
        assert hashlib.sha256(bytes(r["body"])).hexdigest() == m["bodySha256"]
        assert r["properties"] == m["properties"]
        assert r["tags"] == m["properties"].get("TAGS")
        assert r["keys"] == m["properties"].get("KEYS", "").split()
        assert r["uniqKey"] == m["properties"].get("UNIQ_KEY")
        assert (r["commitLogOffset"], r["storeSize"], r["msgId"], r["sysFlag"], r["bodyCRC"]) == (
            m["physicalOffset"], m["size"], m["msgId"], m["sysFlag"], m["bodyCrc"])
        assert f"/{r['bornHost']}" == m["bornHost"]
        assert r["store"] == path.name


def test_options_choose(spark, store):
    path, messages = store
    topic = load(spark, path, topic="fx_t1", columns="topic,queueOffset,queueId")
    assert topic.columns == ["topic", "queueOffset", "queueId"]
    assert topic.count() == sum(m["topic"] == "fx_t1" for m in messages)
    some = load(spark, path, topic="fx_t1", startingOffsets='{"fx_t1": {"0": 10}}',
                endingOffsets='{"fx_t1": {"0": 15}}', queueId=0, columns="queueOffset")
    assert sorted(r[0] for r in some.collect()) == [10, 11, 12, 13, 14]
    middle = sorted(m["storeTimestamp"] for m in messages)[len(messages) // 2]
    assert load(spark, path, startingTimestamp=middle, columns="topic").count() == sum(
        m["storeTimestamp"] >= middle for m in messages)
    assert load(spark, path, subscribePattern="nobody", columns="topic").count() == 0
    assert load(spark, path, body="none", columns="body").filter("body is not null").count() == 0


def test_bad_options_are_named(spark, store):
    with pytest.raises(Exception, match="unknown option colums"):
        load(spark, store[0], colums="topic").count()
    with pytest.raises(Exception, match="not a store directory"):
        load(spark, store[0] / "config")  # before any query
    with pytest.raises(Exception, match="topic nobody does not exist"):
        load(spark, store[0], topic="nobody").count()


def test_an_error_of_the_source_has_no_traceback_and_a_defect_has_one(spark, store):
    from pyspark.sql.functions import udf

    with pytest.raises(Exception, match="ConfigError: unknown option topci; is topic meant") as caught:
        load(spark, store[0], topci="fx_t1")
    assert "Traceback" not in str(caught.value)
    assert len(str(caught.value).strip().splitlines()) == 2, "the sentence, and SQLSTATE"
    assert spark_reason(caught.value).startswith("unknown option topci; is topic meant")
    with pytest.raises(Exception, match="topic fx_t11 does not exist; is fx_t1 meant") as caught:
        load(spark, store[0], topic="fx_t11").count()
    assert "Traceback" not in str(caught.value)
    with pytest.raises(Exception, match="ZeroDivisionError") as caught:
        load(spark, store[0], columns="topic").limit(1).select(udf(lambda _: 1 / 0)("topic")).collect()
    assert "Traceback" in str(caught.value)
