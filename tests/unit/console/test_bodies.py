"""Bodies: JSON as a tree that keeps every digit, and whatever else a producer has sent."""

from __future__ import annotations

import zlib
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.console.bodies import NODES_MAX, PREVIEW_MAX, preview, shown_body
from tailrace.console.elements import h
from tailrace.formats.commitlog import SysFlag


def message(body, sys_flag=0):
    return SimpleNamespace(body=body, sys_flag=sys_flag)


def text_of(body, sys_flag=0):
    return "".join(h("div", *shown_body(message(body, sys_flag))).itertext())


def tags_of(body):
    return [one.tag for one in h("div", *shown_body(message(body))).iter()]


def test_json_is_a_tree_that_keeps_digits_order_and_repeated_members():
    text = text_of(b'{"b": 12345678901234567890123, "a": 1.50, "b": [true, null, {}], "c": []}')
    assert "b: 12345678901234567890123a: 1.50b: [3 values]0: true1: null2: {}c: []" in text
    assert "{4 members}" in text
    assert tags_of(b'{"a": {"b": 1}}').count("details") == 3  # two of the tree, one of the text


@pytest.mark.parametrize("body", [
    b"text", b"12", b'"text"', b"{broken", b"[" * 100_000, b'{"a":' * 5_000, b"[1,]", b" ",
    b"[" + b"1," * 200_000 + b"1]",
], ids=lambda body: repr(body[:12]))
def test_what_is_no_object_or_list_is_a_text(body):
    tags = tags_of(body)
    assert "pre" in tags
    assert "details" not in tags


def test_a_tree_has_a_limit_in_breadth_and_depth():
    wide = tags_of(b"[" + b"1," * 5_000 + b"1]")
    assert wide.count("li") <= NODES_MAX + 1
    assert "The first 1,000 values are shown." in text_of(b"[" + b"1," * 5_000 + b"1]")
    assert "… 1 value" in text_of(b"[" * 50 + b"]" * 50)
    assert "(2,002 characters)" in text_of(b'["' + b"x" * 2_000 + b'"]')


def test_bytes_are_shown_as_a_dump_and_compressed_bodies_as_they_were():
    assert "000000  ff 00 41" in text_of(b"\xff\x00A")
    assert "..A" in text_of(b"\xff\x00A")
    assert "4 B of text" in text_of(zlib.compress(b"sent"), int(SysFlag.COMPRESSED))
    assert "compressed: " in text_of(b"broken", int(SysFlag.COMPRESSED))
    assert "compressed: " in text_of(zlib.compress(bytes(2 << 20)), int(SysFlag.COMPRESSED))


@given(st.binary(max_size=2_000))
def test_every_body_has_a_short_preview(body):
    assert len(preview(message(body))) <= PREVIEW_MAX + 1
    shown_body(message(body))
