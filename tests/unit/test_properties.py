"""Settings files: what is read, and where an error is."""

from __future__ import annotations

import codecs
import re

import pytest

from tailrace.errors import ConfigError
from tailrace.properties import (
    SETTINGS_FILE_MAX,
    parse_properties,
    repeated_settings,
    settings_in,
    with_settings,
)

EXPECTED = "expected lines of name=value"


@pytest.mark.parametrize("text", [
    "a=1\nb = 2", "a: 1\r\nb=2\r\n", "# x\n! y\n\n  a=1\rb=2", "a=\\\n  1\nb=2", "a=1\nb=\\\n2"])
def test_every_form_of_a_line(text):
    assert parse_properties(text) == settings_in(text.encode(), "f") == {"a": "1", "b": "2"}


def test_a_value_may_be_empty_and_have_separators():
    assert settings_in(b"a=\nb=x=y:z\n", "f") == {"a": "", "b": "x=y:z"}


def test_a_comment_does_not_continue_in_the_next_line():
    assert settings_in(b"# path C:\\\na=1\n", "f") == {"a": "1"}


def test_a_byte_order_mark_is_left_out():
    assert settings_in(codecs.BOM_UTF8 + b"a=1\n", "f") == {"a": "1"}


@pytest.mark.parametrize(("data", "problem"), [
    (b"a=1\n\nbrokerName broker-a\n", "f line 3: 'brokerName broker-a' is not a setting"),
    (b"a=1\r\nflag\r\n", "f line 2: 'flag' is not a setting"),
    (b"=1\n", "f line 1: '=1' is not a setting"),
    (b"a=\\\n1\nflag\n", "f line 3: 'flag' is not a setting"),
    (b"x" * 500, f"f line 1: '{'x' * 40}...' is not a setting"),
    (b"tls.server.keyPassword hunter2\n", "f line 1: 'tls.server.keyPassword ...' is not a setting"),
    (b"a\0b=1\n", r"f line 1: 'a\\x00b=1' is not a setting"),
    (b"a=1\nb=\xe9\xe8\n", r"f line 2: 'b=\\\\xe9\\\\xe8' is not UTF-8 text"),
    (b"\x7fELF\xff\0\0\n", r"f line 1: '\\x7fELF\\\\xff\\x00\\x00' is not UTF-8 text"),
    ("a=1\n".encode("utf-16"), "f line 1: the file is UTF-16 text, save it as UTF-8"),
    (b"a=1\n" * (SETTINGS_FILE_MAX // 4 + 1), f"f has more than {SETTINGS_FILE_MAX} bytes"),
])
def test_an_error_has_file_line_text_and_what_is_expected(data, problem):
    with pytest.raises(ConfigError) as raised:
        settings_in(data, "f")
    assert str(raised.value) == f"{problem.replace(chr(92) * 2, chr(92))}; {EXPECTED}"


def test_each_wrong_line_is_named_but_not_all_of_a_long_file():
    with pytest.raises(ConfigError) as raised:
        settings_in(b"wrong\n" * 30, "f")
    assert [re.findall("line ([0-9]+)", one) for one in raised.value.problems] == [[str(n)] for n in range(1, 6)] + [[]]
    assert raised.value.problems[-1] == "f has 25 more such lines"


def test_a_name_with_two_values_is_named_with_both_lines_and_no_value():
    data = b"a=1\nkeyPassword=x\na=1\na=2\nkeyPassword=y\n"
    assert settings_in(data, "f")["a"] == "2"
    assert repeated_settings(data, "f") == [
        f"f line {here}: {name} has another value than in line {before}; expected one line for each name, and the last "
        "one counts" for here, name, before in ((4, "'a'", 3), (5, "'keyPassword'", 2))]


@pytest.mark.parametrize(("text", "values"), [
    (r"a=127.0.0.1\:9", {"a": "127.0.0.1:9"}),
    (r"a=\u0061\u00FCb\ud83d\ude00", {"a": "aüb\U0001f600"}),
    ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
    ("a=1\\\\\\\n  2", {"a": "1\\2"}),
    ("a=1\\\r\n\t2\\\r3", {"a": "123"}),
    ("a=1\\\n# 2", {"a": "1# 2"}),
    ("a=1\\", {"a": "1"}),
    ("a\\ b\\=c\\:d=e", {"a b=c:d": "e"}),
    (r"a=\t\n\r\f\x\\", {"a": "\t\n\r\fx\\"}),
    ("a = = b : c ", {"a": "= b : c"}),
    ("\fa\f:\fb", {"a": "b"}),
    ("\\u0061=1\na=2", {"a": "2"}),
])
def test_escapes_and_continued_lines_are_those_of_java(text, values):
    assert parse_properties(text) == settings_in(text.encode(), "f") == values


def test_values_of_a_request_may_come_after_a_blank():
    assert parse_properties("name value\nflag\n#x\n") == {"name": "value", "flag": ""}


@pytest.mark.parametrize(("line", "problem"), [
    (r"a=\u00g0", r"has \u without four hexadecimal digits"), (r"a=\u12", r"has \u without"),
    (r"a=\ud83d", "half of a character")])
def test_an_escape_that_java_cannot_read_is_named(line, problem):
    with pytest.raises(ConfigError) as raised:
        settings_in(f"b=1\n{line}\n".encode(), "f")
    assert problem in str(raised.value)
    assert "f line 2" in str(raised.value)
    with pytest.raises(ValueError, match="line 2"):
        parse_properties(f"b=1\n{line}\n")


@pytest.mark.parametrize("value", [
    "a\\", "C:\\store\\x", "ü\U0001f600", "a\nb\tc", "=x", "a#b!c:d", "", "x y", "\\u0061"])
def test_a_value_is_written_so_that_it_is_read_back(value):
    text = "# a\r\nname=old\\\r\n  er\r\n# name=2 \\\nother=1"
    made = with_settings(text, {"name": value, "new": value})
    assert settings_in(made.encode(), "f") == {"name": value, "other": "1", "new": value}
    assert made.isascii()
    assert made.startswith("# a\r\nname=")
    assert "\n# name=2 \\\nother=1\n" in made


def test_a_change_of_a_name_that_is_written_with_an_escape_replaces_its_line():
    assert with_settings("n\\u0061me=1\nb=2\nname : 3\n", {"name": "4"}) == "b=2\nname=4\n"
