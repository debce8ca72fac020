"""The console in a real browser: every page, by mouse and keyboard, on a desk and on a phone, light and dark."""

import json
import re

import pytest
from patience import until

from tailrace import Message, MessageStore, PushConsumer, RetryLater
from tailrace.client import Producer
from tailrace.pytest_plugin import TailraceBroker

pytestmark = [pytest.mark.slow, pytest.mark.integration]
EVIL = "<img src=x onerror=alert(1)><script>window.taken=1</script>"
PAGES = ("", "topics", "topics?filter=ord", "topics/orders", "groups", "groups/stock", "messages",
         "messages?topic=orders", "messages?topic=none", "timers", "retention", "disk", "nothing")
TOO_LONG = "x" * 120


@pytest.fixture(scope="module")
def console(tmp_path_factory):
    """The address of a console with something on every page."""
    broker = TailraceBroker(tmp_path_factory.mktemp("console") / "store", "--http", "127.0.0.1:0")
    broker.start()
    try:
        fill(broker)
        address = re.search(r"^http=(\S+)$", broker.log, re.MULTILINE)[1]
        yield f"http://{address}/console/"
    finally:
        stopped = broker.stop()
    assert stopped == 0


def fill(broker):
    """Send what is hard to show, and consume it."""
    seen = []
    with Producer(namesrv=broker.namesrv, group="p") as producer:
        producer.create_topic("orders", 2)
        for number in range(40):
            producer.send(Message(topic="orders", body=b"%d apples" % number, keys=[f"k{number}"], tags="fruit"))
        producer.send(Message(
            topic="orders", body=EVIL.encode(), keys=["<script>window.taken=1</script>"], tags=EVIL,
            properties={"p": EVIL}))
        producer.send(Message(topic="orders", body=TOO_LONG.encode(), keys=[TOO_LONG], tags=TOO_LONG))
        producer.send(Message(topic="orders", body=b"later", keys=["due"], delay=3600.0))

        def listen(message):
            seen.append(message.body)
            if message.body == b"7 apples":
                raise RetryLater

        with PushConsumer("stock", listen, namesrv=broker.namesrv, topics="orders", start="first"):
            until(lambda: len(seen) >= 42)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_sound_on_every_screen(browser, console, page):
    for width, dark in ((1280, False), (1280, True), (360, False), (360, True)):
        browser.look(width=width, dark=dark)
        complaints = browser.open(console + page)
        answer_of_page = [one for one in complaints if "Failed to load resource" in str(one) and page in {
            "messages?topic=none", "nothing"}]
        assert complaints == answer_of_page
        assert browser.evaluate("document.scrollingElement.scrollWidth") <= width, "it scrolls sideways"
        assert browser.evaluate("getComputedStyle(document.body).backgroundColor") is not None
        dark_now = browser.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
        assert dark_now == dark
        assert browser.accessibility() == []


def test_texts_of_messages_stay_texts(browser, console):
    browser.look()
    assert browser.open(f"{console}messages?topic=orders") == []
    assert browser.evaluate("window.taken") is None
    assert browser.evaluate("document.querySelectorAll('img, script').length") == 0
    assert EVIL in browser.evaluate("document.body.textContent")
    browser.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert f"p={EVIL}" in browser.evaluate("document.body.innerText")


def test_the_policy_stops_a_script_that_came_in_all_the_same(browser, console):
    browser.look()
    browser.open(console)
    browser.evaluate("""
        const script = document.createElement('script');
        script.textContent = 'window.taken = 1';
        document.body.append(script);
        const image = document.createElement('img');
        image.src = 'http://192.0.2.1/x.png';
        document.body.append(image); 0""")
    assert browser.evaluate("window.taken") is None


def test_the_keyboard_reaches_links_forms_and_tables(browser, console):
    browser.look()
    browser.open(f"{console}topics")
    browser.press("Tab", 9)
    assert browser.evaluate("document.activeElement.textContent") == "Skip to the content"
    assert browser.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
    reached = set()
    for _ in range(25):
        browser.press("Tab", 9)
        reached.add(browser.evaluate("document.activeElement.tagName + ' ' + (document.activeElement.name || "
                                     "document.activeElement.getAttribute('role') || "
                                     "document.activeElement.textContent)"))
    assert {"A Messages", "INPUT filter", "BUTTON Filter", "DIV region", "A orders"} <= reached


def test_a_form_finds_a_message_by_its_key(browser, console):
    browser.look(width=360)
    browser.open(f"{console}messages")
    browser.type("input[name=topic]", "orders")
    browser.type("input[name=key]", "k7")
    browser._events.clear()
    browser.press("Enter", 13)
    browser.wait_for("Page.loadEventFired")
    assert browser.evaluate("[...document.querySelectorAll('tbody pre')].map(one => one.textContent)[0]") == "7 apples"
    assert browser.evaluate("document.querySelector('input[name=key]').value") == "k7"


def test_the_overview_reloads_itself_when_asked(browser, console):
    browser.look()
    browser.open(console)
    href = browser.evaluate("[...document.links].find(one => one.textContent.startsWith('Reload every')).href")
    browser.open(href)
    browser._events.clear()
    browser.wait_for("Page.loadEventFired")  # comes by itself after 5 s
    assert browser.evaluate("document.querySelectorAll('svg polyline').length") == 2


def test_a_hundred_thousand_topics_are_pages_and_a_filter(browser, tmp_path):
    broker = TailraceBroker(tmp_path / "store", "--http", "127.0.0.1:0")
    config = tmp_path / "store" / "config"
    MessageStore.open(tmp_path / "store").close()
    config.mkdir(exist_ok=True)
    (config / "topics.json").write_text(json.dumps({"dataVersion": {}, "topicConfigTable": {
        f"topic-{number:06d}": {"topicName": f"topic-{number:06d}", "readQueueNums": 4, "writeQueueNums": 4}
        for number in range(100_000)}}))
    broker.start()
    address = re.search(r"^http=(\S+)$", broker.log, re.MULTILINE)[1]
    browser.look()
    assert browser.open(f"http://{address}/console/topics?filter=topic-") == []
    assert "100,000 found" in browser.evaluate("document.body.textContent")
    assert browser.evaluate("document.querySelectorAll('tbody tr').length") == 200
    browser._events.clear()
    browser.evaluate("[...document.links].find(one => one.textContent === 'Next').click()")
    browser.wait_for("Page.loadEventFired")
    assert browser.evaluate("document.querySelector('tbody td').textContent") == "topic-000200"
    browser.open(f"http://{address}/console/topics?filter=topic-099999")
    assert browser.evaluate("document.querySelectorAll('tbody tr').length") == 1
    assert "event loop was held" not in broker.log
    assert broker.stop() == 0
