"""Pairs of Tailrace and RocketMQ: promotion, silent links, deleted files, all kinds of topics, readers of slaves."""

from __future__ import annotations

import contextlib
import json
import time

import pytest
from java_peer import ask, log_of
from mixed_pairs import (
    MASTER,
    SLAVE,
    TOPIC,
    Java,
    Ours,
    bodies,
    created,
    follows,
    mixed_pair,
    status,
    topics,
)
from patience import until
from tcp_link import FROM_TARGET, TO_TARGET, Link

from tailrace import Message, Producer, PullConsumer
from tailrace.errors import RemotingError
from tailrace.formats import fastjson

pytestmark = [pytest.mark.slow, pytest.mark.interop, pytest.mark.integration, pytest.mark.long]


@pytest.fixture
def pair(request, reference, tmp_path):
    with mixed_pair(reference, tmp_path, request.param) as made:
        yield made


mixed = pytest.mark.parametrize("pair", ["ours/java", "java/ours"], indirect=True)


@mixed
def test_after_a_promotion_no_message_is_lost_and_the_old_master_follows(pair):
    """I1, I5: timers that are due before, during and after it; the old master returns as a slave."""
    namesrv, master, slave = pair
    master.start()
    until(lambda: created(namesrv))
    slave.start()
    until(lambda: follows(master))
    until(lambda: TOPIC in topics(slave.address), 150)  # RocketMQ copies them for the first time after a minute
    wanted = {b"%d" % number for number in range(50)}
    with Producer(namesrv=namesrv, timeout_ms=10_000) as producer:
        for number in range(50):
            producer.send(Message(topic=TOPIC, body=b"%d" % number), queue_id=0)
        for delay in ("1s", "10s", "30s", "1h"):
            producer.send(Message(topic=TOPIC, body=delay.encode(), delay=delay), queue_id=0)
    until(lambda: bodies(namesrv)[b"1s"] == 1)
    until(lambda: follows(master))
    # A read time that the slave copies lags by some seconds.
    time.sleep(4)
    master.kill()
    if isinstance(slave, Ours):
        slave.kill()
        slave.command("promote", slave.root, "--config", slave.conf, "--role", "ASYNC_MASTER", "--yes")
    else:
        slave.stop()
        slave.set(**MASTER)
    slave.start()
    until(lambda: bodies(namesrv)[b"30s"] >= 1)
    found = bodies(namesrv)
    assert wanted | {b"1s", b"10s", b"30s"} == set(found)
    assert {one: found[one] for one in wanted} == dict.fromkeys(wanted, 1)
    if isinstance(slave, Ours):
        assert max(found.values()) == 1, "each timer comes once"
    with Producer(namesrv=namesrv, timeout_ms=10_000) as producer:
        for number in range(50, 80):
            producer.send(Message(topic=TOPIC, body=b"%d" % number), queue_id=0)
    master.set(**SLAVE)
    if isinstance(master, Ours):
        master.command("repair", master.root, "--follow-master", slave.address, "--config", master.conf)
    master.start()
    until(lambda: follows(slave))
    slave.kill()
    master.kill()
    assert log_of(master.root) == log_of(slave.root)


@mixed
@pytest.mark.parametrize("silent", [{TO_TARGET, FROM_TARGET}, {TO_TARGET}, {FROM_TARGET}], ids=[
    "both ways", "reports", "frames"])
def test_a_silent_link_ends_acknowledgements_and_nothing_else(pair, silent):
    """I1, I2: the HA port alone, in one direction or both; then the link is well again."""
    namesrv, master, slave = pair
    master.set(brokerRole="SYNC_MASTER", inSyncReplicas=2, slaveTimeout=500, haAllowedHosts="127.0.0.1")
    master.start()
    until(lambda: created(namesrv))
    ha = "127.0.0.1", int(master.address.rpartition(":")[2]) + 1
    with Link(ha) as link, Producer(namesrv=namesrv, timeout_ms=10_000) as producer:
        # Without a name server it knows no other way.
        if isinstance(slave, Ours):
            slave.set(haMasterAddress=link.address)
        else:
            slave.set(namesrvAddr="127.0.0.1:9")
        slave.start()
        if isinstance(slave, Java):
            slave.follow(master.address, link.address)

        def send(body):
            return producer.send(Message(topic=TOPIC, body=body), queue_id=0).status

        until(lambda: follows(master))
        until(lambda: send(b"before") == "SEND_OK")  # a busy machine may take longer than slaveTimeout
        link.silent |= silent
        assert send(b"meanwhile") == "FLUSH_SLAVE_TIMEOUT"
        time.sleep(4)  # longer than haHousekeepingInterval
        assert send(b"later") in {"FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE"}
        link.silent.clear()
        until(lambda: follows(master))
        until(lambda: send(b"after") == "SEND_OK")
        until(lambda: follows(master))
    slave.kill()
    master.kill()
    assert log_of(master.root) == log_of(slave.root)


@mixed
def test_a_slave_whose_next_byte_its_master_has_deleted_is_named_and_keeps_its_log(pair):
    """H6: it was stopped until retention of the master deleted its place."""
    namesrv, master, slave = pair
    master.start()
    until(lambda: created(namesrv))
    slave.start()
    with Producer(namesrv=namesrv, timeout_ms=10_000) as producer:
        producer.send(Message(topic=TOPIC, body=b"first"), queue_id=0)
        until(lambda: follows(master))
        slave.kill()
        for _ in range(40):
            producer.send(Message(topic=TOPIC, body=b"x" * 60_000), queue_id=0)
    before = log_of(slave.root)
    master.kill()
    files = sorted((master.root / "commitlog").iterdir())
    assert len(files) > 2
    files[0].unlink()
    master.start()
    slave.start()
    if isinstance(slave, Ours):
        until(lambda: "kind=too_old" in slave.said())
    else:
        slave.follow(master.address, "127.0.0.1:{}".format(int(master.address.rpartition(":")[2]) + 1))
        until(lambda: "what it lacks first was deleted here" in master.said())
        assert status(master.address)["inSyncSlaveNums"] == 0
    slave.kill()
    assert log_of(slave.root) == before


@pytest.mark.parametrize("pair", ["java/ours"], indirect=True)
def test_topics_of_a_java_master_are_those_of_its_slave(pair):
    """H23, H24, H25: 2,001 topics, one deleted and created again, and one of batch queues that is used immediately."""
    namesrv, master, slave = pair
    master.start()
    until(lambda: created(namesrv))

    def create(*names):
        body = json.dumps({"topicConfigList": [{
            "topicName": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0, "order": False, "attributes": {}} for name in names]}).encode()
        assert ask(master.address, 18, body=body).code == 0

    def bodies_at(address, topic):
        with contextlib.suppress(RemotingError), PullConsumer(broker=address, timeout_ms=10_000) as reader:
            return [one.body for one in reader.messages(topic, start="first", follow=False)]
        return []

    create(*(f"topic{number:04}" for number in range(2001 - len(topics(master.address)))))
    assert len(topics(master.address)) == 2001
    slave.start()
    with Producer(namesrv=namesrv, timeout_ms=10_000) as producer:
        for number in range(10):
            producer.send(Message(topic=TOPIC, body=b"old %d" % number), queue_id=0)
        until(lambda: len(bodies_at(slave.address, TOPIC)) == 10)
        until(lambda: topics(slave.address) >= topics(master.address))
        slave.kill()
        assert ask(master.address, 215, {"topic": TOPIC}).code == 0
        producer.create_topic(TOPIC, queues=1)
        new = [b"new %d" % number for number in range(15)]
        for body in new:
            producer.send(Message(topic=TOPIC, body=body), queue_id=0)
        slave.start()
        until(lambda: bodies_at(slave.address, TOPIC) == new)
        producer.create_topic("batches", 1, {"queue.type": "BatchCQ"})
        for body in new:
            producer.send(Message(topic="batches", body=body), queue_id=0)
        until(lambda: bodies_at(slave.address, "batches") == new)
    assert (slave.root / "batchconsumequeue" / "batches").is_dir()
    slave.kill()
    slave.start()
    assert bodies_at(slave.address, "batches") == new


@pytest.mark.parametrize("pair", ["java/ours"], indirect=True)
@pytest.mark.parametrize("restarts", [False, True], ids=["", "the master starts again"])
def test_a_new_slave_of_a_java_master_uses_no_offset_of_expired_messages_again(pair, restarts):
    """D5: the log that it copies has no record of a queue whose messages have all expired."""
    namesrv, master, slave = pair
    master.set(fileReservedTime=0, cleanResourceInterval=500)
    master.start()
    until(lambda: created(namesrv))
    expired = {"singles": {}, "batches": {"queue.type": "BatchCQ"}}

    def bounds(address, topic):
        answer = ask(address, 202, {"topic": topic})
        if answer.code == 17:  # the slave has not copied the topic yet
            return None
        (place,) = fastjson.loads(answer.body)["offsetTable"].values()
        return place["minOffset"], place["maxOffset"]

    def committed(address, topic):
        with contextlib.suppress(RemotingError), PullConsumer(broker=address, group="late") as reader:
            return reader.committed(reader.queues(topic)[0])
        return None

    with Producer(namesrv=namesrv, timeout_ms=10_000) as producer:
        for topic, attributes in expired.items():
            producer.create_topic(topic, 1, attributes)
            for number in range(47):
                producer.send(Message(topic=topic, body=b"old %d" % number), queue_id=0)
            with PullConsumer(broker=master.address, group="late") as reader:
                reader.commit(reader.queues(topic)[0], 45)
        for _ in range(40):
            producer.send(Message(topic=TOPIC, body=b"x" * 60_000), queue_id=0)
    until(lambda: ask(master.address, 329).code == 0 and len(list((master.root / "commitlog").iterdir())) < 3)
    if restarts:
        master.kill()
        master.start()
    slave.start()
    until(lambda: follows(master))
    for topic in expired:
        until(lambda topic=topic: bounds(slave.address, topic) == (47, 47), 150)
        assert bounds(master.address, topic) == (47, 47)
        until(lambda topic=topic: committed(slave.address, topic) == 45, 150)
    slave.kill()
    master.kill()
    slave.command("promote", slave.root, "--config", slave.conf, "--role", "ASYNC_MASTER", "--yes")
    slave.start()
    with Producer(broker=slave.address, timeout_ms=10_000) as producer:
        for topic in expired:
            assert producer.send(Message(topic=topic, body=b"new"), queue_id=0).queue_offset == 47
    for topic in expired:
        with PullConsumer(broker=slave.address, group="late", timeout_ms=10_000) as reader:
            assert [one.body for one in reader.messages(topic, follow=False)] == [b"new"]


@mixed
def test_a_consumer_reads_on_from_the_slave_of_a_dead_master_and_no_offset_goes_back(pair):
    """Nothing comes twice to a member that stays, and its offset is at the master when that is back."""
    namesrv, master, slave = pair
    master.start()
    until(lambda: created(namesrv))
    slave.start()
    until(lambda: follows(master))
    until(lambda: TOPIC in topics(slave.address), 150)
    count, polled = 200, []

    def poll(reader):
        polled.extend(int(one.body) for one in reader.poll(timeout_ms=100))
        return len(polled)

    def committed():
        with contextlib.suppress(RemotingError), PullConsumer(broker=master.address, group="late") as reader:
            return reader.committed(reader.queues(TOPIC)[0])
        return None

    with Producer(namesrv=namesrv, timeout_ms=10_000) as producer:
        for number in range(count):
            producer.send(Message(topic=TOPIC, body=b"%d" % number), queue_id=0)
    until(lambda: follows(master))
    with PullConsumer(namesrv=namesrv, group="late", max_cached_messages=20) as late:
        late.subscribe(TOPIC)
        until(lambda: poll(late) >= 20)
        master.kill()
        until(lambda: poll(late) >= count)
        assert polled == list(range(count))
        master.start()
        until(lambda: poll(late) and committed() == count)
    assert polled == list(range(count))
