"""The console over HTTP: every page of a running broker, and what must not get into one."""

from __future__ import annotations

import asyncio
import http.client
import re
from functools import partial
from html.parser import HTMLParser
from urllib.parse import quote

import pytest

from tailrace.auth.model import User, acl_of
from tailrace.auth_settings import AuthConfig
from tailrace.broker import BrokerController
from tailrace.client import Credentials, Producer, PullConsumer
from tailrace.console import Console
from tailrace.console.pages import _PAGES
from tailrace.model import Message
from tailrace.node.message_store import MessageStore
from tailrace.pytest_plugin import TailraceBroker

pytestmark = pytest.mark.integration
EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def console(tmp_path_factory):
    """A broker with messages, a timer and a group; returns how to get a page."""
    broker = TailraceBroker(tmp_path_factory.mktemp("console") / "store", "--http", "127.0.0.1:0")
    broker.start()
    text = broker.log_path.read_text()
    address = re.search(r"^http=(\S+)$", text, re.MULTILINE)[1]
    assert f"console at http://{address}/console/\n" in text
    with Producer(namesrv=broker.namesrv, group="p") as producer:
        producer.create_topic("orders", 1)
        producer.send(Message(topic="orders", body=EVIL.encode(), tags="t", keys=["k1"], properties={"a": EVIL}))
        producer.send(Message(topic="orders", body=b"\xff\x00", keys=["k2"]))
        producer.send(Message(topic="orders", body=b"later", keys=["k3"], delay=3600.0))
    with PullConsumer(namesrv=broker.namesrv, group="stock") as consumer:
        queue = consumer.queues("orders")[0]
        list(consumer.messages("orders", start="first", follow=False))
        consumer.commit(queue, 1)

    def get(path, host=address, method="GET"):
        connection = http.client.HTTPConnection(address, timeout=10)
        connection.putrequest(method, path, skip_host=True)
        connection.putheader("Host", host)
        connection.endheaders()
        answer = connection.getresponse()
        body = answer.read().decode()
        connection.close()
        return answer.status, body, answer.headers

    yield get
    assert broker.stop() == 0


@pytest.mark.parametrize(("path", "texts"), [
    ("", ["has served clients for", "Sends stop above 90 %", "Last start", "Lag", "Dead letters", "Pending"]),
    ("?live=1", ['http-equiv="refresh"']),
    ("topics", ["orders", " of the system</a>"]), ("topics?filter=ORD", ["1 topic found"]),
    ("topics?filter=zzz", ["No topic has zzz in its name."]), ("topics?all=1", ["TBW102", "system"]),
    ("topics/orders", ["Groups that consume the topic", "stock", "queue=0"]),
    ("groups", ["stock", "Show 8 of the system</a>"]), ("groups?all=1&sort=name", ["CID_RMQ_SYS_TRANS", "ascending"]),
    ("groups/stock", ["Lag", "orders", "No member is connected."]), ("dead-letters", ["There is no dead letter."]),
    ("messages", ["Choose a topic"]),
    ("messages?topic=orders", ["&lt;script&gt;alert(1)&lt;/script&gt;", "ff 00"]),
    ("messages?topic=orders&key=k2", ["ff 00", "0:1"]),
    ("messages?topic=orders&queue=0&offset=1", ["0:1", "Older"]),
    ("message?topic=orders&queue=0&offset=0", ["&lt;script&gt;alert(1)&lt;/script&gt;", "key=k1", "Newer"]),
    ("message?topic=orders&queue=0&offset=1", ["000000  ff 00", "Older", "no text"]),
    ("message?topic=orders&queue=0&offset=7", ["has no message with offset 7"]),
    ("messages?topic=orders&time=2001-01-01T00:00:00", ["0:0", "0:1"]),
    ("messages?topic=orders&time=9999999999999", ["No message was found."]),
    ("timers", ["k3", "orders"]), ("timers?topic=orders", ["k3"]), ("timers?topic=x", ["No timer of x is pending."]),
    ("retention", ["Messages are kept for", "is still written"]),
    ("disk", ["Index of keys", "GiB", "&lt; 0.1 %"]),
])
def test_every_page_shows_what_it_is_for(console, path, texts):
    status, body, headers = console(f"/console/{path}")
    assert status == 200
    assert [text for text in texts if text not in body] == []
    assert "<script" not in body
    assert "default-src 'none'; style-src 'self'" in headers["Content-Security-Policy"]
    assert not re.search(r"""(?:src|href|action)=["'](?!/console/|#)""", body)
    Balanced(body)


class Balanced(HTMLParser):
    """Raises for tags that are not closed; checks what a screen reader needs."""

    def __init__(self, text):
        super().__init__()
        self.open = []
        self.feed(text)
        assert not self.open
        assert text.startswith('<!doctype html>\n<html lang="en">')
        assert '<main id="content"><h1>' in text
        assert 'name="viewport"' in text

    def handle_starttag(self, tag, attrs):
        if tag == "input" and ("type", "hidden") not in attrs:
            assert self.open[-1] == "label"
        if tag not in {"meta", "link", "input"}:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize(("path", "status"), [
    ("/console/nothing", 404), ("/console/topics/nothing", 404), ("/console/groups/%3Cb%3E", 404),
    ("/console/messages?topic=" + quote(EVIL), 404), ("/console/messages?topic=orders&offset=x", 200),
    ("/console/messages?topic=orders&time=noon", 200), ("/console/topics?from=x", 400), ("/console/../etc", 404),
    ("/console/topics?path=x&self=y&sort=lag", 200), ("/console/messages?topic=ordres&path=x&name=y", 404),
    ("/console/groups?path=x&filter=zzz", 200), ("/console/timers?path=x&topic=y", 200),
    ("/console/?live=1&path=x", 200),
    ("/console/messages?topic=orders&before=1.2", 200), ("/console/messages?topic=orders&after=9.9.9", 200),
    ("/console/message?topic=orders&queue=x&offset=0", 400), ("/console/message", 404),
    ("/console/message?topic=orders&queue=99999999999999999999&offset=-1", 200),
    ("/console/messages?topic=orders&queue=99999999999999999999", 200),
])
def test_a_wrong_address_is_a_page_that_says_so(console, path, status):
    found, body, _ = console(path)
    assert found == status
    assert "<script" not in re.sub(r'="[^"]*"', "", body)
    assert "Traceback" not in body


@pytest.mark.parametrize(("path", "text"), [
    ("messages?topic=orders&offset=x", "offset is 'x', not a whole number"),
    ("messages?topic=orders&queue=x", "queue is 'x', not a whole number"),
    ("topics?from=x", "from is 'x', not a whole number"),
    ("messages?topic=orders&time=noon", "time 'noon' is not a time; write 2026-01-31T12:00 or"),
])
def test_a_wrong_field_is_named(console, path, text):
    assert text in console(f"/console/{path}")[1]


def test_only_this_machine_by_its_own_name_and_only_reads(console):
    for host in ("evil.example:80", "", "127.0.0.1.evil.example", "10.0.0.1"):
        assert console("/console/", host)[0] == 403
    for host in ("localhost:1", "[::1]:1", "127.0.0.1", "[::1]"):
        assert console("/console/", host)[0] == 200
    assert console("/console/", method="POST")[0] == 405
    assert console("/")[2]["Location"] == "/console/"
    status, css, headers = console("/console/style.css")
    assert (status, headers["Content-Type"]) == (200, "text/css; charset=utf-8")
    assert "prefers-color-scheme: dark" in css
    assert "http" not in css


# --- with users

ROOT = Credentials("root", "root-secret-1234")
VIEWERS = {
    "mon": ["Cluster:*=Get"], "lister": ["Cluster:*=Get,List"],
    "reader": ["Cluster:*=Get", "Topic:secret=Sub", "Group:covert=Get"],
    "other": ["Cluster:*=Get", "Topic:open*=All", "Group:open*=All"],
}
NAMES = ("secret", "covert")
CONTENTS = ("SALARY", "payroll-key", "later-key")
TARGETS = [
    *_PAGES, "topics/secret", "groups/covert", "topics/none", "groups/none", "messages?topic=secret",
    "messages?topic=secret&queue=0", "messages?topic=secret&queue=0&offset=0", "messages?topic=secret&key=payroll-key",
    "messages?topic=secret&time=2001-01-01T00:00:00", "messages?topic=%25RETRY%25covert", "messages?topic=none",
    "messages?topic=rmq_sys_wheel_timer", "topics?filter=secr", "groups?filter=cov", "topics?all=1", "groups?all=1",
    "message?topic=secret&queue=0&offset=0", "messages?topic=%25DLQ%25covert", "messages?topic=secre",
    "message?topic=%25DLQ%25covert&queue=0&offset=0", "groups/cover", "topics/secre", "timers?topic=secret"]


def entries_of(user):
    return acl_of({"subject": f"User:{user}", "policies": [{"entries": [
        {"resource": text.partition("=")[0], "actions": text.partition("=")[2].split(","), "decision": "Allow"}
        for text in VIEWERS[user]]}]})


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Every page as every user sees it: status and text by user and target."""
    found = {}

    async def scenario():
        path, auth = tmp_path_factory.mktemp("users") / "store", AuthConfig(
            authentication_enabled=True, authorization_enabled=True,
            init_authentication_user='{"username":"root","password":"root-secret-1234"}')
        with MessageStore.open(path) as store:
            controller = BrokerController(store, auth_config=auth)
            await controller.start(("127.0.0.1", 0), ("127.0.0.1", 0))
            for user in VIEWERS:
                controller.access.users.change(controller.access.users.creation(User(user, "p" * 16)))
                controller.access.acls.change(controller.access.acls.update(entries_of(user), controller.access.users))
            await asyncio.to_thread(fill, controller.namesrv_address)
            store.put(Message(topic="%DLQ%covert", body=b"SALARY", keys=["payroll-key"]))
            await asyncio.to_thread(store.wait_dispatched)
            console = Console(controller.broker)
            for user in ["root", *VIEWERS]:
                may = partial(controller.access.control.may, user, "127.0.0.1")
                for target in TARGETS:
                    answer = await asyncio.to_thread(console, f"/console/{target}", "ready", may)
                    found[user, target] = answer.status, answer.body.decode()
            await controller.stop()

    asyncio.run(scenario())
    return found


def fill(namesrv):
    with Producer(namesrv=namesrv, group="p", credentials=ROOT) as producer:
        producer.create_topic("secret", 1)
        producer.send(Message(topic="secret", body=b"SALARY", keys=["payroll-key"]))
        producer.send(Message(topic="secret", body=b"SALARY", keys=["later-key"], delay=3600.0))
    with PullConsumer(namesrv=namesrv, group="covert", credentials=ROOT) as consumer:
        list(consumer.messages("secret", start="first", follow=False))
        consumer.commit(consumer.queues("secret")[0], 0)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("user", ["mon", "other", "lister"])
def test_no_page_shows_what_its_user_may_not_see(pages, user, target):
    status, text = pages[user, target]
    said = r'value="[^"]*"|<title>.*?</title>|<h1>.*?</h1>|Your user needs [^.]*|There is no[^.]*|No timer of [^.]*'
    text = re.sub(said, "", text)
    forbidden = CONTENTS if user == "lister" else (*CONTENTS, *NAMES)
    assert [word for word in forbidden if word in text] == []
    assert status in {200, 403, 404}
    if target.startswith(("messages?topic=", "message?topic=")) and user != "other":
        assert status == 403, "also for a topic that does not exist"
    if user != "lister" and "/" in target:
        assert status == 403


def test_users_see_their_topics_and_groups_and_super_users_everything(pages):
    for user in ("root", "reader"):
        assert "SALARY" in pages[user, "messages?topic=secret&queue=0"][1]
        assert "later-key" in pages[user, "timers"][1]
        for target in ("topics", "topics/secret", "groups/covert"):
            assert "secret" in pages[user, target][1]
        assert "covert" in pages[user, "groups"][1]
        assert "SALARY" in pages[user, "message?topic=secret&queue=0&offset=0"][1]
        assert re.search(r">covert</a></td><td[^>]*><svg.*?</svg></td><td[^>]*>1</td>", pages[user, ""][1]), "its lag"
    assert ">covert</a>" in pages["root", "dead-letters"][1]
    assert ">covert</a>" not in pages["reader", "dead-letters"][1], "it needs the topic of dead letters"
    assert "1 dead letter" not in pages["reader", ""][1]
    assert "1 dead letter of group covert" in pages["root", ""][1]
    assert pages["root", "retention"][0] == pages["lister", "retention"][0] == 200
    assert pages["reader", "retention"][0] == 403
    assert "covert" in pages["lister", "groups"][1]
    assert pages["lister", "messages?topic=none"][0] == 403
    assert pages["root", "messages?topic=none"][0] == 404
