"""The console in a real browser: every page, by mouse and keyboard, on a desk and on a phone, light and dark."""

import json
import re

import pytest
from console_days import bad_day, good_day
from patience import until

from tailrace import Message, MessageStore, PushConsumer, RetryLater
from tailrace.client import Producer
from tailrace.pytest_plugin import TailraceBroker

pytestmark = [pytest.mark.slow, pytest.mark.integration]
EVIL = "<img src=x onerror=alert(1)><script>window.taken=1</script>"
PAGES = ("", "topics", "topics?filter=ord", "topics?all=1&sort=-messages", "topics/orders", "groups", "groups?all=1",
         "groups/stock", "groups/none", "dead-letters", "messages", "messages?topic=orders",
         "messages?topic=orders&queue=1&offset=3", "messages?topic=orders&time=noon", "messages?topic=none",
         "message?topic=orders&queue=0&offset=0", "timers", "retention", "disk", "nothing")
DAYS = ("", "topics", "topics/orders", "groups", "groups/billing", "dead-letters", "messages?topic=orders",
        "messages?topic=%25DLQ%25shipping", "messages?topic=ordres", "message?topic=orders&queue=1&offset=7", "timers",
        "retention", "disk")
SCREENS = ((1280, 900, False), (1280, 900, True), (390, 844, False), (390, 844, True))
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
    for width, height, dark in ((360, 640, False), (1280, 900, True)):
        is_sound(browser, console + page, width, height, dark)


@pytest.fixture(scope="module", params=["good", "bad"])
def day(request, tmp_path_factory):
    """The address of the console on a good and on a bad day."""
    with (good_day if request.param == "good" else bad_day)(tmp_path_factory.mktemp(request.param) / "store") as found:
        yield found.url


@pytest.mark.parametrize("page", DAYS)
def test_a_page_is_sound_on_good_and_bad_days(browser, day, page):
    for width, height, dark in SCREENS:
        is_sound(browser, day + page, width, height, dark)


def is_sound(browser, url, width, height, dark):
    """Open a page, and check that nothing is wrong with it."""
    browser.look(width=width, height=height, dark=dark)
    complaints = browser.open(url)
    assert [one for one in complaints if "Failed to load resource: the server responded" not in str(one)] == []
    if complaints:
        assert re.search(r"none$|nothing$|ordres$|DLQ", url), complaints
    assert browser.evaluate("document.scrollingElement.scrollWidth") <= width, "it scrolls sideways"
    assert browser.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") == dark
    assert browser.accessibility() == []
    # A heading is aligned as the numbers below it.
    assert browser.evaluate("""[...document.querySelectorAll('table')].every(table => [...table.rows].every(row =>
        [...row.cells].every((cell, at) => getComputedStyle(cell).textAlign ==
            getComputedStyle(table.rows[0].cells[at]).textAlign)))""")


def bottom_of(browser, selector):
    return browser.evaluate(f"document.querySelector({json.dumps(selector)}).getBoundingClientRect().bottom")


def right_of(browser, text):
    return browser.evaluate(f"""Math.max(...[...document.querySelectorAll('td, dd')].filter(
        one => one.textContent.includes({json.dumps(text)})).map(one => one.getBoundingClientRect().right))""")


def test_a_phone_shows_the_body_and_the_lag_without_scrolling(browser, tmp_path):
    with bad_day(tmp_path / "store") as found:
        browser.look(width=390, height=844)
        browser.open(f"{found.url}messages?topic=orders")
        assert bottom_of(browser, ".messages pre") < 844 * 0.6
        browser.open(f"{found.url}message?topic=orders&queue=1&offset=7")
        assert bottom_of(browser, ".tree") < 844
        for page in ("", "topics/orders", "groups", "groups/billing"):
            browser.open(f"{found.url}{page}")
            assert right_of(browser, "2,000") <= 390
            assert browser.evaluate("""Math.min(...[...document.querySelectorAll('td, dd')].filter(
                one => one.textContent.includes('2,000')).map(one => one.getBoundingClientRect().bottom))""") < 844


def test_a_picker_suggests_topics(browser, console):
    browser.look()
    browser.open(f"{console}messages")
    known = browser.evaluate("[...document.querySelector('input[name=topic]').list.options].map(one => one.value)")
    assert known == ["orders"]


def test_texts_of_messages_stay_texts(browser, console):
    browser.look()
    assert browser.open(f"{console}messages?topic=orders") == []
    assert browser.evaluate("window.taken") is None
    assert browser.evaluate("document.querySelectorAll('img, script').length") == 0
    assert EVIL in browser.evaluate("document.body.textContent")
    number = browser.evaluate("[...document.querySelectorAll('.messages li')].findIndex("
                              "one => one.textContent.includes('onerror'))")
    browser.forget_events()
    browser.evaluate(f"document.querySelectorAll('.messages li')[{number}].querySelector('a').click()")
    browser.wait_for("Page.loadEventFired")
    assert browser.evaluate("document.querySelectorAll('img, script').length") == 0
    assert browser.evaluate("window.taken") is None
    assert browser.evaluate("[...document.querySelectorAll('dd')].filter(one => one.textContent == "
                            f"{json.dumps(EVIL)}).length") >= 1


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
    browser.forget_events()
    browser.press("Enter", 13)
    browser.wait_for("Page.loadEventFired")
    assert browser.evaluate("document.querySelector('.messages pre').textContent") == "7 apples"
    assert browser.evaluate("document.querySelector('input[name=key]').value") == "k7"


def test_the_overview_reloads_itself_when_asked(browser, console):
    browser.look()
    browser.open(console)
    href = browser.evaluate("[...document.links].find(one => one.textContent.startsWith('Reload every')).href")
    browser.open(href)
    browser.forget_events()
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
    assert "100,000 topics found" in browser.evaluate("document.body.textContent")
    assert browser.evaluate("document.querySelectorAll('tbody tr').length") == 200
    browser.forget_events()
    browser.evaluate("[...document.links].find(one => one.textContent === 'Next').click()")
    browser.wait_for("Page.loadEventFired")
    assert browser.evaluate("document.querySelector('tbody td').textContent") == "topic-000200"
    browser.open(f"http://{address}/console/topics?filter=topic-099999")
    assert browser.evaluate("document.querySelectorAll('tbody tr').length") == 1
    assert "event loop was held" not in broker.log
    assert broker.stop() == 0
