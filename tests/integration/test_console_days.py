"""The console on a good and on a bad day: the first page names each trouble, and links lead to its message."""

from __future__ import annotations

import html
import operator
import random
import re
import urllib.error
import urllib.request
from urllib.parse import quote, urlencode

import pytest
from console_days import bad_day, good_day
from patience import until

from tailrace import Message
from tailrace.console import Console
from tailrace.errors import StoreNotWritableError

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def bad(tmp_path_factory):
    with bad_day(tmp_path_factory.mktemp("bad") / "store") as day:
        yield day


def get(day, page):
    """Return the text of a page, by its path or by a link in another page."""
    try:
        with urllib.request.urlopen(day.url + page.removeprefix("/console/")) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.read().decode()


def text_of(page):
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page)))


def link_in(page, text):
    return html.unescape(re.search(rf'<a href="([^"]+)"[^>]*>{re.escape(text)}</a>', page)[1])


def test_the_first_page_says_that_nothing_is_wrong(tmp_path):
    with good_day(tmp_path / "store") as day:
        text = text_of(get(day, ""))
        assert "Nothing is wrong" in text
        assert "No message waits." in text
        assert "There are no dead letters." in text
        assert "28 % of 500.0 GiB used" in text
        assert "Pending 12" in text
        assert "need attention" not in text


def test_the_first_page_names_each_trouble_the_worst_first(bad):
    text = text_of(get(bad, ""))
    places = [text.index(part) for part in (
        "4 things need attention",
        "The disk is 88 % full, so the oldest messages are deleted before their time. Sends stop after 12.0 GiB more.",
        "The last start found 2 damaged places among the stored messages",
        "Group billing has a lag of 2,000 messages, the oldest waits for 47 min.",
        "50 dead letters of group shipping")]
    assert places == sorted(places)
    for word in ("CHECKPOINT", "CommitLog", "DROP_FILES", "atEnd", "diskSpace", "--"):
        assert word not in text


def test_links_lead_from_the_group_to_the_key_of_a_dead_letter(bad):
    group = get(bad, "groups/shipping")
    letters = get(bad, link_in(group, "50 messages"))
    assert "from orders" in letters
    message = get(bad, html.unescape(re.search(r'href="(/console/message\?[^"]+)"', letters)[1]))
    key = re.search(r">(order-[0-9]+)</a>", message)[1]
    found = get(bad, link_in(message, key))
    assert f"1 message with the key {key}" in text_of(found)
    original = get(bad, link_in(message, "Look for the original"))
    assert key in original


def test_a_member_has_its_address_version_and_last_contact(bad):
    text = text_of(get(bad, "groups/billing"))
    assert re.search(r"Members 1 ", text)
    assert re.search(r"@[0-9]+#\w+ +127\.0\.0\.1:[0-9]+ +Python, 5\.3\.3 +(now|[0-9]+ \w+ ago)", text)


def test_own_topics_come_first_and_any_column_sorts(bad):
    page = get(bad, "topics")
    assert "%RETRY%" not in page
    assert "TBW102" not in page
    every = get(bad, link_in(page, re.search(r">(Show [0-9]+ of the system)</a>", page)[1]))
    assert "%DLQ%shipping" in every
    assert "TBW102" in every
    by_size = get(bad, "topics?all=1&sort=-messages")
    names = re.findall(r'<td class="name"><a[^>]*>([^<]+)</a>', by_size)
    assert names[:2] == ["orders", "%DLQ%shipping"]


@pytest.mark.parametrize(("page", "link", "kept"), [
    ("messages?topic=ordres", "orders", "messages?topic=orders"), ("topics/ordres", "orders", "topics/orders"),
    ("groups/biling", "billing", "groups/billing"), ("topics?filter=ordres", "orders", "topics?filter=orders"),
    ("groups?filter=biling", "billing", "groups?filter=billing"),
    ("timers?topic=ordres", "orders", "timers?topic=orders"),
    ("messages?topic=ordres&key=order-1", "orders", "messages?topic=orders&amp;key=order-1")])
def test_a_typo_is_answered_with_a_suggestion(bad, page, link, kept):
    found = get(bad, page)
    assert f'Is <a href="/console/{kept}">{link}</a> meant?' in found
    assert ("<form" in found) == ("?" in page)


def test_pages_of_messages_follow_each_other_across_queues(bad):
    seen, page = [], get(bad, "messages?topic=orders")
    for _ in range(4):
        seen += [int(number) for number in re.findall(r">order-([0-9]+)</a>", page)]
        page = get(bad, link_in(page, "Older"))
    assert seen == sorted(seen, reverse=True)
    assert len(set(seen)) == len(seen) > 150
    newer = get(bad, link_in(page, "Newer"))
    assert [int(number) for number in re.findall(r">order-([0-9]+)</a>", newer)] == seen[-50:]


def test_a_disk_that_is_full_refuses_sends_and_says_so(bad):
    bad.disk.percent = 95.0
    bad.store.retention.disk.check()
    try:
        with pytest.raises(StoreNotWritableError):
            bad.store.put(Message(topic="orders", body=b"x"))
        for page in ("", "disk"):
            assert "The disk is 95 % full, so sends are refused until there is room." in text_of(get(bad, page))
        assert "The disk needs room, but no file of the log may be deleted." in text_of(get(bad, "retention"))
    finally:
        bad.disk.percent = 87.6
        bad.store.retention.disk.check()


def test_a_group_without_a_member_that_is_late_is_named(bad):
    broker = bad.controller.broker
    broker.offsets.commit("audit", "orders", 1, 3)
    try:
        wanted = r"Group audit has a lag of [0-9]+ messages, the oldest waits for 47 min, and no member is connected\."
        until(lambda: re.search(wanted, text_of(get(bad, ""))))  # figures are kept for a second
    finally:
        broker.offsets.remove_groups({"audit"})
        until(lambda: "Group audit" not in text_of(get(bad, "")))


@pytest.mark.parametrize(("name", "value", "text"), [
    ("read_only", "read-only since it was opened: /srv: Read-only file system; repair that and open it again",
     "Sends are refused: the store is read-only since it was opened: /srv: Read-only file system;"),
    ("inner.stats.history", lambda: [(5.0, 2.0)] * 30, "Stored 5 a second now, at most 5"),
])
def test_a_state_of_the_store_is_on_the_first_page(bad, monkeypatch, name, value, text):
    *owner, name = name.split(".")
    monkeypatch.setattr(operator.attrgetter(".".join(owner))(bad.store) if owner else bad.store, name, value)
    assert text in text_of(get(bad, ""))


def test_troubles_of_memory_timers_and_the_disk_are_named(bad, monkeypatch):
    broker, stats = bad.controller.broker, bad.store.stats()
    monkeypatch.setattr(bad.store, "stats", lambda: {
        **stats, "timerReadBehindMs": 95_000, "timerWaiting": 7, "hintSyncFailures": 1, "unreadableRecords": 2,
        "forcedDeletedMessages": 1_500, "forcedDeletedTimers": 1}, raising=False)
    monkeypatch.setattr(broker.limits, "tight", True)
    monkeypatch.setattr(broker.name_servers, "states", lambda: {"10.0.0.1:9876": False})
    text = text_of(get(bad, ""))
    for part in (
        "Timers are delivered 95 s late.", "7, for up to 95 s", "failed to keep 1 small file",
        "2 messages cannot be read from the disk.", "1,500 messages were deleted before their time",
        "1 timer was deleted before delivery", "Requests wait for memory",
        "10.0.0.1:9876 did not accept its last registration",
    ):
        assert part in text, part
    assert "11 things need attention" in text


NAMES = ("orders", "ordres", "%DLQ%shipping", "%RETRY%billing", "billing", "", "x" * 300, "<b>", "\x00", "%LMQ%$a$b",
         "rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX", "'\"><script>", "\u202e")
VALUES = (*NAMES, "0", "1", "-1", "9" * 32, "1e5", "\u0967", "2026-11-26T00:00", "9999-12-31T23:59:59", "1.2.3",
          "0.0.0", f"{(1 << 63) - 1}.0.0", "-lag", "name", " ")
FIELDS = ("topic", "key", "queue", "offset", "time", "before", "after", "filter", "from", "sort", "all", "live",
          "path", "self")
PAGES = ("", "topics", "groups", "dead-letters", "messages", "message", "timers", "retention", "disk", "topics/",
         "groups/")


def test_no_address_makes_a_page_fail(bad):
    chance, console = random.Random(40), Console(bad.controller.broker)
    for _ in range(400):
        page = chance.choice(PAGES)
        name = quote(chance.choice(NAMES), safe="") if page.endswith("/") else ""
        query = urlencode({field: chance.choice(VALUES) for field in chance.sample(FIELDS, chance.randrange(5))})
        may = chance.choice([lambda _: True, lambda _: False, lambda access: access.name == "orders"])
        answer = console(f"/console/{page}{name}?{query}", "ready", may)
        assert answer.status in {200, 400, 403, 404}, (page, name, query)
        assert b"<script" not in re.sub(rb'="[^"]*"', b"", answer.body)
