"""Pops, acknowledgements, and redeliveries."""

from __future__ import annotations

import dataclasses
import json

import pytest

from tailrace.config import BrokerConfig
from tailrace.formats.pop import REVIVE_GROUP, ExtraInfo
from tailrace.node.topic_config import TopicConfig


def bodies(ones):
    return [one.body for one in ones]


def test_a_pop_hands_out_messages_of_all_queues_with_their_receipts(world):
    for n in range(4):
        world.send(b"%d" % n, queue_id=n % 2)
    ones = world.pop()
    assert sorted(bodies(ones)) == [b"0", b"1", b"2", b"3"]
    for one in ones:
        info = ExtraInfo.decode(one.receipt)
        assert (info.start_offset, info.invisible_time, info.flag) == (0, 10_000, "0")
        assert (info.queue_id, info.queue_offset) == (one.message.queue_id, one.message.queue_offset)
    assert world.pop() == []
    assert world.broker.offsets.query("g", "orders", 0) == 2


def test_the_answer_has_the_fields_of_the_reference(world):
    world.send(queue_id=1)
    world.send(queue_id=1)
    answer = world.pop_answer(queueId=1)
    assert (answer.code, answer.remark) == (0, "FOUND")
    assert answer.ext == {
        "popTime": str(world.clock.now_ms()), "invisibleTime": "10000", "reviveQid": answer.ext["reviveQid"],
        "restNum": "0", "startOffsetInfo": "0 1 0", "msgOffsetInfo": "0 1 0,1"}
    assert 0 <= int(answer.ext["reviveQid"]) < 8
    empty = world.pop_answer(queueId=1)
    assert (empty.code, empty.remark, empty.ext["msgOffsetInfo"]) == (210, "NO_MESSAGE_IN_QUEUE", "")


def test_a_checkpoint_waits_until_a_second_before_its_time(world):
    world.send()
    world.pop()
    world.steps()
    assert world.records() == []
    world.run(8_500)
    assert world.records() == []
    world.run(1_500)
    checkpoint, = world.records()
    assert (checkpoint.tags, json.loads(checkpoint.body)["n"]) == ("ck", 1)
    assert checkpoint.unique_key.startswith(f"orders@0@0@g@{json.loads(checkpoint.body)['pt']}@broker-a@ck@")


def test_what_is_not_acknowledged_comes_back_once_and_what_is_never(world):
    for n in range(6):
        world.send(b"%d" % n, TAGS="a")
    ones = world.pop(queueId=0)
    assert world.ack(ones[0]).code == 0
    assert world.ack_all(ones[1:3]).code == 0
    assert world.ack_all(ones[3:4]).code == 0
    world.run(9_500)
    assert world.pop() == []
    world.run(4_000)
    again = world.pop()
    assert bodies(again) == [b"4", b"5"]
    for one in again:
        assert (one.reconsume_times, one.message.tags) == (1, "a")
        assert one.message.properties["ORIGIN_GROUP"] == "g"
        assert int(one.message.properties["1ST_POP_TIME"]) == ExtraInfo.decode(ones[0].receipt).pop_time
        assert one.topic == "%RETRY%g_orders"
        assert world.ack(one).code == 0
    world.run(30_000)
    assert world.pop() == []


def test_each_time_it_comes_back_counts_and_keeps_the_first_pop_time(world):
    world.send()
    first = ExtraInfo.decode(world.pop()[0].receipt).pop_time
    for times in range(1, 4):
        world.run(14_000)
        one, = world.pop()
        assert one.reconsume_times == times
        assert int(one.message.properties["1ST_POP_TIME"]) == first
    assert len(world.records("%RETRY%g_orders")) == 3


def test_groups_pop_apart(world):
    world.send(b"a")
    assert bodies(world.pop()) == bodies(world.pop(consumerGroup="h")) == [b"a"]
    world.run(14_000)
    assert {one.topic for one in world.pop()} == {"%RETRY%g_orders"}
    assert {one.topic for one in world.pop(consumerGroup="h")} == {"%RETRY%h_orders"}


def test_a_time_of_less_than_a_second(world):
    world.send()
    one, = world.pop(invisibleTime=300)
    world.run(4_000)
    assert world.pop()[0].reconsume_times == 1
    assert world.ack(one).code == 0  # too late: nothing changes
    world.run(20_000)
    assert world.pop()[0].reconsume_times == 2


def test_tags_are_chosen_and_others_passed_over(world):
    for n in range(6):
        world.send(b"%d" % n, TAGS="ab"[n % 2])
    assert bodies(world.pop(exp="b", expType="TAG")) == [b"1", b"3", b"5"]
    assert world.pop(exp="a") == []
    world.run(14_000)
    assert bodies(world.pop(exp="b")) == [b"1", b"3", b"5"]


def test_messages_are_chosen_by_an_expression(open_world):
    world = open_world(broker_config=BrokerConfig(enable_property_filter=True))
    for n in range(6):
        world.send(b"%d" % n, a=str(n))
    asked = {"exp": "a > 3", "expType": "SQL92"}
    assert bodies(world.pop(**asked)) == [b"4", b"5"]
    world.run(14_000)
    assert bodies(world.pop(**asked)) == [b"4", b"5"]
    assert world.pop(**asked) == []


def test_a_change_of_the_time_replaces_the_checkpoint(world):
    world.send(b"later")
    one, = world.pop()
    answer, later = world.change(one, 60_000)
    assert answer.code == 0
    assert later.receipt != one.receipt
    world.run(20_000)
    assert world.pop() == []
    answer, sooner = world.change(later, 2_000)
    world.run(6_000)
    back, = world.pop()
    assert (back.body, back.reconsume_times) == (b"later", 1)
    assert world.ack(back).code == 0
    world.run(60_000)
    assert world.pop() == []
    assert world.ack(sooner).code == 0


def test_a_suspended_message_comes_back_without_counting(world):
    world.send()
    one, = world.pop()
    world.change(one, 2_000, suspend="true")
    world.run(6_000)
    assert world.pop()[0].reconsume_times == 0


def test_acknowledgements_twice_and_too_late_change_nothing(world):
    world.send(b"a")
    one, = world.pop()
    assert [world.ack(one).code, world.ack(one).code, world.ack_all([one]).code] == [0, 0, 0]
    world.run(14_000)
    assert world.pop() == []
    world.send(b"b")
    one, = world.pop()
    world.run(14_000)
    assert world.ack(one).code == 0
    assert bodies(world.pop()) == [b"b"]


@pytest.mark.parametrize(("changes", "code", "said"), [
    ({"topic": "nothing"}, 17, "not exist"), ({"queueId": 9}, 13, "queueId[9]"), ({"queueId": -1}, 13, "queueId[-1]"),
    ({"offset": 99}, 208, "store:0~1"), ({"offset": -1}, 208, "store:0~1"), ({"consumerGroup": "who"}, 26, "who"),
    ({"extraInfo": "x"}, 29, "extraInfo"), ({"extraInfo": "0 1 2 8 0 broker-a 0 0"}, 29, "revive queue 8"),
    ({"extraInfo": "0 1 2 0 0 broker-a 1 0"}, 29, "queue 1"), ({"extraInfo": None}, 1, "extraInfo"),
    ({"offset": "x"}, 1, "offset"), ({"queueId": 1 << 31}, 1, "queueId"), ({"liteTopic": "l"}, 29, "lite"),
])
def test_acknowledgements_that_cannot_be_right_are_refused(world, changes, code, said):
    world.send()
    one, = world.pop(queueId=0)
    for serve in (world.ack, lambda one, **more: world.change(one, 5, **more)[0]):
        try:
            answer = serve(one, **changes)
            found = answer.code, answer.remark
        except Exception as error:
            found = error.code, error.remark
        assert found[0] == code
        assert said in found[1].replace(", change:", ", commit:")


@pytest.mark.parametrize(("changes", "code"), [
    ({"maxMsgNums": 33}, 29), ({"maxMsgNums": 0}, 29), ({"invisibleTime": 0}, 29), ({"invisibleTime": 10**12}, 29),
    ({"topic": "nothing"}, 17), ({"queueId": 2}, 29), ({"consumerGroup": "no group"}, 26),
    ({"exp": "||"}, 23), ({"exp": "a > 1", "expType": "NOPE"}, 23), ({"queueId": "x"}, 1), ({"topic": None}, 1),
    ({"order": "maybe"}, 1), ({"exp": "x" * 100_000}, 23),
])
def test_pops_that_cannot_be_served_are_refused(world, changes, code):
    try:
        found = world.pop_answer(**changes).code
    except Exception as error:
        found = error.code
    assert found == code
    assert world.broker.offsets.entries() == []


def test_a_batch_acknowledgement_is_checked_before_any_of_it_counts(world):
    world.send(b"a")
    ones = world.pop()
    for changes in ({"rq": 8}, {"r": "7"}, {"t": 5}, {"so": "x"}, {"c": "who"}, {"q": 7}, {"b": "?"}, {"pt": -1}):
        with pytest.raises(Exception, match=r".") as raised:
            world.ack_all(ones, **changes)
        assert type(raised.value).__name__ in {"RefusalError", "MessageIllegalError"}
    with pytest.raises(Exception, match="no message"):
        world.ask(world.pop_part.acks.ack_messages, {}, b"{}", 200_151)
    world.run(14_000)
    assert bodies(world.pop()) == [b"a"]


def test_a_reset_moves_the_next_pop(world):
    for n in range(3):
        world.send(b"%d" % n)
    assert len(world.pop(queueId=0)) == 3
    world.broker.offsets.assign_reset("g", "orders", {0: 1})
    assert bodies(world.pop(queueId=0)) == [b"1", b"2"]
    assert world.pop(queueId=0) == []


def test_a_new_group_starts_where_it_says(open_world):
    world = open_world(broker_config=BrokerConfig(init_pop_offset_by_check_msg_in_mem=False))
    for n in range(3):
        world.send(b"%d" % n)
    assert bodies(world.pop(queueId=0, initMode=1, consumerGroup="end")) == [b"2"]
    assert bodies(world.pop(queueId=0, initMode=0, consumerGroup="start")) == [b"0", b"1", b"2"]


def test_retry_topics_of_the_second_form(open_world):
    world = open_world(broker_config=BrokerConfig(enable_retry_topic_v2=True))
    world.send(b"a")
    world.pop()
    world.run(14_000)
    one, = world.pop()
    assert (one.body, one.topic) == (b"a", "%RETRY%g+orders")
    assert world.ack(one).code == 0
    world.run(14_000)
    assert world.pop() == []


def test_progress_is_kept_over_a_clean_stop(open_world):
    world = open_world()
    for n in range(4):
        world.send(b"%d" % n)
    ones = world.pop(queueId=0)
    world.ack(ones[0])
    world.close()
    world.open()
    world.ack(ones[1])
    world.run(14_000)
    assert bodies(world.pop()) == [b"2", b"3"]
    world.close()
    world.open()
    world.run(3_000)
    assert len(world.records("%RETRY%g_orders")) == 2
    offsets = [o for t, g, _, o in world.broker.offsets.entries() if g == REVIVE_GROUP]
    assert max(offsets) >= 2


@pytest.mark.parametrize("purged", [False, True])
def test_after_a_kill_nothing_is_lost_and_no_second_copy_is_made(open_world, purged):
    world = open_world()
    for n in range(4):
        world.send(b"%d" % n)
    ones = world.pop(queueId=0)
    world.ack(ones[0])
    world.broker.offsets.persist_if_changed()
    world.kill()
    world.open()
    world.run(14_000)
    again = world.pop()
    assert bodies(again) == [b"1", b"2", b"3"]
    for one in again:
        world.ack(one)
    if purged:
        world.store.purge_topic("%RETRY%g_orders")
    world.kill()  # the offsets on disk are those from before: every checkpoint is read again
    world.open()
    world.run(30_000)
    assert len(world.records("%RETRY%g_orders")) == (0 if purged else 3)


@pytest.mark.parametrize("asc", [True, False])
def test_the_queues_of_a_priority_topic_are_popped_in_their_order(open_world, asc):
    world = open_world(broker_config=BrokerConfig(priority_order_asc=asc))
    topics = world.broker.topics
    topics.change(topics.creation(TopicConfig(
        topic_name="jobs", read_queue_nums=4, write_queue_nums=4, attributes={"message.type": "PRIORITY"})))
    for round_ in range(5):
        for queue_id in range(4):
            world.send(b"%d" % round_, topic="jobs", queue_id=queue_id)
    popped = [world.pop(topic="jobs", maxMsgNums=1)[0].message.queue_id for _ in range(20)]
    wanted = [queue_id for queue_id in range(4) for _ in range(5)]
    assert popped == (wanted[::-1] if asc else wanted)


def test_a_group_without_a_priority_factor_takes_the_queues_of_a_priority_topic_in_turn(world):
    topics, groups = world.broker.topics, world.broker.groups
    topics.change(topics.creation(TopicConfig(
        topic_name="jobs", read_queue_nums=4, write_queue_nums=4, attributes={"message.type": "PRIORITY"})))
    groups.find_or_create("g")
    groups.select("g").attributes["priority.factor"] = "0"
    for queue_id in range(4):
        for _ in range(5):
            world.send(topic="jobs", queue_id=queue_id)
    first = [world.pop(topic="jobs", maxMsgNums=1)[0].message.queue_id for _ in range(10)]
    assert len(set(first[:5])) > 1


def test_checkpoints_and_acknowledgements_are_counted(world):
    for _ in range(3):
        world.send()
    ones = world.pop(queueId=0)
    world.ack(ones[0])
    world.ack_all(ones[1:])
    flows = world.broker.traffic.counters.flows
    cluster = world.broker_config.broker_cluster_name
    assert {key: flow.messages for key, flow in flows.items() if key[0].endswith(("_CK", "_ACK"))} == {
        ("GROUP_CK", "orders@g"): 1, ("BROKER_CK", cluster): 1,
        ("GROUP_ACK", "orders@g"): 3, ("BROKER_ACK", cluster): 3}


def test_with_separate_retry_queues_a_message_comes_back_in_its_queue(open_world):
    world = open_world(broker_config=BrokerConfig(use_separate_retry_queue=True))
    world.send(b"first", queue_id=0)
    world.pop()
    world.run(12_000)
    topics = world.broker.topics
    retry = topics.select("%RETRY%g_orders")
    assert (retry.read_queue_nums, retry.write_queue_nums) == (2, 2)
    topics.update(dataclasses.replace(topics.select("orders"), read_queue_nums=4, write_queue_nums=4))
    assert bodies(world.pop()) == [b"first"]
    world.send(b"second", queue_id=3)
    world.pop()
    world.run(12_000)
    assert topics.select("%RETRY%g_orders").read_queue_nums == 4
    assert {m.body: m.queue_id for m in world.records("%RETRY%g_orders")} == {b"first": 0, b"second": 3}
    assert sorted(bodies(world.pop())) == [b"first", b"second"]


def test_a_message_whose_time_is_changed_in_the_millisecond_of_its_pop_is_not_lost(world):
    """Both checkpoints had one name, so the acknowledgement of the first one ended the second one."""
    world.send(b"a")
    one, = world.pop(invisibleTime=10_000)
    _, one = world.change(one, 10_500)
    _, one = world.change(one, 11_000)
    world.run(20_000)
    back, = world.pop()
    assert back.reconsume_times == 1
    assert world.ack(back).code == 0
    world.run(20_000)
    assert world.pop() == []


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize(("start", "second_ms"), [(1, 1_000), (0, 900)], ids=["other start", "other revive queue"])
def test_messages_popped_twice_in_one_millisecond_are_acknowledged_in_both_pops(world, batch, start, second_ms):
    """The acknowledgements had one unique key, so the timers dropped the second one as a copy of the first."""
    for _ in range(3):
        world.send()
    first = world.pop(queueId=0, invisibleTime=1_000)
    world.broker.offsets.assign_reset("g", "orders", {0: start})
    second = world.pop(queueId=0, invisibleTime=second_ms)
    assert [len(first), len(second)] == [3, 3 - start]
    assert first[-1].info.pop_time == second[-1].info.pop_time
    for ones in (first, second):
        if batch:
            world.ack_all(ones[-2:])
        for one in ones[:-2] if batch else ones:
            world.ack(one)
    world.run(6_000)
    assert len([m for m in world.records() if m.tags == "ck"]) == 2
    assert (world.pop_part.revive.revived, world.pop_part.revive.pending) == (0, 0)


@pytest.mark.parametrize(("first_ms", "second_ms"), [(2_000, 2_000), (2_000, 4_000), (4_000, 2_000), (900, 800)])
def test_a_message_that_only_the_second_of_two_pops_in_one_millisecond_has_is_not_lost(
    open_world, first_ms, second_ms
):
    """Both checkpoints had one name, so the second one was dropped as a copy of the first."""
    world = open_world(broker_config=BrokerConfig(revive_queue_num=1))
    world.send(b"0")
    world.send(b"1")
    one, = world.pop(queueId=0, maxMsgNums=1, invisibleTime=first_ms)
    world.broker.offsets.assign_reset("g", "orders", {0: 0})
    assert bodies(world.pop(queueId=0, invisibleTime=second_ms)) == [b"0", b"1"]
    assert world.ack(one).code == 0
    world.run(10_000)
    came = sorted(bodies(world.pop()))
    assert came in ([b"1"], [b"0", b"1"])  # the acknowledgement ends a second pop that is in memory
    assert (world.pop_part.revive.revived, world.pop_part.revive.pending) == (len(came), 0)


def test_each_of_two_pops_in_one_millisecond_brings_its_messages_back_once(open_world):
    world = open_world(broker_config=BrokerConfig(revive_queue_num=1))
    world.send(b"0")
    world.send(b"1")
    world.pop(queueId=0, maxMsgNums=1, invisibleTime=2_000)
    for invisible_ms in (2_000, 4_000):
        world.broker.offsets.assign_reset("g", "orders", {0: 0})
        world.pop(queueId=0, invisibleTime=invisible_ms)
    world.run(10_000)
    assert sorted(m.body for m in world.records("%RETRY%g_orders")) == [b"0", b"0", b"0", b"1", b"1"]
    assert world.pop_part.revive.pending == 0


def test_an_acknowledgement_that_comes_to_the_wheel_late_counts(world):
    """The wheel had gone past its time, so it waited in a later slot than the one that the revive service saw."""
    world.send(b"a")
    one, = world.pop(invisibleTime=2_500)
    world.run(1_600)
    assert world.ack(one).code == 0
    world.clock.advance(3_000)
    timers, revive = world.store.timer_services.messages, world.pop_part.revive
    while timers.dequeue_step():
        pass
    world.store.wait_dispatched()
    revive.step()
    timers.enqueue_step()
    revive.step()
    assert revive.revived == 0
    world.run(10_000)
    assert (revive.revived, revive.pending) == (0, 0)


def test_an_acknowledgement_that_came_to_the_wheel_late_counts_after_a_kill(world):
    world.send(b"a")
    one, = world.pop(invisibleTime=2_500)
    world.run(1_600)
    assert world.ack(one).code == 0
    world.clock.advance(3_000)
    timers = world.store.timer_services.messages
    while timers.dequeue_step():
        pass
    world.store.wait_dispatched()
    timers.enqueue_step()
    timers.flush_step()
    world.broker.offsets.persist_if_changed()
    world.kill()
    world.open()
    revive = world.pop_part.revive
    for _ in range(3):
        revive.step()
    assert revive.revived == 0
    world.run(10_000)
    assert (revive.revived, revive.pending) == (0, 0)


def test_a_stop_ends_the_pass_that_brings_messages_back(world, monkeypatch):
    for _ in range(6):
        world.send(b"a")
        world.pop(invisibleTime=1_000)
    revive, put = world.pop_part.revive, world.store.put_inner

    def stop_at_the_second(message):
        if revive.revived == 1:
            world.pop_part.stop_reviving()
        return put(message)

    monkeypatch.setattr(world.store, "put_inner", stop_at_the_second)
    world.run(6_000)
    assert revive.revived == 2
    world.close()
    world.open()
    world.run(6_000)
    assert world.pop_part.revive.revived == 4


def test_what_came_back_is_durable_before_the_progress_says_so(world, monkeypatch):
    world.send(b"a")
    world.pop(invisibleTime=1_000)
    world.run(500)
    world.broker.offsets.persist_if_changed()
    world.run(3_000)
    assert world.pop_part.revive.revived == 1
    synced = []
    monkeypatch.setattr(type(world.store), "flush", lambda store: synced.append(store.max_phy_offset))
    world.broker.offsets.persist_if_changed()
    assert synced == [world.store.max_phy_offset]
