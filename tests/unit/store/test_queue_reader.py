"""The contract of a queue: every kind of queue answers ``min``, ``max``, ``read`` and ``by_time`` alike."""

import pickle

import pytest

from tailrace import Message, MessageStore, StoreConfig
from tailrace.model import BoundaryType, GetMessageStatus, MessageExtBrokerInner
from tailrace.node.store_opening import StoreParts
from tailrace.store.compaction.compaction_log import CompactionLog
from tailrace.store.directory import StoreDirectory
from tailrace.store.queue_reader import CompactedQueue, QueueReader
from tailrace.testing import SimClock

KINDS = {"plain": {}, "batch": {"queue.type": "BatchCQ"}, "compacted": {"cleanup.policy": "COMPACTION"}, "lmq": {}}
LMQ = "%LMQ%q"
COUNT, STEP_MS = 20, 1000


@pytest.fixture(params=KINDS)
def filled(request, tmp_path):
    """Return a store and the reader of a queue with twenty messages, one a second, of each kind of queue."""
    clock = SimClock()
    config = StoreConfig(enable_lmq=True, enable_multi_dispatch=True)
    with MessageStore.open(tmp_path, config=config, parts=StoreParts(services=False, clock=clock)) as store:
        store.create_topic("t", 1, KINDS[request.param])
        properties = {"INNER_MULTI_DISPATCH": LMQ} if request.param == "lmq" else {}
        for number in range(COUNT):
            store.put(Message(topic="t", body=b"%d" % number, keys=[f"k{number}"], properties=properties))
            clock.advance(STEP_MS)
        store.flush()
        store.wait_dispatched()
        if request.param == "compacted":
            assert store.inner.compaction.flush(thorough=True)
        yield store, store.inner.queue_of(LMQ if request.param == "lmq" else "t", 0), clock.now_ms()


def test_the_kind_of_the_topic_decides_who_answers(filled):
    store, queue, _ = filled
    is_compacted = queue.topic in store.inner.compaction.topics
    assert type(queue) is (CompactedQueue if is_compacted else QueueReader)


def test_a_queue_is_read_from_its_least_to_its_next_offset(filled):
    _, queue, _ = filled
    assert (queue.min, queue.max) == (0, COUNT)
    offset, offsets = queue.min, []
    while offset < queue.max:
        found = queue.read(offset, 7, 1 << 20, None)
        assert found.status is GetMessageStatus.FOUND
        offsets += found.queue_offsets
        offset = found.next_begin_offset
    assert offsets == list(range(COUNT))


def test_a_read_after_the_end_says_where_to_continue(filled):
    _, queue, _ = filled
    found = queue.read(COUNT, 1, 1 << 20, None)
    assert (found.status, found.next_begin_offset) == (GetMessageStatus.OFFSET_OVERFLOW_ONE, COUNT)
    found = queue.read(COUNT + 5, 1, 1 << 20, None)
    assert found.status is GetMessageStatus.OFFSET_OVERFLOW_BADLY
    assert (found.min_offset, found.max_offset) == (0, COUNT)


def test_a_time_leads_to_the_message_that_was_stored_then(filled):
    _, queue, now_ms = filled
    first_ms = now_ms - COUNT * STEP_MS
    for number in (0, 7, COUNT - 1):
        assert queue.by_time(first_ms + number * STEP_MS) == number
        assert queue.by_time(first_ms + number * STEP_MS + 1, BoundaryType.UPPER) == number
        assert queue.store_timestamp(number) == first_ms + number * STEP_MS
    assert queue.by_time(now_ms + STEP_MS) == COUNT
    assert queue.store_timestamp(COUNT) == -1


def test_the_size_is_that_of_the_records(filled):
    _, queue, _ = filled
    found = queue.read(0, COUNT, 1 << 20, None)
    assert queue.size() == (len(found.data), True)


def test_a_queue_that_does_not_exist_is_empty(filled):
    store, queue, now_ms = filled
    unknown = store.inner.queue_of(queue.topic, 7)
    assert (unknown.min, unknown.max, unknown.begin_of_life) == (0, 0, 0)
    assert unknown.read(0, 1, 1 << 20, None).status is GetMessageStatus.NO_MESSAGE_IN_QUEUE
    assert unknown.by_time(now_ms) == 0
    assert unknown.store_timestamp(0) == -1
    assert unknown.size() == (0, True)


def test_a_compaction_log_that_is_removed_during_the_question_makes_no_offset_negative(filled, monkeypatch):
    _, queue, _ = filled
    monkeypatch.setattr(CompactionLog, "min_offset", -1)  # its answer without a message
    assert queue.min == 0


def test_a_queue_that_was_deleted_begins_where_its_next_life_begins(filled):
    store, queue, _ = filled
    store.delete_topics([queue.topic])
    begin = queue.begin_of_life
    assert begin >= COUNT
    assert (queue.min, queue.max) == (begin, begin)
    assert queue.read(begin, 1, 1 << 20, None).status is GetMessageStatus.OFFSET_OVERFLOW_ONE


def test_an_offset_that_is_put_and_not_dispatched_counts_only_uncommitted(filled):
    store, _, _ = filled
    store.put_inner(MessageExtBrokerInner("t", 0, b"x", b"KEYS\x01k"))
    assert store.queue_of("t", 0).max == COUNT
    assert store.queue_of("t", 0).next == COUNT + 1


def test_a_directory_goes_to_the_tasks_of_a_job(filled):
    """A process that gets a directory reads the same queues; the file of an open store stays with its process."""
    store, _, _ = filled
    directory = StoreDirectory(store.path, config=store.config)
    gone, files = pickle.loads(pickle.dumps((directory, directory.log_files)))

    def units(one):
        return [(queue.topic, queue.queue_id, queue.max_offset, queue.units(queue.min_offset, COUNT))
                for queue in one.queues()]

    assert units(gone) == units(directory) != []
    assert [file.read(0, 100) for file in files] == [file.read(0, 100) for file in directory.log_files]
    with pytest.raises(TypeError, match="belongs to this process"):
        pickle.dumps(store.inner.commit_log.queue.files[0])
