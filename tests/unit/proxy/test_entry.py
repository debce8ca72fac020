"""Which calls are allowed: the header, the user, and the permissions of each call."""

import hashlib
import hmac
from types import SimpleNamespace

import pytest

pytest.importorskip("rocketmq.grpc_protocol")

from tailrace.auth.check import AccessControl
from tailrace.auth.model import acl_of, user_of
from tailrace.auth_settings import AuthConfig
from tailrace.env.clock import SystemClock
from tailrace.proxy.caller import address_of
from tailrace.proxy.entry import Entry, proof_of
from tailrace.proxy.protocol import Code, GrpcError, definition, service
from tailrace.proxy.signature_dates import SignatureDates

TIME = "20261123T120000Z"
NOW_MS = 1795435200_000
"""The same time."""
USERS = {
    user.name: user for user in (
        user_of({"username": "admin", "password": "12345678", "userType": "Super"}),
        user_of({"username": "shop", "password": "secret-shop"}),
        user_of({"username": "nothing", "password": "secret-nothing"}),
        user_of({"username": "gone", "password": "secret-gone", "userStatus": "disable"}))}
ACL = acl_of({"policies": [{"entries": [
    {"resource": "Topic:orders", "actions": ["Pub"], "decision": "Allow", "sourceIps": ["10.0.0.0/8"]},
    {"resource": "Topic:bills", "actions": ["Sub"], "decision": "Allow"},
    {"resource": "Group:readers", "actions": ["Sub"], "decision": "Allow"}]}]}, "User:shop")


def signature(password, text=TIME):
    return hmac.new(password.encode(), text.encode(), hashlib.sha1).hexdigest().upper()


def header(user="shop", password="secret-shop"):
    return (f"MQv2-HMAC-SHA1 Credential={user}/region/RocketMQ, SignedHeaders=x-mq-date-time, "
            f"Signature={signature(password)}")


class Calls:
    """An entry with users; calls it as gRPC does."""

    def __init__(self, **clients):
        config = AuthConfig(authentication_enabled=True, authorization_enabled=True)
        self.now_ms = NOW_MS
        self.max_age_s, self.zones = config.grpc_signature_max_age, ()
        self.acls = {"shop": ACL}
        self.control = AccessControl(
            SystemClock(), config, "DefaultCluster", USERS.get, lambda user: self.acls.get(user))
        self._clients = SimpleNamespace(
            find=clients.get, user_of=lambda name: clients[name].caller.user if name in clients else None)

    def __call__(self, request, authorization, time=TIME, client="one", peer="ipv4:10.1.1.1:9", begun_ms=None):
        metadata = {"x-mq-client-id": client, "x-mq-date-time": time, "authorization": authorization}
        context = SimpleNamespace(
            invocation_metadata=lambda: [pair for pair in metadata.items() if pair[1] is not None],
            peer=lambda: peer)
        dates = SignatureDates(SimpleNamespace(now_ms=lambda: self.now_ms), self.max_age_s, self.zones)
        return Entry(self.control, self._clients, dates).caller(request, context, begun_ms)

    def refusal(self, request, authorization, **fields):
        with pytest.raises(GrpcError) as told:
            self(request, authorization, **fields)
        return told.value.code, told.value.message


@pytest.fixture
def calls():
    return Calls()


def topic(name):
    return definition.Resource(name=name)


def sent(name):
    return service.SendMessageRequest(messages=[definition.Message(topic=topic(name))])


def test_the_header_is_read_as_clients_write_it():
    for text in (signature("secret-shop"), signature("secret-shop").lower()):
        found = proof_of({
            "authorization": f"MQv2-HMAC-SHA1 Credential=shop/r/s, SignedHeaders=x-mq-date-time, Signature={text}",
            "x-mq-date-time": TIME})
        assert found == ("shop", TIME.encode(), bytes.fromhex(text))
    assert proof_of({}) == ("", b"", None)


@pytest.mark.parametrize(("authorization", "time", "message", "reason"), [
    (None, TIME, "username cannot be null.", "missing"),
    ("MQv2-HMAC-SHA1 Credential=, SignedHeaders=x-mq-date-time, Signature=00", TIME, "username cannot be null.",
     "missing"),
    (header(), None, "datetime is null.", "request"),
    ("MQv2-HMAC-SHA1", TIME, "authentication header is incorrect.", "request"),
    (header().replace("SHA1", "MD5"), TIME, "authentication header is incorrect.", "request"),
    ("MQv2-HMAC-SHA1 Credential=shop, Sign", TIME, "authentication keyValues length is incorrect, actual length=1.",
     "request"),
    (header()[:-1], TIME, "create authentication context error.", "request"),
    (header()[:-2], TIME, "check signature failed.", "signature"),
    ("MQv2-HMAC-SHA1 Credential=shop", TIME, "check signature failed.", "signature"),
    (header(password="other"), TIME, "check signature failed.", "signature"),
    (header(), "20261123T120001Z", "check signature failed.", "signature"),
    (header("nobody"), TIME, "check signature failed.", "user"),
    (header("gone", "secret-gone"), TIME, "check signature failed.", "disabled"),
])
def test_a_call_that_no_user_has_signed_is_unauthorized(calls, authorization, time, message, reason):
    assert calls.refusal(sent("orders"), authorization, time=time) == (Code.UNAUTHORIZED, message)
    assert calls.control.denied[reason] == 1
    assert sum(calls.control.denied.values()) == 1


def signed(text, password="secret-shop"):
    return {"authorization": f"MQv2-HMAC-SHA1 Credential=shop, SignedHeaders=x-mq-date-time, "
            f"Signature={signature(password, text)}", "time": text}


@pytest.mark.parametrize("apart_s", [-901, 901, -4 * 365 * 86_400])
def test_a_signature_whose_time_is_not_near_is_refused(calls, apart_s):
    calls.now_ms = NOW_MS + apart_s * 1000
    assert calls.refusal(sent("orders"), **signed(TIME)) == (
        Code.UNAUTHORIZED,
        f"the time of the signature, {TIME}, is {abs(apart_s)} s "  # noqa: ISC004
        f"{'behind' if apart_s > 0 else 'ahead of'} the clock of the server in UTC, and grpcSignatureMaxAge is 900 s; "
        "compare the clocks, or name the time zone of the client in grpcSignatureTimeZones")
    assert +calls.control.denied == {"request": 1}
    calls.max_age_s = 0  # RocketMQ's rule
    assert calls(sent("orders"), **signed(TIME)).user == "shop"


@pytest.mark.parametrize("apart_s", [-900, -1, 0, 1, 900])
def test_a_signature_of_near_times_is_valid(calls, apart_s):
    calls.now_ms = NOW_MS + apart_s * 1000
    assert calls(sent("orders"), **signed(TIME)).user == "shop"


@pytest.mark.parametrize("text", [
    "never", "20200101T000000", "20261323T120000Z", "20261123T120060Z", "2026-11-23T12:00:00Z", " 20261123T120000Z",
    "20261123T120000Z\n", "２０２６1123T120000Z", "1795435200", "20261123T120000+0100", "9" * 30_000,
    "00000000T000000Z"])
def test_a_signature_over_a_text_that_is_no_time_is_refused(calls, text):
    code, message = calls.refusal(sent("orders"), **signed(text))
    assert code == Code.UNAUTHORIZED
    assert message.startswith("x-mq-date-time is not a time such as 20261123T120000Z")
    assert len(message) < 200
    calls.max_age_s = 0
    assert calls(sent("orders"), **signed(text)).user == "shop"


def test_who_has_not_signed_learns_nothing_about_the_clock(calls):
    assert calls.refusal(sent("orders"), **signed("20200101T000000Z", "wrong"))[1] == "check signature failed."


def test_a_stream_is_judged_by_the_time_at_which_it_began(calls):
    begun, calls.now_ms = NOW_MS + 1_000, NOW_MS + 86_400_000
    settings = service.TelemetryCommand(settings=definition.Settings(
        publishing=definition.Publishing(topics=[topic("orders")])))
    assert calls(settings, **signed(TIME), begun_ms=begun).user == "shop"
    assert calls.refusal(settings, **signed(TIME))[0] == Code.UNAUTHORIZED


def test_the_user_is_checked_before_the_client_id(calls):
    assert calls.refusal(sent("orders"), None, client=None)[0] == Code.UNAUTHORIZED
    assert calls.refusal(sent("orders"), header(), client=None)[0] == Code.CLIENT_ID_REQUIRED


def test_a_user_does_what_its_permissions_allow_from_where_they_allow_it(calls):
    for _ in range(2):
        assert calls(sent("orders"), header()).user == "shop"
        assert calls.refusal(sent("orders"), header(), peer="ipv4:11.1.1.1:9") == (
            Code.FORBIDDEN, "User:shop has no permission to access Topic:orders from 11.1.1.1, no matched policies.")
    assert calls(sent("any"), header("admin", "12345678"), peer="ipv6:%5B::1%5D:9").user == "admin"


def subscription(group, *topics):
    return service.TelemetryCommand(settings=definition.Settings(subscription=definition.Subscription(
        group=topic(group), subscriptions=[definition.SubscriptionEntry(topic=topic(name)) for name in topics])))


def group_and_topic(kind, group, name):
    return kind(group=topic(group), topic=topic(name))


CONSUMER = definition.ClientType.SIMPLE_CONSUMER
QUEUE = definition.MessageQueue


@pytest.mark.parametrize(("allowed", "denied"), [
    ([sent("orders")], [sent("bills"), sent(""), service.SendMessageRequest()]),
    *(([kind(topic=topic("orders"))], [kind(topic=topic("bills"))])
      for kind in (service.RecallMessageRequest, service.EndTransactionRequest)),
    *(([group_and_topic(kind, "readers", "bills")],
       [group_and_topic(kind, "readers", "orders"), group_and_topic(kind, "others", "bills")])
      for kind in (service.AckMessageRequest, service.ForwardMessageToDeadLetterQueueRequest,
                   service.ChangeInvisibleDurationRequest, service.QueryAssignmentRequest)),
    ([service.ReceiveMessageRequest(group=topic("readers"), message_queue=QUEUE(topic=topic("bills")))],
     [service.ReceiveMessageRequest(group=topic("readers")),
      service.ReceiveMessageRequest(group=topic("others"), message_queue=QUEUE(topic=topic("bills"))),
      service.ReceiveMessageRequest(group=topic("readers"), message_queue=QUEUE(topic=topic("orders")))]),
    ([service.QueryRouteRequest(topic=topic("orders")), service.QueryRouteRequest(topic=topic("bills"))],
     [service.QueryRouteRequest(topic=topic("others")), service.QueryRouteRequest()]),
    ([service.HeartbeatRequest(), service.HeartbeatRequest(client_type=CONSUMER, group=topic("readers"))],
     [service.HeartbeatRequest(client_type=CONSUMER), service.HeartbeatRequest(
         client_type=CONSUMER, group=topic("others"))]),
    ([service.NotifyClientTerminationRequest(), service.NotifyClientTerminationRequest(group=topic("readers"))],
     [service.NotifyClientTerminationRequest(group=topic("others"))]),
    ([service.TelemetryCommand(), subscription("readers", "bills"), service.TelemetryCommand(
        settings=definition.Settings(publishing=definition.Publishing(topics=[topic("orders")])))],
     [subscription("readers", "bills", "orders"), subscription("others"), service.TelemetryCommand(
         settings=definition.Settings(publishing=definition.Publishing(topics=[topic("orders"), topic("bills")])))]),
], ids=lambda requests: type(requests[0]).__name__)
def test_each_call_needs_what_it_needs_with_the_proxy(calls, allowed, denied):
    for request in allowed:
        assert calls(request, header()).user == "shop"
    for request in denied:
        assert calls.refusal(request, header())[0] == Code.FORBIDDEN


def test_a_namespace_is_a_part_of_the_name(calls):
    request = sent("orders")
    request.messages[0].topic.resource_namespace = "other"
    assert calls.refusal(request, header())[0] == Code.FORBIDDEN


def test_a_client_is_the_one_of_its_user():
    settings = definition.Settings(subscription=definition.Subscription(group=topic("readers")))
    connection = SimpleNamespace(channel=SimpleNamespace(users={}))
    calls = Calls(one=SimpleNamespace(caller=SimpleNamespace(user="shop"), settings=settings, connection=connection))
    assert calls(sent("orders"), header()).user == "shop"
    assert calls.refusal(service.HeartbeatRequest(), header())[0] == Code.FORBIDDEN  # it says that it is a producer
    assert calls.refusal(sent("orders"), header("admin", "12345678")) == (
        Code.FORBIDDEN, "client one is one of another user")


def test_a_producer_without_topics_may_send_to_some_topic(calls):
    """Clients may name their topics later."""
    settings = service.TelemetryCommand(settings=definition.Settings(publishing=definition.Publishing()))
    assert calls(settings, header()).user == "shop"
    assert calls.refusal(settings, header("nothing", "secret-nothing")) == (
        Code.FORBIDDEN, "User:nothing has no permission to send to any topic from 10.1.1.1")
    assert calls.refusal(settings, header(), peer="ipv4:11.1.1.1:9")[0] == Code.FORBIDDEN, "not from this address"
    assert calls(service.TelemetryCommand(), header("nothing", "secret-nothing")).user == "nothing"


def test_every_call_of_the_service_has_a_rule():
    from tailrace.proxy.entry import _ACCESSES
    methods = service.DESCRIPTOR.services_by_name["MessagingService"].methods
    missing = {method.input_type.name for method in methods} - {kind.__name__ for kind in _ACCESSES}
    assert missing == {"PullMessageRequest", "UpdateOffsetRequest", "GetOffsetRequest", "QueryOffsetRequest"}


def test_an_address_is_the_one_that_permissions_name():
    assert address_of("ipv6:%5B::ffff:10.1.1.1%5D:81") == ("10.1.1.1", 81)
    assert address_of("ipv6:%5B2001:DB8:0::1%5D:81") == ("2001:db8::1", 81)
    assert address_of("ipv4:10.1.1.1:81") == ("10.1.1.1", 81)


def test_a_removed_permission_holds_for_the_next_call():
    calls = Calls()
    send = service.SendMessageRequest(messages=[definition.Message(topic=definition.Resource(name="orders"))])
    for _ in range(2):
        assert calls(send, header()).user == "shop"
    calls.acls.clear()
    calls.control.changed()
    code, remark = calls.refusal(send, header())
    assert code == Code.FORBIDDEN
    assert remark.endswith("no matched policies.")
