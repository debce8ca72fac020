"""The printed plan of a read is what the query reads."""

import shutil

import pytest

from tailrace.config import StoreConfig
from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import ConfigError, StoreError
from tailrace.model import Message
from tailrace.node.message_store import MessageStore

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")
from tailrace.spark import explain
from tailrace.spark.archive.job import ArchiveJob, local_runner
from tailrace.spark.data_source import TailraceDataSource

SEGMENT = 32 << 10
COUNT = 150


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    path = tmp_path_factory.mktemp("plan") / "s"
    with MessageStore.open(str(path), config=StoreConfig(mapped_file_size_commit_log=SEGMENT)) as store:
        for number in range(COUNT):
            store.put(Message(topic=("a", "b", "c")[number % 3], body=b"%d " % number * 200, keys=[f"k{number}"]),
                      queue_id=number % 2)
        store.wait_dispatched(60_000)
    return path


@pytest.fixture
def path(filled, tmp_path):
    shutil.copytree(filled, tmp_path / "s")
    return tmp_path / "s"


def rows_of(path, **options):
    reader = TailraceDataSource({"path": str(path), **options}).reader(None)
    return [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]


@pytest.mark.parametrize("options", [
    {}, {"topic": "a"}, {"topic": "a,c", "queueId": "1"}, {"assign": '{"b": [0]}'},
    {"startingOffsets": '{"a": {"0": 7}}', "endingOffsets": '{"a": {"0": 9}}', "topic": "a", "queueId": "0"},
    {"startingTimestamp": "-1h", "minPartitions": "4"}, {"startingTimestamp": "2099-01-01T00:00Z"},
])
def test_a_plan_has_the_messages_bytes_and_tasks_of_the_query(path, options):
    shown = []
    plan = explain({"path": path, **options}, show=shown.append)
    rows = rows_of(path, **options)
    found = {}
    for row in rows:
        found.setdefault((row["topic"], row["queueId"]), []).append(row["queueOffset"])
    assert {(one.topic, one.queue_id): [*range(one.start, one.end)] for one in plan.queues} == {
        key: sorted(offsets) for key, offsets in found.items()}
    assert plan.messages == len(rows)
    assert plan.record_bytes == sum(row["storeSize"] for row in rows)
    tasks = TailraceDataSource({"path": str(path), **options}).reader(None).partitions()
    assert [(one.source, one.start, one.end) for one in plan.tasks] == [("log", one.start, one.end) for one in tasks]
    assert plan.walked_bytes >= plan.record_bytes
    assert plan.left_out == 6 - len(plan.queues)
    assert plan.served == ()
    assert shown == [plan.text()]
    assert f"messages: {len(rows)}; queues: {len(plan.queues)}, left out: {plan.left_out}" in shown[0]


def test_the_plan_says_what_limits_the_read(path):
    text = explain({"path": path, "topic": "a", "startingTimestamp": "-1h", "body": "none"}, show=None).text()
    assert "limited by topic: yes, by topic\n" in text
    assert "limited by queue: no; set queueId or assign\n" in text
    assert "limited by time: yes, by startingTimestamp\n" in text
    assert "limited by key: no: " in text
    assert "; body=none" in text
    pushed = explain({"path": path, "pushFilters": "true"}, show=None).pruning
    assert all("conditions of the query also limit it" in pushed[name] for name in ("topic", "queue", "time"))
    assert "conditions" not in explain({"path": path, "pushFilters": "true"}, stream=True, show=None).pruning["time"]


def test_the_next_batch_of_a_stream(path, capsys):
    options = {"path": str(path), "topic": "a", "maxOffsetsPerTrigger": 10}
    assert explain(options, stream=True, show=None).messages == 0
    options["startingOffsets"] = "earliest"
    plan = explain(options, stream=True)
    assert plan.messages == 10
    assert capsys.readouterr().out == plan.text() + "\n"
    since = '{"a": {"0": 20, "1": 24}}'
    after = explain(options, stream=True, since=since, show=None)
    assert [(one.start, one.end, one.until) for one in after.queues] == [(20, 25, 25), (24, 25, 25)]
    with pytest.raises(StoreError, match="since='soon' is not the endOffset"):
        explain(options, stream=True, since="soon")
    with pytest.raises(ConfigError, match="maxOffsetsPerTrigger is for streams"):
        explain(options)


def test_messages_of_an_archive_and_of_the_log_are_told_apart(path, tmp_path):
    with ArchiveJob(str(path), str(tmp_path / "a"), local_runner(OsFileSystem())) as job:
        job.step()
    with MessageStore.open(str(path), config=StoreConfig(
            mapped_file_size_commit_log=SEGMENT, file_reserved_time=0)) as store:
        assert store.retention.delete_now() > 1
    options = {"path": str(path), "topic": "b", "fallback": "archive", "archive": str(tmp_path / "a")}
    plan = explain(options, show=None)
    assert plan.messages == COUNT / 3
    archived = sum(one.archived for one in plan.queues)
    assert 0 < archived < plan.messages
    assert {one.source for one in plan.tasks} == {"archive", "log"}
    assert plan.record_bytes == sum(row["storeSize"] for row in rows_of(path, topic="b"))
    assert "of the archive" in plan.text()
    assert explain({"path": path, "topic": "b"}, show=None).messages == plan.messages - archived


def test_a_wrong_option_is_an_error_without_spark(path):
    with pytest.raises(ConfigError, match="unknown option topci; is topic meant"):
        explain({"path": path, "topci": "a"})
    with pytest.raises(ConfigError, match="topic bb does not exist; is b meant"):
        explain({"path": path, "topic": "bb"})


def test_a_store_that_a_server_has_open_is_named(path):
    with MessageStore.open(str(path), config=StoreConfig(mapped_file_size_commit_log=SEGMENT)):
        plan = explain({"path": path}, show=None)
    assert plan.served == ("s",)
    assert "a server has s open: messages up to its last synced position are read" in plan.text()
