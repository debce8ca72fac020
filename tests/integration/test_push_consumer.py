"""Push consumers and subscribed pull consumers, against `tailrace serve`."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict

import pytest
from heartbeats import frequent_beats, without_subscriptions
from patience import until

from tailrace import Message, Producer, PullConsumer, PushConsumer, RetryLater
from tailrace.client import MessageQueue
from tailrace.errors import ConfigError, RemotingCommandError, StoreLockedError
from tailrace.formats import fastjson
from tailrace.formats.remoting import RequestCode
from tailrace.pytest_plugin import TailraceBroker

pytestmark = [pytest.mark.slow, pytest.mark.integration]


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    """One broker for all tests here; each has its own topics and groups."""
    conf = tmp_path_factory.mktemp("conf") / "broker.conf"
    conf.write_text("enablePropertyFilter=true\nuseServerSideResetOffset=false\n")
    served = TailraceBroker(tmp_path_factory.mktemp("push") / "store", "--config", str(conf))
    served.start()
    yield served
    served.stop()


@pytest.fixture
def producer(broker):
    with Producer(namesrv=broker.namesrv, timeout_ms=10_000) as made:
        yield made


def send(producer, topic, bodies, **more):
    for number in bodies:
        producer.send(Message(topic=topic, body=str(number).encode(), keys=[str(number)], **more))


class Seen:
    """A listener that notes what it was called with."""

    def __init__(self):
        self.messages = []

    def __call__(self, message):
        self.messages.append(message)

    @property
    def numbers(self):
        return sorted(int(message.body) for message in self.messages)


def test_members_share_queues_join_and_leave_and_each_message_is_consumed_once(broker, producer):
    producer.create_topic("shared", queues=6)
    seen = [Seen(), Seen(), Seen()]
    members = [
        PushConsumer("sharers", one, namesrv=broker.namesrv, topics="shared", start="first") for one in seen]
    members[0].start()
    assert len(members[0].assignment()) == 6
    send(producer, "shared", range(30))
    until(lambda: len(seen[0].messages) == 30)
    for member in members[1:]:
        member.start()
    until(lambda: [len(member.assignment()) for member in members] == [2, 2, 2])
    parts = [set(member.assignment()) for member in members]
    assert len(set.union(*parts)) == 6
    send(producer, "shared", range(30, 60))
    until(lambda: sum(len(one.messages) for one in seen) >= 60)
    assert seen[1].messages
    assert seen[2].messages
    members[1].close()
    until(lambda: len(members[0].assignment()) + len(members[2].assignment()) == 6)
    send(producer, "shared", range(60, 90))
    until(lambda: sum(len(one.messages) for one in seen) >= 90)
    time.sleep(0.2)
    members[0].close()
    members[2].close()
    counted = Counter(number for one in seen for number in one.numbers)
    assert sorted(counted) == list(range(90))
    assert max(counted.values()) == 1
    later = Seen()
    with PushConsumer("sharers", later, namesrv=broker.namesrv, topics="shared", start="first") as again:
        assert sorted(again.positions().values()) == [15] * 6  # all was committed at the close
    assert not later.messages


MEMBER = """
import sys
from tailrace import PushConsumer
def listen(message):
    sys.stdout.write(f"{int(message.body)}\\n")  # in one piece, as several threads write
    sys.stdout.flush()
with PushConsumer("killed", listen, namesrv=sys.argv[1], topics="kills", start="first") as consumer:
    print("ready", flush=True)
    consumer.wait()
"""


def test_the_queues_of_a_killed_member_are_taken_over_and_nothing_is_lost(broker, producer):
    producer.create_topic("kills", queues=4)
    seen = Seen()
    with subprocess.Popen([sys.executable, "-c", MEMBER, broker.namesrv], stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout.readline() == "ready\n"
            with PushConsumer("killed", seen, namesrv=broker.namesrv, topics="kills", start="first") as member:
                until(lambda: len(member.assignment()) == 2)
                send(producer, "kills", range(40))
                until(lambda: len(seen.messages) == 20)
                other.kill()
                until(lambda: len(member.assignment()) == 4)
                send(producer, "kills", range(40, 80))
                until(lambda: set(range(40, 80)) <= set(seen.numbers))
        finally:
            other.kill()
        lines = other.stdout.read().split()
    assert set(map(int, lines)) | set(seen.numbers) == set(range(80))


def test_heartbeats_go_without_subscriptions(broker, producer):
    without_subscriptions(producer, broker.namesrv)


def test_a_consumer_goes_on_after_its_broker_was_started_again(tmp_path):
    served = TailraceBroker(tmp_path / "store")
    served.start()
    try:
        ports = served.broker.rpartition(":")[2], served.namesrv.rpartition(":")[2]
        served._options = ("--listen", f"127.0.0.1:{ports[0]}", "--namesrv-listen", f"127.0.0.1:{ports[1]}")
        seen = Seen()
        with frequent_beats(), PushConsumer(
            "goes-on", seen, broker=served.broker, topics="t", start="first",
        ) as member, Producer(broker=served.broker) as producer:
            send(producer, "t", range(10))
            until(lambda: len(seen.messages) == 10)
            until(lambda: sum(member.positions().values()) == 10)
            member.commit()
            served.kill()
            served.start()
            send(producer, "t", range(10, 20))
            until(lambda: set(seen.numbers) == set(range(20)))
    finally:
        served.stop()


@pytest.mark.parametrize("in_order", [False, True])
def test_a_message_whose_listener_fails_comes_again_and_is_a_dead_letter_in_the_end(
    broker, producer, in_order, caplog
):
    topic, group = f"fails-{in_order}", f"failing-{in_order}"
    tries = []

    def listen(message):
        tries.append((message.topic, message.reconsume_times, message.keys))
        if len(tries) == 1 and in_order:
            raise ValueError("broken")
        raise RetryLater(delay_level=1, after_s=0.05)

    with PushConsumer(group, listen, namesrv=broker.namesrv, topics=topic, start="first", in_order=in_order,
                      max_reconsume_times=1, suspend_s=0.05) as member:
        producer.send(Message(topic=topic, body=b"7", keys=["k7"]))
        until(lambda: len(tries) == 2)
        until(lambda: sum(member.positions().values()) >= 1)
        with PullConsumer(namesrv=broker.namesrv, group="undertaker", timeout_ms=10_000) as reader:
            found = []
            until(lambda: found or found.extend(dead_letters(reader, group)))
        assert [(m.body, m.properties["RETRY_TOPIC"]) for m in found] == [(b"7", topic)]
    assert tries == [(topic, 0, ["k7"]), (topic, 1, ["k7"])]
    logged = [r.getMessage() for r in caplog.records if r.getMessage().startswith("listener failed")]
    assert len(logged) == in_order  # RetryLater is no failure
    if in_order:
        assert f"group={group} topic={topic} queue=" in logged[0]
        assert "offset=0 key=k7 reason=ValueError('broken')" in logged[0]


def dead_letters(reader, group):
    try:
        return list(reader.messages(f"%DLQ%{group}", start="first", follow=False))
    except RemotingCommandError:
        return []  # the topic does not exist yet


def test_order_holds_under_a_lock_while_members_come_and_go(broker, producer):
    producer.create_topic("ordered", queues=4)
    running, order, overlaps = defaultdict(int), defaultdict(list), []
    lock = threading.Lock()
    failed = set()

    def listen(message):
        number, queue = int(message.body), message.queue_id
        with lock:
            running[queue] += 1
            if running[queue] > 1:
                overlaps.append(number)
        time.sleep(0.005)
        with lock:
            running[queue] -= 1
            if number % 10 == 3 and number not in failed:
                failed.add(number)
                raise RetryLater(after_s=0.01)
            order[queue].append(number)

    def made():
        return PushConsumer("orderly", listen, namesrv=broker.namesrv, topics="ordered", start="first",
                            in_order=True)

    sender = threading.Thread(target=lambda: send(producer, "ordered", range(200)))
    with made() as first:
        sender.start()
        with made() as second:
            until(lambda: len(first.assignment()) == 2 and len(second.assignment()) == 2)
            time.sleep(0.2)
        sender.join()
        until(lambda: sum(map(len, order.values())) >= 200)
    assert not overlaps
    assert len(failed) == 20
    for numbers in order.values():
        assert numbers == sorted(set(numbers))  # in order, and each once
    assert sorted(n for numbers in order.values() for n in numbers) == list(range(200))


def test_broadcasting_members_all_get_each_message_and_go_on_from_their_files(broker, producer, tmp_path):
    seen = Seen(), Seen()
    options = {"namesrv": broker.namesrv, "topics": "news", "start": "first", "broadcasting": True}
    producer.create_topic("news")
    files = [str(tmp_path / name / "offsets.json") for name in "ab"]
    with PushConsumer("readers", seen[0], offset_file=files[0], **options) as one:
        with PushConsumer("readers", seen[1], offset_file=files[1], **options):
            assert len(one.assignment()) == 4
            send(producer, "news", range(8))
            until(lambda: len(seen[0].messages) == len(seen[1].messages) == 8)
        with pytest.raises(StoreLockedError, match="give each its own offset_file"):
            PushConsumer("readers", print, offset_file=files[0], **options).start()
    again = Seen()
    with PushConsumer("readers", again, offset_file=files[0], **options):
        send(producer, "news", [8])
        until(lambda: again.numbers == [8])
    with pytest.raises(ConfigError, match="name it in offset_file"):
        PushConsumer("readers", print, **options)


def test_pause_resume_and_seek_by_offset_and_time(broker, producer):
    producer.create_topic("sought", queues=1)
    seen = Seen()
    with PushConsumer("seekers", seen, namesrv=broker.namesrv, topics="sought", start="first") as member:
        [queue] = member.assignment()
        send(producer, "sought", range(5))
        until(lambda: len(seen.messages) == 5)
        member.pause()
        send(producer, "sought", range(5, 8))
        time.sleep(0.2)
        assert len(seen.messages) == 5
        member.resume()
        until(lambda: len(seen.messages) == 8)
        time.sleep(0.02)
        middle = time.time_ns() // 1_000_000
        time.sleep(0.02)
        send(producer, "sought", [8])
        until(lambda: len(seen.messages) == 9)
        member.seek(queue, 6)
        until(lambda: len(seen.messages) == 12)
        member.seek_to_time("sought", middle)
        until(lambda: len(seen.messages) == 13)
        assert [int(m.body) for m in seen.messages[9:]] == [6, 7, 8, 8]
        with pytest.raises(ValueError, match="is not assigned to this member"):
            member.seek(MessageQueue("sought", queue.broker_name, 9), 0)


def test_tags_and_expressions_choose_messages(broker, producer):
    tags, sql = Seen(), Seen()
    producer.create_topic("chosen")
    member = PushConsumer("by-sql", sql, namesrv=broker.namesrv, start="first")
    member.subscribe("chosen", sql="price > 2")
    with PushConsumer("by-tag", tags, namesrv=broker.namesrv, topics={"chosen": "a || b"}, start="first"), member:
        with pytest.raises(RemotingCommandError, match="code 23"):
            member.subscribe("chosen", sql="price >")
        for number, tag in enumerate("abca"):
            send(producer, "chosen", [number], tags=tag, properties={"price": str(number)})
        until(lambda: tags.numbers == [0, 1, 3])
        until(lambda: sql.numbers == [3])


def test_an_administrator_asks_and_resets_a_consumer(broker, producer):
    producer.create_topic("admins", queues=2)
    seen = Seen()
    with PushConsumer("admins", seen, namesrv=broker.namesrv, topics="admins", start="first") as member:
        send(producer, "admins", range(4))
        until(lambda: len(seen.messages) == 4)
        until(lambda: sum(member.positions().values()) == 4)
        ask = producer._loop.run
        remoting = producer._awaited._share.instance.remoting
        client_id = member._awaited._share.instance.client_id

        def asked(code, **ext):
            answer = ask(remoting.invoke(broker.broker, code, ext, timeout_ms=10_000))
            assert answer.code == 0, answer.remark
            return fastjson.loads(answer.body) if answer.body else None

        info = asked(RequestCode.GET_CONSUMER_RUNNING_INFO, consumerGroup="admins", clientId=client_id,
                     jstackEnable="true")
        assert sorted(info["statusTable"]) == ["%RETRY%admins", "admins"]
        queues = {(q["topic"], q["queueId"]): v for q, v in (
            (fastjson.loads(key), value) for key, value in info["mqTable"].items())}
        assert queues["admins", 0]["commitOffset"] == queues["admins", 1]["commitOffset"] == 2
        assert "MainThread" in info["jstack"]
        status = asked(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, topic="admins", group="admins")
        assert sorted(status["consumerTable"][client_id].values()) == [2, 2]
        done = asked(RequestCode.CONSUME_MESSAGE_DIRECTLY, consumerGroup="admins", clientId=client_id,
                     msgId=seen.messages[0].msg_id)
        assert (done["consumeResult"], len(seen.messages)) == ("CR_SUCCESS", 5)
        asked(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, topic="admins", group="admins", timestamp="0",
              isForce="true")
        until(lambda: len(seen.messages) == 9)


def test_subscribed_pull_consumers_share_queues_and_commit_what_was_polled(broker, producer):
    producer.create_topic("polled", queues=4)
    send(producer, "polled", range(20))
    got = []

    def polled(consumer, most):
        while len(got) < most:
            got.extend(int(m.body) for m in consumer.poll(timeout_ms=3000))

    with PullConsumer(namesrv=broker.namesrv, group="pollers") as one:
        one.subscribe("polled")
        polled(one, 20)
        one.commit()
        with PullConsumer(namesrv=broker.namesrv, group="pollers") as two:
            two.subscribe("polled")
            until(lambda: len(one.assignment()) == len(two.assignment()) == 3 or (
                len([q for q in one.assignment() if q.topic == "polled"]) == 2))
            send(producer, "polled", range(20, 40))
            while len(got) < 40:
                got.extend(int(m.body) for m in one.poll(timeout_ms=50))
                got.extend(int(m.body) for m in two.poll(timeout_ms=50))
    assert sorted(got) == list(range(40))

    def fails():
        with PullConsumer(namesrv=broker.namesrv, group="pollers") as one:
            one.subscribe("polled")
            send(producer, "polled", [40])
            assert [m.body for m in one.poll(timeout_ms=5000)] == [b"40"]
            raise KeyError  # the messages of the program are redelivered

    with pytest.raises(KeyError):
        fails()
    with PullConsumer(namesrv=broker.namesrv, group="pollers") as one:
        one.assign(one.queues("polled"))
        assert [m.body for m in one.poll(timeout_ms=5000)] == [b"40"]
        assert one.poll(timeout_ms=50) == []


def test_following_many_queues_is_as_fast_as_following_one_and_goes_on_where_it_was(broker, producer):
    producer.create_topic("followed", queues=8)
    took = []
    with PullConsumer(namesrv=broker.namesrv, group="followers") as consumer:
        source = consumer.messages("followed", commit=True)
        for number in range(24):
            producer.send(Message(topic="followed", body=str(number).encode()), queue_id=number % 8)
            began = time.perf_counter()
            assert int(next(source).body) == number
            took.append(time.perf_counter() - began)
        source.close()
        # One after the other, each with its share of the wait, took a median of 500 ms.
        assert sorted(took)[12] < 0.2
        # The last one was not asked for to the end: it is not committed.
        assert [int(m.body) for m in consumer.messages("followed", follow=False)] == [23]
        assert len(list(consumer.messages("followed", start="first", follow=False))) == 24
