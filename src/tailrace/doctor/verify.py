"""``tailrace verify`` and the plan of ``tailrace repair``: findings as JSON objects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from tailrace.config import StoreConfig
from tailrace.env.clock import Clock, SystemClock
from tailrace.env.filesystem import FileSystem
from tailrace.store.compaction.verification import compaction_findings
from tailrace.store.directory import StoreDirectory
from tailrace.store.verification import Verification, foreign_files
from tailrace.timer.verification import verify_timers

__all__ = ["repair_plan", "verify", "verify_directory"]


def verify(
    path: str, config: StoreConfig | None = None, file_system: FileSystem | None = None,
    progress: Callable[[float], None] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield a line for each finding, and a summary last; its ``findings`` is their number.

    A line ``note`` has one of ``store.findings.NOTES``. It is not a finding.

    ``progress`` is called with the part of the log that was read, from 0 to 1. Of a directory that another process
    has open, only records that may be shown are verified. Raises NotAStoreError.
    """
    yield from verify_directory(
        StoreDirectory(path, config=config, file_system=file_system, raw=True), progress, SystemClock())


def verify_directory(
    directory: StoreDirectory, progress: Callable[[float], None] | None = None, clock: Clock | None = None,
) -> Iterator[dict[str, Any]]:
    """As ``verify``, for a directory that was opened ``raw``. ``clock`` says which timers are overdue."""
    verification = Verification(directory, progress)
    for file in foreign_files(directory):
        yield {"note": {"kind": "foreign-file", "file": file, "detail": "not a segment file, it is left alone"}}
    for file in sorted(directory.unused_files):
        yield {"note": {"kind": "empty-file", "file": file, "detail": "it was never used, the next open removes it"}}
    kinds: Counter[str] = Counter()
    for finding in verification.findings():
        kinds[finding.kind] += 1
        yield finding.as_dict()
    for one in verification.sealed:
        yield {"note": {
            "kind": "sealed-record", "file": directory.log_path(one.phy_offset), "position": one.phy_offset,
            "detail": f"{one.size} bytes"}}
    timers, found = verify_timers(directory, (clock or SystemClock()).now_ms())
    if not directory.is_live:  # files of compaction change at any time
        found = [*found, *compaction_findings(directory.file_system, directory.path)]
    for finding in found:
        kinds[finding.kind] += 1
        yield finding.as_dict()
    yield {"summary": {
        "state": directory.state.value, "records": verification.records,
        "units": verification.units, "indexEntries": verification.entries,
        "timers": timers._asdict(),
        "findings": sum(kinds.values()), "kinds": dict(sorted(kinds.items())),
    }}


def repair_plan(
    path: str, config: StoreConfig | None = None, *, seal_damage: bool,
    progress: Callable[[float], None] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield what a repair would do. Nothing is written."""
    seals = 0
    summary: dict[str, Any] = {}
    for line in verify(path, config, progress=progress):
        if "note" in line:
            continue
        finding = line.get("finding")
        if finding is None:
            summary = line["summary"]
            break
        if finding["kind"] == "damaged-record":
            seals += 1
            yield {"plan": {
                "do": "seal" if seal_damage else "step over", "file": finding["file"],
                "physicalOffset": finding["position"], "detail": finding["detail"]}}
        elif finding["kind"] in {"torn-end", "data-behind-end"}:
            yield {"plan": {"do": "cut, after quarantine", "file": finding["file"],
                            "position": finding["position"], "detail": finding["detail"]}}
    yield {"plan": {
        "do": "rebuild queues and index", "records": summary["records"],
        "findings": summary["findings"], "damaged": seals}}
