"""Parser of SQL92 expressions: RocketMQ's grammar, written for Lark.

As in RocketMQ, parsing stops at the first token that cannot follow. If the text before it is a complete
expression, the rest is ignored: ``a = 1)`` and ``a = 1 b`` mean ``a = 1``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, Final

from lark import Lark, Token, Tree, UnexpectedCharacters, UnexpectedToken

from tailrace.env.pauses import in_steps, no_pause
from tailrace.errors import FilterExpressionError
from tailrace.filters.sql_expression import Node, SqlBuilder, SqlExpression

__all__ = ["parse_sql"]

_RULES: Final = r"""
start: disjunction
?disjunction: conjunction (_OR conjunction)*
?conjunction: equality (_AND equality)*
?equality: comparison
    | equality "=" comparison           -> equal
    | equality _UNEQUAL comparison      -> not_equal
    | equality _IS _NULL               -> is_null
    | equality _IS _NOT _NULL          -> is_not_null
?comparison: unary
    | comparison ORDER unary                            -> ordered
    | comparison PART STRING                            -> part_of
    | comparison _NOT PART STRING                      -> not_part_of
    | comparison _BETWEEN unary _AND unary            -> between
    | comparison _NOT _BETWEEN unary _AND unary      -> not_between
    | comparison _IN texts                             -> one_of
    | comparison _NOT _IN texts                       -> none_of
texts: "(" STRING ("," STRING)* ")"
?unary: "+" unary
    | "-" unary     -> negate
    | _NOT unary   -> not_
    | STRING        -> string
    | WHOLE         -> whole
    | DECIMAL       -> decimal
    | _TRUE        -> true
    | _FALSE       -> false
    | _NULL        -> null
    | NAME          -> property
    | "(" disjunction ")"

_UNEQUAL.5: "<>"
ORDER.4: ">=" | "<=" | ">" | "<"
PART.3: /(CONTAINS|STARTSWITH|ENDSWITH)(?![A-Z0-9_$])/i
STRING: /'(''|[^'])*'/
DECIMAL.2: /[0-9]+\.[0-9]*(E[+-]?[0-9]+)?|\.[0-9]+(E[+-]?[0-9]+)?|[0-9]+E[+-]?[0-9]+/i
WHOLE.1: /0|[1-9][0-9]*L?/i
NAME: /[A-Z_$][A-Z0-9_$]*/i
BLANK: /[ \t\n\r\f]+/
LINE_COMMENT.4: /--[^\n\r]*(\r\n|\n|\r)/
BLOCK_COMMENT.4: /\/\*[^*]*\*(\*|[^*\/][^*]*\*)*\//
%ignore BLANK
%ignore LINE_COMMENT
%ignore BLOCK_COMMENT
"""
_OPERANDS: Final = frozenset(
    {"start", "texts", "string", "whole", "decimal", "true", "false", "null", "property"})
_GRAMMAR: Final = _RULES + "".join(  # a keyword is not followed by a character of a name
    f"_{word}.3: /{word}(?![A-Z0-9_$])/i\n"
    for word in ("AND", "OR", "NOT", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS"))


@functools.cache
def _parser() -> Lark:
    # Names are ASCII. Without the flag, letters of other scripts would also match with the ignored case.
    return Lark(_GRAMMAR, parser="lalr", lexer="basic", g_regex_flags=re.ASCII)


PARTS_OF_STEP: Final = 32
"""Tokens or parts of an expression that are compiled in a step, which takes about 0.5 ms."""


def parse_sql(text: str, pause: Callable[[], None] = no_pause) -> SqlExpression:
    """Compile an expression, and call ``pause`` after each step.

    Raises FilterExpressionError with the error and its character.
    """
    parts = _parts(_parse(text, pause))
    builder = SqlBuilder()
    operators = sum(isinstance(part, Tree) and part.data not in _OPERANDS for part in parts)
    return builder.compiled(text, _build(parts, builder, pause), operators, len(parts))


def _parse(text: str, pause: Callable[[], None]) -> Tree[Token]:
    parser = _parser().parse_interactive(text)
    at = 0
    try:
        for token in in_steps(parser.lexer_thread.lex(parser.parser_state), PARTS_OF_STEP, pause):
            at = token.start_pos or 0
            parser.feed_token(token)
        at = len(text)
    except UnexpectedCharacters as error:
        place: Any = error.pos_in_stream
        raise FilterExpressionError(
            f"character {place + 1} of the expression, {text[place]!r}, is not the start of a valid token"
        ) from error
    except UnexpectedToken:
        pass  # the text before it may be complete
    try:
        tree: Tree[Token] = parser.feed_eof()
    except UnexpectedToken as error:
        rest = text[at : at + 20]
        raise FilterExpressionError(
            f"{rest!r} at character {at + 1} is not allowed there" if rest
            else "the expression is not complete") from error
    return tree


def _parts(tree: Tree[Token]) -> list[Tree[Token] | Token]:
    """Return the parts of a tree, each before its own; without recursion, because a tree may be deep."""
    pending: list[Tree[Token] | Token] = [tree]
    order: list[Tree[Token] | Token] = []
    while pending:
        part = pending.pop()
        order.append(part)
        if isinstance(part, Tree):
            pending += part.children
    return order


def _build(parts: list[Tree[Token] | Token], builder: SqlBuilder, pause: Callable[[], None]) -> Node:
    """Call the builder for each part of a tree."""
    calls = _calls(builder)
    done: list[Any] = []
    for part in in_steps(reversed(parts), PARTS_OF_STEP, pause):
        if isinstance(part, Tree):
            first = len(done) - len(part.children)
            done[first:] = [calls[part.data](*done[first:])]
        else:
            done.append(part)
    root: Node = done[0]
    return root


def _calls(builder: SqlBuilder) -> dict[str, Callable[..., Any]]:
    """Return for each rule the function that combines the results of its parts."""
    return {
        "start": lambda node: node,
        "disjunction": lambda *nodes: builder.either(nodes),
        "conjunction": lambda *nodes: builder.both(nodes),
        "ordered": builder.ordered,
        "texts": lambda *tokens: [_text(token) for token in tokens],
        "one_of": lambda node, texts: builder.one_of(node, texts, wanted=True),
        "none_of": lambda node, texts: builder.one_of(node, texts, wanted=False),
        "part_of": lambda node, kind, token: builder.part_of(node, kind.upper(), _text(token), wanted=True),
        "not_part_of":
            lambda node, kind, token: builder.part_of(node, kind.upper(), _text(token), wanted=False),
        "string": lambda token: builder.string(_text(token)),
        "true": lambda: builder.truth(True),
        "false": lambda: builder.truth(False),
        "null": lambda: builder.truth(None),
        **{name: getattr(builder, name) for name in (
            "equal", "not_equal", "is_null", "is_not_null", "between", "not_between", "negate", "not_",
            "whole", "decimal", "property")},
    }


def _text(literal: str) -> str:
    return literal[1:-1].replace("''", "'")
