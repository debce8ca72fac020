"""Batch queues and Spark: recovery by tasks makes the same units, and the source reads each message."""

import shutil

import pytest
from segmented_store import same_recovery

from tailrace import Message, MessageStore, StoreConfig
from tailrace.doctor.verify import verify
from tailrace.formats.commitlog import encode_batch
from tailrace.kernels.properties import encode_properties
from tailrace.model import MessageExtBrokerInner
from tailrace.node.store_opening import StoreParts
from tailrace.node.topic_config import TopicConfig

pytest.importorskip("pyspark")
CONFIG = StoreConfig(
    mapped_file_size_commit_log=1 << 13, mapped_file_size_consume_queue=400, max_hash_slot_num=50, max_index_num=200,
    mapper_file_size_batch_consume_queue=460)


@pytest.fixture
def path(tmp_path):
    place = tmp_path / "store"
    with MessageStore.open(place, config=CONFIG, parts=StoreParts(services=False)) as store:
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


@pytest.mark.parametrize("cut", [0, 1, 57, 58, 59, 60, 61, 200])
def test_the_source_reads_each_message_of_two_ranges_once(one_process, path, cut):
    """Ranges that meet inside of an inner batch, as two micro-batches do."""
    from tailrace.spark.source.offsets import open_directories, queues_of
    from tailrace.spark.source.options import parse_options
    from tailrace.spark.source.scan import plan_scan, read_scan
    from tailrace.spark.source.schema import column_names

    options = parse_options({"path": str(path), "subscribe": "T,B"}, column_names)
    directories = open_directories(options)
    queues = queues_of(directories, options)
    (label, directory), = directories.items()
    found = {"T": [], "B": []}
    for first in (True, False):
        ranges = {key: (0, cut) if first else (cut, queue.max_offset) for key, queue in queues.items()
                  if key[1] == "B" or first}
        for task in plan_scan(label, directory, ranges, options):
            for batch in read_scan(task, options):
                for row in batch.select(["topic", "queueOffset", "body"]).to_pylist():
                    found[row["topic"]].append((row["queueOffset"], row["body"]))
    with MessageStore.open(path, config=CONFIG, parts=StoreParts(services=False)) as store:
        assert found["B"] == [(m.queue_offset, m.body) for m in store.read("B")]
        assert len(found["T"]) == min(cut, store.max_offset_in_queue("T", 0))


@pytest.mark.parametrize("damage", ["none", "record", "unit"])
def test_the_audit_finds_what_verify_finds(one_process, path, damage):
    from tailrace.spark.pipeline.audit import audit

    if damage == "record":
        with (path / "commitlog" / f"{0:020d}").open("r+b") as file:
            file.seek(5000)
            file.write(b"\xff\xfe\xfd")
    elif damage == "unit":
        with (path / "batchconsumequeue" / "B" / "0" / f"{0:020d}").open("r+b") as file:
            file.seek(46 * 3 + 28)  # its queue offset
            file.write(b"\xff")
    *wanted, summary = verify(str(path))
    done = audit(one_process, str(path))
    assert done.findings == [line["finding"] for line in wanted]
    assert done.summary == summary["summary"]
    assert bool(wanted) is (damage != "none")
