"""What a connection has proven and was allowed is one call the next time, and counts no longer than it may."""

import pytest
from auth_world import ANN, SEND, STATEFUL, WRONG, Peer, World

from tailrace.auth import check
from tailrace.auth.binding import BINDING, Binder, Row
from tailrace.auth.model import User, acl_of
from tailrace.auth.signature import Credentials, sign
from tailrace.errors import RefusalError
from tailrace.formats.remoting import MQ_VERSION, RemotingCommand, sender_of

ROOT, BOB = Credentials("root", "r"), Credentials("bob", "bob's")
PULL = {"topic": "orders", "consumerGroup": "stock", "queueId": "0"}


def allow(world, name, *, topic="orders", group="stock", ips=()):
    world.acls[name] = acl_of({"subject": f"User:{name}", "policies": [{"entries": [
        {"resource": f"Topic:{topic}", "actions": ["Pub", "Sub"], "decision": "Allow", "sourceIps": list(ips)},
        {"resource": f"Group:{group}", "actions": ["Sub"], "decision": "Allow"}]}]})
    world.control.changed()


@pytest.fixture
def world():
    made = World(authentication_failures_max=0)
    made.users["bob"] = User("bob", BOB.secret_key)
    allow(made, "ann")
    return made


def is_one_call(world, peer, ext=SEND, *, code=310, by=ANN, body=b"body"):
    """Serve a request, and return whether that took no more than the call of the proof."""
    taken = []
    longer = world.control._check
    world.control._check = lambda *given: taken.append(1) or longer(*given)
    request = RemotingCommand(code, sign(ext, body, by, MQ_VERSION), body)
    world.control.check(peer, request)
    assert sender_of(request) == by.access_key
    world.control._check = longer
    return not taken


@pytest.mark.parametrize(("code", "ext", "by"), [
    (310, SEND, ANN), (320, SEND, ANN), (10, {"topic": "orders"}, ANN), (11, PULL, ANN), (15, PULL, ANN),
    (200_050, PULL, ANN), (310, {**SEND, "b": "any"}, ROOT), (34, {}, ROOT), (99_999, {"x": "y"}, ROOT)])
def test_a_request_like_one_before_is_one_call(world, code, ext, by):
    peer = Peer()
    assert [is_one_call(world, peer, ext, code=code, by=by, body=bytes(turn)) for turn in range(4)] == [
        False, True, True, True]
    assert not is_one_call(world, Peer(), ext, code=code, by=by)


def test_requests_about_many_resources_are_one_call_each(world):
    peer = Peer()
    allow(world, "ann", topic="*", group="*")
    kinds = [(310, {**SEND, "b": f"t{number}"}) for number in range(20)]
    kinds += [(11, {"topic": f"t{number % 4}", "consumerGroup": f"g{number}"}) for number in range(20)]
    assert not any(is_one_call(world, peer, ext, code=code) for code, ext in kinds)
    assert all(is_one_call(world, peer, dict(reversed(ext.items())), code=code) for code, ext in kinds)


def served(world, peer, ext=SEND, *, code=310, by=ANN):
    """Serve a request twice, so that the second time is one call."""
    for _ in range(2):
        assert world.remark(ext, code=code, by=by, peer=peer) == ""
    assert peer.proof is not None


CHANGES = {
    "no entries": (lambda world: world.acls.clear(), "no matched policies."),
    "another topic": (lambda world: allow(world, "ann", topic="other"), "no matched policies."),
    "another address": (lambda world: allow(world, "ann", ips=["10.0.0.1"]), "no matched policies."),
    "disabled": (lambda world: world.users.update(ann=User("ann", ANN.secret_key, enabled=False)), "check signature"),
    "deleted": (lambda world: world.users.pop("ann"), "check signature failed."),
    "another password": (lambda world: world.users.update(ann=User("ann", "new")), "check signature failed."),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("code", "ext"), [(310, SEND), (11, PULL)])
def test_what_was_remembered_ends_with_a_change(world, change, code, ext):
    peer, others = Peer(), [Peer() for _ in range(3)]
    for one in (peer, *others):
        served(world, one, ext, code=code)
    make, remark = CHANGES[change]
    make(world)
    world.control.changed()
    for one in (peer, *others):
        assert remark in world.remark(ext, code=code, by=ANN, peer=one)
        assert remark in world.remark(ext, code=code, by=ANN, peer=one)


def test_a_super_user_that_is_none_any_more_may_do_only_what_entries_allow(world):
    peer = Peer()
    served(world, peer, by=ROOT)
    served(world, peer, {"topic": "orders"}, code=215, by=ROOT)
    world.users["root"] = User("root", ROOT.secret_key)
    world.control.changed()
    for code in (310, 215):
        assert "no permission" in world.remark({**SEND, "topic": "orders"}, code=code, by=ROOT, peer=peer)


def test_a_change_while_a_request_is_checked_counts_for_the_next_one(world):
    """The entries are read before the change, and the decision is remembered after it."""
    peer, acls, read = Peer(), dict(world.acls), world.control._acl

    def changed_meanwhile(name):
        found = read(name)
        world.acls.clear()
        world.control.changed()
        return found

    world.control._acl = changed_meanwhile
    assert world.remark(by=ANN, peer=peer) == ""
    world.control._acl = read
    assert "no matched policies" in world.remark(by=ANN, peer=peer)
    world.acls.update(acls)
    world.control.changed()
    served(world, peer)


@pytest.mark.parametrize("other", [
    {**SEND, "b": "secret"}, {name: value for name, value in SEND.items() if name != "b"}, {**SEND, "b": ""}])
def test_another_resource_needs_its_own_decision(world, other):
    peer = Peer()
    served(world, peer)
    for _ in range(2):
        assert "no matched policies" in world.remark(other, by=ANN, peer=peer)
        assert world.remark(by=ANN, peer=peer) == ""


def test_another_action_needs_its_own_decision(world):
    peer = Peer()
    served(world, peer, {"topic": "orders"}, code=10)
    assert "no matched policies" in world.remark({"topic": "orders"}, code=215, by=ANN, peer=peer)
    assert "Group:other" in world.remark({**PULL, "consumerGroup": "other"}, code=11, by=ANN, peer=peer)


def test_what_is_remembered_of_one_address_does_not_count_for_another(world):
    allow(world, "ann", ips=["127.0.0.1"])
    served(world, Peer())
    assert "no matched policies" in world.remark(by=ANN, peer=Peer("10.0.0.1"))


def test_users_on_one_connection_have_their_own_permissions(world):
    peer = Peer()
    served(world, peer)
    for _ in range(2):
        assert "no matched policies" in world.remark(by=BOB, peer=peer)
        assert world.remark(by=ROOT, peer=peer) == ""
        assert is_one_call(world, peer)
    assert not is_one_call(world, peer, by=ROOT), "only the first user of a connection is spared"
    world.users["eve"] = User("eve", ANN.secret_key)  # the same password
    assert "User:eve has no permission" in world.remark(by=Credentials("eve", ANN.secret_key), peer=peer)
    named = sign(SEND, b"body", BOB, MQ_VERSION)
    assert world.remark({**named, "AccessKey": "ann"}, peer=peer) == "check signature failed."


def test_every_request_is_checked_for_its_signature(world):
    peer, good = Peer(), sign(SEND, b"body", ANN, MQ_VERSION)
    for wrong in (
        {**good, "Signature": good["Signature"][::-1]}, {**good, "a": "other"}, sign(SEND, b"body", WRONG, MQ_VERSION),
    ):
        served(world, peer)
        assert world.remark(wrong, peer=peer) == "check signature failed."
        assert peer.proof is None
        peer = Peer()
    served(world, peer)
    assert world.remark(good, b"bodY", peer=peer) == "check signature failed."


def test_a_wrong_signature_ends_that_a_connection_is_spared_the_slowing_down():
    world, peer = World(), Peer()
    served(world, peer)
    for _ in range(30):
        world.remark(by=WRONG, peer=peer)
    assert "too many attempts" in world.remark(by=WRONG, peer=peer)
    assert world.control.denied["signature"] == 10
    world.clock.advance(120_000)
    assert world.remark(by=ANN, peer=peer) == ""
    assert peer.proof is None


def test_a_connection_that_has_proven_its_user_is_not_refused_for_attempts_of_others():
    world, peer = World(), Peer()
    served(world, peer)
    for _ in range(30):
        world.remark(by=Credentials("nobody", "x"), peer=Peer())
    assert world.control._attempts.refusing_until_ns
    assert is_one_call(world, peer)


def test_a_request_of_the_white_list_has_no_sender_even_on_a_proven_connection():
    world, peer = World(authentication_whitelist="105", authorization_whitelist="105"), Peer()
    served(world, peer)
    request = RemotingCommand(105, sign({"topic": "orders"}, b"", ANN, MQ_VERSION))
    world.control.check(peer, request)
    assert sender_of(request) == ""


def test_a_bound_request_is_checked_on_a_proven_connection(world):
    peer = Peer()
    served(world, peer)
    row, binder = Row(peer.own_address, 5), Binder(world.clock, ANN.secret_key)
    bound = {**SEND, "AccessKey": "ann"}
    bound[BINDING] = binder.value(row, 310, bound, b"body")
    assert world.remark(bound, by=ANN, peer=peer) == ""
    assert world.remark(bound, by=ANN, peer=peer) == "the request was sent before."
    assert "cannot be read" in world.remark({**bound, BINDING: "1;"}, by=ANN, peer=peer)
    assert is_one_call(world, peer)


@pytest.mark.parametrize(("setting", "by"), [("required", ANN), ("superUsers", ROOT)])
def test_where_a_binding_is_required_no_request_is_spared_it(setting, by):
    world, peer = World(authentication_binding=setting), Peer()
    row, binder = Row(peer.own_address, 5), Binder(world.clock, by.secret_key)
    for _ in range(3):
        bound = {**SEND, "AccessKey": by.access_key}
        bound[BINDING] = binder.value(row, 310, bound, b"body")
        assert world.remark(bound, by=by, peer=peer) == ""
        assert peer.proof is None
        assert "binding" in world.remark(by=by, peer=peer)


def test_the_password_before_is_noted_and_ends(world):
    peer, old = Peer(), Credentials("ann", "old")
    world.users["ann"] = User("ann", ANN.secret_key, previous_password="old",
                              previous_until_ms=world.clock.now_ms() + 60_000)
    world.control.changed()
    served(world, peer)
    assert peer.users["ann"].password == ANN.secret_key
    assert world.remark(by=old, peer=peer) == ""
    assert peer.users["ann"].password == "old"
    served(world, peer)
    assert peer.users["ann"].password == ANN.secret_key
    world.clock.advance(60_000)
    assert world.remark(by=old, peer=peer) == "check signature failed."


def test_stateful_decides_by_its_own_time():
    world, peer = World(authentication_strategy=STATEFUL), Peer()
    for _ in range(2):
        assert world.remark(by=ANN, peer=peer) == ""
        assert peer.proof is None
    assert world.remark({**SEND, "b": "secret"}, by=ANN, peer=peer).endswith("no matched policies.")


def test_a_connection_is_remembered_again_after_the_bound_was_reached(world, monkeypatch):
    monkeypatch.setattr(check, "ALLOWED_MAX", 10)
    allow(world, "ann", topic="*")
    peers = [Peer(), Peer()]
    for number in range(100):
        for peer in peers:
            ext = {**SEND, "b": f"t{number}"}
            served(world, peer, ext)
            assert is_one_call(world, peer, ext)
    assert len(world.control._allowed) <= 10


def test_a_refused_request_is_not_remembered(world):
    peer = Peer()
    for _ in range(3):
        with pytest.raises(RefusalError):
            is_one_call(world, peer, {**SEND, "b": "secret"})
    allow(world, "ann", topic="secret")
    assert world.remark({**SEND, "b": "secret"}, by=ANN, peer=peer) == ""
