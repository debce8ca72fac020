"""The console over HTTP: every page of a running broker, and what must not get into one."""

from __future__ import annotations

import http.client
import re
from html.parser import HTMLParser
from urllib.parse import quote

import pytest

from tailrace.client import Producer, PullConsumer
from tailrace.model import Message
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
    ("", ["State", "ready", "Last recovery", "Messages put: "]),
    ("?live=1", ['http-equiv="refresh"']),
    ("topics", ["orders"]), ("topics?filter=ORD", ["1 found"]), ("topics?filter=zzz", ["There is no such topic."]),
    ("topics/orders", ["What groups have consumed", "stock"]),
    ("groups", ["stock"]), ("groups/stock", ["Lag", "orders"]),
    ("messages", ["newest messages are shown"]),
    ("messages?topic=orders", ["&lt;script&gt;alert(1)&lt;/script&gt;", "ff 00"]),
    ("messages?topic=orders&key=k2", ["ff 00", "0:1"]),
    ("messages?topic=orders&queue=0&offset=1", ["0:1", "offset=2"]),
    ("messages?topic=orders&time=2001-01-01T00:00:00", ["0:0", "0:1"]),
    ("messages?topic=orders&time=9999999999999", ["No message was found."]),
    ("timers", ["k3", "orders"]), ("retention", ["of the CommitLog", "kept"]), ("disk", ["commitlog"]),
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
        if tag == "input":
            assert self.open[-1] == "label"
        if tag not in {"meta", "link", "input"}:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize(("path", "status"), [
    ("/console/nothing", 404), ("/console/topics/nothing", 404), ("/console/groups/%3Cb%3E", 404),
    ("/console/messages?topic=" + quote(EVIL), 404), ("/console/messages?topic=orders&offset=x", 400),
    ("/console/messages?topic=orders&time=noon", 400), ("/console/topics?from=x", 400), ("/console/../etc", 404),
    ("/console/messages?topic=orders&queue=99999999999999999999", 200),
])
def test_a_wrong_address_is_a_page_that_says_so(console, path, status):
    found, body, _ = console(path)
    assert found == status
    assert "<script" not in body
    assert "Traceback" not in body


@pytest.mark.parametrize(("path", "text"), [
    ("messages?topic=orders&offset=x", "offset is 'x', not a whole number"),
    ("messages?topic=orders&queue=x", "queue is 'x', not a whole number"),
    ("topics?from=x", "from is 'x', not a whole number"),
    ("messages?topic=orders&time=noon", "'noon' is not a time; write 2026-01-31T12:00:00 or"),
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
