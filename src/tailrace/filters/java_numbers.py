"""Parsing of numbers as Java does: ``Integer.valueOf``, ``Long.valueOf``, ``Double.valueOf``.

Each function raises ValueError for a text that Java refuses (NumberFormatException).
"""

from __future__ import annotations

import math
import re
from typing import Final

__all__ = ["java_double", "java_double_key", "java_integer", "java_long"]

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
