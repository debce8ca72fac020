"""Fields of the forms of actions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, final
from xml.etree.ElementTree import Element

from tailrace.console.actions.calls import Calls
from tailrace.console.actions.jobs import Job
from tailrace.console.elements import WARN, Child, h, notice

__all__ = ["Action", "FieldError", "Given", "Plan", "alert", "area", "choice", "entry", "hidden"]


class FieldError(Exception):
    """A field has a wrong value; the text says which, and what to write."""


@final
class Given:
    """What a form or an address says: fields by name, some with several values."""

    def __init__(self, values: Mapping[str, Sequence[str]]) -> None:
        self.values = {name: list(found) for name, found in values.items()}

    def text(self, name: str, default: str = "") -> str:
        """Return a field without blanks around it."""
        return (self.values.get(name) or [default])[-1].strip()

    def raw(self, name: str) -> str:
        """Return a field as it is, with line ends of one character."""
        return (self.values.get(name) or [""])[-1].replace("\r\n", "\n")

    def all(self, name: str) -> list[str]:
        """Return all values of a field."""
        return self.values.get(name, [])

    def pairs(self, name: str, label: str) -> dict[str, str]:
        """Return the lines NAME=VALUE of a field. Raises FieldError."""
        pairs: dict[str, str] = {}
        for line in filter(None, map(str.strip, self.raw(name).split("\n"))):
            key, separator, value = (part.strip() for part in line.partition("="))
            if not separator or not key or not value:
                raise FieldError(f"{label} {line[:60]!r}: write NAME=VALUE.")
            if key in pairs:
                raise FieldError(f"{label} {key[:60]} is there twice.")
            pairs[key] = value
        return pairs

    def number(self, name: str, label: str, least: int = 0, most: int = (1 << 63) - 1) -> int:
        """Return a whole number. Raises FieldError."""
        text = self.text(name)
        if not (text.isascii() and text.isdecimal() and len(text) <= 19 and least <= int(text) <= most):
            raise FieldError(f"{label} is {text[:40]!r}; write a whole number from {least} to {most:,}.")
        return int(text)


class Plan(NamedTuple):
    """What an action will do once it is confirmed."""

    title: str
    says: list[Child]
    """What will happen."""
    button: str
    """Text of the button that confirms it; empty if there is nothing to do."""
    run: Callable[[Job, Calls], Awaitable[list[Child]]]
    """Does it, with the same requests that the plan has checked; returns what to show."""
    seen: str = ""
    """What must not have changed between the page and its confirmation."""
    carries: Mapping[str, list[str]] = MappingProxyType({})
    """Fields that the confirmation carries in addition to those of the form."""


class Action:
    """An action of the console."""

    name: str
    """The last part of its address."""
    title: str
    """What the user reads."""
    fields: tuple[str, ...] = ()
    """The names of its fields."""

    async def form(self, calls: Calls, given: Given) -> list[Child]:
        """Return the fields of the form, filled with what was given. Raises RefusalError or FieldError."""
        raise NotImplementedError

    async def plan(self, calls: Calls, given: Given) -> Plan:
        """Return what would happen; nothing happens. Raises FieldError, or RefusalError if the user may not do it."""
        raise NotImplementedError


def entry(label: str, name: str, given: Given, default: str = "", **more: str | int) -> Element:
    """Return a field of one line."""
    made = h("input", name=name, **more)
    made.set("value", _sendable(given.text(name, default)))
    return h("label", label, made)


def area(label: str, name: str, given: Given, default: str = "", **more: str | int) -> Element:
    """Return a field of several lines. A browser drops a line end at its beginning, so one is added."""
    made = h("textarea", name=name, **more)
    made.text = "\n" + _sendable(given.raw(name) if name in given.values else default)
    return h("label", label, made, class_="area")


def _sendable(text: str) -> str:
    """Return a text as a browser sends it back: without the control characters that HTML does not allow."""
    return "".join(c for c in text if c >= " " or c in "\n\t")


def choice(
    label: str, name: str, given: Given, options: Iterable[tuple[str, str]], default: str = ""
) -> Element:
    """Return a field with a list of values and their texts."""
    chosen = given.text(name, default)
    return h("label", label, h("select", *(
        h("option", text, value=value, selected="selected" if value == chosen else None)
        for value, text in options), name=name))


def hidden(name: str, value: str) -> Element:
    """Return a field that is not shown."""
    return h("input", type="hidden", name=name, value=value)


def alert(text: str) -> Element:
    """Return what went wrong, so that a screen reader reads it first."""
    return h("div", notice(WARN, text), role="alert")
