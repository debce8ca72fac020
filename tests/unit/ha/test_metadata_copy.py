"""The copy of a master's tables: pages, versions, and offsets that wait for the log."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from types import SimpleNamespace

import pytest

from tailrace.config import BrokerConfig
from tailrace.env.callbacks import Callbacks
from tailrace.formats import fastjson
from tailrace.formats.remoting import RemotingCommand, RequestCode
from tailrace.ha.faults import Faults
from tailrace.ha.metadata_copy import MetadataCopy, Tables, merged_offsets
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.message_request_mode import MessageRequestModeManager
from tailrace.node.subscription_group import SubscriptionGroupManager
from tailrace.node.timers import DelayOffsetManager
from tailrace.node.topic_config import TopicConfig, TopicConfigManager
from tailrace.remoting.client import RemotingClient
from tailrace.store.lives import Ended, EndedLives
from tailrace.testing import CrashFileSystem, SimClock

VERSION = {"counter": 7, "stateVersion": 0, "timestamp": 5}


@pytest.mark.parametrize(("own", "before", "theirs", "wanted"), [
    (5, None, 3, 3),  # nothing is known about the last copy: the master's counts
    (5, 5, 3, 3),  # a reset at the master
    (7, 5, 3, 7),  # a consumer committed here while the master was away
    (7, 5, 9, 9),
    (7, -1, 3, 7),  # and the own one stays until the master has passed it
    (7, -1, 8, 8),
    (None, None, 3, 3),
    (7, "no entry", 3, 7),  # the master returns with offsets of before the last copy
    (None, "no entry", 3, 3),
])
def test_the_master_decides_unless_a_consumer_has_committed_here(own, before, theirs, wanted):
    def table(offset):
        return {} if offset is None else {"T@g": {0: offset}}

    copied = None if before is None else {} if before == "no entry" else table(before)
    assert merged_offsets(table(own), copied, table(theirs)) == {"T@g": {0: wanted}}


class Master:
    """Answers the requests of a copy; ``end`` is the end of its log."""

    def __init__(self):
        self.topics = {f"t{n:02}": {"topicName": f"t{n:02}", "readQueueNums": n + 1} for n in range(21)}
        self.offsets = {"t00@g": {"0": 5}}
        self.total, self.page, self.end, self.asked = 21, 5, 100, []
        self.is_master, self.refused = True, set()
        self.lmq = {}
        self.ended = {"deletedTopics": {"x": 40}, "nextOffsets": {"x": {"0": 7}}}
        self.queues, self.stats_refused = {}, set()

    ask = RemotingClient.ask

    async def invoke(self, address, code, ext, *_, **__):
        self.asked.append(int(code))
        code = RequestCode(code)
        if code in self.refused:
            return RemotingCommand(code=1, remark="busy")
        body, answer_ext = {}, {}
        if code is RequestCode.GET_ALL_TOPIC_CONFIG:
            begin = int(ext["topicSeq"])
            names = sorted(self.topics)[begin : begin + self.page]
            body = {"topicConfigTable": {n: self.topics[n] for n in names}, "dataVersion": VERSION,
                    "topicQueueMappingDetailMap": {}, "mappingDataVersion": VERSION}
            answer_ext = {"totalTopicNum": str(self.total)}
        elif code is RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG:
            body = {"subscriptionGroupTable": {"g": {"groupName": "g"}}, "forbiddenTable": {"g": {"t00": 4}},
                    "dataVersion": VERSION}
        elif code is RequestCode.GET_ALL_MESSAGE_REQUEST_MODE:
            body = {"messageRequestModeMap": {"t00": {"g": {"mode": "POP"}}}}
        elif code is RequestCode.GET_ALL_CONSUMER_OFFSET:
            body = {"offsetTable": self.offsets, "lmqOffsetTable": self.lmq}
        elif code is RequestCode.GET_ALL_DELAY_OFFSET:
            body = {"offsetTable": {"3": 4}, "dataVersion": VERSION}
        elif code is RequestCode.GET_BROKER_HA_STATUS:
            body = {"masterCommitLogMaxOffset": self.end if self.is_master else 0, "master": self.is_master}
        elif code is RequestCode.GET_TOPIC_STATS_INFO:
            topic = ext["topic"]
            if topic in self.stats_refused:
                return RemotingCommand(code=16, remark="not for you")
            if topic not in self.topics:
                return RemotingCommand(code=17, remark="no such topic")
            body = {"offsetTable": {
                json.dumps({"topic": topic, "brokerName": "b", "queueId": queue_id}):
                    {"minOffset": low, "maxOffset": end}
                for queue_id, (low, end) in self.queues.get(topic, {}).items()}}
        elif code is RequestCode.GET_SLAVE_STATE:
            if self.ended is None:  # a Java broker
                return RemotingCommand(code=3, remark=" request type 329004 not supported")
            body = self.ended
        return RemotingCommand(code=0, ext=answer_ext, body=fastjson.dumps(body))


@pytest.fixture
def world():
    files, clock, config = CrashFileSystem(), SimClock(), BrokerConfig()
    topics = TopicConfigManager(files, "/c", config, clock)
    topics.update(TopicConfig(topic_name="gone"))
    delays = DelayOffsetManager(files, "/c", clock)
    tables = Tables(
        topics=topics, groups=SubscriptionGroupManager(files, "/c", config, clock),
        offsets=ConsumerOffsetManager(files, "/c", clock), modes=MessageRequestModeManager(files, "/c"),
        timers=SimpleNamespace(delay_offsets=delays, take_delay_offsets=delays.copy_from),
        deletion=SimpleNamespace(
            end_lives=lambda ended: here.ended.update(ended), begin_queues=lambda ends: here.begun.append(ends)),
        orders=lambda: here.orders)
    here = SimpleNamespace(dispatched=0, ended={}, taken=[], ends={}, begun=[])
    here.orders = SimpleNamespace(take=lambda value, end_of: here.taken.append((value, end_of("t00", 0))))
    master = Master()
    store = SimpleNamespace(
        reput=SimpleNamespace(has_dispatched=lambda until: here.dispatched >= until), lives=EndedLives(100),
        queue_of=lambda topic, queue_id: SimpleNamespace(max=here.ends.get((topic, queue_id), 1000)),
        commit_log=SimpleNamespace(max_offset=50), queues=SimpleNamespace(table={("old", 0): None, ("t00", 0): None}))

    async def keep_master(**_):
        pass

    slave = SimpleNamespace(
        master_address="m:1", found_master=Callbacks[[]](), metadata_failures=0, note_master=lambda end: None,
        fits=True, keep_master=keep_master, faults=Faults())

    async def run(call):
        return call()

    return SimpleNamespace(
        copy=MetadataCopy(store, tables, slave, master, run), master=master, here=here, tables=tables, files=files,
        config=config, clock=clock, slave=slave)


def copied(world):
    asyncio.run(world.copy.copy_all())
    asyncio.run(world.copy.apply_positions())


def test_a_refusal_of_the_master_has_its_address(world):
    world.master.refused = {RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, RequestCode.GET_SLAVE_STATE}
    copied(world)
    assert "".join(world.slave.faults.to_json()).count("m:1") == 2, "for topics and for groups"


def test_all_pages_of_a_table_replace_it_and_its_version(world):
    copied(world)
    assert sorted(world.tables.topics.table) == sorted(world.master.topics)
    assert world.tables.topics.select("t20").read_queue_nums == 21, "the last one of a page of one"
    assert world.tables.topics.data_version.to_json() == VERSION
    again = TopicConfigManager(world.files, "/c", world.config, world.clock)
    again.load()
    assert (again.table == world.tables.topics.table, again.data_version.to_json()) == (True, VERSION)
    assert world.tables.groups.is_read_forbidden("g", "t00")
    assert world.tables.modes.mode("t00", "g")[0] == "POP"
    assert world.copy.copies == 1


def test_a_table_whose_pages_do_not_add_up_stays(world, caplog):
    world.master.total = 30
    copied(world)
    assert list(world.tables.topics.table) == ["gone"]
    assert "kind=topics" in caplog.text
    assert "21 of 30 entries came" in caplog.text
    assert world.tables.groups.select("g") is not None, "the other parts are copied"
    assert (world.copy.copies, world.slave.metadata_failures) == (0, 1)


def test_offsets_wait_for_the_messages_that_they_name(world):
    copied(world)
    assert world.tables.offsets.query("g", "t00", 0) == -1
    world.master.ended["consumerOrderInfo"] = {"table": {"t00@g": {}}}
    copied(world)
    assert world.here.taken == []
    world.here.dispatched = 99
    asyncio.run(world.copy.apply_positions())
    assert world.tables.offsets.query("g", "t00", 0) == -1
    world.here.dispatched = 100
    asyncio.run(world.copy.apply_positions())
    assert world.tables.offsets.query("g", "t00", 0) == 5
    assert world.tables.timers.delay_offsets.query(3) == 4
    assert world.here.taken == [({"table": {"t00@g": {}}}, 1000)]


def test_no_offsets_are_taken_from_a_former_master_that_is_a_slave_now(world, caplog):
    world.master.is_master = False
    copied(world)
    assert world.tables.offsets.query("g", "t00", 0) == -1
    assert "kind=offsets" in caplog.text
    assert "it is a slave" in caplog.text


def test_the_oldest_and_the_newest_offsets_wait(world):
    for end, offset in ((100, 1), (200, 2), (300, 3)):
        world.master.end, world.master.offsets = end, {"t00@g": {"0": offset}}
        copied(world)
    for dispatched, wanted in ((150, 1), (250, 1), (300, 3)):
        world.here.dispatched = dispatched
        asyncio.run(world.copy.apply_positions())
        assert world.tables.offsets.query("g", "t00", 0) == wanted


def test_a_commit_here_stays_until_the_master_has_passed_it(world):
    world.here.dispatched = 1000
    copied(world)
    world.tables.offsets.commit("g", "t00", 0, 7)
    for offset, wanted in ((5, 7), (6, 7), (9, 9), (4, 4)):
        world.master.offsets = {"t00@g": {"0": offset}}
        copied(world)
        assert world.tables.offsets.query("g", "t00", 0) == wanted


def test_deleted_topics_wait_for_the_log_and_are_those_of_the_master(world):
    copied(world)
    asyncio.run(world.copy.end_lives())
    assert world.here.ended == {"x": Ended(40, {0: 7})}
    world.here.ended.clear()
    world.master.ended = {"deletedTopics": {"x": 51}}
    copied(world)
    asyncio.run(world.copy.end_lives())
    assert world.here.ended == {}
    world.copy._store.commit_log.max_offset = 51
    asyncio.run(world.copy.end_lives())
    assert world.here.ended == {"x": Ended(51, {})}


def test_a_topic_that_left_the_table_of_a_java_master_was_deleted_before_the_end_of_its_log(world):
    world.master.ended, world.master.end = None, 30
    copied(world)
    asyncio.run(world.copy.end_lives())
    assert world.here.ended == {"old": Ended(30, {})}
    assert world.copy.copies == 1, "the refusal of the private request is no failure"


def test_offsets_of_lmq_groups_are_copied(world):
    world.here.dispatched = 1000
    tables = world.tables
    lmq = ConsumerOffsetManager(world.files, "/c", world.clock, lmq=True)
    world.copy._tables = dataclasses.replace(tables, offsets=lmq)
    world.master.lmq = {"%LMQ%a@%LMQ%a": 9}
    copied(world)
    assert lmq.query("%LMQ%a", "%LMQ%a", 0) == 9


def test_a_commit_of_the_moment_in_which_offsets_are_copied_stays(world):
    world.here.dispatched = 1000
    copied(world)
    world.tables.offsets.commit("g", "t00", 0, 7)

    async def beside(call):  # the event loop serves a consumer while a thread writes
        world.tables.offsets.commit("g", "t00", 0, 9)
        return call()

    world.copy._run = beside
    world.master.offsets = {"t00@g": {"0": 6}}
    copied(world)
    assert world.tables.offsets.query("g", "t00", 0) == 9
    again = ConsumerOffsetManager(world.files, "/c", world.clock)
    again.load()
    assert again.query("g", "t00", 0) == 9, "and it is in the file"


def test_no_offset_is_past_the_end_of_its_queue_here_and_the_rest_comes_later(world):
    world.here.dispatched = 1000
    world.here.ends = {("t00", 0): 3}
    copied(world)
    assert world.tables.offsets.query("g", "t00", 0) == 3
    world.here.ends.clear()
    copied(world)
    assert world.tables.offsets.query("g", "t00", 0) == 5
    world.master.offsets = {"t00@g": {"0": 2}}
    copied(world)
    assert world.tables.offsets.query("g", "t00", 0) == 2, "a capped offset is the master's: a reset there counts"


def test_a_reset_counts_also_after_an_offset_was_capped(world):
    world.here.dispatched = 1000
    world.here.ends = {("t00", 0): 3}
    copied(world)
    world.master.offsets = {"t00@g": {"0": 2}}
    copied(world)
    assert world.tables.offsets.query("g", "t00", 0) == 2


def test_nothing_is_copied_from_a_master_that_does_not_fit(world):
    """Its cluster is another one, or its log has other messages where its offsets and deletions point to."""
    world.here.dispatched = 100

    async def step():
        world.copy._woken.set()
        await world.copy._step()

    world.slave.fits = False
    asyncio.run(step())
    assert (list(world.tables.topics.table), world.here.ended) == (["gone"], {})
    world.slave.fits, world.here.dispatched = True, 0
    asyncio.run(step())
    assert sorted(world.tables.topics.table) == sorted(world.master.topics)
    world.slave.fits, world.here.dispatched = False, 1000  # offsets that waited are those of another log
    asyncio.run(step())
    assert world.tables.offsets.query("g", "t00", 0) == -1


def stats_asked(world):
    found = world.master.asked.count(RequestCode.GET_TOPIC_STATS_INFO)
    world.master.asked.clear()
    return found


def test_each_topic_is_asked_once_for_queues_that_have_no_message_any_more(world):
    world.master.topics["t00"]["writeQueueNums"] = 1
    world.master.queues = {
        "t01": {0: (47, 47), 1: (0, 0)}, "t02": {0: (0, 0), 2: (8, 8)}, "t00": {0: (5, 5)}, "t20": {99: (4, 4)}}
    copied(world)
    assert world.here.begun == [{"t01": {0: 47}, "t02": {2: 8}}]
    assert stats_asked(world) == 20, "all but t00, whose queue is here"
    copied(world)
    assert (stats_asked(world), len(world.here.begun)) == (0, 1)
    world.master.topics["new"], world.master.total = {"topicName": "new"}, 22
    copied(world)
    assert stats_asked(world) == 1
    world.slave.fits = False
    world.copy._woken.set()
    asyncio.run(world.copy._step())
    world.slave.fits = True
    copied(world)
    assert stats_asked(world) == 21, "all but t00: another master may answer"


def test_a_topic_is_asked_again_while_the_master_shows_messages_of_a_queue_that_is_not_here(world):
    """A master that has deleted files shows the old begin of a queue for a while; its messages never come here."""
    world.master.queues = {"t01": {0: (0, 47), 1: (5, 9)}, "t02": {0: (8, 8)}}
    copied(world)
    assert world.here.begun == [{"t02": {0: 8}}]
    stats_asked(world)
    world.master.queues["t01"][0] = 47, 47
    world.copy._store.queues.table["t01", 1] = None  # its messages have come
    copied(world)
    assert (stats_asked(world), world.here.begun[1:]) == (1, [{"t01": {0: 47}}])
    copied(world)
    assert (stats_asked(world), len(world.here.begun)) == (0, 2)


def test_a_topic_that_is_refused_is_named_and_keeps_no_other_one_from_being_asked(world, caplog):
    world.master.stats_refused, world.master.queues = {"t01"}, {"t02": {0: (7, 7)}, "t01": {0: (9, 9)}}
    copied(world)
    assert world.here.begun == [{"t02": {0: 7}}]
    assert (world.copy.copies, world.slave.metadata_failures) == (0, 1)
    assert "kind=ends of queues" in caplog.text
    assert "not for you" in caplog.text
    world.master.stats_refused = set()
    stats_asked(world)
    copied(world)
    assert (stats_asked(world), world.here.begun[1:]) == (1, [{"t01": {0: 9}}])
    assert not world.slave.faults.to_json()


def test_what_cannot_be_written_is_asked_again(world):
    def fails(ends):
        raise OSError(28, "No space left on device")

    world.master.queues, begin = {"t02": {0: (7, 7)}}, world.tables.deletion.begin_queues
    world.tables.deletion.begin_queues = fails
    copied(world)
    assert world.slave.metadata_failures == 1
    world.tables.deletion.begin_queues = begin
    copied(world)
    assert world.here.begun == [{"t02": {0: 7}}]
