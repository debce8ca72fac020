"""Offsets: a batch is shared by backlog, and offsets never go back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import StoreError
from tailrace.kernels.shared import constants as C
from tailrace.model import Message
from tailrace.node.message_store import MessageStore
from tailrace.node.store_opening import StoreParts
from tailrace.spark.source.checkpoints import Checkpoint
from tailrace.spark.source.offsets import batch_ranges, share, starts, stream_ranges
from tailrace.spark.source.options import parse_options
from tailrace.spark.source.schema import column_names
from tailrace.store.directory import StoreDirectory

keys = st.tuples(st.sampled_from(["s"]), st.sampled_from(["a", "b", "Ü"]), st.integers(0, 12))
offsets = st.dictionaries(keys, st.integers(0, 1000), max_size=8)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    path = tmp_path_factory.mktemp("offsets") / "s"
    with MessageStore.open(str(path)) as store:
        for number in range(30):
            store.put(Message(topic="a", body=b"%d" % number), queue_id=number % 2)
        store.put(Message(topic="b", body=b"b"))
        store.wait_dispatched(60_000)
    return str(path)


def options(root, **given):
    return parse_options({"path": root, **given}, column_names)


def look(root):
    return {"s": StoreDirectory(root)}


@given(offsets, offsets, st.integers(1, 500))
def test_a_batch_takes_its_share_and_never_more(start, more, limit):
    tip = {key: start.get(key, 0) + more.get(key, 0) for key in start.keys() | more.keys()}
    parts = share(start, start, tip, limit, SHARE)
    assert sum(parts.values()) == min(sum(more.values()), limit)
    assert all(0 <= parts[key] <= more.get(key, 0) for key in tip)
    assert share(start, start, tip, None, SHARE) == {key: more.get(key, 0) for key in tip}


@given(offsets, offsets, offsets, st.integers(1, 500))
def test_offsets_that_a_queue_does_not_have_take_no_share(start, gaps, more, limit):
    at = {key: offset + gaps.get(key, 0) for key, offset in start.items()}
    tip = {key: offset + more.get(key, 0) for key, offset in at.items()}
    parts = share(start, at, tip, limit, SHARE)
    assert sum(parts.values()) == min(sum(tip[key] - at[key] for key in at), limit)


class SHARE:
    fail_on_data_loss = True


class LENIENT:
    fail_on_data_loss = False


def test_a_queue_that_does_not_exist_any_more_is_data_lost(caplog):
    start, tip = {("s", "a", 0): 7, ("s", "a", 1): 3}, {("s", "a", 0): 9}
    with pytest.raises(StoreError, match="ends at 0, but the checkpoint has 3"):
        share(start, start, tip, None, SHARE)
    gone = set()
    for _ in range(2):
        assert share(start, start, tip, None, LENIENT, gone) == {("s", "a", 0): 2, ("s", "a", 1): 0}
    assert sum("queue went back" in one for one in caplog.messages) == 1


def test_where_queries_start_and_end(root):
    assert starts(look(root), options(root, topic="a")) == {("s", "a", 0): 15, ("s", "a", 1): 15}
    first = starts(look(root), options(root, topic="a", startingOffsets='{"a": {"1": 4}}'))
    assert first == {("s", "a", 0): 0, ("s", "a", 1): 4}
    ranges = batch_ranges(look(root), options(
        root, assign='{"a": [1]}', startingOffsets="earliest", endingOffsets='{"a": {"1": 9}}'))
    assert ranges == {("s", "a", 1): (0, 9)}
    assert batch_ranges(look(root), options(root, topic="a", endingTimestamp="0")) == {
        ("s", "a", 0): (0, 0), ("s", "a", 1): (0, 0)}
    late = {"topic": "b", "startingTimestamp": str(1 << 50)}
    assert starts(look(root), options(root, **late)) == {("s", "b", 0): 1}


@pytest.mark.parametrize(("given", "problem"), [
    ({"topic": "a,z"}, "topic z does not exist"),
    ({"assign": '{"a": [0, 7]}'}, "topic a has no queue 7"),
    ({"topic": "a", "startingOffsets": '{"b": {"0": 0}}'}, "b queue 0, which is not read"),
    ({"topic": "a", "startingOffsets": '{"a": {"0": 16}}'}, "start 16 is after the end 15"),
    ({"topic": "a", "endingOffsets": '{"a": {"0": 16}}'}, "end 16 is after 15"),
    ({"topic": "a", "startingOffsets": '{"a": {"0": 9}}', "endingOffsets": '{"a": {"0": 8}}'},
     "end 8 is before start 9"),
    ({"topic": "b", "startingTimestamp": str(1 << 50),
      "startingOffsetsByTimestampStrategy": "error"}, "no message at or after"),
])
def test_offsets_that_cannot_be_are_refused(root, given, problem):
    with pytest.raises(StoreError, match=problem):
        batch_ranges(look(root), options(root, **given))


def test_a_batch_of_a_stream_reads_what_the_checkpoint_names(root):
    def ranges(start, end, **given):
        return stream_ranges(look(root), Checkpoint(start, {}), Checkpoint(end, {}), options(root, **given))

    both = {("s", "a", 0): 3, ("s", "a", 1): 15}
    end = {("s", "a", 0): 9, ("s", "a", 1): 15, ("s", "b", 0): 1}
    assert ranges(both, end) == {("s", "a", 0): (3, 9), ("s", "b", 0): (0, 1)}
    with pytest.raises(StoreError, match="go back from 3 to 2"):
        ranges(both, {("s", "a", 0): 2})
    gone = {("s", "a", 0): 20}
    with pytest.raises(StoreError, match="ends at 15, but the checkpoint has 20"):
        ranges(both, gone)
    assert ranges(both, gone, failOnDataLoss="false") == {("s", "a", 0): (3, 15)}


def test_lmq_queues_are_left_out_and_refused_by_name(tmp_path, caplog):
    from tailrace.config import StoreConfig
    from tailrace.errors import ConfigError

    path = str(tmp_path / "lmq")
    config = StoreConfig(enable_lmq=True, enable_multi_dispatch=True)
    with MessageStore.open(path, config=config, parts=StoreParts(services=False)) as store:
        for _ in range(3):
            store.put(Message(topic="a", body=b"x", properties={"INNER_MULTI_DISPATCH": "%LMQ%q"}))
    assert batch_ranges(look(path), options(path)) == {("s", "a", 0): (0, 3)}
    assert "LMQ queues are left out" in caplog.text
    with pytest.raises(ConfigError, match="topic %LMQ%q is an LMQ queue, which cannot be read"):
        batch_ranges(look(path), options(path, topic="%LMQ%q"))


def test_staged_rows_keep_their_lmq_units(tmp_path):
    from tailrace.config import StoreConfig
    from tailrace.spark.pipeline.staging import _packed, _unpacked
    from tailrace.store.multi_dispatch import rows_with_lmq
    from tailrace.store.record_batch import rows_by_queue
    from tailrace.store.walk.scan import LogEnd, scan_files

    path = str(tmp_path / "lmq")
    config = StoreConfig(enable_lmq=True, enable_multi_dispatch=True)
    with MessageStore.open(path, config=config, parts=StoreParts(services=False)) as store:
        for n in range(9):
            names = {"INNER_MULTI_DISPATCH": "%LMQ%q,%LMQ%r"} if n % 2 else {}
            store.put(Message(topic="a", body=b"x", properties=names), queue_id=n % 3)
    directory = StoreDirectory(path)
    (chunk,) = scan_files(directory.log_files, 0, directory.max_phy_offset, 7, LogEnd())

    def queues(of):
        rows = rows_with_lmq(of.data, of.rows)
        return {(topic, queue_id): rows[chosen][:, [C.PHY, C.QUEUE_OFFSET]].tolist()
                for topic, queue_id, chosen in rows_by_queue(of.data, rows)}

    assert len(queues(chunk)) == 5
    assert queues(_unpacked(_packed(chunk), chunk.base)) == queues(chunk)


def test_topics_with_compaction_are_left_out_and_refused_by_name(tmp_path, caplog):
    from tailrace.errors import ConfigError

    path = str(tmp_path / "compacted")
    with MessageStore.open(path, parts=StoreParts(services=False)) as store:
        store.create_topic("c", 1, {"cleanup.policy": "COMPACTION"})
        store.put(Message(topic="c", body=b"x", keys=["k"]))
        store.put(Message(topic="a", body=b"x"))
    assert batch_ranges(look(path), options(path)) == {("s", "a", 0): (0, 1)}
    assert "a topic with compaction is left out" in caplog.text
    with pytest.raises(ConfigError, match=r"topic c has cleanup.policy=COMPACTION, which Spark does not read"):
        batch_ranges(look(path), options(path, topic="c"))
