"""Pops in order: a queue is blocked until its messages are acknowledged or visible again."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from tailrace.env.filesystem import OsFileSystem
from tailrace.formats import fastjson
from tailrace.formats.pop import ExtraInfo
from tailrace.node.consumer_order_info import ConsumerOrderInfoManager


def pop(world, **changes):
    return world.pop(order="true", queueId=0, **changes)


def bodies(ones):
    return [one.body for one in ones]


@pytest.fixture
def three(world):
    for n in range(3):
        world.send(b"%d" % n)
    return world


def test_a_queue_is_blocked_until_all_are_acknowledged(three):
    world = three
    ones = pop(world, maxMsgNums=2)
    assert {ExtraInfo.decode(one.receipt).revive_queue_id for one in ones} == {999}
    assert pop(world) == []
    assert world.ack(ones[1]).code == 0
    assert world.broker.offsets.query("g", "orders", 0) == 0
    assert world.ack(ones[0]).code == 0
    assert world.broker.offsets.query("g", "orders", 0) == 2
    assert bodies(pop(world)) == [b"2"]
    assert world.records() == []


def test_they_come_again_in_order_and_are_counted(three):
    world = three
    assert bodies(pop(world)) == [b"0", b"1", b"2"]
    world.run(9_900)
    assert pop(world) == []
    world.run(200)
    answer = world.pop_answer(order="true", queueId=0)
    assert answer.ext["orderCountInfo"] == "0 qo0%0 1;0 qo0%1 1;0 qo0%2 1;0 0 1"
    world.run(10_100)
    world.send(b"3")
    answer = world.pop_answer(order="true", queueId=0)
    assert answer.ext["orderCountInfo"] == "0 qo0%0 2;0 qo0%1 2;0 qo0%2 2;0 0 0"


def test_an_acknowledgement_of_an_older_pop_changes_nothing_and_a_foreign_one_is_refused(three):
    world = three
    old = pop(world)
    world.run(10_100)
    new = pop(world, maxMsgNums=2)
    assert world.ack(old[0]).code == 0
    assert world.broker.offsets.query("g", "orders", 0) == 0
    info = ExtraInfo.decode(new[0].receipt)
    with pytest.raises(Exception, match="offset is illegal") as raised:
        world.ack(new[0], offset=2, extraInfo=info.encode())
    assert raised.value.code == 13
    assert world.ack_all(new).code == 0
    assert world.broker.offsets.query("g", "orders", 0) == 2


def test_the_time_of_a_message_can_be_changed(three):
    world = three
    one, = pop(world, maxMsgNums=1)
    answer, later = world.change(one, 1_000)
    assert int(answer.ext["popTime"]) == ExtraInfo.decode(one.receipt).pop_time
    assert pop(world) == []
    world.run(1_000)
    assert bodies(pop(world)) == [b"0", b"1", b"2"]
    assert world.ack(later).code == 0


def test_a_pop_that_is_tried_again_is_not_blocked_by_itself(three):
    world = three
    first = pop(world, attemptId="a")
    again = pop(world, attemptId="a")
    assert bodies(first) == bodies(again)
    assert pop(world, attemptId="b") == []
    world.clock.advance(1)
    answer = world.pop_answer(order="true", queueId=0, attemptId="a")
    assert answer.ext["orderCountInfo"] == "0 0 0"


def test_a_waiting_pop_is_woken_when_the_queue_is_free(three, turns):
    world = three
    ones = pop(world, maxMsgNums=2)
    assert world.pop_answer(order="true", queueId=0, pollTime=15_000) is None
    world.ack_all(ones)
    turns()
    assert [answer.ext["msgOffsetInfo"] for answer in world.channel.sent] == ["0 0 2"]


def test_the_state_is_kept_over_a_stop_in_the_form_of_the_reference(three):
    world = three
    ones = pop(world, maxMsgNums=2, attemptId="att")
    world.ack(ones[0])
    world.close()
    text = json.loads((world.path / "config/consumerOrderInfo.json").read_text())["table"]["orders@g"]["0"]
    info = ExtraInfo.decode(ones[0].receipt)
    assert text == {
        "a": "att", "cm": 1, "i": 10_000, "l": world.clock.now_ms(), "o": [0, 1], "popTime": info.pop_time}
    world.open()
    assert pop(world) == []
    world.ack(ones[1])
    assert bodies(pop(world)) == [b"2"]


GOLDEN = """{
	"orderInfoCount":1, "orderedConsumptionLevel":"QUEUE",
	"table":{ "topic@group":{
		0:{ "cm":0, "i":60000, "l":1795387666311, "o":[5], "popTime":1700000000123 },
		1:{ "a":"att2", "cm":2, "i":60000, "l":1795387666311, "o":[5,1,3,4], "oc":{ 5:1, 6:1, 8:1 },
			"ot":{ 5:1700000099223 }, "popTime":1700000000223 } } }
}"""


def test_a_file_that_the_reference_wrote_is_read(tmp_path, clock):
    config = tmp_path / "config"
    config.mkdir()
    (config / "consumerOrderInfo.json").write_text(GOLDEN)
    order = ConsumerOrderInfoManager(OsFileSystem(), str(config), clock, lambda *_: None)
    assert order.load()
    found = {queue_id: info for _, _, queue_id, info in order.entries()}
    assert found[1].offsets == [5, 6, 8, 9]
    assert (found[1].consumed, found[1].next_visible) == ({5: 1, 6: 1, 8: 1}, {5: 1_700_000_099_223})
    assert order.commit("topic", "group", 1, 5, 1_700_000_000_223) == 8
    table = fastjson.loads(fastjson.dumps(order.to_json()))["table"]
    assert table["topic@group"]["0"] == fastjson.loads(GOLDEN)["table"]["topic@group"]["0"]
    assert (order.commit("topic", "group", 1, 7, 1_700_000_000_223), order.commit("t", "g", 0, 7, 1)) == (-1, -2)
    order.drop_unused(lambda *_: False)
    assert order.entries() == []


def in_thread(step):
    """The result of ``step`` in another thread; raises what it raises."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(step).result(10)


@pytest.mark.parametrize("step", [
    lambda world: world.pop_part.prepare(),
    lambda world: world.pop_part.order.drop_unused(lambda *_: False),
    lambda world: world.pop_part.order.clear("orders", "g", 0),
    lambda world: world.pop_part.order.popped(None, "orders", "g", 0, 1, 1, [7]),
    lambda world: world.pop_part.order.commit("orders", "g", 0, 0, 1),
    lambda world: world.pop_part.order.change_visible("orders", "g", 0, 0, 1, 1),
    lambda world: world.pop_part.order.is_blocked(None, "orders", "g", 0, 1),
])
def test_pops_in_order_belong_to_one_thread(three, step):
    """A thread that writes the file and drops old entries took the table of a pop away that had just begun."""
    with pytest.raises(AssertionError, match="belongs to another thread"):
        in_thread(lambda: step(three))


def test_the_file_is_written_by_another_thread_from_what_the_owner_has_encoded(three, tmp_path):
    world = three
    first = pop(world, maxMsgNums=1)
    world.pop_part.prepare()
    world.ack(first[0])
    pop(world)  # not in the file yet
    in_thread(world.pop_part.write_prepared)
    file = tmp_path / "store" / "config" / "consumerOrderInfo.json"
    assert fastjson.loads(file.read_bytes())["table"]["orders@g"]["0"]["o"] == [0]
    in_thread(world.pop_part.write_prepared)  # nothing new
    assert world.pop_part.order.writes == 1
    world.pop_part.prepare()
    in_thread(world.pop_part.write_prepared)
    assert fastjson.loads(file.read_bytes())["table"]["orders@g"]["0"]["o"] == [1, 1]


def test_a_write_that_fails_is_made_by_the_next_call(three, tmp_path, monkeypatch):
    world = three
    pop(world, maxMsgNums=1)
    order = world.pop_part.order
    world.pop_part.prepare()

    def full(text):
        raise OSError(28, "no space")

    with monkeypatch.context() as broken:
        broken.setattr(order, "_replace", full)
        for _ in range(2):
            with pytest.raises(OSError, match="no space"):
                order.write_prepared()
            order.prepare()
    order.write_prepared()
    assert fastjson.loads((tmp_path / "store" / "config" / "consumerOrderInfo.json").read_bytes())["table"]


def test_a_reset_ends_the_block(three):
    world = three
    pop(world)
    world.broker.offsets.assign_reset("g", "orders", {0: 1})
    assert bodies(pop(world)) == [b"1", b"2"]


def test_an_acknowledgement_of_a_pop_that_a_kill_took_skips_no_message(three):
    """A Java broker moves the offset after the acknowledged message, and loses the ones before."""
    world = three
    ones = pop(world)
    world.kill()
    world.open()
    assert world.ack(ones[1]).code == 0
    assert bodies(pop(world)) == [b"0", b"1", b"2"]


def test_pops_of_another_broker_are_taken_without_messages_that_this_one_does_not_have(three):
    """A slave whose HA connection is down gets pops of messages that it lacks; the next copy brings them again."""
    orders = three.broker.order
    pop(three, maxMsgNums=2)
    theirs = json.loads(json.dumps(orders.to_json()))
    orders.clear("orders", "g", 0)
    orders.take(theirs, lambda topic, queue_id: 1)
    assert orders.entries() == []
    orders.take(theirs, lambda topic, queue_id: 2)
    assert [(topic, group, info.offsets) for topic, group, _, info in orders.entries()] == [("orders", "g", [0, 1])]
