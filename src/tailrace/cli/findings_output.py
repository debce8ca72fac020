"""What ``tailrace verify`` prints on a terminal: findings by kind and file, and what to do about each kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from tailrace.cli.output import print_table
from tailrace.spellings import camel
from tailrace.store.findings import COMPACTION_KINDS, NOTES, STORE_KINDS
from tailrace.timer.verification import TIMER_KINDS

__all__ = ["print_findings"]

FILES_SHOWN: Final = 5
"""Files of a kind that are named; the others are counted."""
_KINDS: Final = {**STORE_KINDS, **TIMER_KINDS, **COMPACTION_KINDS}


def print_findings(
    store: str, root: str, findings: Sequence[Mapping[str, Any]], notes: Sequence[Mapping[str, Any]],
    summary: Mapping[str, Any], *, each: bool,
) -> None:
    """Print number, findings, advice, notes and summary. ``store`` is the directory as the user wrote it.

    ``root`` is its absolute path; files below it are printed without it. With ``each`` every finding has a row.
    """
    count = summary["findings"]
    print(f"{count:,} finding{'' if count == 1 else 's'}")
    if findings:
        print_table([{**one, "file": _short(one["file"], root)} for one in findings] if each
                    else [*_groups("findings", findings, root)])
        for kind in dict.fromkeys(one["kind"] for one in findings):
            print(f"{kind}: {_advice(kind, store)}")
        if summary["state"] == "unclean":
            print(f"The store was not closed cleanly: run tailrace recover {store}, then verify again.")
        if not each:
            print(f"Each finding: tailrace verify {store} --all")
    if notes:
        print_table([*_groups("notes", notes, root)])
        for kind in dict.fromkeys(one["kind"] for one in notes):
            print(f"{kind}: {NOTES[kind]}")
    last = ("timers", "state")
    print_table([
        {"what": name, "value": summary[name]}
        for name in (*(name for name in summary if name not in {*last, "findings", "kinds"}), *last)])


def _groups(title: str, found: Iterable[Mapping[str, Any]], root: str) -> Iterable[dict[str, Any]]:
    """Yield a row for each kind and file, and one for the files of a kind that are not named."""
    counts: dict[str, Counter[str]] = {}
    for one in found:
        counts.setdefault(one["kind"], Counter())[_short(one["file"], root)] += 1
    for kind, files in counts.items():
        named = [*files.items()][:FILES_SHOWN]
        yield from ({camel(title): number, "kind": kind, "file": file} for file, number in named)
        if more := len(files) - len(named):
            yield {camel(title): files.total() - sum(number for _, number in named), "kind": kind,
                   "file": f"{more:,} other files"}


def _advice(kind: str, store: str) -> str:
    declared = _KINDS[kind]
    note = f" {declared.note}" if declared.note else ""
    return f"{declared.meaning}{note} {declared.remedy.advice(store)}"


def _short(file: str, root: str) -> str:
    return file.removeprefix(f"{root}/")
