"""The console as an operator walks through it from a shell: is anything wrong, who has a lag, what is the message."""

from __future__ import annotations

import html
import os
import re
import sys
from pathlib import Path

import pytest
from console_days import bad_day
from page_shell import Shell

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def look(tmp_path_factory):
    """Return a function that fetches a page in a shell, and returns what a reader sees of it."""
    folder = tmp_path_factory.mktemp("walk")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "TERM": "xterm"}
    with bad_day(folder / "store") as day:
        shell = Shell(folder, environment, terminal=True)

        def fetched(page):
            """Return the words of a page, and the addresses of its links by their texts."""
            got = shell.run(f"curl -s '{day.url}{page.removeprefix('/console/')}' -o page; wc -c page")
            assert re.match(r"[0-9]+ page", got), got
            text = (folder / "page").read_text()
            links = {html.unescape(words): html.unescape(href) for href, words in re.findall(
                r'<a href="([^"]+)"[^>]*>([^<]+)</a>', text)}
            return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text))), links

        try:
            yield fetched
        finally:
            shell.close()


def test_is_anything_wrong(look):
    words, links = look("")
    assert "4 things need attention" in words
    assert "The disk is 88 % full" in words
    assert "Sends stop after 12.0 GiB more" in words
    assert "2 damaged places" in words
    assert links["billing"] == "/console/groups/billing"
    assert links["All groups"] == "/console/groups"


def test_from_the_group_to_its_members_and_from_dead_letters_to_a_key(look):
    _, links = look("")
    group, _ = look(links["billing"])
    assert re.search(r"2,000 waiting, the oldest from 47 min ago", group)
    assert re.search(r"127\.0\.0\.1:[0-9]+ Python, 5\.3\.3", group)
    letters, links = look(links["shipping"])
    assert "Dead letters of shipping" in letters
    key = next(text for text in links if text.startswith("order-"))
    found, _ = look(links[key])
    assert f"1 message with the key {key}" in found


def test_a_typo_has_a_way_on(look):
    words, links = look("messages?topic=ordres")
    assert "There is no topic ordres. Is orders meant?" in words
    newest, links = look(links["orders"])
    assert "Newest messages of orders" in newest
    older, _ = look(links["Older"])
    assert older != newest


def test_pages_use_the_words_of_users(look):
    for page in ("", "topics", "groups", "dead-letters", "timers", "retention", "disk"):
        words, _ = look(page)
        for word in ("CommitLog", "CHECKPOINT", "DROP_FILES", "--delete-now", "storeTimestamp", "fileReservedTime"):
            assert word not in words, page
