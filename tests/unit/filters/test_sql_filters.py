"""SQL92 expressions: the reference's table, limits, and errors that say where."""

from __future__ import annotations

import contextlib
import json
import time
import tracemalloc
from pathlib import Path

import pytest

from tailrace.errors import FilterExpressionError
from tailrace.filters import compilation
from tailrace.filters.compilation import SQL_MAX, compile_sql
from tailrace.filters.sql_expression import DEPTH_MAX
from tailrace.filters.sql_grammar import PARTS_OF_STEP, parse_sql

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


LARGE = {
    "numbers": lambda n: f"a > {n} OR " + " OR ".join(f"a = {n + i}" for i in range(400)),
    "few characters": lambda n: f"a = {n}" + " OR a=1" * 1_000,
    "parentheses": lambda n: "(" * 3_000 + f"a = {n}" + ")" * 3_000,
    "parts": lambda n: " AND ".join(f"text CONTAINS '{n}x{i}'" for i in range(190)),
    "texts": lambda n: "a IN (" + ",".join(f"'{n + i}'" for i in range(600)) + ")",
    "names": lambda n: f"x{n}" + "".join(f" OR b{i % 60}" for i in range(1_000)),
    "between": lambda n: f"a = {n}" + " OR a BETWEEN 1 AND 2" * 300,
    "not": lambda n: f"a = {n}" + " AND NOT (b = 'x' OR c IS NULL)" * 200,
    "short": lambda n: f"a > {n} AND b = 'x{n}'",
    "too deep": lambda n: "NOT " * 1_900 + f"a = {n}",
}


@pytest.fixture
def memory():
    """Return the bytes that were allocated since the test began, and are still in use."""
    parse_sql("a = 1")
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()


@pytest.mark.parametrize("form", sorted(set(LARGE) - {"too deep"}))
def test_an_expression_knows_the_bytes_that_it_takes(memory, form):
    before = memory()
    made = [parse_sql(LARGE[form](70_000_000 + n)) for n in range(3)]
    used = memory() - before
    size = sum(one.size for one in made)
    assert used <= size <= 5 * used + 20_000


def test_cached_expressions_take_no_more_bytes_than_allowed(memory, monkeypatch):
    """A failed one kept the whole tree by its traceback, and short operators take 130 bytes a character."""
    monkeypatch.setattr(compilation, "REMEMBERED_MAX", 1 << 20)
    monkeypatch.setattr(compilation, "_remembered", compilation._Remembered())
    before = memory()
    for n in range(3):
        for make in LARGE.values():
            with contextlib.suppress(FilterExpressionError):
                compile_sql(make(80_000_000 + n))
    assert memory() - before <= 1.1 * (1 << 20)


def test_the_thread_that_compiles_pauses_often():
    for form, make in LARGE.items():
        pauses, text = [], make(1)
        try:
            parse_sql(text, lambda pauses=pauses: pauses.append(time.thread_time()))
        except FilterExpressionError:
            assert form == "too deep"
        assert len(pauses) >= (form != "short") * 2 * (600 // PARTS_OF_STEP), form
