"""What the last start found and did, in words for people who keep messages and not files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from xml.etree.ElementTree import Element

from tailrace.console.elements import (
    NOTE,
    WARN,
    Child,
    Column,
    Trouble,
    badge,
    card,
    facts,
    h,
    plural,
    table,
)
from tailrace.console.words import span
from tailrace.spellings import size_text

__all__ = ["recovery_card", "recovery_troubles"]

PLACES_MAX: Final = 20
"""Damaged places that are listed."""
_REASONS: Final = {
    "zero": "no data", "bad magic": "not a message", "bad length": "a wrong length",
    "bad body checksum": "a body that has changed", "wrong physical offset": "a message of another place",
    "cut off": "a message that was cut off", "bad record checksum": "properties that have changed",
    "torn after its body": "a message that was not written to its end",
}


def recovery_troubles(report: Mapping[str, Any]) -> Iterator[Trouble]:
    """Yield what the last start found that a user should know."""
    damaged, cut = report["steppedOver"], report["cut"]
    if damaged:
        size = size_text(sum(one["length"] for one in damaged))
        yield Trouble(
            WARN, f"The last start found {plural(len(damaged), 'damaged place')} among the stored messages ({size}). "
                  "The messages there are lost, all others are served.", "#recovery", "Last start")
    if size := sum(one["length"] for one in cut):
        yield Trouble(
            NOTE, f"The last start removed {size_text(size)} after the last whole message, which were not written to "
                  "their end.", "#recovery", "Last start")


def _found(report: Mapping[str, Any]) -> str:
    mode = report["mode"]
    if mode == "empty":
        return "The store was new."
    if mode == "rebuild":
        return "Queues and index were rebuilt from the stored messages."
    return "The store had been closed cleanly." if mode == "normal" else (
        "The server had not been stopped: it was killed, or the machine lost power.")


def _lost(report: Mapping[str, Any]) -> Child:
    damaged, cut = report["steppedOver"], sum(one["length"] for one in report["cut"])
    if damaged:
        return badge(f"the messages of {plural(len(damaged), 'damaged place')}", WARN)
    if cut:
        return f"nothing but {size_text(cut)} that were not written to their end"
    return "nothing"


def recovery_card(report: Mapping[str, Any]) -> Element:
    """Return what the last start did."""
    damaged = report["steppedOver"]
    checked = size_text(max(report["to"] - report["from"], 0))
    places: list[list[Child]] = [
        [_REASONS.get(one["reason"], one["reason"]), size_text(one["length"]), one["physicalOffset"]]
        for one in damaged[:PLACES_MAX]]
    more = len(damaged) - PLACES_MAX
    made = card(
        "Last start", h("p", _found(report)),
        facts({
            "Checked": f"{plural(report['scanned'], 'message')}, {checked}, in {span(report['ms'])}",
            "Lost": _lost(report),
            "Kept": f"{size_text(report['quarantinedBytes'])} of removed or damaged bytes, in tailrace/quarantine of "
                    "the store's directory" if report["quarantinedBytes"] else None,
            "Made again": _rebuilt(report["rebuilt"]),
            "Read-only": report["readOnly"],
        }),
        table((Column("Found"), Column("Size", "number"), Column("At byte", "number")), places, "", "Damaged places")
        if places else None,
        h("p", f"And {more:,} more.") if more > 0 else None)
    made.set("id", "recovery")
    return made


def _rebuilt(lines: Sequence[str]) -> str | None:
    """Return what was made again from the stored messages, without names of topics; None if nothing was."""
    found = {
        "the queues": any(line.startswith("queue") for line in lines),
        "the index of keys": any(line.startswith("index") for line in lines),
        "the length of files": any(line.startswith("length") for line in lines),
    }
    return ", ".join(name for name, is_there in found.items() if is_there) or None
