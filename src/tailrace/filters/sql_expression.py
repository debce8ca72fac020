"""Evaluation of SQL92 expressions over property values, with the results of RocketMQ.

The following results may surprise users; RocketMQ has the same ones:

- Logic has three values. A property that a message does not have is NULL. A comparison with NULL is NULL, with
  two exceptions: NULL = NULL is TRUE, and a value = NULL is FALSE. A message matches only if the expression is
  TRUE.
- Every property is text. In a comparison with a number it is read as a number of that type: ``a = 1`` reads a
  whole number, ``a > 1.5`` a decimal one. In a comparison with a truth value it is TRUE if the text is "true" in
  upper or lower case.
- If the text is not a number of that type, the evaluation ends and the message does not match, regardless of the
  rest of the expression. The same is true for ``TRUE = a`` with a text ``a``.
- NOT binds tighter than a comparison: ``NOT a = 1`` compares ``NOT a`` with 1, which is FALSE.
- A property alone is FALSE if the message has it, and NULL if not.
- Texts are compared with ``=``, ``<>`` and IN only. Two properties may be ordered, as numbers.

All types are known at compile time, so each node is built for its types.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, final

from tailrace.errors import FilterExpressionError

__all__ = ["Node", "SqlBuilder", "SqlExpression", "java_double", "java_double_key", "java_integer", "java_long"]

_INT_MAX: Final = (1 << 31) - 1
_LONG_MAX: Final = (1 << 63) - 1
_WHOLE: Final = re.compile(r"[+-]?\d+").fullmatch  # \d has the decimal digits of all scripts, as in Java
_DECIMAL: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?").fullmatch
_HEXADECIMAL: Final = re.compile(
    r"[+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+").fullmatch
_NOT_FINITE: Final = {
    sign + name: float(sign + name.lower()) for sign in ("", "+", "-") for name in ("NaN", "Infinity")}
_BLANKS: Final = "".join(map(chr, range(0x21)))
"""What ``String.trim`` removes."""


def java_integer(text: str) -> int:
    """Return the number that ``Integer.valueOf`` reads."""
    number = int(text) if text.isdigit() and text.isascii() and len(text) < 11 else _whole(text)
    if not -_INT_MAX <= number <= _INT_MAX and number != -_INT_MAX - 1:
        raise ValueError(text)
    return number


def java_long(text: str) -> int:
    """Return the number that ``Long.valueOf`` reads."""
    number = int(text) if text.isdigit() and text.isascii() and len(text) < 20 else _whole(text)
    if not -_LONG_MAX <= number <= _LONG_MAX and number != -_LONG_MAX - 1:
        raise ValueError(text)
    return number


def _whole(text: str) -> int:
    # Java tests each 16-bit char: a digit beyond the basic plane is two chars, of which neither is a digit.
    if not _WHOLE(text) or max(text) > "\uffff":
        raise ValueError(text)
    sign = -1 if text[0] == "-" else 1
    digits = "".join(str(int(digit)) for digit in text.lstrip("+-"))
    digits = digits.lstrip("0")
    if len(digits) > 19:  # int() of a very long text takes long
        raise ValueError(text)
    return sign * int(digits or "0")


def java_double(text: str) -> float:
    """Return the number that ``Double.valueOf`` reads, with infinity in place of NaN.

    Java orders NaN after all other numbers, so in a comparison with a finite number it behaves like infinity.
    """
    if _DECIMAL(text):
        return float(text)
    number = _unusual_double(text)
    return math.inf if math.isnan(number) else number


def java_double_key(text: str) -> tuple[float, float]:
    """Return a key that orders as ``Double.compareTo`` does: -0.0 before 0.0, and NaN last."""
    number = float(text) if _DECIMAL(text) else _unusual_double(text)
    return (math.inf, 2.0) if math.isnan(number) else (number, math.copysign(1.0, number))


def _unusual_double(text: str) -> float:
    text = text.strip(_BLANKS)
    if text in _NOT_FINITE:
        return _NOT_FINITE[text]
    text = text[:-1] if text[-1:] in set("fFdD") and not text.lower().startswith(("nan", "inf")) else text
    if _DECIMAL(text):
        return float(text)
    if _HEXADECIMAL(text):
        try:
            return float.fromhex(text)
        except OverflowError:
            return -math.inf if text[0] == "-" else math.inf
    raise ValueError(text)


DEPTH_MAX: Final = 100
"""Greatest nesting of operators. A chain of AND or of OR counts as one; parentheses do not count."""
NAMES_MAX: Final = 64
"""Number of properties in an expression; each is compared with all properties of a message."""
OF_EXPRESSION_BYTES, OF_PART_BYTES, OF_CHARACTER_BYTES = 1_000, 140, 4
"""Most bytes of a compiled expression: of itself, for each token and node, and for each character of its text."""
INT_MAX: Final = (1 << 31) - 1
LONG_MAX: Final = (1 << 63) - 1
Values = Sequence[str | None]
Evaluate = Callable[[Values], Any]
"""Returns the value of a node. Raises ValueError if the evaluation of the expression ends."""


class Type(Enum):
    """Java's types of values. A BOOLEAN constant or a number is never NULL."""

    STRING = auto()
    BOOLEAN = auto()
    INTEGER = auto()
    LONG = auto()
    DOUBLE = auto()
    NULL = auto()


NUMBERS: Final = (Type.INTEGER, Type.LONG, Type.DOUBLE)
_READ: Final[dict[Type, Callable[[str], Any]]] = {
    Type.INTEGER: java_integer, Type.LONG: java_long, Type.DOUBLE: java_double,
    Type.BOOLEAN: lambda text: text.lower() == "true",
}


@dataclass(slots=True)
class Node:
    """A part of an expression."""

    type: Type
    evaluate: Evaluate
    text: str
    """Text for errors."""
    depth: int = 0
    constant: bool = False
    value: Any = None
    """Value of a constant."""
    slot: int = -1
    """Place of a property in the values; -1 if the node is not a property."""

    @property
    def is_boolean(self) -> bool:
        """True if RocketMQ accepts it as an operand of AND, OR and NOT."""
        return self.type is Type.BOOLEAN or (self.constant and self.type is Type.NULL)


@final
class SqlExpression:
    """A compiled expression. ``names`` are its properties, in the order of the values."""

    __slots__ = ("_evaluate", "cost", "names", "size", "text")

    def __init__(self, text: str, names: Sequence[str], cost: int, root: Node, size: int) -> None:
        self.text = text
        self.names = tuple(name.encode() for name in names)
        self.cost = cost
        """Number of operators; at least 1."""
        self.size = size
        """Bytes that it takes; it may take fewer."""
        self._evaluate = root.evaluate

    def evaluate(self, values: Values) -> bool | None:
        """Return TRUE, FALSE or NULL. Raises ValueError if RocketMQ ends the evaluation."""
        result: bool | None = self._evaluate(values)
        return result

    def matches(self, values: Values) -> bool:
        """Return whether a message matches whose properties ``names`` have these values."""
        try:
            return self._evaluate(values) is True
        except ValueError:
            return False


@final
class SqlBuilder:
    """Builds the nodes of an expression, with the checks that RocketMQ makes during parsing.

    Every method raises FilterExpressionError for operands that RocketMQ refuses.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        """Properties, in the order of their slots."""
        self._slots: dict[str, int] = {}

    # -- operands

    def property(self, name: str) -> Node:
        """A property of the message."""
        slot = self._slots.get(name)
        if slot is None:
            if len(self.names) == NAMES_MAX:
                raise FilterExpressionError(f"the expression has more than {NAMES_MAX} properties")
            slot = self._slots[name] = len(self.names)
            self.names.append(name)
        return Node(Type.STRING, operator.itemgetter(slot), name, slot=slot)

    def string(self, text: str) -> Node:
        """A text."""
        return _constant(Type.STRING, text, "'" + text.replace("'", "''") + "'")

    def whole(self, text: str) -> Node:
        """A whole number, which may end in L."""
        digits = text.rstrip("lL")
        if len(digits) > 19 or int(digits) > LONG_MAX:
            raise FilterExpressionError(f"{text} is greater than {LONG_MAX}")
        number = int(digits)
        return _constant(Type.INTEGER if number <= INT_MAX else Type.LONG, number, digits)

    def decimal(self, text: str) -> Node:
        """A number with a point or an exponent; RocketMQ takes no 0.0."""
        number = float(text)
        if not 0 < number < float("inf"):
            raise FilterExpressionError(
                f"{text} is not between the least and the greatest positive number of Java")
        return _constant(Type.DOUBLE, number, text)

    def truth(self, value: bool | None) -> Node:
        """TRUE, FALSE or NULL."""
        if value is None:
            return _constant(Type.NULL, None, "NULL")
        return _constant(Type.BOOLEAN, value, str(value).upper())

    # -- operators

    def either(self, operands: Sequence[Node]) -> Node:
        """OR."""
        return _chain("OR", _any_of, operands)

    def both(self, operands: Sequence[Node]) -> Node:
        """AND."""
        return _chain("AND", _all_of, operands)

    def negate(self, operand: Node) -> Node:
        """Minus: a number with the other sign, NULL of anything else."""
        if operand.type in NUMBERS:
            number = -operand.evaluate(())
            made = _node(operand.type, lambda _: number, f"-{operand.text}", operand)
            made.value = number
            return made
        return _node(Type.NULL, _null, f"-{operand.text}", operand)

    def not_(self, operand: Node) -> Node:
        """NOT."""
        inner = _boolean(operand).evaluate

        def evaluate(values: Values) -> bool | None:
            value = inner(values)
            return None if value is None else not value

        return _node(Type.BOOLEAN, evaluate, f"NOT {operand.text}", operand)

    def equal(self, left: Node, right: Node) -> Node:
        """``=``."""
        for operand in (left, right):
            if operand.constant and operand.type is Type.NULL:
                raise FilterExpressionError("NULL cannot be compared; use IS NULL or IS NOT NULL")
        if left.constant and right.constant and left.type is Type.BOOLEAN and right.type is not Type.BOOLEAN:
            raise FilterExpressionError(f"{left.text} cannot be compared with {right.text}")
        return _node(Type.BOOLEAN, _equal(left, right), f"{left.text} = {right.text}", left, right)

    def not_equal(self, left: Node, right: Node) -> Node:
        """``<>``."""
        return self.not_(self.equal(left, right))

    def is_null(self, operand: Node) -> Node:
        """IS NULL."""
        inner = operand.evaluate
        return _node(Type.BOOLEAN, lambda values: inner(values) is None, f"{operand.text} IS NULL", operand)

    def is_not_null(self, operand: Node) -> Node:
        """IS NOT NULL."""
        return self.not_(self.is_null(operand))

    def ordered(self, left: Node, symbol: str, right: Node) -> Node:
        """``<``, ``<=``, ``>`` or ``>=``, of numbers."""
        for operand in (left, right):
            if operand.type is Type.BOOLEAN or (operand.constant and operand.type not in NUMBERS):
                raise FilterExpressionError(
                    f"{operand.text} cannot be compared with {symbol}, which orders numbers")
        return _node(
            Type.BOOLEAN, _ordered(left, _ORDERS[symbol], right), f"{left.text} {symbol} {right.text}",
            left, right)

    def between(self, operand: Node, low: Node, high: Node) -> Node:
        """BETWEEN, both bounds included."""
        made = self.both((self.ordered(operand, ">=", low), self.ordered(operand, "<=", high)))
        if low.constant and high.constant and high.value < low.value:
            raise FilterExpressionError(
                f"BETWEEN {low.text} AND {high.text} matches nothing: the first number is greater than the second")
        if operand.slot >= 0 and low.type is high.type and low.type in NUMBERS:  # the number is read once
            made.evaluate = _property_between(operand.slot, _READ[low.type], low.value, high.value)
        return made

    def not_between(self, operand: Node, low: Node, high: Node) -> Node:
        """NOT BETWEEN."""
        return self.either((self.ordered(operand, "<", low), self.ordered(operand, ">", high)))

    def one_of(self, operand: Node, texts: Sequence[str], *, wanted: bool) -> Node:
        """IN, or NOT IN if not ``wanted``."""
        if operand.slot < 0:
            raise FilterExpressionError(f"{operand.text} is left of IN, which takes a property")
        slot, known = operand.slot, frozenset(texts)

        def evaluate(values: Values) -> bool | None:
            value = values[slot]
            return None if value is None else (value in known) is wanted

        return _node(Type.BOOLEAN, evaluate, f"{operand.text} IN", operand)

    def part_of(self, operand: Node, kind: str, search: str, *, wanted: bool) -> Node:
        """CONTAINS, STARTSWITH or ENDSWITH, or NOT with one of them; FALSE for anything but a text."""
        inner, test = operand.evaluate, _PARTS[kind]

        def evaluate(values: Values) -> bool:
            value = inner(values)
            return value is not None and test(value, search) is wanted

        if not search:
            return _node(Type.BOOLEAN, lambda _: False, f"{operand.text} {kind}", operand)
        if operand.type is not Type.STRING:
            return _node(Type.BOOLEAN, _ends_or_false(inner), f"{operand.text} {kind}", operand)
        return _node(Type.BOOLEAN, evaluate, f"{operand.text} {kind}", operand)

    def compiled(self, text: str, root: Node, operators: int, parts: int) -> SqlExpression:
        """Return the expression with the node ``root``, made from ``parts`` tokens and nodes."""
        size = OF_EXPRESSION_BYTES + OF_PART_BYTES * parts + OF_CHARACTER_BYTES * len(text)
        return SqlExpression(text, self.names, max(operators, 1), _boolean(root), size)


_ORDERS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_PARTS: Final[dict[str, Callable[[str, str], bool]]] = {
    "CONTAINS": operator.contains, "STARTSWITH": str.startswith, "ENDSWITH": str.endswith}


def _null(_: Values) -> None:
    return None


def _constant(kind: Type, value: Any, text: str) -> Node:
    return Node(kind, lambda _: value, text, constant=True, value=value)


def _node(kind: Type, evaluate: Evaluate, text: str, *operands: Node) -> Node:
    depth = 1 + max(operand.depth for operand in operands)
    if depth > DEPTH_MAX:
        raise FilterExpressionError(f"more than {DEPTH_MAX} operators are nested")
    return Node(kind, evaluate, text if len(text) <= 80 else f"{text[:77]}...", depth)


def _boolean(node: Node) -> Node:
    """Return a node as an operand of AND, OR and NOT."""
    if node.is_boolean:
        return node
    if node.slot < 0:
        raise FilterExpressionError(f"{node.text} is not a condition")
    slot = node.slot
    # Java's cast of a text to a truth value.
    return _node(Type.BOOLEAN, lambda values: None if values[slot] is None else False, node.text, node)


def _chain(word: str, combine: Callable[[tuple[Evaluate, ...]], Evaluate], operands: Sequence[Node]) -> Node:
    nodes = tuple(_boolean(operand) for operand in operands)
    return _node(
        Type.BOOLEAN, combine(tuple(node.evaluate for node in nodes)),
        f" {word} ".join(node.text for node in nodes[:4]), *nodes)


def _all_of(operands: tuple[Evaluate, ...]) -> Evaluate:
    def evaluate(values: Values) -> bool | None:
        result: bool | None = True
        for operand in operands:
            value = operand(values)
            if value is False:
                return False
            if value is None:
                result = None
        return result

    return evaluate


def _any_of(operands: tuple[Evaluate, ...]) -> Evaluate:
    def evaluate(values: Values) -> bool | None:
        result: bool | None = False
        for operand in operands:
            value = operand(values)
            if value:
                return True
            if value is None:
                result = None
        return result

    return evaluate


def _ends_or_false(inner: Evaluate) -> Evaluate:
    """Return a function that is FALSE, unless the evaluation ends in the operand."""
    def evaluate(values: Values) -> bool:
        inner(values)
        return False

    return evaluate


def _equal(left: Node, right: Node) -> Evaluate:
    """Return the function for ``=``: NULL if only the left operand is NULL, FALSE if only the right one is."""
    if left.slot >= 0 and right.constant and right.type is Type.STRING:
        return _property_is(left.slot, right.value)
    if left.slot >= 0 and right.constant and right.type in NUMBERS:
        return _property_is_number(left.slot, _READ[right.type], right.value)
    first, second = left.evaluate, right.evaluate
    same = _equality(left.type, right.type)

    def evaluate(values: Values) -> bool | None:
        one, other = first(values), second(values)
        if one is None:
            return True if other is None else None
        return other is not None and same(one, other)

    return evaluate


def _property_is(slot: int, text: str) -> Evaluate:
    def evaluate(values: Values) -> bool | None:
        value = values[slot]
        return None if value is None else value == text

    return evaluate


def _property_is_number(slot: int, read: Callable[[str], Any], number: float) -> Evaluate:
    def evaluate(values: Values) -> bool | None:
        value = values[slot]
        return None if value is None else read(value) == number

    return evaluate


def _equality(left: Type, right: Type) -> Callable[[Any, Any], bool]:
    """Return the function that compares two values of these types, neither of them NULL."""
    if left is right or Type.NULL in {left, right} or (left in NUMBERS and right in NUMBERS):
        return _same_double if Type.DOUBLE in {left, right} else operator.eq
    if left is Type.STRING:
        read = _READ[right]
        return lambda one, other: read(one) == other
    if right is Type.STRING and left in NUMBERS:
        read = _READ[left]
        return lambda one, other: one == read(other)
    if right is Type.STRING:
        return _no_cast
    return lambda one, other: False  # a truth value and a number


def _same_double(one: float, other: float) -> bool:
    return float(one) == float(other)


def _no_cast(one: Any, other: Any) -> bool:
    raise ValueError("Java cannot cast a truth value to a text")


def _ordered(left: Node, order: Callable[[Any, Any], bool], right: Node) -> Evaluate:
    """Return the function for an order: NULL if an operand is NULL."""
    if left.slot >= 0 and right.type in NUMBERS:
        return _property_ordered(left.slot, _READ[right.type], order, right.evaluate(()))
    first, second = left.evaluate, right.evaluate
    read_first, read_second = _readers(left.type, right.type)

    def evaluate(values: Values) -> bool | None:
        one, other = first(values), second(values)
        if one is None or other is None:
            return None
        return order(read_first(one), read_second(other))

    return evaluate


def _property_ordered(
    slot: int, read: Callable[[str], Any], order: Callable[[Any, Any], bool], number: float
) -> Evaluate:
    def evaluate(values: Values) -> bool | None:
        value = values[slot]
        return None if value is None else order(read(value), number)

    return evaluate


def _property_between(slot: int, read: Callable[[str], Any], low: float, high: float) -> Evaluate:
    def evaluate(values: Values) -> bool | None:
        value = values[slot]
        return None if value is None else low <= read(value) <= high

    return evaluate


def _readers(left: Type, right: Type) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Return the two functions that make the values of these types comparable."""
    if left is right is Type.STRING:
        return java_double_key, java_double_key
    if left is Type.STRING and right in NUMBERS:
        return _READ[right], _as_it_is
    if right is Type.STRING and left in NUMBERS:
        return _as_it_is, _READ[left]
    if Type.DOUBLE in {left, right} and Type.NULL not in {left, right}:
        return float, float
    return _as_it_is, _as_it_is


def _as_it_is(value: Any) -> Any:
    return value
