"""Client ids belong to users: heartbeats, locks, replies, and what a second user with the id gets."""

from __future__ import annotations

import json
from functools import partial

import pytest
from broker_kit import clients_of, use_control
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from people import People, sent_by

from tailrace.broker.clients import client_manager
from tailrace.broker.clients.client_manager import ClientIds
from tailrace.errors import RefusalError, StoreError
from tailrace.formats.remoting import RemotingCommand

ANN = ("Topic:orders", "Pub,Sub"), ("Group:stock", "Sub")


@pytest.fixture
def people():
    return People(ann=ANN, bob=ANN, nobody=(), reader=(("Topic:orders", "Sub"), ("Group:stock", "Sub")))


@pytest.fixture
def clients(broker, kit, people):
    use_control(broker, people.control)
    return kit.served(clients_of(broker))


def beat(user, client, producers=(), consumers=()):
    return sent_by(user, RemotingCommand(34, {}, json.dumps({
        "clientID": client, "producerDataSet": [{"groupName": group} for group in producers],
        "consumerDataSet": [{"groupName": group, "subscriptionDataSet": [{"topic": "orders"}]}
                            for group in consumers]}).encode()))


def refused(answer):
    assert answer.code == 16, (answer.code, answer.remark)
    return answer.remark


def close(broker, channel):
    """What the controller does for a connection that has closed."""
    channel.closed = True
    broker.clients.consumers.closed(channel)
    broker.clients.producers.closed(channel)
    broker.clients.ids.closed(channel)


@pytest.mark.parametrize("groups", [{"producers": ["p"]}, {"consumers": ["stock"]}])
def test_a_second_user_does_not_get_a_client_id_that_is_in_use(clients, broker, kit, channel, people, groups, caplog):
    other = kit.FakeChannel("10.0.0.7:1")
    assert clients.heartbeat(channel, beat("ann", "c", **groups)).code == 0
    assert refused(clients.heartbeat(other, beat("bob", "c", ["q"], ["other"]))) == "client c is one of another user"
    assert refused(clients.heartbeat(other, beat("root", "c", ["q"]))), "a super user has its own client ids"
    assert refused(clients.heartbeat(other, beat("bob", "c"))), "also without groups"
    assert "user='bob' address=10.0.0.7 code=34" in caplog.text
    assert people.control.denied["permission"] == 3
    assert broker.groups.select("other") is None
    assert broker.clients.producers.members("q") == []
    assert broker.clients.producers.find_channel("c") in {channel, None}
    assert clients.heartbeat(other, beat("ann", "c", **groups)).code == 0, "a restart of the same user"


def test_a_client_id_is_free_when_its_last_connection_has_closed(clients, broker, kit, channel):
    second, third = kit.FakeChannel(), kit.FakeChannel()
    for one in (channel, second):
        assert clients.heartbeat(one, beat("ann", "c", ["p"])).code == 0
    close(broker, channel)
    refused(clients.heartbeat(third, beat("bob", "c", ["p"])))
    assert broker.clients.producers.find_channel("c") is second
    close(broker, second)
    assert clients.heartbeat(third, beat("bob", "c", ["p"])).code == 0
    assert broker.clients.producers.find_channel("c") is third
    close(broker, third)
    assert len(broker.clients.ids) == 0


def test_a_user_without_any_permission_reserves_no_client_id(clients, broker, kit, channel):
    for groups in ((), ["vproducers", "zzz"]):
        assert clients.heartbeat(channel, beat("nobody", "c", groups)).code == 0
    assert (len(broker.clients.ids), broker.clients.producers.groups()) == (0, {})
    assert broker.clients.producers.find_channel("c") is None
    assert clients.heartbeat(kit.FakeChannel(), beat("ann", "c", ["p"])).code == 0


def test_a_consumer_that_may_not_send_is_no_producer(clients, broker, channel):
    """Java's consumers name their inner producer in each heartbeat."""
    assert clients.heartbeat(channel, beat("reader", "c", ["CLIENT_INNER_PRODUCER"], ["stock"])).code == 0
    assert broker.clients.producers.groups() == {}
    assert broker.clients.consumers.find("stock").client_ids() == ["c"]
    assert broker.clients.ids.user_of("c") == "reader"


def test_a_permission_from_another_address_does_not_make_a_producer(clients, broker, kit, people):
    people.acls["nobody"] = people.acls["ann"].without("Custom", people.acls["ann"].custom[1].resource)
    entry, = people.acls["nobody"].custom
    people.acls["nobody"] = type(people.acls["ann"])("nobody", (type(entry)(entry.resource, ("Pub",), ("10.1.1.1",)),))
    clients.heartbeat(kit.FakeChannel("10.1.1.2:1"), beat("nobody", "c", ["p"]))
    assert broker.clients.producers.groups() == {}
    clients.heartbeat(kit.FakeChannel("10.1.1.1:1"), beat("nobody", "c", ["p"]))
    assert list(broker.clients.producers.groups()) == ["p"]


def test_a_heartbeat_that_needs_no_permission_may_name_producers(broker, kit, channel):
    people = People(settings={"authorization_whitelist": "34"}, nobody=())
    use_control(broker, people.control)
    clients = kit.served(clients_of(broker))
    clients.heartbeat(channel, beat("nobody", "c", ["p"]))
    assert list(broker.clients.producers.groups()) == ["p"]
    refused(clients.heartbeat(kit.FakeChannel(), beat("root", "c", ["p"])))


def lock(user, client):
    return sent_by(user, RemotingCommand(41, {}, json.dumps({
        "consumerGroup": "stock", "clientId": client,
        "mqSet": [{"topic": "orders", "brokerName": "b", "queueId": 0}]}).encode()))


def test_nobody_locks_or_unlocks_for_the_client_of_another_user(clients, broker, kit, channel):
    clients.heartbeat(channel, beat("ann", "c", [], ["stock"]))
    assert json.loads(clients.lock_batch(channel, lock("ann", "c")).body)["lockOKMQSet"]
    other = kit.FakeChannel()
    refused(clients.unlock_batch(other, lock("bob", "c")))
    assert json.loads(clients.lock_batch(other, lock("bob", "d")).body)["lockOKMQSet"] == []
    refused(clients.lock_batch(other, lock("bob", "c")))
    assert clients.unlock_batch(channel, lock("ann", "c")).code == 0
    assert not broker.clients.locks.is_locked("stock")


def test_without_users_client_ids_are_nobody_s(broker, kit, channel):
    clients = kit.served(clients_of(broker))
    for one in (channel, kit.FakeChannel()):
        assert clients.heartbeat(one, beat("", "c", ["p"], ["stock"])).code == 0
    assert len(broker.clients.ids) == 0
    assert broker.clients.consumers.find("stock").client_ids() == ["c"]


def test_a_connection_has_a_bounded_number_of_client_ids(people, channel, monkeypatch):
    monkeypatch.setattr(client_manager, "OF_CHANNEL_MAX", 2)
    ids, request = ClientIds(people.control), sent_by("ann", RemotingCommand(34))
    for name in ("a", "b", "a"):
        ids.claim(channel, request, name)
    with pytest.raises(StoreError, match="a connection has 2 client ids, the limit is 2; use another connection"):
        ids.claim(channel, request, "c")
    assert len(ids) == 2


def test_a_connection_that_has_closed_holds_no_client_id(people, channel):
    ids, request = ClientIds(people.control), sent_by("ann", RemotingCommand(34))
    channel.closed = True
    ids.claim(channel, request, "a")
    assert (len(ids), ids._held) == (0, {})


def test_an_id_belongs_to_its_user_as_long_as_one_holder_is_there(people, channel):
    ids, request = ClientIds(people.control), sent_by("ann", RemotingCommand(34))
    ids.claim(channel, request, "a")
    ids.claim_for("a table", channel, request, "a")
    ids.closed(channel)
    assert ids.user_of("a") == "ann"
    ids.release("a table", "a")
    ids.release("a table", "a")
    assert ids.user_of("a") is None


STEPS = st.lists(st.tuples(
    st.sampled_from(["claim", "claim_for", "close", "release"]), st.sampled_from(["ann", "bob", "root"]),
    st.integers(0, 2), st.sampled_from("ab")), max_size=30)


@given(STEPS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_id_has_one_user_for_as_long_as_it_has_a_holder(kit, steps):
    """Any order of first uses and ends, against a table of pairs of a holder and an id."""
    people = People(ann=ANN, bob=ANN)
    ids, channels = ClientIds(people.control), [kit.FakeChannel(f"10.0.0.{n}:1") for n in range(3)]
    held = {}
    for what, user, number, name in steps:
        holder = channels[number] if what in {"claim", "close"} else f"table {number}"
        if what in {"close", "release"}:
            if what == "close":
                ids.closed(holder)
            else:
                ids.release(holder, name)
            held = {pair: owner for pair, owner in held.items() if pair[0] != holder or (
                what == "release" and pair[1] != name)}
            continue
        owners = {owner for (_, one), owner in held.items() if one == name}
        claim = partial(ids.claim, holder) if what == "claim" else partial(ids.claim_for, holder, channels[0])
        if owners - {user}:
            with pytest.raises(RefusalError):
                claim(sent_by(user, RemotingCommand(34)), name)
        else:
            claim(sent_by(user, RemotingCommand(34)), name)
            held[holder, name] = user
        for one in "ab":
            assert {ids.user_of(one)} - {None} == {owner for (_, name_), owner in held.items() if name_ == one}
    assert len(ids) == len({name for _, name in held})
