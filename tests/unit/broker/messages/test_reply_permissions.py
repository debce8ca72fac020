"""Who may reply to whom: the request that was asked, its topic, and the user of the replier."""

from __future__ import annotations

import asyncio

import pytest
from broker_kit import use_control
from people import People, sent_by

from tailrace.auth.accesses import Accesses
from tailrace.broker import wiring
from tailrace.broker.messages import asked_questions
from tailrace.broker.messages.reply import ReplyMessageProcessor
from tailrace.formats.remoting import RemotingCommand
from tailrace.formats.requests.table import REQUESTS
from tailrace.requests.durable_answers import DurableAnswers

REPLIES = "DefaultCluster_REPLY_TOPIC"
FORBIDDEN = "User:{} may not reply to client {}: it has not asked a question on a topic that the user may consume."


class World:
    """A broker with users, the connection of ann's client ``asker``, and what is pushed to it."""

    def __init__(self, broker, kit):
        self.broker, self.kit, self.pushed = broker, kit, []
        self.people = People(
            ann=[("Topic:questions*", "Pub")], shop=[("Topic:questions", "Sub")], other=[("Topic:else", "Pub,Sub")],
            nobody=())
        self.wire(self.people.control)
        for topic in ("questions", "else", "%RETRY%stock"):
            broker.topics.create_if_missing(topic, 1)
        broker.groups.find_or_create("stock")
        self.asker = self.connect("ann", "asker")

    def wire(self, control):
        use_control(broker := self.broker, control)
        self.send_processor = wiring.sends(
            broker, DurableAnswers(broker.loop, broker.store), wait_durable=False)
        self.processor = broker.make(ReplyMessageProcessor, messages=self.send_processor.messages)

    def connect(self, user, client):
        channel = self.kit.FakeChannel(f"10.0.0.9:{len(self.pushed) + 1}")

        async def request(command, timeout_ms):
            self.pushed.append((client, command.body))
            return RemotingCommand(0)

        channel.request = request
        beat = sent_by(user, RemotingCommand(34))
        self.broker.clients.ids.claim(channel, beat, client)
        self.broker.clients.producers.register(channel, beat, client, "p")
        return channel

    def ask(self, user="ann", client="asker", topic="questions", correlation="c-1", ttl="3000"):
        properties = f"CORRELATION_ID\x01{correlation}\x02REPLY_TO_CLIENT\x01{client}\x02TTL\x01{ttl}\x02"
        return self.serve(self.send_processor.send_v2, user, 310, topic, properties)

    def reply(self, user="shop", client="asker", correlation="c-1", topic=REPLIES):
        properties = f"MSG_TYPE\x01reply\x02CORRELATION_ID\x01{correlation}\x02REPLY_TO_CLIENT\x01{client}\x02"
        return self.serve(self.processor.reply_v2, user, 325, topic, properties)

    def serve(self, processor, user, code, topic, properties):
        channel = self.kit.FakeChannel("10.0.0.3:1")
        request = RemotingCommand(code, {
            "a": "g", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0", "i": properties,
            "j": "0", "k": "false"}, b"body", opaque=3)
        if user:
            sent_by(user, request)
        found = processor(channel, request)
        if found is None:
            self.broker.loop.run_until_complete(asyncio.wait_for(self.processor.stop(), 5))
            self.broker.loop.run_until_complete(asyncio.sleep(0))
            found = channel.sent[-1]
        return self.kit.decoded(found)


@pytest.fixture
def world(broker, kit):
    return World(broker, kit)


def test_a_consumer_of_the_question_may_reply_more_than_once(world):
    assert world.ask().code == 0
    for _ in range(2):  # to members of two groups, or after a lost answer
        assert world.reply().code == 0
    assert world.pushed == [("asker", b"body")] * 2
    assert world.reply("root").code == 0


@pytest.mark.parametrize("user", ["nobody", "other", "ann"])
def test_others_may_not_reply(world, user, caplog):
    """And ann may only send to the topic; her own other clients are hers."""
    world.people.add("bob", ("Topic:questions", "Pub"))
    world.connect("bob", "b")
    world.ask("bob", "b")
    answer = world.reply(user, "b")
    assert (answer.code, answer.remark) == (16, FORBIDDEN.format(user, "b"))
    assert (world.pushed, world.broker.store.queue_of(REPLIES, 0).max) == ([], 0)
    assert f"user={user!r} address=10.0.0.3 code=325" in caplog.text


@pytest.mark.parametrize("changes", [
    {"correlation": "c-2"}, {"client": "gone"}, {"client": "gone", "correlation": "c-2"}, {"correlation": "x" * 5000}])
def test_a_reply_that_was_never_asked_for_is_refused_as_one_to_a_missing_client(world, changes):
    world.ask()
    answer = world.reply(**changes)
    assert (answer.code, answer.remark) == (16, FORBIDDEN.format("shop", changes.get("client", "asker")))
    assert world.pushed == []


def test_a_user_may_reply_to_its_own_client(world):
    assert world.reply("ann").code == 0


def test_no_user_asks_for_a_client_of_another_user(world):
    world.people.add("mallory", ("Topic:else", "Pub,Sub"))
    answer = world.ask("mallory", "asker", "else")
    assert (answer.code, answer.remark) == (16, "client asker is one of another user")
    assert world.broker.store.queue_of("else", 0).max == 0
    assert world.reply("mallory").code == 16
    # A consumer that sends a message to its retry topic keeps its properties.
    assert world.ask("shop", "asker", "%RETRY%stock").code == 0
    assert world.reply("mallory").code == 16


def test_a_client_id_that_was_asked_for_by_another_user_before_is_not_a_way_in(world):
    """Mallory asks with a client id that is free; later it belongs to ann."""
    world.people.add("mallory", ("Topic:else", "Pub,Sub"))
    assert world.ask("mallory", "later", "else").code == 0
    world.connect("ann", "later")
    assert world.reply("mallory", "later").code == 16


def test_a_question_is_forgotten_after_its_time(world, clock):
    world.ask(ttl="3000")
    world.ask(correlation="c-2", ttl="999999999999")
    world.ask(correlation="c-3", ttl="soon")
    clock.ms += 3_000 + asked_questions.GRACE_MS
    assert world.reply().code == 0
    clock.ms += 1
    assert world.reply().code == 16
    clock.ms += asked_questions.TTL_MAX_MS - 3_001
    assert world.reply(correlation="c-2").code == 0
    clock.ms += 1
    assert world.reply(correlation="c-2").code == 16
    assert world.reply(correlation="c-3").code == 16


def test_questions_of_one_user_do_not_drive_out_those_of_another(world, monkeypatch):
    monkeypatch.setattr(asked_questions, "OF_USER_MAX", 3)
    world.people.add("mallory", ("Topic:else", "Pub,Sub"))
    world.ask()
    for n in range(20):
        world.ask("mallory", f"m{n}", "else", f"c-{n}")
    assert world.reply().code == 0
    assert len(world.broker.asked) == 4
    world.ask(correlation="y" * 5000)
    assert len(world.broker.asked) == 4


def elsewhere(world):
    world.broker.name_servers.states = lambda: {"10.0.0.1:9876": True}


def several(world):
    world.broker.name_servers.route = lambda topic: {"queueDatas": [{"brokerName": "a"}, {"brokerName": "b"}]}


@pytest.mark.parametrize("cluster", [elsewhere, several])
@pytest.mark.parametrize(("entry", "code"), [
    (("Topic:questions", "Sub"), 0), (("Topic:quest*", "Sub"), 0), (("Topic:questions-of-all*", "Sub"), 0),
    (("Topic:*", "All"), 0), (("*", "All"), 0), (("Topic:question", "Sub"), 16), (("Topic:questions", "Pub"), 16),
    (("Group:*", "Sub"), 16), (("Topic:else*", "Sub"), 16)])
def test_a_question_that_another_broker_may_have_stored_needs_a_topic_of_both(world, cluster, entry, code):
    cluster(world)
    world.people.add("replier", entry)
    assert world.reply("replier").code == code
    assert world.reply("nobody").code == 16
    assert world.reply("root").code == 0


def test_a_denied_topic_is_none_of_both(world):
    elsewhere(world)
    people = world.people
    people.add("replier", ("Topic:questions", "Sub"))
    deny = type(people.acls["replier"].custom[0])
    entry = people.acls["replier"].custom[0]
    people.acls["ann"] = type(people.acls["ann"])("ann", (
        *people.acls["ann"].custom, deny(entry.resource, ("Pub",), (), allow=False)))
    people.control.changed()
    assert world.reply("replier").code == 16


def test_a_reply_that_was_stored_here_is_for_those_who_may_consume_it_also_in_a_cluster(world):
    elsewhere(world)
    world.people.add("replier", ("Topic:questions-b", "Sub"))
    assert world.reply("replier").code == 0
    world.ask()
    assert world.reply("replier").code == 16
    assert world.reply().code == 0


def test_without_users_or_permissions_every_reply_is_served(world):
    world.wire(None)
    world.connect("ann", "asker")
    assert world.reply("").code == 0
    assert world.ask("").code == 0
    assert len(world.broker.asked) == 0


@pytest.mark.parametrize(("code", "name"), [(324, "topic"), (325, "b"), (105, "topic")])
def test_only_the_reply_topic_of_the_cluster_needs_no_permission(code, name):
    accesses = Accesses("DefaultCluster")

    def of(topic):
        return accesses.of(RemotingCommand(code, {name: topic}))

    assert of(REPLIES) == []
    for topic in ("secret_REPLY_TOPIC", "_REPLY_TOPIC", "xDefaultCluster_REPLY_TOPIC", "Other_REPLY_TOPIC"):
        assert [(one.kind, one.name) for one in of(topic)] == [("Topic", topic)]
    free = {row.code for row in REQUESTS.values() if row.named and row.named != "body" and "Topic:" in row.named
            and not _accesses_of(accesses, row, REPLIES)}
    assert free == {324, 325, 105}


def _accesses_of(accesses, row, topic):
    fields = [part.partition(":")[2].rstrip("~^=?;,") for part in row.named.split()]
    return accesses.of(RemotingCommand(row.code, dict.fromkeys(fields, topic)))
