"""Forms that browsers post: from which page they come, and how long they may be."""

from __future__ import annotations

import asyncio

import pytest

from tailrace.observe.http_forms import FORM_MAX, FormRefusedError, foreign, read_form

FORM = "Content-Type: application/x-www-form-urlencoded"


def head(*fields):
    return "\r\n".join(["POST /console/actions/x HTTP/1.1", *fields, "", ""]).encode()


@pytest.mark.parametrize("fields", [
    ["Host: a:1", "Origin: http://a:1"], ["host: A.Example:1", "ORIGIN: https://a.example:1"],
    ["Host: [::1]:1", "Origin: http://[::1]:1", "Sec-Fetch-Site: same-origin"], ["Host: a", "Origin: https://a"],
])
def test_a_form_of_this_server_is_taken(fields):
    assert foreign(head(*fields)) == ""


@pytest.mark.parametrize(("fields", "part"), [
    (["Host: a:1"], "one field Origin"), (["Origin: http://a:1"], "one field Origin"),
    (["Host: a:1", "Origin: http://a:2"], "comes from http://a:2 and not from a:1"),
    (["Host: a:1", "Origin: null"], "comes from null"), (["Host: a:1", "Origin: ftp://a:1"], "comes from ftp"),
    (["Host: a:1", "Origin: http://a:1", "Origin: http://b"], "one field Origin"),
    (["Host: a:1", "Host: b", "Origin: http://a:1"], "one field Origin"),
    (["Host: a:1", "Origin: http://x@a:1"], "comes from"), (["Host: a:1", "Origin: http://[a:1"], "comes from"),
    (["Host: ", "Origin: http://"], "comes from"), (["Host: a:1", "Origin: http://a:1.evil.example"], "comes from"),
    (["Host: a:1", "Origin: http://a:1", "Sec-Fetch-Site: cross-site"], "another site (Sec-Fetch-Site: cross-site)"),
    (["Host: a:1", "Origin: http://a:1", "Sec-Fetch-Site: same-origin", "Sec-Fetch-Site: none"], "another site"),
])
def test_a_form_that_may_be_foreign_is_not(fields, part):
    assert part in foreign(head(*fields))


def read(fields, body):
    async def scenario():
        reader = asyncio.StreamReader(limit=8192)
        reader.feed_data(body)
        reader.feed_eof()
        return await read_form(head(*fields), reader)

    return asyncio.run(scenario())


@pytest.mark.parametrize(("body", "found"), [
    (b"", {}), (b"a=1&a=2&b=", {"a": ["1", "2"], "b": [""]}), (b"a=%C3%A4+%0D%0A%09", {"a": ["ä \r\n\t"]}),
])
def test_fields_are_read(body, found):
    assert read([FORM, f"Content-Length: {len(body)}"], body) == found
    assert read([f"{FORM}; charset=UTF-8", f"content-length:{len(body)} "], body + b"more") == found


@pytest.mark.parametrize(("fields", "status"), [
    (["Content-Length: 1"], 415), ([FORM, FORM, "Content-Length: 1"], 415),
    (["Content-Type: multipart/form-data", "Content-Length: 1"], 415), ([FORM], 411),
    ([FORM, "Content-Length: 1", "Content-Length: 1"], 411), ([FORM, "Content-Length: -1"], 411),
    ([FORM, "Content-Length: ²"], 411), ([FORM, "Content-Length: 1", "Transfer-Encoding: chunked"], 411),
    ([FORM, f"Content-Length: {FORM_MAX + 1}"], 413), ([FORM, "Content-Length: 5"], 400),
])
def test_a_broken_form_is_refused_with_its_status(fields, status):
    with pytest.raises(FormRefusedError) as caught:
        read(fields, b"a=%ff")
    assert caught.value.status == status


def test_a_form_that_ends_early_is_not_read():
    with pytest.raises(asyncio.IncompleteReadError):
        read([FORM, "Content-Length: 9"], b"a=1")
