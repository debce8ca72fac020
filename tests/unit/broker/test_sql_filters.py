"""SQL92 expressions: the reference's table, limits, and errors that say where."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tailrace.broker.filters.compilation import SQL_MAX, compile_sql
from tailrace.broker.filters.sql_expression import DEPTH_MAX
from tailrace.errors import FilterExpressionError

TABLE = [json.loads(line) for line in Path(__file__).with_name("sql-filters.jsonl").read_text().splitlines()]
MESSAGES, EXPRESSIONS = TABLE[0], TABLE[1:]


def results(text):
    """A letter for each message, as `tools/sql_table.py` has them; None if the text cannot be parsed."""
    try:
        compiled = compile_sql(text)
    except FilterExpressionError:
        return None
    letters = ""
    for message in MESSAGES:
        values = [message.get(name.decode()) for name in compiled.names]
        try:
            letter = {True: "T", False: "F", None: "N"}[compiled.evaluate(values)]
        except ValueError:
            letter = "E"
        assert compiled.matches(values) is (letter == "T")
        letters += letter
    return letters


def test_every_expression_has_the_results_of_the_reference():
    assert len(EXPRESSIONS) > 700
    wrong = [(text, expected, found) for text, expected in EXPRESSIONS if (found := results(text)) != expected]
    assert not wrong
    said = "".join(expected or "" for _, expected in EXPRESSIONS)
    assert min(map(said.count, "TFNE")) > 500
    assert 100 < sum(expected is None for _, expected in EXPRESSIONS) < len(EXPRESSIONS) / 2


@pytest.mark.parametrize(("text", "reason"), [
    ("", "the expression is not complete"),
    ("a = ", "the expression is not complete"),
    ("a = 1 AND OR", "'OR' at character 11 is not allowed there"),
    ("a = #", "character 5 of the expression, '#', is not the start of a valid token"),
    ("a > 'x'", "'x' cannot be compared with >, which orders numbers"),
    ("a = NULL", "NULL cannot be compared; use IS NULL or IS NOT NULL"),
    ("TRUE = 1", "TRUE cannot be compared with 1"),
    ("a = 0.0", "0.0 is not between the least and the greatest positive number of Java"),
    ("a = 9223372036854775808", "9223372036854775808 is greater than 9223372036854775807"),
    ("a BETWEEN 5 AND 1", "BETWEEN 5 AND 1 matches nothing: the first number is greater than the second"),
    ("5 IN ('5')", "5 is left of IN, which takes a property"),
    ("'x'", "'x' is not a condition"),
])
def test_an_error_says_what_is_wrong_and_where(text, reason):
    for _ in range(2):  # the second time it is remembered
        with pytest.raises(FilterExpressionError) as caught:
            compile_sql(text)
        assert str(caught.value) == reason


def test_deep_expressions_are_compiled_or_refused_and_never_recurse():
    brackets = "(" * 4000 + "a = 1" + ")" * 4000
    assert compile_sql(brackets).matches(["1"])
    chain = " OR ".join(f"a = {n}" for n in range(700))
    assert compile_sql(chain).matches(["699"])
    assert compile_sql("NOT " * (DEPTH_MAX - 1) + "a").evaluate(["1"]) is True
    for text in ("NOT " * 2000 + "(a = 1)", "- " * 4000 + "a = 1", "a = 1" + " = a" * 2000):
        with pytest.raises(FilterExpressionError, match=f"more than {DEPTH_MAX} operators are nested"):
            compile_sql(text)


def test_a_long_expression_is_refused_before_it_is_parsed():
    began = time.perf_counter()
    with pytest.raises(FilterExpressionError, match=f"1048576 characters, over the limit of {SQL_MAX}"):
        compile_sql("a" * (1 << 20))
    assert time.perf_counter() - began < 0.1
