"""Actions of the console over HTTP: what they do, who may take them, and what a foreign page or a broken form gets."""

from __future__ import annotations

import base64
import itertools
import re
import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from urllib.parse import urlencode

import pytest
from console_world import ACTIONS, PASSWORD, ROOT, ActingConsole
from patience import until

from tailrace.client import PullConsumer
from tailrace.console.actions.resend import BATCH
from tailrace.model import Message

pytestmark = pytest.mark.integration
names = itertools.count()
USERS = {
    "nobody": [],  # may not open the console
    "viewer": ["Cluster:*=Get,List"],
    "other": ["Cluster:*=Get", "Topic:other=All", "Group:other=All", "Topic:%DLQ%other=All"],
    "owner": ["Cluster:*=Get", "Topic:mine*=All", "Group:mine*=All"],
}


@pytest.fixture(scope="module")
def console(tmp_path_factory):
    settings = {"authenticationFailuresMax": 0}  # tests try many wrong passwords
    with ActingConsole(tmp_path_factory.mktemp("console"), settings=settings) as running:
        for user, entries in USERS.items():
            running.add_user(user, *entries)
        with running.producer() as producer:
            for topic in ("orders", "mine", "other"):
                producer.create_topic(topic, 2)
        running.dead_letters("shipping", "orders", 1)
        yield running
    assert running.stopped == 0


@pytest.fixture
def topic(console):
    """A new topic of two queues."""
    name = f"topic{next(names)}"
    with console.producer() as producer:
        producer.create_topic(name, 2)
    return name


def lines(console, before, event=None, count=0):
    """Lines of the audit log, which follow a moment later, when there are ``count`` of them."""

    def found():
        return [line for line in console.audit()[before:]
                if line["event"] != "log-in" and event in (None, line["event"])]

    until(lambda: len(found()) >= count)
    return found()


def test_a_topic_is_created_and_changed_as_the_page_has_said(console):
    name, before = f"topic{next(names)}", len(console.audit())
    page = console.preview("put-topic", {"topic": name, "read": "3", "write": "3", "perm": "6",
                                         "attributes": "message.type=FIFO\r\nreserve.time=48"})
    assert page.status == 200
    assert f"Create topic {name}" in page.text
    assert "Nothing has happened yet" in page.text
    assert "Attribute message.type - FIFO" in page.text
    assert not lines(console, before), "only a confirmation changes something"
    assert "is created" in console.confirm("put-topic", page).text
    form = console.ask(f"{ACTIONS}put-topic?topic={name}")
    assert (form.field("topic"), form.field("read")) == (name, "3")
    assert "message.type=FIFO\nreserve.time=48" in form.html
    page = console.preview("put-topic", {"topic": name, "read": "2", "write": "2", "perm": "4",
                                         "attributes": "message.type=FIFO"})
    for text in ("Queues to read 3 2", "read and write read only", "Attribute reserve.time 48 removed"):
        assert text in page.text
    assert "is changed" in console.confirm("put-topic", page).text
    (config,) = [one for one in console.admin(lambda admin: admin.topic_configs()) if one["topicName"] == name]
    assert (config["readQueueNums"], config["writeQueueNums"], config["perm"]) == (2, 2, 4)
    assert config["attributes"] == {"message.type": "FIFO"}
    assert [(line["name"], line["result"], line["via"], line["user"]) for line in lines(console, before, count=2)] == [
        ("UPDATE_AND_CREATE_TOPIC", "ok", "console", "root")] * 2


def test_the_page_warns_if_fewer_queues_hide_messages(console, topic):
    with console.producer() as producer:
        for queue_id in (0, 1):
            producer.send(Message(topic=topic, body=b"x"), queue_id=queue_id)
    page = console.preview("put-topic", {"topic": topic, "read": "1", "write": "1", "perm": "6"})
    assert f"{topic}: queue 1 is no longer read, with 1 messages" in page.text


def test_a_page_that_has_become_wrong_is_shown_again(console, topic):
    form = {"topic": topic, "read": "3", "write": "3", "perm": "6", "attributes": ""}
    first = console.preview("put-topic", form)
    console.do("put-topic", {**form, "read": "4"})
    again = console.confirm("put-topic", first)
    assert again.status == 409
    assert "not the one that was shown" in again.text
    assert "Queues to read 4 3" in again.text
    assert "is changed" in console.confirm("put-topic", again).text


def test_a_test_message_arrives_as_it_was_written(console, topic):
    body = 'ä {"a": 1}\r\n\ttab nbsp\u00a0 <b>'
    before = len(console.audit())
    page = console.preview("send-message", {
        "topic": topic, "tags": "red", "keys": "k1 k2", "properties": "a=b=c", "body": body})
    done = console.confirm("send-message", page)
    assert "Queue and offset" in done.text
    (message,) = console.messages(topic)
    assert message.body.decode() == body.replace("\r\n", "\n")
    assert (message.tags, list(message.keys), message.properties["a"]) == ("red", ["k1", "k2"], "b=c")
    (line,) = lines(console, before, "console", 1)
    assert (line["name"], line["user"], line["resource"], line["result"]) == (
        "send-message", "root", [f"Topic:{topic}"], "ok")
    assert line["details"]["bytes"] == len(message.body)
    assert "tab nbsp" not in str(line), "bodies stay out of the audit log"


def test_a_confirmation_counts_once(console, topic):
    page = console.preview("send-message", {"topic": topic, "body": "once"})
    first, second = (console.confirm("send-message", page) for _ in range(2))
    assert first.text == second.text
    assert len(console.messages(topic)) == 1


@pytest.mark.parametrize(("action", "form", "text"), [
    ("send-message", {"topic": "ordres", "body": "x"}, "There is no topic ordres; is orders meant?"),
    ("send-message", {"topic": "orders", "body": ""}, "Body is empty."),
    ("send-message", {"topic": "orders", "body": "x" * 65_537}, "Body has 65,537 bytes, over the limit of 65,536"),
    ("send-message", {"topic": "orders", "body": "x", "properties": "a"}, "write NAME=VALUE"),
    ("send-message", {"topic": "orders", "body": "x", "properties": "a=\x01"}, "0x01"),
    ("send-message", {"topic": "orders", "body": "x", "properties": "TRAN_MSG=true"}, "TRAN_MSG is one of the broker"),
    ("send-message", {"topic": "orders", "body": "x", "properties": "TIMER_DELAY_MS=5"}, "is one of the broker"),
    ("send-message", {"topic": "TBW102", "body": "x"}, "Topic TBW102 takes no messages of users."),
    ("put-topic", {"topic": "", "read": "1", "write": "1", "perm": "6"}, "Topic is empty."),
    ("put-topic", {"topic": "n", "read": "x", "write": "1", "perm": "6"}, "Queues to read is 'x'; write a"),
    ("put-topic", {"topic": "n", "read": "1", "write": "9999", "perm": "6"}, "from 0 to 1,024"),
    ("put-topic", {"topic": "n", "read": "1", "write": "1", "perm": "7"}, "Permission is neither"),
    ("put-topic", {"topic": "a b", "read": "1", "write": "1", "perm": "6"}, "illegal characters"),
    ("put-topic", {"topic": "n", "read": "1", "write": "1", "perm": "6", "attributes": "x=y"}, "x"),
    ("put-topic", {"topic": "n", "read": "1", "write": "1", "perm": "6", "attributes": "x"}, "write NAME=VALUE"),
    ("reset-group", {"group": "", "topic": "orders", "to": "first"}, "Group is empty."),
    ("reset-group", {"group": "shipping", "topic": "orders", "to": "time", "time": "noon"}, "'noon' is not a time"),
    ("reset-group", {"group": "shipping", "topic": "orders", "to": ""}, "neither first nor last nor time"),
    ("reset-group", {"group": "none", "topic": "orders", "to": "first"}, "Group none does not exist"),
    ("reset-group", {"group": "shipping", "topic": "none", "to": "first"}, "Topic none does not exist"),
    ("reset-group", {"group": "shipping", "topic": "orders", "to": "first", "queue": "7"}, "queueId 7 is not below"),
    ("resend", {"group": "none", "which": "all"}, "Group none has no dead letter."),
    ("resend", {"group": "shipping", "which": "chosen"}, "Choose at least one dead letter."),
    ("resend", {"group": "shipping", "which": "chosen", "letter": "0:99"}, "There is no dead letter 0:99 any more."),
    ("resend", {"group": "shipping", "which": "chosen", "letter": "x"}, "'x' is not a dead letter"),
    ("resend", {"group": "shipping", "which": "all", "until": "0:x 1:²"}, "Group shipping has no dead letter."),
])
def test_a_wrong_field_is_named_and_the_form_stays_filled(console, action, form, text):
    page = console.preview(action, form)
    assert page.status in {400, 409}
    assert text in page.text
    assert 'role="alert"' in page.html
    assert "<script" not in page.html
    for name in ("topic", "read", "time", "queue", "tags"):
        if name in form:
            assert page.field(name) == form[name]


@pytest.fixture
def group(console, topic):
    """A group that has consumed one of three messages of each queue."""
    name = f"group{next(names)}"
    with console.producer() as producer:
        for number in range(6):
            producer.send(Message(topic=topic, body=b"%d" % number), queue_id=number % 2)
    with PullConsumer(namesrv=console.broker.namesrv, group=name, credentials=ROOT) as consumer:
        list(consumer.messages(topic, start="first", follow=False))
        for queue in consumer.queues(topic):
            consumer.commit(queue, 1)
    until(lambda: [(queue.consumer_offset, queue.broker_offset) for queue in console.admin(
        lambda admin: admin.groups())[name]] == [(1, 3), (1, 3)])
    return name


@pytest.mark.parametrize(("to", "texts", "offsets"), [
    ({"to": "first"}, ["Skipped 0 messages", "Delivered again 2 messages", "0 1 0 delivers 1 again"], [0, 0]),
    ({"to": "last"}, ["Skipped 4 messages", "0 1 3 skips 2"], [3, 3]),
    ({"to": "time", "time": "2001-01-01T00:00"}, ["stored at 2001-01-01", "Delivered again 2 messages"], [0, 0]),
    ({"to": "last", "queue": "1"}, ["Skipped 2 messages"], [1, 3]),
])
def test_a_group_is_reset_as_the_page_has_said(console, topic, group, to, texts, offsets):
    before = len(console.audit())
    page = console.preview("reset-group", {"group": group, "topic": topic, **to})
    assert [text for text in texts if text not in page.text] == []
    found = console.admin(lambda admin: admin.groups())[group]
    assert [queue.consumer_offset for queue in found] == [1, 1], "a preview changes nothing"
    assert "continues in" in console.confirm("reset-group", page).text
    found = console.admin(lambda admin: admin.groups())[group]
    assert [queue.consumer_offset for queue in found] == offsets
    (line,) = lines(console, before, count=1)
    assert (line["name"], line["via"]) == ("INVOKE_BROKER_TO_RESET_OFFSET", "console")


def test_dead_letters_go_to_their_topic_once(console, topic):
    group = f"group{next(names)}"
    sent = console.dead_letters(group, topic, 3, properties={"p": "v", "__SHARDINGKEY": "s"})
    before = len(console.audit())
    page = console.ask(f"{ACTIONS}resend?group={group}")
    assert f"Dead letters 1 to 3 of 3 of group {group}" in page.text
    page = console.preview("resend", {"group": group, "which": "chosen", "letter": ["0:0", "0:2"]})
    assert f"2 of group {group}" in page.text
    assert f"{topic} (2)" in page.text
    done = console.confirm("resend", page)
    assert f"Sent 2 to {topic}" in done.text
    again = console.messages(topic)[3:] if len(console.messages(topic)) == 5 else None
    copies = [message for message in console.messages(topic) if "ORIGIN_MESSAGE_ID" in message.properties]
    assert again is not None
    assert sorted(message.body for message in copies) == [b"dead 0", b"dead 2"]
    assert {message.properties["UNIQ_KEY"] for message in copies} == {sent[0].msg_id, sent[2].msg_id}
    for message in copies:
        assert (message.tags, message.properties["p"], message.reconsume_times) == ("t", "v", 0)
        assert not {"RETRY_TOPIC", "DELAY", "REAL_TOPIC"} & set(message.properties)
    assert len({message.queue_id for message in copies}) == 1, "the ordering key chooses the queue"
    rest = console.do("resend", {"group": group, "which": "all"})
    assert f"Sent 1 to {topic} Left out, sent before 2" in rest.text
    nothing = console.preview("resend", {"group": group, "which": "all"})
    assert "Sent again before 3, left out" in nothing.text
    assert nothing.field("token") is None, "there is nothing to confirm"
    once_more = console.do("resend", {"group": group, "which": "chosen", "letter": "0:1", "again": "1"})
    assert "Sent 1" in once_more.text
    assert len(console.messages(topic)) == 3 + 4
    found = lines(console, before, "console", 3)
    assert [(line["name"], line["details"]["sentOffsets"], line["details"]["sentBefore"]) for line in found] == [
        ("resend", "0:0 0:2", 0), ("resend", "0:1", 2), ("resend", "0:1", 0)]
    assert found[0]["resource"] == [f"Group:{group}", f"Topic:{topic}"]
    assert console.ask(f"{ACTIONS}resend?group={group}").text.count(topic) >= 3, "the dead letters stay"


@pytest.mark.parametrize("compression", ["zlib", "zstd"])
def test_a_compressed_dead_letter_stays_readable(console, topic, compression):
    group, body = f"group{next(names)}", b"%d" + b" apples" * 100
    console.dead_letters(group, topic, 1, body=body, compression=compression)
    assert "0 apples apples" in console.ask(f"{ACTIONS}resend?group={group}").text
    assert "Sent 1" in console.do("resend", {"group": group, "which": "all"}).text
    assert [message.body for message in console.messages(topic)] == [body % 0] * 2


def test_a_topic_that_takes_no_messages_is_named(console, topic):
    group = f"group{next(names)}"
    console.dead_letters(group, topic, 1)
    console.do("put-topic", {"topic": topic, "read": "2", "write": "2", "perm": "4"})
    page = console.preview("resend", {"group": group, "which": "all"})
    assert f"topic {topic} takes no messages" in page.text
    assert page.field("token") is None
    assert "takes no messages of users" in console.preview("send-message", {"topic": topic, "body": "x"}).text


def test_later_dead_letters_are_not_part_of_a_confirmation(console, topic):
    group = f"group{next(names)}"
    console.dead_letters(group, topic, 2)
    page = console.preview("resend", {"group": group, "which": "all"})
    console.dead_letters(group, topic, 1)
    assert "Sent 2" in console.confirm("resend", page).text


def test_a_dead_letter_without_its_topic_is_named_and_the_others_go(console, topic):
    group, gone = f"group{next(names)}", f"topic{next(names)}"
    with console.producer() as producer:
        producer.create_topic(gone, 1)
    console.dead_letters(group, gone, 1)
    console.dead_letters(group, topic, 1)
    console.admin(lambda admin: admin.delete_topic(gone))
    done = console.do("resend", {"group": group, "which": "all"})
    assert "Sent 1" in done.text
    assert f"there is no topic {gone} 0:0" in done.text
    assert gone not in {one["topicName"] for one in console.admin(lambda admin: admin.topic_configs())}


def test_many_dead_letters_go_in_batches_that_are_recorded(console, topic):
    group, before = f"group{next(names)}", len(console.audit())
    console.dead_letters(group, topic, 120)
    page = console.preview("resend", {"group": group, "which": "all"})
    assert f"120 of group {group}" in page.text
    assert f"{topic} (50 of the first 50)" in page.text
    assert "Sent 120" in console.confirm("resend", page).text
    assert [line["details"]["sentOffsets"] for line in lines(console, before, "console", 3)] == [
        "0:0-49", "0:50-99", "0:100-119"]


def test_expired_files_are_shown_before_they_are_deleted(tmp_path):
    other_hour = (datetime.now().astimezone().hour + 12) % 24
    settings = {"mappedFileSizeCommitLog": 65_536, "maxMessageSize": 60_000, "fileReservedTime": 0.0001,
                "deleteWhen": f"{other_hour:02d}", "deleteCommitLogFilesInterval": 1}
    with ActingConsole(tmp_path, settings=settings) as console:
        with console.producer() as producer:
            producer.create_topic("orders", 1)
            for _ in range(12):
                producer.send(Message(topic="orders", body=b"x" * 30_000))
        pages = []
        until(lambda: pages.append(console.preview("delete-expired", {})) or pages[-1].text.count("KiB") > 5)
        shown = re.findall(r"\b\d{20}\b", pages[-1].text)
        there = {path.name for path in (tmp_path / "store" / "commitlog").iterdir()}
        assert len(shown) == 5, "two messages a file, and the last file is still written"
        assert set(shown) < there
        assert f"{len(shown)} of " in pages[-1].text
        assert re.search(r"\b(\d+) of \1 files are deleted", console.confirm("delete-expired", pages[-1]).text)
        left = {path.name for path in (tmp_path / "store" / "commitlog").iterdir()}
        assert left == there - set(shown), "exactly the files that were shown"
        assert [line["name"] for line in lines(console, 0, "administration", 2) if "via" in line] == [
            "DELETE_EXPIRED_COMMITLOG"]
    assert console.stopped == 0


# --- who may

FORMS = {
    "put-topic": {"topic": "orders", "read": "1", "write": "1", "perm": "6", "attributes": ""},
    "send-message": {"topic": "orders", "body": "x"},
    "reset-group": {"group": "shipping", "topic": "orders", "to": "first"},
    "resend": {"group": "shipping", "which": "all"},
    "delete-expired": {},
}
SECRETS = ("dead 0", "key-0")


@pytest.mark.parametrize("action", FORMS)
@pytest.mark.parametrize("user", ["viewer", "other", "owner"])
def test_an_action_needs_the_permission_of_its_request(console, action, user):
    before = len(console.audit())
    page = console.preview(action, FORMS[action], user=user)
    assert page.status == 403, page.text
    assert page.field("token") is None
    assert [text for text in SECRETS if text in page.html] == []
    page = console.ask(f"{ACTIONS}{action}?group=shipping&topic=orders", user=user)
    assert [text for text in SECRETS if text in page.html] == []
    assert not [line for line in lines(console, before) if line["event"] != "denied"]


def test_an_unauthenticated_connection_and_a_user_with_nothing_get_no_page(console):
    """All together, because an answer to a wrong name or password waits for a second."""
    asked = []
    for action in (*FORMS, "", "done", "stop"):
        for form in (None, FORMS.get(action, {})):
            asked += [(403, action, form, {"user": "nobody"}), (401, action, form, {"user": ""})]
        asked += [(401, action, None, {"user": "who"}),
                  (401, action, FORMS.get(action, {}), {"user": "root", "password": "wrong"})]
    with ThreadPoolExecutor(len(asked)) as pool:
        answers = [(status, action, form, who, pool.submit(console.ask, ACTIONS + action, form, **who))
                   for status, action, form, who in asked]
    for status, *what, answer in answers:
        assert answer.result().status == status, what


def test_an_owner_acts_on_what_is_its_own(console):
    console.dead_letters("mine", "mine", 2)
    assert "Sent 2" in console.do("resend", {"group": "mine", "which": "all"}, user="owner").text
    assert "Message id" in console.do("send-message", {"topic": "mine", "body": "x"}, user="owner").text
    assert "is changed" in console.do(
        "put-topic", {"topic": "mine", "read": "3", "write": "3", "perm": "6"}, user="owner").text
    assert "continues" in console.do(
        "reset-group", {"group": "mine", "topic": "mine", "to": "first"}, user="owner").text
    assert console.preview("delete-expired", {}, user="owner").status == 403


def test_dead_letters_do_not_lead_a_user_to_a_topic_of_others(console):
    """The group is the user's own, the topic is not."""
    console.dead_letters("mine2", "orders", 1)
    page = console.preview("resend", {"group": "mine2", "which": "all"}, user="owner")
    assert page.status == 403
    assert "has no permission to access Topic:orders" in page.text


@pytest.mark.parametrize("action", FORMS)
def test_a_user_that_was_deleted_in_between_does_nothing(console, action):
    user = f"user{next(names)}"
    console.add_user(user, "Cluster:*=All", "Topic:*=All", "Group:*=All")
    page = console.preview(action, FORMS[action], user=user)
    assert page.status == 200, page.text
    console.admin(lambda admin: admin.delete_user(user))
    before = len(console.audit())
    assert console.ask(ACTIONS + action, page.confirmation, user=user).status == 401
    assert not [line for line in lines(console, before) if line["event"] == "console" or "via" in line]


@pytest.mark.parametrize("action", FORMS)
def test_a_permission_that_was_taken_in_between_counts(console, action):
    user = f"user{next(names)}"
    console.add_user(user, "Cluster:*=All", "Topic:*=All", "Group:*=All")
    page = console.preview(action, FORMS[action], user=user)
    console.admin(lambda admin: admin.delete_acl(f"User:{user}", "Custom"))
    console.admin(lambda admin: admin.update_acl(f"User:{user}", {"subject": f"User:{user}", "policies": [{"entries": [
        {"resource": "Cluster:*", "actions": ["Get"], "decision": "Allow"}]}]}))
    form = page.confirmation if page.field("token") else FORMS[action]  # nothing has expired
    assert console.ask(ACTIONS + action, form, user=user).status == 403


def test_a_confirmation_is_that_of_its_user_action_and_content(console, topic):
    page = console.preview("send-message", {"topic": topic, "body": "x"})
    console.add_user(user := f"user{next(names)}", "Cluster:*=Get", "Topic:*=All")
    assert console.confirm("send-message", page, user=user).status == 409
    mine = page.confirmation
    changed = {**mine, "carried": mine["carried"].replace('"x"', '"y"')}
    assert console.ask(f"{ACTIONS}send-message", changed).status == 409
    wrong = mine["token"][:-1] + ("1" if mine["token"][-1] == "0" else "0")
    for token in ("", "x", "1.2.3", wrong, f"{mine['token']}é", "a" * 5000):
        assert console.ask(f"{ACTIONS}send-message", {**mine, "token": token}).status in {200, 409}
    assert console.ask(f"{ACTIONS}put-topic", mine).status == 400
    assert console.messages(topic) == []


def test_a_result_is_shown_to_its_user_only(console, topic):
    page = console.preview("send-message", {"topic": topic, "body": "x"})
    answer = console.ask(f"{ACTIONS}send-message", page.confirmation)
    assert console.ask(answer.headers["Location"]).status == 200
    assert console.ask(answer.headers["Location"], user="viewer").status == 404


# --- foreign pages, broken forms


@pytest.mark.parametrize("fields", [
    {"Origin": None}, {"Origin": "null"}, {"Origin": "http://evil.example"}, {"Origin": "http://127.0.0.1:1"},
    {"Origin": "file://"}, {"Origin": "http://["}, {"Sec_Fetch_Site": "cross-site"}, {"Sec_Fetch_Site": "same-site"},
    {"Sec_Fetch_Site": "none"},
])
def test_a_form_of_a_foreign_page_is_refused(console, topic, fields):
    page = console.preview("send-message", {"topic": topic, "body": "x"})
    answer = console.ask(f"{ACTIONS}send-message", page.confirmation, **fields)
    assert answer.status == 403
    assert "the form comes from" in answer.text or "Origin" in answer.text
    assert console.messages(topic) == []


def test_a_form_of_a_foreign_page_is_recorded(console):
    console.add_user(user := f"user{next(names)}", "Cluster:*=Get")

    def is_recorded():  # at most ten lines a second, of all users
        assert console.ask(f"{ACTIONS}put-topic", {}, user=user, Origin="http://evil.example").status == 403
        return [line["reason"] for line in lines(console, 0, "denied") if line["user"] == user]

    until(is_recorded)
    assert "the form comes from http://evil.example" in is_recorded()[0]


@pytest.mark.parametrize(("form", "fields", "status"), [
    (b"a", {"Content_Type": "application/json"}, 415), (b"a", {"Content_Type": None}, 415),
    (b"x" * 262_145, {}, 413), (b"a", {"Content_Length": "1x"}, 411), (b"a", {"Content_Length": "99999999999"}, 411),
    (b"a=%ff", {}, 400), (b"\xff", {}, 400), (b"a", {}, 400), (b"&".join([b"a=1"] * 1_001), {}, 400),
    (b"carried=x", {}, 400), (b"carried=%5B1%5D", {}, 400), (b'carried={"other":["1"]}', {}, 400),
])
def test_a_broken_form_is_refused(console, form, fields, status):
    assert console.ask(f"{ACTIONS}send-message", form, **fields).status == status


def test_no_get_changes_anything_and_other_methods_are_refused(console, topic):
    page = console.preview("send-message", {"topic": topic, "body": "x"})

    assert console.ask(f"{ACTIONS}send-message?{urlencode(page.confirmation)}").status == 200
    assert console.ask(f"{ACTIONS}send-message?{urlencode(page.confirmation)}", method="HEAD").status == 200
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS"):
        answer = console.ask(f"{ACTIONS}send-message", method=method)
        assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD, POST")
    assert console.ask("/console/topics", {}, method="POST").status == 405
    assert console.ask(f"{ACTIONS}nothing").status == 404
    assert console.messages(topic) == []


def test_pages_of_actions_keep_the_policy_and_name_their_origin(console):
    for path in ("", "put-topic", "send-message", "reset-group", "resend?group=shipping", "delete-expired"):
        page = console.ask(ACTIONS + path)
        assert page.status == 200
        assert "default-src 'none'; style-src 'self'; form-action 'self'" in page.headers["Content-Security-Policy"]
        assert page.headers["Referrer-Policy"] == "same-origin"
        assert page.headers["Cache-Control"] == "no-store"
        assert "<script" not in page.html


def test_pages_lead_to_actions(console):
    for path, href in (("topics", "put-topic"), ("topics/orders", "put-topic?topic=orders"),
                       ("topics/orders", "send-message?topic=orders"), ("groups/shipping", "resend?group=shipping"),
                       ("groups/shipping", "reset-group?group=shipping"), ("retention", "delete-expired"),
                       ("dead-letters", "resend?group=shipping"),
                       ("message?topic=%25DLQ%25shipping&queue=0&offset=0", "resend?group=shipping&amp;letter=0%3A0")):
        assert f'href="{ACTIONS}{href}"' in console.ask(f"/console/{path}").html, path
    assert 'value="0:0" checked' in console.ask(f"{ACTIONS}resend?group=shipping&letter=0%3A0").html


def test_a_browser_that_leaves_in_the_middle_of_a_form_changes_nothing(console, topic):
    page = console.preview("send-message", {"topic": topic, "body": "x"})
    host, _, port = console.address.rpartition(":")
    log_in = base64.b64encode(f"root:{ROOT.secret_key}".encode()).decode()
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall((
            f"POST {ACTIONS}send-message HTTP/1.1\r\nHost: {console.address}\r\nOrigin: http://{console.address}\r\n"
            f"Authorization: Basic {log_in}\r\nContent-Type: application/x-www-form-urlencoded\r\n"
            f"Content-Length: 500\r\n\r\ntoken={page.field('token')[:20]}").encode())
    assert "Message id" in console.confirm("send-message", page).text
    assert len(console.messages(topic)) == 1


def test_a_browser_that_does_not_wait_gets_its_job_done(console, topic):
    group = f"group{next(names)}"
    console.dead_letters(group, topic, 60)
    page = console.preview("resend", {"group": group, "which": "all"})
    result = console.begin("resend", page)
    again = console.confirm("resend", page)
    assert "Sent 60" in again.text, "the same confirmation shows the job that it has started"
    assert again.text == console.ask(result).text
    assert len(console.messages(topic)) == 120


def test_after_a_restart_old_confirmations_are_read_again(tmp_path):
    with ActingConsole(tmp_path) as console:
        with console.producer() as producer:
            producer.create_topic("orders", 1)
        console.dead_letters("shipping", "orders", 3)
        page = console.preview("resend", {"group": "shipping", "which": "all"})
        assert "Sent 3" in console.confirm("resend", page).text
        console.broker.kill()
        console.broker.start()
        again = console.confirm("resend", page)
        assert "restarted since" in again.text
        assert again.field("token") is None, "all were sent before, so there is nothing to confirm"
        assert len(console.messages("orders")) == 6
    assert console.stopped == 0


def test_whatever_ends_a_long_job_each_dead_letter_is_sent_once(tmp_path):
    """A user stops it, its user is deleted, the broker is stopped and killed; each time the next job does the rest."""
    form = {"group": "shipping", "which": "all"}
    with ActingConsole(tmp_path) as console:
        console.add_user("ann", "Cluster:*=Get", "Topic:*=All", "Group:*=All")
        with console.producer() as producer:
            producer.create_topic("orders", 4)
        sent = console.dead_letters("shipping", "orders", 1_000)

        def begin(user="root"):
            return console.begin("resend", console.preview("resend", form, user=user), user)

        at = begin()
        running = console.ask(at)
        assert "Running: Send dead letters of shipping again" in running.text
        assert " of 1,000. It continues if you leave this page." in running.text
        assert "are being sent already" in console.confirm("resend", console.preview("resend", form)).text
        stop = {"job": running.field("job"), "token": running.field("token")}
        assert console.ask(ACTIONS + "stop", {**stop, "token": "x"}).status == 409
        assert console.ask(ACTIONS + "stop", stop).status == 303
        until(lambda: "Running" not in console.ask(at).text)
        assert "Ended early" in console.ask(at).text
        assert "it was stopped" in console.ask(at).text

        begin("ann")
        console.admin(lambda admin: admin.delete_user("ann"))
        until(lambda: "Running" in console.ask(begin()).text)  # not before ann's job has ended
        console.broker.kill()
        console.broker.start()
        begin()
        assert console.broker.stop() == 0
        console.broker.start()
        rest = console.preview("resend", form)
        if rest.field("token") is not None:
            assert "Done" in console.confirm("resend", rest).text
        counts = Counter(message.properties["UNIQ_KEY"] for message in console.messages("orders"))
        assert counts == {one.msg_id: 2 for one in sent}
    assert console.stopped == 0
    recorded = Counter()
    for line in console.audit():
        if line["event"] == "console":
            recorded[line["user"]] += line["details"]["sent"]
    assert recorded.total() in range(1_000 - BATCH, 1_001), "a killed broker does not record its last batch"
    assert recorded["ann"] < 1_000, "it ended with its user"


def test_a_wrong_password_is_no_oracle(console):
    assert console.ask(ACTIONS, user="owner", password="x" * 16).status == 401
    assert console.ask(ACTIONS, user="owner", password=PASSWORD).status == 200
