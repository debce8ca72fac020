"""Texts in pages: nothing that comes from a message becomes HTML."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.console.charts import chart
from tailrace.console.elements import address, h, page_text, table


class Reader(HTMLParser):
    """Tags and texts as a browser finds them."""

    def __init__(self):
        super().__init__()
        self.tags, self.texts, self.attributes = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.texts.append(data)


def read(element):
    reader = Reader()
    reader.feed(page_text(element).decode())
    return reader


@given(st.text())
def test_a_text_stays_a_text_in_elements_and_attributes(text):
    reader = read(h("p", h("a", text, href=address("topics", filter=text), title=text), text))
    assert reader.tags == ["p", "a"]
    assert len(reader.attributes) == 2


@pytest.mark.parametrize("text", [
    "<script>alert(1)</script>", "</td></table><img src=x onerror=alert(1)>", '"><svg onload=alert(1)>', "&lt;b&gt;",
    "a\x00b\x1b[31m", "\ud800", "\u202e"], ids=ascii)
def test_html_and_control_characters_are_shown(text):
    reader = read(table(("a",), [[h("pre", text)]], "nothing", text))
    assert not {"script", "img", "svg"} & set(reader.tags)
    assert all(c.isprintable() or c == "\n" for c in "".join(reader.texts))


def test_a_chart_has_its_figures_as_text():
    reader = read(chart("Puts", [0.0, 5.0, 2.0], "a second"))
    assert ("aria-label", "Puts: 2 a second now, at most 5 in the last 3 s") in reader.attributes
    assert dict(reader.attributes)["points"] == "0.0,120.0 300.0,0.0 600.0,72.0"
    assert "".join(read(chart("Puts", [], "")).texts).strip() == "Puts no sample yet"
