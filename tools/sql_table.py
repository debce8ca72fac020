"""Write tests/unit/filters/sql-filters.jsonl: what the reference's SQL92 filter says of expressions.

    .venv/bin/python tools/sql_table.py [SEED [COUNT]]     needs Maven and a JDK

The first line has the properties of some messages. Each further line has an expression and a letter for
each message: T(RUE), F(ALSE), N(ULL), or E if the evaluation ends with an exception; null in place of
the letters if the expression cannot be parsed. Half of the expressions are written below, the others
are made at random. With a COUNT nothing is written: that many more random expressions are compared with
our own filter.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "tests/unit/filters/sql-filters.jsonl"
MESSAGES: list[dict[str, str]] = [
    {},
    {"a": "1", "b": "2", "c": "red", "TAGS": "x"},
    {"a": "5", "b": "5", "c": "reddish green", "d": "true"},
    {"a": "-1", "b": "abc", "c": "", "d": "TRUE", "_x$1": "it's"},
    {"a": "1.5", "b": "1.5", "c": "blue", "d": "false"},
    {"a": "+7", "b": " 7 ", "c": "7", "d": "yes"},
    {"a": "2147483648", "b": "-2147483649", "c": "9223372036854775808", "d": "2147483647"},
    {"a": "NaN", "b": "Infinity", "c": "-Infinity", "d": "-0.0"},
    {"a": "1e3", "b": "0x1p3", "c": "10d", "d": "3F"},
    {"a": "", "b": "0", "c": "x", "d": "0.0"},
    {"a": "010", "b": "1_0", "c": "nan", "d": "\u0661\u0662"},
    {"a": "\u00e9t\u00e9", "b": "\uff11", "c": "\u65e5\u672c", "d": "\U0001d7ce"},
    {"A": "1", "B": "2", "or_": "3", "c": "'", "d": "1e400"},
    {"a": "-", "b": "+", "c": ".", "d": "1L"},
    {"a": "0" * 30 + "1", "b": "-9223372036854775808", "c": "1.7976931348623157e308", "d": "1e-400"},
]
EXPRESSIONS = [*r"""
a = 1|a <> 1|a > 1|a >= 1|a < 1|a <= 1|a = '1'|a <> '1'|1 = a|1 < a|1 >= a|a = 1.0|a = 1.5|a > 1.5|a <= 1.5
a = 1L|a = 1l|a > 0|a > 0.0|a > 0.5|a > 1e0|a > 1E+2|a < 1e-2|a < .5|a < 5.|a = 5.E0|a = 5.5E|a = 00|a = 007
a = 5L5|a = 2147483647|a = 2147483648|a = 2147483648L|a >= 2147483647|a > 9223372036854775807
a > 9223372036854775808|a > -9223372036854775808|a > -9223372036854775807|b = -2147483649|b <= -2147483648
a = -1|a = - 1|a = --1|a = - -1|a = +1|a = + + 1|a = -+1|a = +-1|a = -'1'|a = -b|-a = 1|-a IS NULL|- 5 > -6
-5 = -5.0|5 = 5.0|5 <> 5.0|5L = 5|a = TRUE|d = TRUE|d = FALSE|d <> TRUE|TRUE = d|FALSE = d|d = true|d = True
TRUE|FALSE|NULL|NOT TRUE|NOT NULL|NOT FALSE|TRUE = TRUE|TRUE = FALSE|TRUE = 1|1 = TRUE|'true' = TRUE
TRUE = 'true'|'x' = 'x'|'x' = 'y'|'x' = 1|1 = 'x'|'1' = 1|1 = '1'|a = NULL|NULL = a|a <> NULL|NULL IS NULL
NULL IS NOT NULL|TRUE IS NULL|5 IS NOT NULL|'x' IS NULL|a IS NULL|a IS NOT NULL|NOT a IS NULL|NOT (a IS NULL)
a is null|a Is Not nUlL|a IS|a IS NOT|a IS TRUE|a IS NULL IS NULL|a IS NULL = TRUE|a IS NULL = FALSE
(a IS NULL) = d|d = (a IS NULL)|a IS NULL AND b IS NULL|a IS NOT NULL OR b = 0|c = 'red'|c <> 'red'|c = 'it''s'
_x$1 = 'it''s'|c = ''''|c = ''|c = 'red|c = "red"|c = 'a' 'b'|c = 'x''|c > 'red'|c < 'z'|'red' = c|'a' < c
c IN ('red')|c IN ('red', 'blue')|c NOT IN ('red', 'blue')|c IN ('red','blue','x','7','''','y')
c NOT IN ('a','b','c','d','e','red')|a IN ('1', '5')|a IN (1, 5)|a IN ()|a IN ('1',)|a IN '1'|5 IN ('5')
'c' IN ('c')|(c) IN ('red')|(c = 'x') IN ('red')|NOT c IN ('red')|NOT (c IN ('red'))|c NOT c|c NOT|NOT c|NOT a
NOT NOT a|NOT (NOT a)|c CONTAINS 'ed'|c NOT CONTAINS 'ed'|c CONTAINS ''|c NOT CONTAINS ''|c contains 'ed'
c CONTAINS 5|c CONTAINS a|c STARTSWITH 'red'|c NOT STARTSWITH 'red'|c STARTSWITH ''|c NOT STARTSWITH ''
c ENDSWITH 'ed'|c NOT ENDSWITH 'ed'|c ENDSWITH ''|c NOT ENDSWITH ''|5 CONTAINS '5'|'abc' CONTAINS 'b'
'abc' NOT CONTAINS 'b'|NULL CONTAINS 'x'|TRUE CONTAINS 'T'|(a = 1) CONTAINS 'T'|(a = 1) NOT ENDSWITH 'T'
-a STARTSWITH '1'|a CONTAINS 'é'|c ENDSWITH '本'|c STARTSWITH '日'|c CONTAINS 'r' CONTAINS 'r'
c CONTAINS 'r' = TRUE|NOT c CONTAINS 'r'|NOT (c CONTAINS 'r')|'it''s' ENDSWITH '''s'|a BETWEEN 1 AND 5
a NOT BETWEEN 1 AND 5|a BETWEEN 5 AND 1|a NOT BETWEEN 5 AND 1|a BETWEEN 1 AND 1|a BETWEEN 0.5 AND 5
a BETWEEN -1 AND 1|a BETWEEN 1 AND -1|a BETWEEN '1' AND '5'|a BETWEEN 1 AND '5'|a BETWEEN NULL AND 5
a BETWEEN a AND b|a BETWEEN b AND 5|a NOT BETWEEN b AND a|5 BETWEEN 1 AND 10|5 BETWEEN a AND b
a BETWEEN TRUE AND FALSE|a BETWEEN 1|a BETWEEN 1 AND|a BETWEEN 1 AND 5 AND b = 2|a BETWEEN 1 AND 5 OR b = 0
NOT a BETWEEN 1 AND 5|NOT (a BETWEEN 1 AND 5)|a BETWEEN (1) AND (5)|a BETWEEN (a = 1) AND 5|'5' BETWEEN 1 AND 10
NULL BETWEEN 1 AND 10|a BETWEEN 1L AND 5.5|a > b|a < b|a >= b|a <= b|a = b|a <> b|b > a|a > d|d <= b|c < c
a >= a|b <= b|d >= b|b > d|c <= b|(a) > (b)|a > (b = 1)|(a = 1) > 1|a > TRUE|a > NULL|NULL > a|'1' > 0|1 > '0'
5 > 3|3 > 5|5 >= 5.0|5.5 > 5|5 < 5.5|a > 1 > 0|a > -b|-a > 1|a = 1 = TRUE|(a = 1) = TRUE|TRUE = (a = 1)
(a = 1) = (b = 2)|(a = 1) <> (b = 2)|a = (b = 2)|(b = 2) = a|a = 1 = 1|(a = 1) = 1|1 = (a = 1)|a = b = c
a <> b <> c|a = 1 <> b|NOT a = 1|NOT (a = 1)|NOT a > 1|NOT a|NOT 5|NOT 'x'|NOT -a|NOT (a)|a = 1 AND b = 2
a = 1 OR b = 2|a = 1 AND b = 5|a = 1 OR b = 5|a = 1 AND b = 'abc'|b = 'abc' OR a = 1|a = 1 OR b = 'abc'
a = 1 AND b = 2 OR c = 'x'|a = 1 AND (b = 2 OR c = 'x')|a = 1 OR b = 2 AND c = 'red'
(a = 1 OR b = 2) AND c = 'red'|z = 1 AND a = 1|z = 1 OR a = 1|a = 1 OR z = 1|a = 1 AND z = 1|NOT (z = 1)
NOT (z = 1) OR a = 1|z = 1 AND FALSE|z = 1 OR TRUE|z = y|z <> y|z = a|a = z|z IN ('x')|z NOT IN ('x')
z CONTAINS 'x'|z NOT CONTAINS 'x'|z BETWEEN 1 AND 2|z NOT BETWEEN 1 AND 2|a AND b|a OR b|a AND TRUE|TRUE AND a
d AND TRUE|d|a|(a)|5|'x'|-a|-5|a AND 5|5 OR a|'x' OR a|NULL AND a = 1|NULL OR a = 1|TAGS = 'x'|TAGS IS NOT NULL
TAGS IN ('x', 'y')|A = 1|B = 2|or_ = 3|orx = 1 OR a = 1|_x$1 IS NULL|$ = 1 OR a = 1|é = 1|a=1|a=1AND b=2
a=1 ANDb=2|a=1OR b=2|(a=1)AND(b=2)|(a=1)OR(b=2)|a=1AND|NOT(a=1)|a IN('1')|aIN('1')|c='red'AND a=1|a = 1)
a = 1 junk|a = 1 ,|a = 1 #|a = 1 b #|a = 1 NOT #|a = 1 'x|(a = 1|((a = 1)|((a = 1))|(a = 1))|()|(a = 1) b|a b
a (b)| a = 1 |(a)|a == 1|a != 1|a LIKE 'x'|a + 1 = 2|a * 2 = 2|a = 1 /* one */|a /* x */ = /* y */ 1
a = 1 /* open|/**/ a = 1|a = /***/ 1|a = /* * / */ 1|a = 1 -- rest|a = 1 --|-- x|--x|a -- x|/* a = 1 */
a = 1 /*/ */|a = 1 /**/ /* */ AND b = 2|a = 1.5.5|a = 1..5|a = 1e|a = 1e5e|a = .|a = 1.e1|a = 1.5L|a = 1e400
a = 1e-400|a = 4.9e-324|a = 1.7976931348623157e308|a in ('1')|a between 1 and 5|a And b Or c|nOt (a = 1)
c cOnTaInS 'e'|c startswith 'r'|c endsWith 'd'|true|null is null
""".replace("\n", "|").split("|"),
    "", " ", "\n", "a\t=\n1", "a = -- one\n1", "a = 1 -- one\nAND b = 2", "a = -- x\r1", "-- x\ra = 1", "a\f=\r\n1",
    "a = 1\u00a0", "a\u00a0= 1", "a \u0130S NULL", "a I\u017f NULL", "c = 'a\nb'", "\u212a = 1",
    " OR ".join(f"a = {n}" for n in range(60)), " AND ".join(f"a <> {n}" for n in range(100, 160)),
    "NOT " * 20 + "(a = 1)", "- " * 21 + "1 < a", "(" * 30 + "a = 1" + ")" * 30, "+" * 20 + "1 = a",
]


def random_expression(rng: random.Random, depth: int = 0) -> str:
    """An expression that is often right."""
    def operand() -> str:
        if depth < 3 and not rng.randrange(8):
            return f"({random_expression(rng, depth + 2)})"
        return rng.choice((
            "a", "b", "c", "d", "z", "a", "b", "5", "1", "0", "1.5", "7L", "-1", "- 1.5", "TRUE", "FALSE",
            "2147483648", "-a", "'1'", "'red'", "NULL", "(a)"))

    def some_words(word: str) -> str:
        return rng.choice((word, word, word.lower(), word.title()))

    kind = rng.randrange(12 if depth < 3 else 8)
    name, maybe = rng.choice("abcdz"), rng.choice(("", " NOT"))
    if kind < 3:
        return f"{operand()} {rng.choice(('=', '<>', '=', '<', '<=', '>', '>='))} {operand()}"
    if kind == 3:
        return f"{operand()} {some_words('IS')}{maybe} {some_words('NULL')}"
    if kind == 4:
        texts = rng.sample(("'1'", "'5'", "'red'", "'blue'", "'x'", "''", "'it''s'"), rng.randrange(1, 6))
        return f"{name}{maybe} {some_words('IN')} ({', '.join(texts)})"
    if kind == 5:
        word = some_words(rng.choice(("CONTAINS", "STARTSWITH", "ENDSWITH")))
        text = rng.choice(("'e'", "'r'", "'1'", "''", "'red'"))
        return f"{rng.choice((name, operand()))}{maybe} {word} {text}"
    if kind == 6:
        return f"{operand()}{maybe} {some_words('BETWEEN')} {operand()} AND {operand()}"
    if kind == 7:
        return f"NOT {name if depth > 3 else '(' + random_expression(rng, depth + 1) + ')'}"
    parts = [random_expression(rng, depth + 1) for _ in range(rng.randrange(2, 4))]
    made = f" {rng.choice((some_words('AND'), some_words('OR')))} ".join(parts)
    return f"({made})" if rng.randrange(2) else made


def reference_results(expressions: list[str]) -> list[str | None]:
    """What the reference says of each expression."""
    asked = "".join(
        json.dumps({"expression": text, "messages": MESSAGES}) + "\n" for text in expressions)
    done = subprocess.run(
        [ROOT / "tests/interop/reference/rocketmq", "sql-filters"], input=asked, capture_output=True,
        text=True, check=True)
    return [json.loads(line)["results"] for line in done.stdout.splitlines()]


def own_results(expression: str) -> str | None:
    """What our filter says, in the same letters."""
    from tailrace.errors import FilterExpressionError
    from tailrace.filters.compilation import compile_sql

    try:
        compiled = compile_sql(expression)
    except FilterExpressionError:
        return None
    letters = ""
    for message in MESSAGES:
        values = [message.get(name.decode()) for name in compiled.names]
        try:
            letters += {True: "T", False: "F", None: "N"}[compiled.evaluate(values)]
        except ValueError:
            letters += "E"
    return letters


def main() -> None:
    rng = random.Random(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
    compare = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    made = [random_expression(rng) for _ in range(compare or 400)]
    expressions = list(dict.fromkeys([*EXPRESSIONS, *made]))
    results = reference_results(expressions)
    if compare:
        wrong = 0
        for text, expected in zip(expressions, results, strict=True):
            if (found := own_results(text)) != expected:
                wrong += 1
                print(f"{text!r}: reference {expected}, own {found}")
        print(f"{len(expressions)} expressions, {sum(r is None for r in results)} refused, {wrong} differ")
        sys.exit(wrong > 0)
    with TABLE.open("w") as out:
        for line in (MESSAGES, *zip(expressions, results, strict=True)):
            out.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
