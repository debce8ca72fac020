"""Signatures that are wrong, missing, cut off or replayed; white lists; the log and the counters; changes."""

import base64
import hashlib
import hmac
import itertools

import pytest
from auth_world import ANN, SEND, STATEFUL, Peer, World
from hypothesis import given
from hypothesis import strategies as st

from tailrace.auth.accesses import Access, Accesses
from tailrace.auth.check import common_names
from tailrace.auth.denials import LOG_PERIOD_NS
from tailrace.auth.model import Resource, User
from tailrace.auth.signature import Credentials, Signer, sign
from tailrace.auth_settings import AuthConfig
from tailrace.errors import ConfigError, RefusalError
from tailrace.formats import fastjson
from tailrace.formats.remoting import MQ_VERSION, RemotingCommand, RequestCode, sender_of
from tailrace.formats.requests.table import REQUESTS, Action, Role


@pytest.fixture
def world():
    return World()


def test_a_signature_is_that_of_the_reference():
    """AclUtils: values in the order of their names, the body after them, HmacSHA1, Base64."""
    ext = {"topic": "t", "AccessKey": "ann", "group": "g", "Signature": "not signed itself"}
    mac = hmac.new("pässword".encode(), b"anngtBODY", hashlib.sha1)
    assert Signer("pässword").signature(ext, b"BODY", MQ_VERSION) == base64.b64encode(mac.digest())
    old, signer = {**ext, "_UNIQUE_KEY_QUERY": "true"}, Signer("k")
    assert signer.signature(old, b"", 399) == signer.signature(ext, b"", 399)
    assert signer.signature(old, b"", 400) != signer.signature(ext, b"", 400)


@given(st.text(min_size=1), st.dictionaries(st.text(), st.text(), max_size=5), st.binary(max_size=200))
def test_a_signature_is_a_plain_hmac_of_sorted_values(secret, ext, body):
    values = [value for name, value in sorted(ext.items()) if name != "Signature"]
    mac = hmac.new(secret.encode("utf-8", "surrogatepass"), digestmod=hashlib.sha1)
    mac.update("".join(values).encode("utf-8", "surrogatepass") + body)
    assert Signer(secret).signature(ext, body, MQ_VERSION) == base64.b64encode(mac.digest())


def test_an_allowed_request_is_not_taken_for_one_without_its_field(world):
    without = {name: value for name, value in SEND.items() if name != "b"}
    for _ in range(2):  # the second time with what was remembered
        assert world.remark(by=ANN) == ""
        assert "Cluster:" in world.remark(without, by=ANN)
        assert "Topic:secret" in world.remark({**SEND, "b": "secret"}, by=ANN)


def test_a_signed_request_is_served_and_its_peer_is_known(world):
    peer = Peer()
    assert world.remark(by=ANN, peer=peer) == ""
    assert peer.authenticated


def test_signatures_that_prove_nothing():
    world = World(authentication_failures_max=0)
    good = sign(SEND, b"body", ANN, MQ_VERSION)
    cases = [
        {**good, "Signature": ""}, {k: v for k, v in good.items() if k != "Signature"},
        {**good, "Signature": good["Signature"][:-1]}, {**good, "Signature": good["Signature"] + "="},
        {**good, "Signature": good["Signature"].lower()}, {**good, "Signature": "\ud800"},
        {**good, "b": "other"}, {**good, "more": "x"}, sign(SEND, b"body", Credentials("ann", "wrong"), MQ_VERSION),
        {**good, "AccessKey": "root"},
    ]
    for ext in cases:
        peer = Peer()
        assert world.remark(ext, peer=peer) == "check signature failed."
        assert not peer.authenticated
    assert world.remark(good, b"bodY") == "check signature failed."
    assert world.remark(good, b"") == "check signature failed."
    assert world.remark({**good, "AccessKey": ""}) == "username cannot be null."
    assert world.remark({**good, "AccessKey": "nobody"}) == "check signature failed."
    assert world.control.denied == {
        "signature": 12, "missing": 1, "user": 1, "disabled": 0, "password": 0, "permission": 0, "request": 0,
        "attempts": 0, "binding": 0}


def test_a_replayed_request_is_served_again_as_by_the_reference(world):
    """The signature has neither time nor number: TLS keeps others from recording requests."""
    replayed = sign(SEND, b"body", ANN, MQ_VERSION)
    assert [world.remark(replayed), world.remark(replayed, peer=Peer("10.0.0.9"))] == ["", ""]


def test_requests_that_the_white_list_excuses():
    world = World(authentication_whitelist="310, 11", authorization_whitelist="310,28")
    assert world.remark() == ""
    assert world.remark({}, code=11).startswith("Authorization failed.")
    assert world.remark({"topic": "x", "consumerGroup": "g", "AccessKey": "root"}, code=11) == "check signature failed."
    assert world.remark({}, code=28) == "username cannot be null."
    assert world.remark({}, code=28, by=ANN) == ""
    assert "no permission" in world.remark({}, code=26, by=ANN)


@pytest.mark.parametrize("white", [
    {"authentication_whitelist": "105", "authorization_whitelist": "105"},
    {"authentication_whitelist": "105", "authorization_enabled": False}])
@pytest.mark.parametrize("ext", [
    {"topic": "t"}, {"topic": "t", "AccessKey": "root"}, {"AccessKey": "root", "Signature": "x"}])
def test_a_code_of_the_white_list_does_not_authenticate_its_connection(white, ext):
    world, peer = World(**white), Peer()
    assert world.remark(ext, code=105, peer=peer) == ""
    assert not peer.authenticated
    assert world.remark(code=105, by=ANN, peer=peer) == ""
    assert world.remark(code=310, by=ANN, peer=peer) == ""
    assert peer.authenticated, "the signature of a request that needs one was valid"


def test_with_authentication_alone_every_user_may_do_everything():
    world = World(authorization_enabled=False)
    assert world.remark({"topic": "secret"}, code=215, by=ANN) == ""
    assert world.remark({"topic": "secret"}, code=215) == "username cannot be null."


def test_a_change_counts_for_the_next_request(world):
    assert world.remark(by=ANN) == ""
    world.acls.clear()
    world.control.changed()
    assert world.remark(by=ANN).endswith("no matched policies.")
    world.users["ann"] = User("ann", ANN.secret_key, enabled=False)
    world.control.changed()
    assert world.remark(by=ANN) == "check signature failed."
    del world.users["ann"]
    world.control.changed()
    assert world.remark(by=ANN) == "check signature failed."


def test_stateful_checks_the_signature_once_for_a_connection_and_user():
    world = World(authentication_strategy=STATEFUL, stateful_authentication_cache_expired_second=60)
    peer, wrong = Peer(), Credentials("ann", "wrong")
    assert world.remark(by=wrong, peer=peer) == "check signature failed."
    assert world.remark(by=ANN, peer=peer) == ""
    assert world.remark(by=wrong, peer=peer) == ""
    assert world.remark(by=wrong, peer=Peer()) == "check signature failed."
    assert world.remark(by=Credentials("root", "x"), peer=peer) == "check signature failed."
    world.clock.advance(61_000)
    assert world.remark(by=wrong, peer=peer) == "check signature failed."
    assert world.remark(by=ANN, peer=peer) == ""
    world.control.changed()
    assert world.remark(by=wrong, peer=peer) == "check signature failed."


def test_the_log_names_the_user_and_no_secret_once_in_ten_seconds(world, caplog):
    for _ in range(5):
        world.remark(by=Credentials("ann", "wrong-password"))
    world.remark({"topic": "t\nx"}, code=215, by=ANN)
    world.clock.advance(LOG_PERIOD_NS // 1_000_000)
    world.remark(by=Credentials("ann", "wrong-password"))
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3
    assert lines[0].startswith("access denied user='ann' address=127.0.0.1 code=310")
    assert "action=Delete resource='Topic:t" in lines[1]
    assert "reason=no matched policies." in lines[1]
    assert "\n" not in lines[1]
    assert lines[2].endswith("more=4 others=0")
    for secret in ("wrong-password", ANN.secret_key, sign(SEND, b"body", ANN, MQ_VERSION)["Signature"]):
        assert secret not in "".join(lines)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"consumerDataSet":5}', b'{"consumerDataSet":[5]}',
                                  b'{"consumerDataSet":[{}]}', b'{"consumerDataSet":[{"groupName":null}]}'])
def test_a_body_that_does_not_say_what_it_is_for_is_refused(world, body):
    assert world.remark({}, body, code=34, by=ANN) == "parse authorization context error."
    assert world.remark({}, body, code=34, by=Credentials("root", "r")) == ""  # its processor says what is wrong


def test_every_request_says_who_may_send_it():
    """A request without a resource would be open to every user."""
    for code, row in REQUESTS.items():
        if row.role is Role.CLIENT:
            continue
        assert row.action, code.name
        assert row.resource, code.name
        assert bool(row.named) == (row.resource.name != "CLUSTER") or row.named.startswith("Cluster:"), code.name
        for part in row.named.split():
            kind, _, field = part.partition(":")
            if field and row.header is not None:
                names = row.header.__struct_encode_fields__
                assert field.rstrip("~^=?;,") in names, (code.name, part)
                assert kind.upper() in str(row.resource), code.name


ORDERS, SECRET = Access("Topic", "orders", Action.PUB), Access("Topic", "secret", Action.PUB)


def sent(world, by=ANN, *, ext=SEND, body=b"body", code=310):
    """Return a request of a user that has passed the check."""
    request = RemotingCommand(code, sign(ext, body, by, MQ_VERSION), body, version=MQ_VERSION)
    world.control.check(Peer(), request)
    return request


def refused(check, *given):
    with pytest.raises(RefusalError) as caught:
        check(Peer("10.0.0.1"), *given)
    assert caught.value.code == 16
    return caught.value.remark


def test_a_checked_request_says_who_sent_it(world):
    assert sender_of(sent(world)) == "ann"
    assert sender_of(sent(World(authentication_strategy=STATEFUL))) == "ann"
    assert sender_of(RemotingCommand(310)) == ""


def test_a_processor_may_require_more_of_the_sender(world, caplog):
    request = sent(world)
    world.control.require(Peer("10.0.0.1"), request, ORDERS)
    before = world.control.denied["permission"]
    remark = refused(world.control.require, request, ORDERS, SECRET)
    assert remark == "User:ann has no permission to access Topic:secret from 10.0.0.1, no matched policies."
    assert world.control.denied["permission"] == before + 1
    assert "code=310 action=Pub resource='Topic:secret'" in caplog.text
    world.control.require(Peer(), sent(world, Credentials("root", "r")), SECRET)


def test_more_is_required_of_a_request_that_has_waited_by_what_counts_now(world):
    request = sent(world)
    world.acls.clear()
    world.control.changed()
    assert "no matched policies" in refused(world.control.require, request, ORDERS)
    assert "or it does not exist" in refused(world.control.require_record, request, ORDERS, SECRET)
    del world.users["ann"]
    world.control.changed()
    assert refused(world.control.require, request, ORDERS) == "check signature failed."
    assert refused(world.control.require_record, request) == "check signature failed."


def test_a_request_without_a_sender_may_do_nothing_more(world):
    assert refused(world.control.require, RemotingCommand(310), ORDERS) == "username cannot be null."


def test_a_missing_record_is_refused_as_a_forbidden_one(world, caplog):
    request, root = sent(world), sent(world, Credentials("root", "r"))
    world.control.require_record(Peer(), request, SECRET, ORDERS)
    for accesses in ([SECRET], []):
        assert refused(world.control.require_record, request, *accesses) == (
            "User:ann may not access this message, or it does not exist.")
        world.control.require_record(Peer(), root, *accesses)
    assert "resource='Topic:secret' reason=the message is one of this resource" in caplog.text
    assert "resource='' reason=there is no such message" in caplog.text


def test_nothing_more_is_required_where_no_permission_is():
    request = RemotingCommand(310)
    for world in (World(authorization_enabled=False), World(authorization_whitelist="310")):
        world.control.require(Peer(), request, SECRET)
        world.control.require_record(Peer(), request)


def test_permits_only_answers(world):
    permits = world.control.permits
    assert permits("ann", "10.0.0.1", ORDERS)
    assert permits("root", "10.0.0.1", ORDERS, SECRET)
    assert not permits("ann", "10.0.0.1", ORDERS, SECRET)
    assert not permits("gone", "10.0.0.1")
    assert not permits("", "10.0.0.1")
    world.users["ann"] = User("ann", ANN.secret_key, enabled=False)
    world.control.changed()
    assert not permits("ann", "10.0.0.1", ORDERS)
    assert not any(world.control.denied.values())


def test_a_request_that_names_nothing_is_about_the_cluster():
    accesses = Accesses("C")
    for code in (RequestCode.VIEW_MESSAGE_BY_ID, RequestCode.GET_BROKER_CONFIG, RequestCode.GET_ALL_TOPIC_CONFIG):
        found = accesses.of(RemotingCommand(code, {}))
        assert [(one.kind, one.name) for one in found] == [("Cluster", "C")]
    assert accesses.of(RemotingCommand(99_999, {})) == [("Cluster", "C", Action.UPDATE)]
    assert accesses.of(RemotingCommand(RequestCode.END_TRANSACTION, {})) == []  # as old producers send it


@pytest.mark.parametrize("code", [RequestCode.ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME])
@pytest.mark.parametrize(("group", "topic", "named"), [
    ("g", "%RETRY%g_orders", ("Topic", "orders")), ("g", "%RETRY%g+orders", ("Topic", "orders")),
    ("g", "orders", ("Topic", "orders")),
    ("g", "%RETRY%g_a_x", ("Topic", "a_x")), ("g_a", "%RETRY%g_a_x", ("Topic", "x")),
    ("g", "%RETRY%other_x", ("Group", "other_x")), ("g", "%RETRY%gg_x", ("Group", "gg_x")),
])
def test_an_acknowledgement_of_a_retry_needs_what_its_pop_needed(code, group, topic, named):
    found = Accesses("C").of(RemotingCommand(code, {"consumerGroup": group, "topic": topic}))
    assert found == [("Group", group, Action.SUB), (*named, Action.SUB)]


@pytest.mark.parametrize(("topic", "named"), [
    ("%RETRY%g", []), ("%RETRY%g_orders", []), ("%RETRY%g+orders", []), ("orders", [("Topic", "orders")]),
    ("%RETRY%h", [("Group", "h")]), ("%RETRY%gh_orders", [("Group", "gh_orders")]),
])
def test_a_pull_of_retries_of_other_groups_needs_a_permission_for_them(topic, named):
    for code in (RequestCode.PULL_MESSAGE, RequestCode.QUERY_CONSUMER_OFFSET):
        found = Accesses("C").of(RemotingCommand(code, {"consumerGroup": "g", "topic": topic}))
        assert {tuple(one[:2]) for one in found} == {("Group", "g"), *named}


def test_the_queue_of_a_lite_topic_is_one_of_its_parent():
    for code, action in ((11, Action.SUB), (10, Action.PUB), (30, Action.GET)):
        for queue, topic in (("%LMQ%$parent$a", "parent"), ("%LMQ%dev1", "%LMQ%dev1"), ("%LMQ%$odd", "%LMQ%$odd"),
                             ("%LMQ%a$b", "%LMQ%a$b")):
            found = Accesses("C").of(RemotingCommand(code, {"topic": queue}))
            assert found == [("Topic", topic, action)], queue


RETRIES = [("%RETRY%g", []), ("%RETRY%g_orders", []), ("%RETRY%g+orders", []), ("%RETRY%h", ["h"]),
           ("%RETRY%gh_orders", ["gh_orders"]), ("%RETRY%h+g", ["h+g"]), ("%RETRY%", [""])]


@pytest.mark.parametrize("code", [RequestCode.HEART_BEAT, RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ])
@pytest.mark.parametrize(("topic", "others"), RETRIES)
def test_a_body_that_names_retries_of_other_groups_needs_a_permission_for_them(code, topic, others):
    body = fastjson.dumps(
        {"consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [{"topic": topic}, {"topic": "orders"}]}]}
        if code is RequestCode.HEART_BEAT else
        {"consumerGroup": "g", "mqSet": [{"topic": topic}, {"topic": "orders"}]})
    found = Accesses("C").of(RemotingCommand(code, {}, body))
    assert {tuple(one[:2]) for one in found} == {
        ("Group", "g"), ("Topic", "orders"), *(("Group", other) for other in others)}


def test_replies_need_no_permission_for_the_topic_of_replies_alone():
    accesses = Accesses("C")
    reply = RequestCode.SEND_REPLY_MESSAGE_V2
    assert accesses.of(RemotingCommand(reply, {"b": "C_REPLY_TOPIC"})) == []
    assert accesses.of(RemotingCommand(reply, {"b": "orders"})) == [("Topic", "orders", Action.PUB)]


@pytest.mark.parametrize(("values", "part"), [
    ({"authorizationEnabled": "true"}, "needs authenticationEnabled=true"),
    ({"authenticationWhitelist": "10,x"}, "authenticationWhitelist has x"),
    ({"authorizationWhitelist": "-1"}, "authorizationWhitelist has -1"),
    ({"grpcSignatureTimeZones": "UTC, Mars/Olympus"}, "grpcSignatureTimeZones has Mars/Olympus, which is not a time"),
    ({"grpcSignatureTimeZones": "+15:00"}, "+15:00, which is not a time zone"),
    ({"grpcSignatureTimeZones": "../../etc/passwd"}, "which is not a time zone"),
    ({"grpcSignatureMaxAge": "-1"}, "grpcSignatureMaxAge"),
    ({"initAuthenticationUser": "root:hidden"}, "initAuthenticationUser is not {"),
    ({"initAuthenticationUser": '{"username":"root"}'}, "initAuthenticationUser is not {"),
    ({"innerClientAuthenticationCredentials": '["hidden"]'}, "innerClientAuthenticationCredentials is not {"),
    ({"authenticationStrategy": "com.example.Mine"}, "authenticationStrategy=com.example.Mine is not one of"),
    ({"authorizationProvider": "com.example.Mine"}, "is not one of"),
    ({"authenticationMetadataProvider": "com.example.Ldap"}, "is not one of"),
])
def test_settings_that_cannot_be_honoured(values, part):
    with pytest.raises(ConfigError) as caught:
        AuthConfig.from_properties(values)
    assert part in str(caught.value)
    assert "hidden" not in str(caught.value)


def test_settings_do_not_show_secrets():
    made = AuthConfig(init_authentication_user='{"username":"root","password":"secret"}')
    assert "secret" not in repr(made)
    assert made.first_user() == ("root", "secret")


NAMES = st.text("ab", max_size=3)
RESOURCES = st.lists(st.builds(lambda name, prefixed: Resource("Topic", name, prefixed), NAMES, st.booleans()))


@given(RESOURCES, RESOURCES)
def test_what_two_lists_of_resources_have_in_common_is_found(some, others):
    found = common_names(some, others)
    names = ["".join(name) for length in range(5) for name in itertools.product("ab", repeat=length)]

    def has(resources, name):
        return any(one.matches("Topic", name) for one in resources)

    assert bool(found) == any(has(some, name) and has(others, name) for name in names)
    assert all(has(some, name) and has(others, name) for name in found)
