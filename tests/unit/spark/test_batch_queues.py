"""Batch queues and Spark: recovery by tasks makes the same units; source and archive refuse such topics."""

import shutil
from types import SimpleNamespace

import pytest
from segmented_store import same_recovery

from tailrace import Message, MessageStore, StoreConfig
from tailrace.doctor.verify import verify
from tailrace.errors import ConfigError
from tailrace.formats.commitlog import encode_batch
from tailrace.kernels.properties import encode_properties
from tailrace.model import MessageExtBrokerInner
from tailrace.node.topic_config import TopicConfig

pytest.importorskip("pyspark")
CONFIG = StoreConfig(
    mapped_file_size_commit_log=1 << 13, mapped_file_size_consume_queue=400, max_hash_slot_num=50, max_index_num=200,
    mapper_file_size_batch_consume_queue=460)


@pytest.fixture
def path(tmp_path):
    place = tmp_path / "store"
    with MessageStore.open(place, config=CONFIG, services=False) as store:
        store.topics.update(TopicConfig(topic_name="B", attributes={"queue.type": "BatchCQ"}))
        for number in range(120):
            count = number % 6 + 1
            if count == 1:
                store.put(Message(topic="B" if number % 4 else "T", body=b"x"))
                continue
            body = encode_batch([(0, b"%d-%d" % (number, at), b"") for at in range(count)])
            names = encode_properties({"UNIQ_KEY": f"u{number}", "INNER_NUM": str(count)})
            assert store.put_inner(MessageExtBrokerInner("B", 0, body, names, 0, 0xC0, 1)).ok
    return place


def test_recovery_by_tasks_makes_the_same_units(one_process, path, tmp_path):
    before = {file.name: file.read_bytes() for file in (path / "batchconsumequeue" / "B" / "0").iterdir()}
    shutil.rmtree(path / "batchconsumequeue")
    shutil.rmtree(path / "tailrace")
    (path / "abort").write_text("1")
    same_recovery(one_process, path, tmp_path, config=CONFIG)
    made = tmp_path / "spark" / "batchconsumequeue" / "B" / "0"
    assert {file.name: file.read_bytes() for file in made.iterdir()} == before
    assert [line for line in verify(str(tmp_path / "spark")) if "finding" in line] == []


def test_source_and_archive_refuse_such_topics(one_process, path, tmp_path):
    from tailrace.spark.archive_job import ArchiveJob
    from tailrace.spark.offsets import open_directories, queues_of
    from tailrace.spark.options import parse_options
    from tailrace.spark.schema import column_names

    def chosen(**wanted):
        options = parse_options({"path": str(path), **wanted}, column_names)
        return {topic for _, topic, _ in queues_of(open_directories(options), options)}

    assert chosen(subscribe="T") == {"T"}
    with pytest.raises(ConfigError, match=r"topic B is one of queue.type=BatchCQ, which Spark does not read"):
        chosen(subscribe="T,B")
    with pytest.raises(ConfigError, match=r"topic B is one of queue.type=BatchCQ, a store with such topics"):
        ArchiveJob(str(path), str(tmp_path / "archive"), SimpleNamespace())
    assert not (tmp_path / "archive").exists()
