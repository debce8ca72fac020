"""Findings of ``tailrace verify``, and what each kind of finding means."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

__all__ = ["COMPACTION_KINDS", "NOTES", "STORE_KINDS", "Finding", "FindingKind", "Remedy"]


class Finding(NamedTuple):
    """One difference between a directory and the rules, with file and position."""

    kind: str
    file: str
    position: int
    detail: str

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON object that ``tailrace verify`` prints."""
        return {"finding": self._asdict()}


class Remedy(enum.Enum):
    """What makes a finding disappear. `tests/integration/test_findings.py` tries each of them."""

    RECOVER = "recover"
    REPAIR = "repair"
    TIMERS = "rebuild timers"
    SEAL = "restore or seal"
    RESTORE = "restore"
    NOTHING = "nothing"

    def advice(self, store: str) -> str:
        """Return the sentence that ``tailrace verify`` prints about a kind of finding in the directory ``store``."""
        return _ADVICE[self].format(store=store)


_ADVICE: Final = {
    Remedy.RECOVER: "Run tailrace recover {store}, or start the server.",
    Remedy.REPAIR: "Run tailrace repair {store}.",
    Remedy.TIMERS: "Delete {store}/config/timercheck, then run tailrace recover {store}.",
    Remedy.SEAL: "Restore a backup, or run tailrace repair --seal-damage {store}: the finding becomes a note.",
    Remedy.RESTORE: "Restore a backup, or continue without the messages.",
    Remedy.NOTHING: "Nothing to do.",
}


class FindingKind(NamedTuple):
    """Meaning of a kind of finding, for the page that is generated from these declarations."""

    meaning: str
    remedy: Remedy
    note: str = ""
    """What else an operator has to know or to do."""


_RECOVER: Final = Remedy.RECOVER
_LOST: Final = "Messages are lost unless a backup has them."

STORE_KINDS: Final[Mapping[str, FindingKind]] = {
    "segment-length": FindingKind("A CommitLog file has another length than most files.", _RECOVER),
    "segment-missing": FindingKind("A CommitLog file between two others is missing.", Remedy.RESTORE, _LOST),
    "damaged-record": FindingKind(
        "A record in the middle of the log is damaged. Consumers do not get its message.", Remedy.SEAL, _LOST),
    "torn-end": FindingKind(
        "Up to 1 MiB after the last valid record there are bytes that are not a record, as a power loss leaves them.",
        _RECOVER, "The bytes are copied to quarantine first."),
    "data-behind-end": FindingKind(
        "More than 1 MiB after the last valid record there are bytes that are not zero.", _RECOVER,
        "The bytes are copied to quarantine first. Copy the directory before, if you expected messages there."),
    "odd-properties": FindingKind(
        "The properties of a message cannot all be decoded. The message is served as it is.", Remedy.NOTHING,
        "Look for the client that wrote it."),
    "queue-file-length": FindingKind("A ConsumeQueue file has another length than most files.", _RECOVER),
    "missing-unit": FindingKind(
        "A message has no unit in its queue, so consumers do not get it.", Remedy.REPAIR),
    "wrong-unit": FindingKind(
        "A unit of a queue differs from the record that it names.", Remedy.REPAIR),
    "foreign-unit": FindingKind(
        "A unit names no record of its queue.", Remedy.REPAIR),
    "index-file-length": FindingKind("An index file has a wrong length.", Remedy.REPAIR),
    "index-header": FindingKind("The number of entries of an index file is impossible.", Remedy.REPAIR),
    "index-chain": FindingKind("Entries of an index file are not linked as they must be.", Remedy.REPAIR),
    "missing-key": FindingKind("A key of a message is not in the index, so a query does not find it.", Remedy.REPAIR),
    "foreign-key": FindingKind(
        "An index entry belongs to no record. Queries leave it out.", Remedy.REPAIR),
    "checkpoint-ahead": FindingKind("The checkpoint names a position after the end of the log.", _RECOVER),
    "config-unreadable": FindingKind(
        "A file of `config/` is not JSON.", _RECOVER,
        "Its `.bak` file is used. Compare topics, groups or offsets with what you expect."),
}
"""Kinds of `store.verification` and `store.index_verification`."""
COMPACTION_KINDS: Final[Mapping[str, FindingKind]] = {
    "compaction-interrupted": FindingKind("A kill stopped the replacement of compacted files.", _RECOVER),
    "compaction-units": FindingKind("Units of a compaction log do not fit its records.", _RECOVER),
    "compaction-record": FindingKind(
        "A record of a compaction log is damaged. Consumers do not get its message.", Remedy.NOTHING,
        "The next compaction copies the bytes to quarantine and leaves them out. The last value of a key may be lost."),
}
"""Kinds of `store.compaction.verification`."""

NOTES: Final[Mapping[str, str]] = {
    "foreign-file": "A file beside the segments is not a segment. Tailrace does not change it.",
    "empty-file": "The last file was created before it was needed, and never used. The next open removes it.",
    "sealed-record": "`repair --seal-damage` has written a placeholder over a damaged record. Its message is lost.",
}
"""Meaning of each note. A note is not a finding."""
