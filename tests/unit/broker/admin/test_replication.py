"""Requests about replication at a master: 907, 908, and 43, 45 and 60 of a slave of RocketMQ."""

import json
from types import SimpleNamespace

import pytest
from broker_kit import wired

from tailrace.broker import wiring
from tailrace.broker.admin.replication import ReplicationProcessor
from tailrace.errors import RefusalError
from tailrace.ha.offset_caps import WAITS
from tailrace.ha.replicas import Replica
from tailrace.model import MessageExtBrokerInner

SLAVE = SimpleNamespace(peer_ip="10.0.0.2")


@pytest.fixture
def replication(broker):
    return wired(ReplicationProcessor, broker)


def test_a_master_without_slaves_shows_its_log(replication, kit, channel, store):
    found = json.loads(replication.status(channel, kit.request(907)).body)
    assert (found["master"], found["masterCommitLogMaxOffset"]) == (True, store.real.max_phy_offset)
    assert (found["inSyncSlaveNums"], found["haConnectionInfo"]) == (0, [])


def test_what_a_slave_knows_of_its_master_is_nothing_to_a_master(replication, kit, channel):
    assert replication.reset_master_flush_offset(channel, kit.request(908, {"masterFlushOffset": "5"})).code == 0
    with pytest.raises(RefusalError, match="masterFlushOffset"):
        replication.reset_master_flush_offset(channel, kit.request(908, {"masterFlushOffset": "x"}))


@pytest.fixture
def admin(broker, store, kit):
    for number in range(3):
        store.real.put_inner(MessageExtBrokerInner("orders", 0, b"%d" % number))
        store.real.put_inner(MessageExtBrokerInner("SCHEDULE_TOPIC_XXXX", 0, b"%d" % number))
    store.real.wait_dispatched()
    broker.offsets.commit("g", "orders", 0, 3)
    store.real.timer_services.delay_offsets.update(1, 3)
    return wiring.admin(broker)


def asked(admin, kit, channel=SLAVE, **ext):
    """The offset of the group, and that of the first level."""
    consumers = json.loads(admin.all_consumer_offsets(channel, kit.request(43, ext)).body)["offsetTable"]
    delays = admin.all_delay_offsets(channel, kit.request(45, ext)).body.decode()
    return consumers["orders@g"]["0"], int(delays.rpartition("1:")[2].rstrip("}\n\t"))


def connect(broker, position, reported=True):
    broker.replicas._slaves_of["10.0.0.2"] = 1
    broker.replicas._all.clear()
    if reported:
        slave = Replica("10.0.0.2:5", "10.0.0.2", None, 0)
        slave.acknowledged = position
        broker.replicas._all[slave] = None


def test_a_slave_gets_offsets_as_far_as_it_has_acknowledged_and_others_get_all(admin, broker, kit, store):
    end = store.real.max_phy_offset
    assert asked(admin, kit) == (3, 3), "nothing says that it is a slave"
    connect(broker, end)
    assert asked(admin, kit) == (3, 3)
    connect(broker, end - 1)
    assert asked(admin, kit) == (3, 2)
    connect(broker, 0)
    assert asked(admin, kit) == (0, 0)
    assert asked(admin, kit, **{WAITS: "true"}) == (3, 3), "it applies them when it has the messages"
    assert asked(admin, kit, SimpleNamespace(peer_ip="10.0.0.3")) == (3, 3)


def test_a_slave_whose_ha_connection_is_down_gets_none(admin, broker, kit):
    connect(broker, 0, reported=False)
    for ask, code in ((admin.all_consumer_offsets, 43), (admin.all_delay_offsets, 45)):
        with pytest.raises(RefusalError, match=r"a slave at 10\.0\.0\.2 is not connected to the HA port"):
            ask(SLAVE, kit.request(code))
    assert asked(admin, kit, **{WAITS: "true"}) == (3, 3)


@pytest.mark.parametrize(("ha_address", "wanted"), [
    ("127.0.0.1:10912", "10.0.0.2"), ("10.9.0.1:10912", None), ("", None)])
def test_a_slave_is_found_by_its_host_unless_the_ha_port_is_in_another_network(
    replication, broker, kit, ha_address, wanted, monkeypatch
):
    hosts = []
    monkeypatch.setattr(replication, "_timers", object())
    monkeypatch.setattr(type(broker.replicas), "timer_checkpoint", lambda _, host: hosts.append(host))
    broker.addresses.broker, broker.addresses.ha = "127.0.0.1:10911", ha_address
    with pytest.raises(RefusalError, match=r"no slave at 10\.0\.0\.2 is connected to the HA port and has the log"):
        replication.timer_checkpoint(SLAVE, kit.request(60))
    assert hosts == [wanted]
