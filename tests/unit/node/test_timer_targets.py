"""Messages that wait while their topic is deleted, made again, or gets fewer queues."""

import json

import pytest

from tailrace import Message, MessageStore
from tailrace.config import StoreConfig
from tailrace.kernels.properties import encode_properties
from tailrace.model import MessageExtBrokerInner
from tailrace.node.store_opening import StoreParts
from tailrace.testing import CrashFileSystem, SimClock
from tailrace.timer.properties import PARKED_TOPIC

CONFIG = StoreConfig(
    mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=20 * 1000, max_hash_slot_num=100,
    max_index_num=400)
ROOT = "/s"


class Opened:
    """A store without threads; its steps run in simulated time."""

    def __init__(self):
        self.clock, self.files = SimClock(), CrashFileSystem()
        self.store = self.open()

    def open(self):
        self.store = MessageStore.open(
            ROOT, config=CONFIG, parts=StoreParts(services=False, clock=self.clock, file_system=self.files))
        self.inner, self.timers = self.store.inner, self.store.timer_services
        return self.store

    def restart(self, *, killed=False):
        if not killed:
            assert self.store.close()
        self.files = self.files.killed()
        return self.open()

    def run(self, ms=10_000, step=100):
        for _ in range(ms // step):
            self.clock.advance(step)
            for one in (
                self.inner.reput.step, self.timers.messages.enqueue_step, self.timers.messages.dequeue_step,
                self.timers.schedule.step, self.inner.reput.step,
            ):
                while one():
                    pass
        self.timers.messages.flush_step()

    def wait_for_put(self):
        while self.inner.reput.step():
            pass

    def delete(self, *topics):
        for topic in topics:
            self.store.delete_topics({topic})

    def bodies(self, topic):
        self.wait_for_put()
        return sorted(
            message.body for name, queue_id, *_ in self.store.queues() if name == topic
            for message in self.store.read(topic, queue_id))

    def names(self):
        """Topics with a config and topics with a directory of queues."""
        mine = {"timed", "levelled", "far"}
        return mine & set(self.store.topics.table), mine & set(self.files.list(f"{ROOT}/consumequeue"))


def sent(opened):
    store, now = opened.store, opened.clock.now_ms()
    for topic in ("timed", "levelled", "far"):
        store.create_topic(topic, 8)
    store.put(Message(topic="timed", body=b"timer", deliver_at=now + 3000), queue_id=5)
    store.put(Message(topic="levelled", body=b"level", delay_level=2), queue_id=5)
    store.put(Message(topic="far", body=b"far", deliver_at=now + 250_000_000), queue_id=5)


@pytest.mark.parametrize("wait_first", [False, True])
@pytest.mark.parametrize("killed", [False, True])
def test_what_waits_does_not_bring_its_topic_back(wait_first, killed):
    opened = Opened()
    sent(opened)
    if wait_first:
        opened.run(1000)
    opened.delete("timed", "levelled", "far")
    opened.run()
    assert opened.names() == (set(), set())
    opened.restart(killed=killed)
    opened.run(1000)
    assert opened.names() == (set(), set())
    assert opened.bodies(PARKED_TOPIC) == [b"level", b"timer"]
    listed = {(timer.topic, timer.state, timer.reason, timer.level) for timer in opened.store.timers()}
    assert listed == {
        ("timed", "parked", "its topic timed was deleted", 0),
        ("levelled", "parked", "its topic levelled was deleted", 2),
        ("far", "pending", "", 0)}
    opened.run(173_000_000, step=500_000)
    opened.run(80_000_000, step=500_000)
    assert opened.names() == (set(), set())
    assert opened.bodies(PARKED_TOPIC) == [b"far", b"level", b"timer"]
    assert all(timer.line(0)["timer"]["state"] == "parked" for timer in opened.store.timers())
    opened.store.close()


def test_a_new_life_gets_its_own_messages_only():
    opened = Opened()
    sent(opened)
    opened.delete("timed", "levelled")
    now = opened.clock.now_ms()
    for topic in ("timed", "levelled"):
        opened.store.create_topic(topic, 8)
    opened.store.put(Message(topic="timed", body=b"new timer", deliver_at=now + 3000))
    opened.store.put(Message(topic="levelled", body=b"new level", delay_level=2))
    opened.restart()
    opened.run()
    assert opened.bodies("timed") == [b"new timer"]
    assert opened.bodies("levelled") == [b"new level"]
    assert opened.bodies(PARKED_TOPIC) == [b"level", b"timer"]
    opened.store.close()


def without_topics(opened, change):
    """Close, change ``topics.json`` as another program would, and open."""
    assert opened.store.close()
    for name in ("topics.json", "topics.json.bak"):
        path = f"{ROOT}/config/{name}"
        if opened.files.exists(path):
            file = opened.files.open(path, writable=True)
            value = json.loads(file.pread(file.size(), 0))
            opened.files.remove(path)
            if change(value):
                opened.files.open(path, writable=True, create=True).pwrite(json.dumps(value).encode(), 0)
    opened.open()


def test_a_topic_that_a_java_broker_deleted_counts_as_gone():
    opened = Opened()
    sent(opened)

    def change(value):
        del value["topicConfigTable"]["timed"], value["topicConfigTable"]["levelled"]
        return True

    without_topics(opened, change)
    opened.run()
    assert opened.names() == ({"far"}, set())
    assert opened.bodies(PARKED_TOPIC) == [b"level", b"timer"]
    opened.store.close()


def test_without_the_file_of_topics_nothing_counts_as_gone():
    opened = Opened()
    sent(opened)
    without_topics(opened, lambda value: False)
    opened.restart()  # the file is there again, and it has the topics that only waiting messages name
    assert opened.names() == ({"timed", "levelled", "far"}, set())
    opened.run()
    assert opened.bodies("timed") == [b"timer"]
    assert opened.bodies("levelled") == [b"level"]
    opened.store.close()


@pytest.mark.parametrize("restart", [False, True])
def test_the_first_message_of_a_topic_may_be_a_delayed_one(restart):
    opened = Opened()
    now = opened.clock.now_ms()
    opened.store.put(Message(topic="timed", body=b"timer", deliver_at=now + 3000))
    opened.store.put(Message(topic="levelled", body=b"level", delay_level=2))
    if restart:
        opened.restart(killed=True)
    opened.run()
    assert (opened.bodies("timed"), opened.bodies("levelled")) == ([b"timer"], [b"level"])
    opened.store.close()


def delayed(topic, level, body, now):
    return MessageExtBrokerInner(
        topic, 0, body, encode_properties({"DELAY": str(level), "UNIQ_KEY": body.decode()}), born_timestamp=now)


def test_a_program_that_puts_below_the_topics_is_served():
    opened = Opened()
    assert opened.store.put_inner(delayed("levelled", 2, b"level", opened.clock.now_ms())).ok
    opened.run()
    assert opened.bodies("levelled") == [b"level"]
    opened.store.close()


def test_a_delayed_retry_of_a_deleted_group_is_parked():
    opened = Opened()
    opened.store.topics.create_if_missing("%RETRY%g", 1)
    assert opened.store.put_inner(delayed("%RETRY%g", 3, b"again", opened.clock.now_ms())).ok
    opened.delete("%RETRY%g")
    opened.run(20_000)
    assert opened.bodies("%RETRY%g") == []
    assert "%RETRY%g" not in opened.files.list(f"{ROOT}/consumequeue")
    assert opened.bodies(PARKED_TOPIC) == [b"again"]
    opened.store.close()


def test_a_delayed_message_of_a_queue_that_is_gone_can_be_read():
    opened = Opened()
    sent(opened)
    for topic in ("timed", "levelled"):
        opened.store.create_topic(topic, 4)
    opened.run()
    for topic, body in (("timed", b"timer"), ("levelled", b"level")):
        assert [queue_id for name, queue_id, *_ in opened.store.queues() if name == topic] == [1]
        assert opened.bodies(topic) == [body]
    opened.store.close()


def test_a_copy_that_saves_a_timer_from_retention_does_not_change_its_life():
    opened = Opened()
    now = opened.clock.now_ms()
    for topic in ("timed", "levelled"):
        opened.store.create_topic(topic, 8)
    opened.store.put(Message(topic="timed", body=b"timer", deliver_at=now + 50_000))
    opened.store.put(Message(topic="levelled", body=b"level", delay_level=5))
    opened.store.put_many([Message(topic="other", body=bytes(1000)) for _ in range(100)])
    opened.run(1000)
    opened.delete("timed", "levelled")
    for topic in ("timed", "levelled"):
        opened.store.create_topic(topic, 8)
    rewrite = opened.store.retention.clean_commit_log.needs.rewrite_timers
    assert rewrite(0, 1 << 20) == (2, 0)
    opened.run(100_000, step=500)
    assert (opened.bodies("timed"), opened.bodies("levelled")) == ([], [])
    assert opened.bodies(PARKED_TOPIC) == [b"level", b"timer"], "once, although the old record is still there"
    opened.store.close()
