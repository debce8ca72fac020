"""Actions of the console in a real browser: forms, confirmations and results, on a desk and on a phone."""

import json
import os

import pytest
from console_world import ACTIONS, ROOT, ActingConsole

pytestmark = [pytest.mark.slow, pytest.mark.integration]
EVIL = "<img src=x onerror=alert(1)>"
SCREENS = ((1280, False), (1280, True), (390, False), (390, True))
PAGES = ("", "put-topic", "put-topic?topic=orders", "send-message?topic=orders", "reset-group?group=shipping", "resend",
         "resend?group=shipping", "resend?group=none", "delete-expired", "nothing")


@pytest.fixture(scope="module")
def console(tmp_path_factory):
    with ActingConsole(tmp_path_factory.mktemp("console")) as running:
        with running.producer() as producer:
            producer.create_topic("orders", 2)
        running.dead_letters("shipping", "orders", 3, properties={"p": EVIL})
        running.do("send-message", {"topic": "%DLQ%shipping", "body": f"{EVIL}{'x' * 300}", "keys": "long" * 30})
        yield running
    assert running.stopped == 0


@pytest.fixture
def at(browser, console):
    """Opens a page as a user that has logged in; returns what the browser complained about."""

    def go(path):
        return browser.open(f"http://root:{ROOT.secret_key}@{console.address}{path}")

    return go


def press(browser, text):
    """Press the button with this text, and wait for the next page."""
    browser.forget_events()
    assert browser.evaluate(f"""(() => {{
        const found = [...document.querySelectorAll('button')].find(one => one.textContent === {json.dumps(text)});
        if (found) found.click();
        return !!found; }})()"""), browser.evaluate("document.body.innerText")
    browser.wait_for("Page.loadEventFired")


def words(browser):
    return " ".join(browser.evaluate("document.querySelector('main').innerText").split())


def is_sound(browser, name):
    """Check the page that is shown on every screen."""
    for width, dark in SCREENS:
        browser.look(width=width, dark=dark)
        if folder := os.environ.get("TAILRACE_PICTURES"):
            browser.picture(f"{folder}/{name}-{width}{'-dark' if dark else ''}.png")
        assert browser.evaluate("document.scrollingElement.scrollWidth") <= width, f"{name} scrolls sideways at {width}"
        assert browser.accessibility() == [], name
    browser.look()


@pytest.mark.parametrize("page", PAGES)
def test_a_form_is_sound_on_every_screen(browser, at, page):
    browser.look()
    complaints = [one for one in at(ACTIONS + page) if page != "nothing"]
    assert complaints == []
    assert browser.evaluate("document.querySelectorAll('script, img').length") == 0
    is_sound(browser, page.partition("?")[0] + ("-filled" if "?" in page else "") or "actions")


def test_a_topic_is_created_by_hand(browser, at, console):
    at(ACTIONS + "put-topic")
    browser.type("input[name=topic]", "typed")
    browser.type("textarea", "message.type=FIFO")
    press(browser, "Show what would change")
    assert "Create topic typed i Nothing has happened yet." in words(browser)
    is_sound(browser, "confirm-topic")
    press(browser, "Change")
    assert browser.evaluate("document.querySelector('input[name=topic]').value") == "typed"
    assert browser.evaluate("document.querySelector('textarea').value") == "message.type=FIFO"
    press(browser, "Show what would change")
    press(browser, "Create the topic")
    assert "Topic typed is created." in words(browser)
    assert browser.evaluate("location.pathname") == "/console/actions/done"
    is_sound(browser, "done-topic")
    browser.forget_events()
    browser.evaluate("setTimeout(() => history.back(), 50); 0")  # the answer comes before the page goes
    browser.wait_for("Page.frameNavigated")
    assert "typed" in {one["topicName"] for one in console.admin(lambda admin: admin.topic_configs())}


def test_an_error_is_read_first_and_the_form_stays_filled(browser, at):
    at(ACTIONS + "send-message")
    browser.type("input[name=topic]", "ordres")
    browser.type("textarea[name=body]", 'a\t"b"\n\nc')
    press(browser, "Show what would be sent")
    assert browser.evaluate("document.querySelector('[role=alert]').innerText").endswith("is orders meant?")
    assert browser.evaluate("document.querySelector('textarea[name=body]').value") == 'a\t"b"\n\nc'
    is_sound(browser, "error")


def test_chosen_dead_letters_are_sent_by_hand(browser, at, console):
    at("/console/groups/shipping")
    browser.forget_events()
    browser.evaluate("[...document.links].find(one => one.textContent === 'Send its dead letters again').click()")
    browser.wait_for("Page.loadEventFired")
    browser.evaluate("document.querySelector('input[value=\"0:1\"]').click()")
    press(browser, "Show what would be sent of the chosen ones")
    assert "1 of group shipping" in words(browser)
    is_sound(browser, "confirm-resend")
    press(browser, "Send these")
    assert "Sent 1 to orders" in words(browser)
    is_sound(browser, "done-resend")
    assert [one.body for one in console.messages("orders")].count(b"dead 1") == 2


def test_a_group_is_reset_by_hand(browser, at, console):
    at(f"{ACTIONS}reset-group?group=shipping&topic=orders")
    browser.evaluate("document.querySelector('select').value = 'last'")
    press(browser, "Show what would change")
    is_sound(browser, "confirm-reset")
    press(browser, "Set these offsets")
    assert "Group shipping continues in orders at:" in words(browser)


def test_a_page_of_another_site_reaches_no_action(browser, console, at, tmp_path):
    """A form of a foreign page, sent with the password that the browser has stored."""
    at(ACTIONS)
    before = len(console.messages("orders"))
    page = console.preview("send-message", {"topic": "orders", "body": "forged"})
    fields = "".join(f"<input name={name} value='{value}'>" for name, value in page.confirmation.items())
    foreign = tmp_path / "foreign.html"
    foreign.write_text(f"<form method=post action='http://{console.address}{ACTIONS}send-message'>{fields}</form>")
    browser.open(foreign.as_uri())
    browser.forget_events()
    browser.evaluate("document.forms[0].submit(); 0")
    browser.wait_for("Page.loadEventFired")
    assert "Origin" in browser.evaluate("document.body.innerText") or "another site" in browser.evaluate(
        "document.body.innerText") or "the form comes from" in browser.evaluate("document.body.innerText")
    assert len(console.messages("orders")) == before
