"""Send-back (request 36): retry topics, delay levels, dead letters."""

import pytest
from broker_kit import wired

from tailrace.broker.messages.send_back import SendBackProcessor
from tailrace.formats.commitlog import decode_message
from tailrace.formats.copied_properties import SENT_PROPERTIES_MAX
from tailrace.formats.remoting import decode_frame
from tailrace.kernels.properties import encode_properties
from tailrace.model import MessageExtBrokerInner, PutMessageStatus
from tailrace.node.subscription_group import SubscriptionGroupConfig


@pytest.fixture
def back(broker, channel, kit, store):
    made = kit.served(wired(SendBackProcessor, broker))

    def call(offset=0, level=0, version=479, **more):
        ext = {"group": "g", "offset": str(offset), "delayLevel": str(level), **more}
        return made.send_back(channel, kit.request(36, ext, version=version))

    return call


@pytest.fixture
def stored(store):
    def put(times=0, **properties):
        return store.put_inner(MessageExtBrokerInner(
            "orders", 2, b"body", encode_properties({"UNIQ_KEY": "U", "TAGS": "t", **properties}), 7,
            0, 1_600_000_000_000, b"\x01\2\3\4\0\0\0\5", times))

    return put


@pytest.fixture
def last(store, clock):
    """Returns the last message, after its delay if it has one."""
    def delivered():
        clock.ms += 3 * 3_600_000
        store.timer_services.schedule.step()
        store.wait_dispatched()
        return decode_message(store.log[-1])

    return delivered


def test_a_message_goes_to_the_retry_topic_of_its_group(back, stored, store, broker, last):
    at = stored().phy_offset
    assert back(at, originMsgId="x", originTopic="orders", unitMode="false").code == 0
    first, again = decode_message(store.log[0]), last()
    assert (again.topic, again.queue_id, again.reconsume_times) == ("%RETRY%g", 0, 1)
    assert (again.body, again.flag, again.born_timestamp, again.born_host) == (
        first.body, first.flag, first.born_timestamp, first.born_host)
    assert again.properties == {
        "RETRY_TOPIC": "orders", "UNIQ_KEY": "U", "TAGS": "t", "WAIT": "false", "DELAY": "3",
        "ORIGIN_MESSAGE_ID": first.msg_id, "REAL_TOPIC": "%RETRY%g", "REAL_QID": "0"}
    assert len(first.msg_id) == 32
    topic = broker.topics.table["%RETRY%g"]
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (1, 1, 6)


def test_each_time_the_delay_is_a_level_longer_and_what_came_first_is_kept(back, stored, store, last):
    stored()
    found = []
    for _ in range(3):
        assert back(decode_message(store.log[-1]).phy_offset).code == 0
        found.append(last())
    first = decode_message(store.log[0])
    assert [m.properties["DELAY"] for m in found] == ["3", "4", "5"]
    assert [m.reconsume_times for m in found] == [1, 2, 3]
    assert {m.properties["ORIGIN_MESSAGE_ID"] for m in found} == {first.msg_id}
    assert {m.properties["RETRY_TOPIC"] for m in found} == {"orders"}


def test_the_consumer_may_choose_the_level(back, stored, store):
    assert back(stored().phy_offset, 7).code == 0
    assert decode_message(store.log[-1]).properties["DELAY"] == "7"


@pytest.mark.parametrize(("times", "level", "more", "topic"), [
    (15, 0, {}, "%RETRY%g"),
    (16, 0, {}, "%DLQ%g"),
    (0, -1, {}, "%DLQ%g"),
    (1, 0, {"maxReconsumeTimes": "2"}, "%RETRY%g"),
    (2, 0, {"maxReconsumeTimes": "2"}, "%DLQ%g"),
    (2, 0, {"maxReconsumeTimes": "2", "version": 120}, "%RETRY%g"),
    (17, 0, {"maxReconsumeTimes": "99"}, "%RETRY%g"),
])
def test_after_too_many_times_it_is_a_dead_letter(back, stored, last, broker, times, level, more, topic):
    assert back(stored(times).phy_offset, level, **more).code == 0
    found = last()
    assert (found.topic, found.queue_id, found.reconsume_times) == (topic, 0, times + 1)
    assert (found.properties["DELAY"] == "0") == topic.startswith("%DLQ%")
    assert broker.traffic.dead_letters["g"] == topic.startswith("%DLQ%")
    assert broker.topics.table[topic].write_queue_nums == 1


def test_queues_of_the_retry_topic_are_those_of_the_group(back, stored, store, broker):
    broker.groups.update_all([SubscriptionGroupConfig(group_name="g", retry_queue_nums=4)])
    at = stored().phy_offset
    for _ in range(40):
        assert back(at).code == 0
    assert {decode_message(r).properties["REAL_QID"] for r in store.log[1:]} == {"0", "1", "2", "3"}


def test_a_group_without_retry_queues_drops_it(back, stored, store, broker):
    broker.groups.update_all([SubscriptionGroupConfig(group_name="g", retry_queue_nums=0)])
    assert back(stored().phy_offset).code == 0
    assert len(store.log) == 1


def test_what_cannot_be_is_answered(back, stored, store, broker):
    at = stored().phy_offset
    missing = back(12345)
    assert (missing.code, missing.remark) == (1, "look message by offset failed, 12345")
    assert back(at, group="no blanks").code == 26
    broker.topics.table["%RETRY%g"].perm = 4
    assert back(at).code == 16
    broker.topics.table["%RETRY%g"].perm = 6
    store.next_status = PutMessageStatus.SERVICE_NOT_AVAILABLE
    refused = back(at)
    assert (refused.code, refused.remark) == (1, "SERVICE_NOT_AVAILABLE")
    assert len(store.log) == 1


def test_a_unit_of_a_unit_says_so_on_its_topic(back, stored, broker):
    assert back(stored().phy_offset, unitMode="true").code == 0
    assert broker.topics.table["%RETRY%g"].topic_sys_flag == 2


def test_an_answer_waits_until_the_message_is_durable(stored, broker, channel, kit, store):
    """The consumer continues once it is answered and never sends it back again."""

    class Durable:
        def __init__(self):
            self.waiting = []

        def add(self, channel, answer, until, then=None, *, names_slaves):
            self.waiting.append((answer, until))

    at, durable = stored().phy_offset, Durable()
    made = kit.served(wired(SendBackProcessor, broker, durable))
    ext = {"group": "g", "offset": str(at), "delayLevel": "0"}
    assert made.send_back(channel, kit.request(36, ext)) is None
    (answer, until), = durable.waiting
    assert decode_frame(answer, 0, len(answer))[0].code == 0
    assert until > decode_message(store.log[1]).phy_offset
    missing = made.send_back(channel, kit.request(36, {**ext, "offset": "999999"}))
    assert missing.code != 0, "a refusal waits for nothing"


def test_a_message_near_the_limit_is_retried_and_becomes_a_dead_letter(back, store, last, caplog):
    """A Java broker and older releases accept properties that leave no room for those of a retry."""
    store.put_inner(MessageExtBrokerInner(
        "orders", 2, b"body", encode_properties({"UNIQ_KEY": "U", "TAGS": "t", "p": "x" * 32_700, "q": "1"}), 7,
        0, 1_600_000_000_000, b"\x01\2\3\4\0\0\0\5", 0))
    assert back(0, maxReconsumeTimes="1").code == 0
    first, again = decode_message(store.log[0]), last()
    assert back(again.phy_offset, maxReconsumeTimes="1").code == 0
    dead = last()
    assert (again.topic, again.properties["DELAY"], dead.topic) == ("%RETRY%g", "3", "%DLQ%g")
    for copy in (again, dead):
        assert copy.properties["RETRY_TOPIC"] == "orders"
        assert copy.properties["ORIGIN_MESSAGE_ID"] == first.msg_id
        assert (copy.tags, copy.unique_key, copy.properties["q"]) == ("t", "U", "1")
        assert "p" not in copy.properties
        assert copy.properties["TAILRACE_LEFT_OUT"] == "p"
        assert len(copy.msg_id) == 32
        assert copy.body == b"body"
    assert caplog.text.count("properties left out of a copy") == 1  # the dead letter is made of the copy


def test_the_longest_message_that_a_send_takes_is_retried_whole(back, broker, channel, kit, store):
    stored_size = SENT_PROPERTIES_MAX
    store.put_inner(MessageExtBrokerInner(
        "orders", 2, b"body", encode_properties({"p": "x" * (stored_size - 3)}), 7, 0, 1, b"\x01\2\3\4\0\0\0\5", 0))
    for _ in range(3):
        assert back(decode_message(store.log[-1]).phy_offset).code == 0
    assert decode_message(store.log[-1]).properties["p"] == "x" * (stored_size - 3)
