"""Lag of a stream, from the offsets in its progress."""

import itertools
import json
import logging
from types import SimpleNamespace

import pytest

from tailrace.errors import ConfigError, StoreError
from tailrace.model import Message
from tailrace.node.message_store import MessageStore

pytest.importorskip("pyspark")
from tailrace.spark.progress import ProgressListener, behind

pytestmark = pytest.mark.slow  # opens and closes a store


@pytest.fixture
def store(tmp_path):
    with MessageStore.open(str(tmp_path / "s")) as opened:
        places = [
            opened.put(Message(topic="a", body=b"x" * (10 + number)), queue_id=number % 2).phy_offset
            for number in range(20)]
        opened.wait_dispatched(60_000)
        places.append(opened.max_phy_offset)
    sizes = [end - start for start, end in itertools.pairwise(places)]
    return {"path": str(tmp_path / "s")}, sizes


def test_messages_and_bytes_are_those_between_the_offsets(store):
    options, sizes = store
    source = {"endOffset": {"a": {"0": 7, "1": 10}}, "latestOffset": {"a": {"0": 10, "1": 10}}}
    assert behind(source, options) == (3, sum(sizes[number] for number in (14, 16, 18)))
    texts = {name: json.dumps(value) for name, value in source.items()}
    assert behind(texts, options) == behind(source, options)
    assert behind({**source, "endOffset": source["latestOffset"]}, options) == (0, 0)
    assert behind({"endOffset": None, "latestOffset": source["latestOffset"]}, options) == (20, sum(sizes))


def test_another_source_is_refused(store):
    options, _ = store
    with pytest.raises(StoreError, match="not JSON"):
        behind({"endOffset": "KafkaV2[orders]", "latestOffset": None}, options)
    with pytest.raises(StoreError, match="no offsets of this source"):
        behind({"endOffset": {"a": 5}, "latestOffset": None}, options)
    with pytest.raises(ConfigError, match="unknown option pth"):
        behind({}, {"pth": "x"})


def test_the_listener_logs_and_survives_another_source(store, caplog):
    options, _ = store
    listener = ProgressListener(options, name="mine")
    event = SimpleNamespace(progress=SimpleNamespace(
        name="mine", id="1", batchId=4, sources=[
            SimpleNamespace(endOffset='{"a":{"0":9}}', latestOffset='{"a":{"0":10}}'),
            SimpleNamespace(endOffset="other", latestOffset="other")]))
    with caplog.at_level(logging.INFO):
        listener.onQueryProgress(event)
    assert "lag of a stream query=mine batch=4 messages=1 bytes=" in caplog.text
    assert "cannot compute the lag of a stream query=mine" in caplog.text
    assert listener.last is not None
    assert listener.last.messages == 1
    event.progress.name = "another"
    caplog.clear()
    listener.onQueryProgress(event)
    assert not caplog.text
