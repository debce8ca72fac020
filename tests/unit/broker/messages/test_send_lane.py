"""The send lane has the results of the ordinary path: the same answers, the same log, the same counts."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from interpreted_kernels import interpreted
from lane_world import (
    FIELDS,
    NAMES,
    PROPERTIES,
    batch,
    borders,
    counts_of,
    differences,
    filled,
    joined,
    mutated,
    opened,
    other_request,
    pull,
    send,
    served,
)
from long_runs import LONG

from tailrace import kernels
from tailrace.config import FlushDiskType
from tailrace.errors import DiskFullError
from tailrace.formats.commitlog import encode_batch
from tailrace.formats.remoting import RemotingCommand, decode_frame, encode
from tailrace.model import PutMessageStatus
from tailrace.node.topic_config import PERM_READ, TopicConfig
from tailrace.remoting.lanes import EVERY, REST
from tailrace.requests.durable_answers import DurableAnswers, JoinedReply
from tailrace.segments import MappedFile
from tailrace.store.running_flags import NOT_WRITEABLE

pytestmark = pytest.mark.skipif(not kernels.compiled(), reason="without compiled kernels there is no lane")
SYNC = {"flush_disk_type": FlushDiskType.SYNC_FLUSH}
many = b"".join(send({"queueId": str(n % 4)}, binary=n % 2 == 0, code=(10, 310)[n // 2 % 2], opaque=n)
                for n in range(100))


def codes(data):
    found, at = [], 0
    while at < len(data):
        command, at = decode_frame(data, at, len(data))
        found.append(command.code)
    return found


def test_plain_sends_take_the_lane_after_the_first_one(tmp_path):
    outcome, found = differences(tmp_path, [send(), many, many[:-1]])
    assert not found
    assert outcome.in_lane == 199


KEY = r'UNIQ_KEY\u0001FD00000000000000000000000000024BCB30946E0982E2109F0001\u0002'
EXT = r'"a":"g","b":"Plain","c":"TBW102","d":"4","e":"0","f":"0","g":"1795687053471","h":"0","i":"%s"'
HEADERS = {
    "Java": r'{"code":310,"extFields":{%s,"j":"0","k":"false","m":"false","n":"broker-a"},"flag":0,"language":"JAVA",'
            r'"opaque":5,"serializeTypeCurrentRPC":"JSON","version":513}' % (
                EXT % (r"KEYS\u0001k1 k2\u0002" + KEY + r"WAIT\u0001true\u0002TAGS\u0001tag7\u0002")),
    "Python": r'{"code":310,"extFields":{%s,"j":"0","k":"false","m":"false"},"flag":0,"language":"PYTHON","opaque":2,'
              r'"serializeTypeCurrentRPC":"JSON","version":479}' % (EXT % (r"TAGS\u0001t\u0002" + KEY)),
    "Go": r'{"code":310,"language":"GO","version":317,"opaque":3,"flag":0,"remark":"","extFields":{%s,"j":"0",'
          r'"k":"false","l":"0","m":"false"}}' % (EXT % (KEY + r"WAIT\u0001true\u0002")),
    "Node": r'{"code":310,"language":"JAVA","opaque":4,"flag":0,"version":121,"extFields":{"a":"g","b":"Plain",'
            r'"c":"TBW102","d":4,"e":0,"f":0,"g":1795798722118,"h":0,"i":"TAGS\u0001node\u0002KEYS\u0001k\u0002","j":0,'
            r'"k":false}}',
    "other letters": r'{"code":310,"extFields":{%s,"j":"0"},"flag":0,"language":"JAVA","opaque":5,"version":513}' % (
        EXT % ("KEYS\\u0001caf\xe9 \u4e16\\u0002" + KEY + r'__SHARDINGKEY\u0001a\"b\\c\/\n\u0002')),
}


@pytest.mark.parametrize("client", HEADERS)
def test_headers_as_clients_write_them_are_plain(tmp_path, client):
    header = HEADERS[client].encode()
    frame = (8 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + b"body"
    outcome, found = differences(tmp_path, [send(), frame, frame * 3])
    assert (found, outcome.in_lane) == ([], 4)


def test_interpreted_kernels_have_no_lane():
    module = interpreted("send_lane")
    proven, version = {}, object()
    proven[b"Plain"] = module.PlainTopic("Plain", 4, version)
    lane = module.PlainSends(b"", b"UNIQ_KEY\x01", bytes(8), 1000, 1000, 1000, False, proven, ((b"",) * 6,) * 2,
                             ((b"",) * 5,) * 2, b"")
    assert lane.read(many, 0, bytes(8), 64, 1 << 20, version, 0) == 0


@pytest.mark.parametrize("store_config", [
    {}, SYNC, {"enabled_append_prop_crc": True},
    {"mapped_file_size_commit_log": 1 << 16, "max_message_size": 20000}], ids=str)
def test_frames_at_the_borders_of_plain_are_served_as_ever(tmp_path, store_config):
    frames = borders()
    chunks = [send(), *frames, *joined(frames, 40, 1)]
    outcome, found = differences(tmp_path, chunks, store_config=store_config)
    assert not found, "\n".join(found[:5])
    assert outcome.in_lane > 300


def test_mutated_frames_are_served_as_ever(tmp_path):
    frames = mutated(borders(), 3000 if LONG else 1200, 7)
    outcome, found = differences(tmp_path, [send(), *frames, *joined(frames, 100, 2)])
    assert not found, "\n".join(found[:5])
    assert outcome.in_lane > 100


values = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12) | st.sampled_from([
    "true", "false", "0", "1", "é", "世界", "\x01", "\x02", '"', "\\", "\n", "\0", "a b"])
properties = st.lists(st.tuples(
    st.sampled_from([*NAMES, "WAIT", "UNIQ_KEY"]) | values, values).map(lambda pair: f"{pair[0]}\x01{pair[1]}\x02"),
    max_size=5).map("".join)
fields = st.fixed_dictionaries({}, optional={
    **{name: values for name in FIELDS if name != "topic"}, "topic": st.sampled_from(["Plain", "Other", "Batch"]),
    "properties": st.builds(lambda before, after: before + PROPERTIES + after, properties, properties) | properties,
    "queueId": st.integers(-1, 5).map(str), "flag": st.integers(0, 1 << 31).map(str)})
how = {"binary": st.booleans(), "flag": st.sampled_from([0, 0, 2]), "opaque": st.integers(0, (1 << 31) - 1)}
items = st.lists(st.tuples(st.integers(-5, 5), st.binary(max_size=40), properties.map(str.encode)), max_size=5)
bodies = items.map(encode_batch) | st.tuples(items.map(encode_batch), st.binary(max_size=30)).map(b"".join)
sends = st.builds(send, fields, code=st.sampled_from([10, 310]), body=st.binary(max_size=40), **how) | st.builds(
    batch, bodies, fields, code=st.sampled_from([310, 320]), **how)


@settings(max_examples=25 if LONG else 10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(sends, min_size=1, max_size=8).map(b"".join), min_size=1, max_size=12))
def test_any_sends_are_served_as_ever(tmp_path_factory, chunks):
    _, found = differences(tmp_path_factory.mktemp("any"), [send(), *chunks])
    assert not found, "\n".join(found[:3])


def test_a_chunk_with_other_requests_is_answered_in_order(tmp_path):
    chunk = send(opaque=1) + other_request() + send(opaque=2) + send({"topic": "Other"}, opaque=3) + send(opaque=4)
    outcome, found = differences(tmp_path, [send(), send({"topic": "Other"}), chunk])
    assert not found
    answers, at = [], 0
    while at < len(outcome.answers[2]):
        command, at = decode_frame(outcome.answers[2], at, len(outcome.answers[2]))
        answers.append(command.opaque)
    assert (answers, outcome.in_lane) == ([1, 99, 2, 3, 4], 4)


def test_one_way_sends_are_stored_and_not_answered(tmp_path):
    chunk = b"".join(send(flag=2, opaque=n) for n in range(5)) + send(opaque=9)
    outcome, found = differences(tmp_path, [send(), chunk], store_config=SYNC)
    assert not found
    assert (len(codes(outcome.answers[1])), outcome.in_lane) == (1, 6)


def test_a_full_file_is_ended_by_the_ordinary_path(tmp_path):
    chunk = b"".join(send({"queueId": str(n % 4)}, opaque=n, body=b"x" * 700) for n in range(64))
    outcome, found = differences(
        tmp_path, [send(), *[chunk] * 6], store_config={"mapped_file_size_commit_log": 1 << 16})
    assert not found
    assert 350 < outcome.in_lane < 385


def test_the_lane_answers_no_more_than_the_client_may_leave_unread(tmp_path):
    outcome, found = differences(tmp_path, [send(), many], config={"write_buffer_high_water_mark": 1024})
    assert not found


def test_a_change_of_topics_or_settings_ends_what_was_proven(tmp_path):
    with opened(tmp_path) as world:
        assert codes(world.exchange(send() + send())) == [0, 0]
        assert world.in_lane == 1
        world.store.topics.update(TopicConfig(topic_name="Plain", perm=PERM_READ))
        assert codes(world.exchange(send() + send())) == [16, 16]  # NO_PERMISSION
        world.store.topics.update(TopicConfig(topic_name="Plain", write_queue_nums=2))
        assert codes(world.exchange(send({"queueId": "3"}) + send({"queueId": "1"}))) == [0, 0]  # readable queues
        assert codes(world.exchange(send({"queueId": "3"}) + send({"queueId": "1"}))) == [0, 0]
        assert world.in_lane == 3, "queue 3 is not a queue for writing"
        world.store.delete_topics(["Plain"])
        assert codes(world.exchange(send() + send())) == [17, 17]  # TOPIC_NOT_EXIST
        assert world.in_lane == 3


def test_the_setting_turns_the_lane_off(tmp_path):
    chunks = [send(), many]
    assert served(tmp_path / "off", chunks, lane=True, config={"plain_lane_enable": False}).in_lane == 0
    with opened(tmp_path / "on") as world:
        world.exchange(send() + send())
        world.change_setting("plainLaneEnable", "false")
        world.exchange(many)
        assert world.in_lane == 1
        world.change_setting("plainLaneEnable", "true")
        world.exchange(send() + send())
        assert world.in_lane == 2


def test_the_lane_rests_on_a_connection_whose_sends_are_not_plain(tmp_path):
    odd = send({"reconsumeTimes": "-1"})
    with opened(tmp_path) as world:
        world.server.lane_rest = REST
        world.exchange(send() + odd * (REST - 2) + send())  # the first send proves its topic
        assert world.in_lane == 1
        assert codes(world.exchange(odd * REST + send() * EVERY)) == [0] * (REST + EVERY)
        assert world.in_lane == 1 + REST, "it looks at one of EVERY sends, and at all after a plain one"
        world.exchange(odd + send())
        assert world.in_lane == 2 + REST


def test_the_pull_lane_rests_as_well_and_sends_between_the_pulls_do_not_wake_it(tmp_path):
    odd, empty = pull({"zone": "1"}), pull({"queueOffset": "67"})
    with opened(tmp_path) as world:
        world.server.lane_rest = REST
        for chunk in filled():
            chunk(world) if callable(chunk) else world.exchange(chunk)
        before = world.in_lane
        world.exchange((odd + send()) * REST)
        assert world.in_lane == before + REST
        world.exchange(pull() * (EVERY - REST))
        assert world.traffic.pulls["lane"] == 0
        world.exchange(pull())
        assert world.traffic.pulls["lane"] == 1
        world.exchange(empty * REST + pull() * EVERY)
        assert world.traffic.pulls["lane"] == 1 + REST, "a pull that finds nothing is served by the other way as well"


def test_a_server_with_users_or_that_stops_has_no_lane(tmp_path):
    with opened(tmp_path) as world:
        world.exchange(send() + send())
        seen = []
        world.server.check = lambda channel, request: seen.append(request.code)
        world.exchange(send() + send())
        assert (seen, world.in_lane) == ([310, 310], 1)
        world.server.check = None
        world.server.draining = True
        assert codes(world.exchange(send() + send())) == [1500, 1500]  # GO_AWAY
        assert world.in_lane == 1


def test_refused_puts_are_counted_once_and_answered_by_the_ordinary_path(tmp_path):
    with opened(tmp_path) as world:
        world.exchange(send() + send())
        world.store.inner.flags.set(NOT_WRITEABLE, "the test refuses writes")
        failed = world.store.inner.commit_log.tail.counts.failed_times
        assert codes(world.exchange(send() + send())) == [14, 14]  # SERVICE_NOT_AVAILABLE
        assert world.store.inner.commit_log.tail.counts.failed_times == failed + 2
        assert world.in_lane == 1


def test_a_put_that_finds_no_room_is_refused_and_counted_once_for_each_send(tmp_path, monkeypatch):
    def no_room(file, until):
        raise DiskFullError(file.path, "the test has no room")

    found = []
    for lane in (False, True):
        with opened(tmp_path / str(lane), lane=lane, store_config={"commit_log_allocate_step": 4096}) as world:
            world.exchange(send() + send())
            with monkeypatch.context() as patch:
                patch.setattr(MappedFile, "reserve", no_room)
                full = world.exchange(many)
            after = world.exchange(many)
            found.append((codes(full), after, counts_of(world.store, world.traffic)))
    assert found[0] == found[1]
    assert (found[1][0][0], found[1][0][-1]) == (0, 1), "some find room, the others get SYSTEM_ERROR"
    assert found[1][2]["refused"]["no_room"] == found[1][0].count(1)
    assert set(codes(found[1][1])) == {0}


@pytest.mark.parametrize(("status", "code"), [
    (PutMessageStatus.PUT_OK, 0), (PutMessageStatus.FLUSH_DISK_TIMEOUT, 10), (PutMessageStatus.UNKNOWN_ERROR, 14)])
def test_joined_answers_wait_together_and_tell_of_a_failed_sync(status, code):
    loop, waits, wrote, then = asyncio.new_event_loop(), [], [], []

    class Store:
        def when_durable(self, until, callback):
            waits.append((until, callback))

    class Channel:
        def write(self, data):
            wrote.append(data)

    durable, channel = DurableAnswers(loop, Store(), limit=10), Channel()
    answers = [encode(RemotingCommand(310, {}, opaque=n).answer()) for n in range(3)]
    durable.add(JoinedReply(channel, b"".join(answers[:2])), b"".join(answers[:2]), 7, then.append, 2)
    durable.add(JoinedReply(channel, answers[2]), answers[2], 9)
    assert (durable.pending, durable.room) == (3, 7)
    for _ in range(3):
        loop.run_until_complete(asyncio.sleep(0))
    (until, callback), = waits
    callback(status)
    for _ in range(3):
        loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert (until, then, durable.pending, codes(b"".join(wrote))) == (9, [status], 0, [code] * 3)
    assert len(wrote) == 1, "one write for the connection"
