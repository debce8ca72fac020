"""The pull lane has the results of the ordinary path: the same answers, the same commits, the same counts."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from interpreted_kernels import interpreted
from lane_world import (
    PULLED,
    differences,
    dispatch,
    filled,
    joined,
    member,
    mutated,
    opened,
    own,
    pull,
    pull_borders,
    send,
    served,
)
from long_runs import LONG

from tailrace import kernels
from tailrace.broker.messages import proven
from tailrace.formats.remoting import RemotingCommand, decode_frame, encode
from tailrace.kernels.unit_records import AnswerFrame
from tailrace.node.subscription_group import SubscriptionGroupConfig
from tailrace.node.topic_config import PERM_WRITE, TopicConfig

compiled = pytest.mark.skipif(not kernels.compiled(), reason="without compiled kernels there is no lane")
pytestmark = compiled


def codes(data):
    found, at = [], 0
    while at < len(data):
        command, at = decode_frame(data, at, len(data))
        found.append(command.code)
    return found


def of(world, chunk):
    return codes(world.exchange(chunk))


def test_plain_pulls_take_the_lane_after_the_first_one(tmp_path):
    many = b"".join(
        pull({"queueId": str(q), "queueOffset": str(at)}, binary=q == 1, code=(11, 361)[at % 2], opaque=at)
        for q in range(3) for at in range(0, 60, 3))
    outcome, found = differences(tmp_path, [*filled(), many, many])
    assert not found, "\n".join(found)
    assert outcome.in_lane - outcome.counts["puts"][0] > 60, "all pulls but the first one"


JAVA = (r'{"code":11,"extFields":{"consumerGroup":"readers","topic":"Plain","queueId":"1","queueOffset":"2",'
        r'"maxMsgNums":"32","sysFlag":"2","commitOffset":"-1","suspendTimeoutMillis":"15000","subVersion":"1",'
        r'"expressionType":"TAG","maxMsgBytes":"262144","bname":"broker-a"},"flag":0,"language":"JAVA","opaque":5,'
        r'"serializeTypeCurrentRPC":"JSON","version":513}')
GO = (r'{"code":11,"language":"GO","version":317,"opaque":3,"flag":0,"remark":"","extFields":{"sysFlag":"6",'
      r'"commitOffset":"0","maxMsgNums":"32","consumerGroup":"readers","topic":"Plain","queueId":"1",'
      r'"queueOffset":"0","suspendTimeoutMillis":"20000","subscription":"*","subVersion":"0","expressionType":"TAG"}}')


@pytest.mark.parametrize("header", [JAVA, GO], ids=["Java", "Go"])
def test_headers_as_clients_write_them_are_plain(tmp_path, header):
    frame = (4 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header.encode()
    chunks = [*filled(10), frame, frame]
    before = served(tmp_path / "sends", chunks[:-2], lane=True).in_lane
    outcome, found = differences(tmp_path, chunks)
    assert (found, outcome.in_lane - before) == ([], 1)


@pytest.mark.parametrize(("config", "store_config"), [
    ({}, {}), ({"write_buffer_high_water_mark": 1024}, {}), ({"max_consumer_offsets": 2}, {}),
    ({}, {"mapped_file_size_commit_log": 1 << 14, "max_transfer_count_on_message_in_memory": 20}),
    ({"enable_detail_stat": False}, {"max_transfer_bytes_on_message_in_memory": 2000})], ids=str)
def test_frames_at_the_borders_of_plain_are_served_as_ever(tmp_path, config, store_config):
    frames = pull_borders()
    chunks = [*filled(), *frames, *joined(frames, 60, 1)]
    outcome, found = differences(tmp_path, chunks, config=config, store_config=store_config)
    assert not found, "\n".join(found[:5])
    assert outcome.in_lane > 400


def test_tags_of_heartbeats_select(tmp_path):
    chunks = [*filled(), member(tags="t1"), *(
        pull({"queueOffset": str(at), "queueId": str(at % 3)}) * 2 for at in range(60))]
    outcome, found = differences(tmp_path, chunks)
    assert not found, "\n".join(found)
    assert outcome.in_lane > 230


def test_a_pull_with_an_empty_subscription_of_its_own_proves_nothing(tmp_path):
    chunks = [*filled(), member(tags="t0"), *(pull(own(text)) * 2 + pull() * 2 for text in (None, "", "*"))]
    outcome, found = differences(tmp_path, chunks)
    assert not found, "\n".join(found)
    assert codes(outcome.answers[-1]) == [0, 0, 20, 20]


def test_mutated_frames_are_served_as_ever(tmp_path):
    plain = [pull({"queueOffset": str(n), "queueId": str(n % 3)}, binary=n % 2 == 0) for n in range(60)]
    frames = mutated(pull_borders() + 10 * plain, 3000 if LONG else 1200, 7)
    outcome, found = differences(tmp_path, [*filled(), *frames, *joined(frames[:50] + 10 * plain, 100, 2)])
    assert not found, "\n".join(found[:5])
    assert outcome.in_lane > 300


numbers = st.integers(-2, 70).map(str) | st.sampled_from(["00", "1e3", "4294967296", "9223372036854775808"])
fields = st.fixed_dictionaries({}, optional={
    **{name: numbers for name in PULLED if name not in ("topic", "consumerGroup", "expressionType", "bname")},
    "topic": st.sampled_from(["Plain", "Other", "Batch"]), "queueId": st.integers(-1, 4).map(str),
    "sysFlag": st.integers(0, 31).map(str), "subscription": st.sampled_from(["*", "t1", "t0 || t2", "\xe9", "||"]),
    "consumerGroup": st.sampled_from(["readers", "others"]), "expressionType": st.sampled_from(["TAG", "SQL92", ""])})
pulls = st.builds(pull, fields, binary=st.booleans(), code=st.sampled_from([11, 361]),
                  opaque=st.integers(0, (1 << 31) - 1))


@settings(max_examples=25 if LONG else 10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(pulls | st.builds(send), min_size=1, max_size=8).map(b"".join), min_size=1, max_size=12))
def test_any_pulls_are_served_as_ever(tmp_path_factory, chunks):
    _, found = differences(tmp_path_factory.mktemp("any"), [*filled(60), *chunks])
    assert not found, "\n".join(found[:3])


def changed_topic(world):
    world.store.topics.update(TopicConfig(topic_name="Plain", perm=PERM_WRITE))
    return b""


def fewer_queues(world):
    world.store.topics.update(TopicConfig(topic_name="Plain", read_queue_nums=1))
    return b""


def group_off(world):
    world.controller.broker.groups.update_all([SubscriptionGroupConfig(group_name="readers", consume_enable=False)])
    return b""


def forbidden(world):
    world.controller.broker.groups.set_readable("readers", "Plain", readable=False)
    return b""


def deleted(world):
    world.store.delete_topics(["Plain"])
    return b""


def reset(world):
    world.controller.broker.offsets.assign_reset("readers", "Plain", {1: 5})
    return b""


CHANGES = {
    "perm": (changed_topic, [16]), "queues": (fewer_queues, [29]), "consumeEnable": (group_off, [16]),
    "forbidden": (forbidden, [16]), "deleted": (deleted, [17]), "reset": (reset, [21]),
    "tags": (member(tags="t1", version=1795688144161), [0]),
    "model": (member(model="BROADCASTING"), [0])}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_ends_what_was_proven(tmp_path, name):
    change, after = CHANGES[name]
    chunks = [*filled(), pull() + pull(), change, pull(), pull() + pull({"queueOffset": "9"})]
    outcome, found = differences(tmp_path, chunks)
    assert not found, "\n".join(found)
    assert codes(outcome.answers[6]) == after


def test_a_group_without_members_is_not_proven_any_more(tmp_path):
    with opened(tmp_path) as world:
        for chunk in filled():
            chunk(world) if callable(chunk) else world.exchange(chunk)
        before = world.in_lane
        assert of(world, pull() * 3) == [0, 0, 0]
        assert world.in_lane == before + 2
        world.controller.broker.clients.consumers.closed(world.member)
        assert of(world, pull()) == [24]  # SUBSCRIPTION_NOT_EXIST
        assert of(world, pull(own()) + pull(own())) == [0, 0], "with its own subscription it needs no member"
        assert world.in_lane == before + 3


def test_the_setting_turns_the_lane_off(tmp_path):
    with opened(tmp_path) as world:
        for chunk in filled():
            chunk(world) if callable(chunk) else world.exchange(chunk)
        before = world.in_lane
        world.exchange(pull() * 3)
        world.change_setting("plainLaneEnable", "false")
        world.exchange(pull() * 3)
        assert world.in_lane == before + 2
        world.change_setting("plainLaneEnable", "true")
        world.exchange(pull() * 3)
        assert world.in_lane == before + 4


def test_a_server_with_users_or_that_stops_has_no_lane(tmp_path):
    with opened(tmp_path) as world:
        for chunk in filled():
            chunk(world) if callable(chunk) else world.exchange(chunk)
        world.exchange(pull() * 2)
        before, seen = world.in_lane, []
        world.server.check = lambda channel, request: seen.append(request.code)
        world.exchange(pull() * 2)
        world.server.check = None
        world.server.draining = True
        assert of(world, pull() * 2) == [1500, 1500]  # GO_AWAY
        assert (seen, world.in_lane) == ([11, 11], before)


def test_what_the_lane_commits_is_committed_when_its_answer_is_written(tmp_path):
    with opened(tmp_path) as world:
        for chunk in filled():
            chunk(world) if callable(chunk) else world.exchange(chunk)
        offsets = world.controller.broker.offsets
        asked = encode(RemotingCommand(
            14, {"consumerGroup": "readers", "topic": "Plain", "queueId": "1"}, opaque=8))
        answer = world.exchange(pull() + pull({"commitOffset": "41"}) + asked)
        command, at = decode_frame(answer, 0, len(answer))
        while command.opaque != 8:
            command, at = decode_frame(answer, at, len(answer))
        assert (command.ext["offset"], offsets.query("readers", "Plain", 1)) == ("41", 41)
        assert offsets.query_pull("readers", "Plain", 1) == 32


def test_an_error_of_the_disk_is_answered_and_counted_by_the_ordinary_path(tmp_path, monkeypatch):
    found = []
    for lane in (False, True):
        with opened(tmp_path / str(lane), lane=lane) as world:
            for chunk in filled():
                chunk(world) if callable(chunk) else world.exchange(chunk)
            world.exchange(pull() * 2)
            files, failures = world.store.inner.commit_log.queue, []
            unreadable = world.store.inner.commit_log.unreadable
            monkeypatch.setattr(unreadable, "gives_up", lambda at, error, failures=failures: failures.append(at))

            def broken(*_, **__):
                raise OSError(5, "the test has no disk")

            with monkeypatch.context() as patch:
                patch.setattr(type(files), "hold_around", broken)
                for file in files.files:
                    patch.setattr(type(file), "hold_view", lambda _: None)
                found.append((world.exchange(pull()), failures))
    assert found[0] == found[1]
    assert len(found[1][1]) == 1


def test_no_more_subscriptions_are_kept_than_allowed(tmp_path, monkeypatch):
    monkeypatch.setattr(proven, "MOST", 4)
    with opened(tmp_path) as world:
        for chunk in filled():
            chunk(world) if callable(chunk) else world.exchange(chunk)
        before = world.in_lane
        for n in range(10):
            world.exchange(pull(own(f"t1 || x{n}")) * 3)
        assert world.in_lane == before + 20
        assert len(world.controller._pull_lane._proven.table) <= 4


def test_interpreted_kernels_have_no_lane_and_make_the_same_frames(tmp_path):
    module, units = interpreted("pull_lane"), interpreted("unit_records")
    parts = (b"12345678a", b"b", b"c", b"d", b"e"), (b"12345678" + bytes(13) + b"\0\0\0\0" + bytes(4),
                                                  b"x", b"y", b"z", b"e")
    proven, version = {}, object()
    proven[b"readers", b"Plain", None] = module.PlainSubscription("readers", "Plain", version, 4, 0, None, *parts)
    assert not module.PlainPulls(proven).read(pull(), 0, version)
    with opened(tmp_path) as world:
        for chunk in filled()[:-1]:
            chunk(world) if callable(chunk) else world.exchange(chunk)
        store = world.store.inner
        queue, made = store.queues.table["Plain", 1], []
        for room in (AnswerFrame, units.AnswerFrame):
            for kind in (0, 1):
                reader = store.reader._units if room is AnswerFrame else units.UnitReader(
                    store.commit_log, units.SeenPages(1 << 22, lambda: 0), store.config, store.reader,
                    store.reader._log_damage, None)
                frame = room()
                frame.begin(parts[kind], bool(kind), 77)
                made.append([(reader.fill(queue, at, 32, most, None, frame), frame.size, frame.next_offset)
                             for at in (0, 5, 60, 66, 67) for most in (1, 1000, 1 << 20)])
        assert made[:2] == made[2:]
        assert made[0][0][0]
        assert made[0][-1][0] is None
        with pytest.raises(ValueError, match="4 parts of 4 bytes"):
            AnswerFrame().begin((b"a",) * 4, False, 1)


def test_a_queue_that_is_deleted_has_no_message_in_the_lane(tmp_path):
    chunks = [*filled(), pull() * 2, deleted, lambda world: world.store.create_topic("Plain", 4) and b"", pull() * 2,
              send({"queueId": "1"}), dispatch, pull({"queueOffset": "67"}) * 2]
    _, found = differences(tmp_path, chunks)
    assert not found, "\n".join(found)
