"""Deletion by hand over the wire, and groups that keep what they have not consumed."""

from __future__ import annotations

import asyncio
import json
import threading

from broker_kit import wired

from tailrace import Message, MessageStore, StoreConfig
from tailrace.broker.admin.progress import ProgressProcessor
from tailrace.broker.admin.retention import RetentionProcessor
from tailrace.env.filesystem import OsFileSystem
from tailrace.formats import fastjson
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.store_opening import StoreParts
from tailrace.node.topic_config import TopicConfig
from tailrace.store.retention.pins import PinKind
from tailrace.store.retention.rules import Rule
from tailrace.testing import CrashFileSystem, SimClock

HOUR = 3_600_000


def later(broker, channel, processor, request):
    """The answer that is sent when the work is done."""
    channel.sent.clear()

    async def test():
        assert processor(channel, request) is None
        while not channel.sent:
            await asyncio.sleep(0.001)

    broker.loop.run_until_complete(asyncio.wait_for(test(), 60))
    return channel.sent[0]


def opened(files, clock, **config):
    return MessageStore.open(
        "/s", parts=StoreParts(services=False, file_system=files, clock=clock), config=StoreConfig(
            mapped_file_size_commit_log=8192, mapped_file_size_consume_queue=200,
            max_hash_slot_num=16, max_index_num=64, commit_log_allocate_step=4096, delete_rate=0,
            **config))


def test_request_329_asks_for_twenty_passes(broker, kit, channel):
    clock = SimClock()
    with opened(CrashFileSystem(), clock) as store:
        broker.store = store
        answer = kit.served(wired(RetentionProcessor, broker)).delete_expired_commit_log(channel, kit.request(329))
        assert answer.code == 0
        assert store.retention.clean_commit_log.manual_times == 20
        assert store.stats()["manualDeletePassesLeft"] == 20


def test_requests_316_and_306_remove_queues_of_topics_that_are_gone(broker, kit, channel):
    for code in (316, 306):
        with opened(CrashFileSystem(), SimClock()) as store:
            broker.store = store
            store.put(Message(topic="t", body=b"x"))
            store.put(Message(topic="u", body=b"x"))
            store.wait_dispatched()
            store.topics.delete("t")
            processor = kit.served(wired(RetentionProcessor, broker))
            assert later(broker, channel, processor.clean_queues, kit.request(code)).code == 0
            assert [topic for topic, *_ in store.queues()] == ["u"]


def test_a_purge_over_the_wire(broker, kit, channel):
    with opened(CrashFileSystem(), SimClock()) as store:
        broker.store = store
        for number in range(4):
            store.put(Message(topic="t", body=b"x"), queue_id=number % 2)
        purge = kit.served(wired(RetentionProcessor, broker)).purge_topic
        answer = later(broker, channel, purge, kit.request(329_001, {"topic": "t", "queueId": "1"}))
        assert (answer.code, answer.body) == (0, b'{"1":{"from":0,"to":2}}')
        gone = later(broker, channel, purge, kit.request(329_001, {"topic": "none"}))
        assert (gone.code, gone.remark) == (1, "there is no topic none")
        wrong = purge(channel, kit.request(329_001, {"topic": "t", "queueId": "x"}))
        assert (wrong.code, wrong.remark) == (
            1, "the custom field <queueId> is not a whole number in its range: 'x'")
        assert purge(channel, kit.request(329_001, {})).remark == "the custom field <topic> is null"


def test_a_purge_that_waits_keeps_nobody_from_being_served(broker, kit, channel):
    """It runs beside the event loop, one at a time, and an error of it is an answer."""
    going, end = threading.Event(), threading.Event()

    def purge_topic(topic, queue_id, before_ms):
        going.set()
        assert end.wait(10)
        raise {"full": OSError("no room"), "odd": RuntimeError("what")}[topic]

    broker.store.purge_topic = purge_topic
    processor = kit.served(wired(RetentionProcessor, broker))

    async def test():
        for topic in ("full", "odd"):
            assert processor.purge_topic(channel, kit.request(329_001, {"topic": topic})) is None
        while not going.is_set():  # the loop runs while the purge waits
            await asyncio.sleep(0.001)
        assert not channel.sent
        end.set()
        while len(channel.sent) < 2:
            await asyncio.sleep(0.001)

    broker.loop.run_until_complete(asyncio.wait_for(test(), 60))
    assert [(a.code, a.remark) for a in channel.sent] == [(1, "OSError: no room"), (1, "RuntimeError: what")]


def test_a_listed_group_keeps_what_it_has_not_consumed(tmp_path):
    clock = SimClock()
    offsets = ConsumerOffsetManager(OsFileSystem(), str(tmp_path), clock)
    with opened(CrashFileSystem(), clock, pin_groups="audit; billing") as store:
        store.retention.follow_groups(offsets)
        for _ in range(40):
            store.put(Message(topic="t", body=bytes(900)))
        store.wait_dispatched()
        store.inner.flush()
        clock.advance(80 * HOUR)
        clean = store.retention.clean_commit_log
        assert clean.verdicts()[0].rule is Rule.EXPIRED, "no group has come so far as to commit"
        offsets.commit("other", "t", 0, 0)
        assert clean.verdicts()[0].rule is Rule.EXPIRED, "a group that is not listed keeps nothing"
        offsets.commit("audit", "t", 0, 12)
        offsets.commit("billing", "t", 0, 40)
        place = store.inner.queues.get("t", 0).unit(12).phy_offset
        held = [v for v in clean.verdicts() if v.pins]
        assert held[0].pins[0][:2] == (PinKind.GROUP, place)
        assert "audit at t/0 offset 12" in held[0].pins[0].holder
        assert store.retention.delete_now() == place // 8192
        assert store.get_message("t", 0, 12, 1).records
        offsets.commit("audit", "t", 0, 40)
        assert store.retention.delete_now() > 0
        assert not store.get_message("t", 0, 12, 1).records


def test_bytes_are_freed_on_request(broker, kit, channel):
    with opened(CrashFileSystem(), SimClock()) as store:
        broker.store = store
        for _ in range(30):
            store.put(Message(topic="t", body=bytes(900)))
        store.wait_dispatched()
        store.flush()
        free = kit.served(wired(RetentionProcessor, broker)).free_bytes

        def ask(**fields):
            answer = later(broker, channel, free, kit.request(329_002, fields))
            return answer.code, json.loads(answer.body) if answer.body else answer.remark

        assert ask() == (1, "no bytes were requested since the start")
        assert ask(freeBytes="0") == (1, "the number of bytes must be above 0: 0")
        plan = {"requestedBytes": 8193, "freedBytes": 16384, "files": ["0" * 20, f"{8192:020d}"],
                "ended": True, "stopped": ""}
        assert ask(freeBytes="8193", dryRun="true") == (0, plan)
        assert store.min_phy_offset == 0
        started = {**plan, "freedBytes": 0, "files": [], "ended": False}
        assert ask(freeBytes="8193") == (0, started)
        assert ask() == (0, started)
        assert ask(freeBytes="1") == (1, "StoreError: a request to free 8193 bytes is under way; 0 are freed")
        while not store.retention.clean_commit_log.free_request.ended:
            store.retention.clean_commit_log.step()
        assert ask() == (0, plan)
        assert store.min_phy_offset == 16384


def test_statistics_of_a_topic_do_not_count_messages_of_deleted_files(broker, kit, channel):
    """A slave that begins with an empty log gets no message of such a queue, and must begin it where it ends."""
    with opened(CrashFileSystem(), SimClock()) as store:
        broker.store = store
        for topic in ("t", "u"):
            store.topics.update(TopicConfig(topic_name=topic, read_queue_nums=1, write_queue_nums=1))
            for _ in range(30):
                store.put(Message(topic=topic, body=bytes(1000)))
        store.wait_dispatched()
        store.flush()
        store.retention.clean_commit_log.run_free(5 * 8192)  # the pass over the queues comes some seconds later
        assert store.min_phy_offset > 0
        assert store.queue_of("t", 0).bounds == (0, 30)
        processor = kit.served(wired(ProgressProcessor, broker))
        first = {}
        for topic in ("t", "u"):
            answer = processor.topic_stats(channel, kit.request(202, {"topic": topic}))
            [place] = fastjson.loads(answer.body)["offsetTable"].values()
            first[topic] = place["minOffset"], place["maxOffset"]
        store.retention.clean_consume_queue.run_pass()
        assert first == {topic: store.queue_of(topic, 0).bounds for topic in ("t", "u")}
        assert first["t"] == (30, 30)


def test_a_store_that_takes_no_changes_frees_nothing(broker, kit, channel):
    with opened(CrashFileSystem(), SimClock()) as store:
        broker.store = store
        store.read_only = "a read-only file system"
        answer = later(broker, channel, kit.served(wired(RetentionProcessor, broker)).free_bytes,
                       kit.request(329_002, {"freeBytes": "1"}))
        assert (answer.code, answer.remark) == (1, "the store takes no changes: a read-only file system")
        assert store.retention.clean_commit_log.free_request is None
