"""Topics are deleted while threads write to them: every message is of one life, and `verify` finds nothing."""

from __future__ import annotations

import threading

import pytest

from tailrace import Message, MessageStore, StoreConfig
from tailrace.kernels.properties import encode_properties
from tailrace.model import MessageExtBrokerInner
from tailrace.node.store_opening import StoreParts
from tailrace.store.directory import StoreDirectory
from tailrace.store.verification import Verification

ROUNDS = 15
LMQ = "%LMQ%q"
CONFIG = StoreConfig(
    mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=20 * 5000, max_hash_slot_num=1000,
    max_index_num=4000, commit_log_allocate_step=1 << 16, enable_lmq=True, enable_multi_dispatch=True,
    mapped_file_size_timer_log=52 * 1000)


class Writer(threading.Thread):
    """Puts messages until it is stopped; ``put`` has what was acknowledged."""

    def __init__(self, store, number, stop):
        super().__init__()
        self.store, self.number, self.stop = store, number, stop
        self.put, self.error = [], None

    def run(self):
        try:
            while not self.stop.wait(0.001):
                self.one(len(self.put))
        except Exception as error:  # a thread must not end unseen
            self.error = error

    def one(self, count):
        topic = "tu"[count % 3 == 0]
        body = b"%d:%d" % (self.number, count)
        if count % 4:
            result = self.store.put_inner(MessageExtBrokerInner(
                topic, self.number, body, encode_properties({"INNER_MULTI_DISPATCH": LMQ}), born_timestamp=1))
        else:
            result = self.store.put(Message(topic=topic, body=body), queue_id=self.number)
        self.put.append((topic, body, result.phy_offset, result.queue_offset))


def read(store, topic):
    found = []
    for name, queue_id, low, high in store.queues():
        if name == topic:
            messages = list(store.read(topic, queue_id))
            assert [m.queue_offset for m in messages] == list(range(low, high)), "no hole and nothing twice"
            found += [(m.body, m.phy_offset, m.queue_offset) for m in messages]
    return sorted(found)


@pytest.mark.parametrize("rebuild", [False, True])
def test_each_message_is_before_the_deletion_or_in_the_new_life(tmp_path, rebuild):
    path, stop = str(tmp_path / "s"), threading.Event()
    with MessageStore.open(path, config=CONFIG) as store:
        for topic in ("t", "u"):
            store.create_topic(topic, 2)
        writers = [Writer(store, number, stop) for number in range(2)]
        for writer in writers:
            writer.start()
        for number in range(ROUNDS):
            if number % 5 == 4:
                store.topics.delete("t")
                store.deletion.delete_unused()
            elif number % 3 == 2:
                store.delete_topics([LMQ, "t"], missing_ok=True)
            else:
                store.delete_topics(["t"], missing_ok=True)
            assert not stop.wait(0.02)
        stop.set()
        for writer in writers:
            writer.join()
            assert writer.error is None
        store.wait_dispatched()
        ended = store.inner.lives.deleted_up_to("t")
        put = [one for writer in writers for one in writer.put]
        expected = {
            "t": sorted(one[1:] for one in put if one[0] == "t" and one[2] >= ended),
            "u": sorted(one[1:] for one in put if one[0] == "u")}
        assert {topic: read(store, topic) for topic in expected} == expected
        lmq = list(store.read(LMQ))
        assert len(lmq) == len({m.body for m in lmq}) == sum(
            one[2] >= store.inner.lives.deleted_up_to(LMQ) and int(one[1].partition(b":")[2]) % 4 > 0 for one in put)
    assert list(Verification(StoreDirectory(path, config=CONFIG, raw=True)).findings()) == []
    with MessageStore.open(path, config=CONFIG, parts=StoreParts(rebuild=rebuild)) as store:
        assert {topic: read(store, topic) for topic in expected} == expected
        assert [m.body for m in store.read(LMQ)] == [m.body for m in lmq]
    assert list(Verification(StoreDirectory(path, config=CONFIG, raw=True)).findings()) == []
