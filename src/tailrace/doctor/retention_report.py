"""Show a `RetentionView` as sentences for people and as JSON objects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tailrace.config import StoreConfig
from tailrace.doctor.retention import RetentionView, local_time
from tailrace.spellings import camel, size_text
from tailrace.store.directory import DirectoryState
from tailrace.store.retention.free_request import FreeRequest
from tailrace.store.retention.pins import Pin
from tailrace.store.retention.rules import Rule, SegmentVerdict

__all__ = ["answer_lines", "free_line", "json_lines"]


def answer_lines(view: RetentionView, store: str, config: StoreConfig) -> Iterator[str]:
    """Yield the view as sentences, then a line per file."""
    usage, levels = min(view.usages, key=lambda usage: usage.percent), view.levels
    yield (
        f"{store}: {_files(len(view.segments))} of the CommitLog, {size_text(view.log_bytes)} on disk; kept "
        f"for {config.file_reserved_time:g} h (fileReservedTime), deleted "
        f"{_hours(config.delete_when)} (deleteWhen)")
    for other in view.usages if len(view.usages) > 1 else ():
        yield f"path {other.path}: {other.percent} % used, {size_text(other.usable)} free"
    yield (
        f"disk: {usage.percent} % used, {size_text(usage.usable)} free; expired files go at any hour above "
        f"{_level(levels.clean, levels.clean_bytes)}, the oldest files above "
        f"{_level(levels.forcible, levels.forcible_bytes)}, puts are refused above "
        f"{_level(levels.warning, levels.warning_bytes)}")
    if view.disk.reason:
        yield f"disk: {view.disk.reason}"
    if view.trash_files:
        yield f"trash: {view.trash_files} files, {size_text(usage.trash)} on their way out"
    for topic, rule in sorted(view.rules.items()):
        yield f"topic {topic}: {rule}"
    for group in view.idle_groups:
        yield f"group {group} of pinGroups has committed no offset here: nothing is kept for it"
    if view.forced:
        yield f"deleted before their time: {len(view.forced)} files on record, the last ones:"
        for entry in view.forced[-3:]:
            lost = ", ".join(f"{n} of {topic}" for topic, n in entry.get("messages", {}).items())
            if entry.get("timersLost"):
                lost += f", {entry['timersLost']} pending timers"
            if entry.get("timersRewritten"):
                lost += f"; {entry['timersRewritten']} pending timers were written again"
            yield (f"  {entry.get('file')} at {local_time(entry.get('time', 0))}: {entry.get('reason')}; "
                   f"lost: {lost or 'no messages'}")
    if view.state is DirectoryState.UNCLEAN:
        yield "the directory was not closed; this is what recovery would leave"
    elif view.state is not DirectoryState.CLEAN:
        yield (f"the directory is {view.state.value}: its server may have other settings than these, "
               "and decides")
    count, most = sum(v.rule.deletable for v in view.segments), config.delete_file_batch_max
    at_most = f", {most} in a pass (deleteFileBatchMax)" if count > most else ""
    if not count:
        yield f"a pass now would delete nothing: {_why_nothing(view)}"
    elif view.trigger.any:
        yield f"a pass now deletes {_files(min(count, most))}: {_why(view)}"
    else:
        yield (f"{_files(count)} may go{at_most}, and will {_hours(config.delete_when)}, or now with "
               "--delete-now")
    for verdict in view.segments:
        yield f"  {verdict.facts.path.rpartition('/')[2]}  {_verdict(verdict, view, config)}"


def free_line(request: FreeRequest, by: str, *, dry_run: bool) -> str:
    """Return the end of a request to free bytes as a sentence."""
    done = "would be freed" if dry_run else "freed"
    names = f": {' '.join(request.files)}" if request.files else ""
    stopped = f"; not more, because {request.stopped}" if request.stopped else ""
    return (f"{size_text(request.freed_bytes)} of {size_text(request.wanted_bytes)} {done} by {by}, "
            f"{_files(len(request.files))}{names}{stopped}")


def json_lines(view: RetentionView) -> Iterator[dict[str, Any]]:
    """Yield the view as JSON objects: one for the disk, then one per file."""
    usage = min(view.usages, key=lambda usage: usage.percent)
    yield {
        "kind": "disk", "state": view.state.value, "usedPercent": usage.percent,
        "availableBytes": usage.usable, "trashBytes": usage.trash,
        "full": view.disk.full, "reason": view.disk.reason,
        **{camel(name): held for name, held in view.trigger._asdict().items() if name != "requested"},
    }
    for topic, rule in sorted(view.rules.items()):
        yield {"kind": "topic", "topic": topic, "rule": rule}
    for group in view.idle_groups:
        yield {"kind": "idleGroup", "group": group}
    for entry in view.forced:
        yield {"kind": "forcedDeletion", **entry}
    for verdict in view.segments:
        yield {
            "kind": "file", "path": verdict.facts.path, "deletable": verdict.rule.deletable,
            "rule": verdict.rule.name, "lastMessageMs": verdict.facts.time_ms,
            "timeSource": verdict.facts.time_source, "expiresMs": verdict.expires_ms,
            "forced": verdict.forced,
            "pins": [
                {"kind": pin.kind.value, "physicalOffset": pin.phy_offset, "holder": pin.holder}
                for pin in verdict.pins
            ],
        }


def _files(count: int) -> str:
    return f"{count} file" if count == 1 else f"{count} files"


def _hours(delete_when: str) -> str:
    hours = sorted({int(hour) for hour in delete_when.split(";")})
    if len(hours) == 24:
        return "at any hour"
    return "between " + " and between ".join(f"{hour:02d}:00 and {hour + 1:02d}:00" for hour in hours)


def _why_nothing(view: RetentionView) -> str:
    if not view.segments:
        return "there is no file"
    oldest = view.segments[0]
    if oldest.rule is Rule.LAST_FILE:
        return "the log has one file, which is still written"
    if oldest.rule is Rule.NOT_EXPIRED:
        return f"the oldest file is kept until {local_time(oldest.expires_ms)}"
    return f"the oldest file stays, {oldest.rule.value}{_pins(oldest.pins)}"


def _why(view: RetentionView) -> str:
    reasons = [
        text for held, text in (
            (view.trigger.time_up, "the hour is listed"),
            (view.trigger.space, view.disk.reason),
        ) if held
    ]
    return "; ".join(reasons)


def _verdict(verdict: SegmentVerdict, view: RetentionView, config: StoreConfig) -> str:
    facts, rule = verdict.facts, verdict.rule
    when = local_time(verdict.expires_ms)
    source = f"{facts.time_source} {local_time(facts.time_ms)} + {config.file_reserved_time:g} h"
    # A pin keeps all files from its position onwards, but only the file with that position names it.
    held = _pins(tuple(p for p in verdict.pins if p.phy_offset >= facts.file_from_offset))
    if rule is Rule.EXPIRED:
        return f"deletable since {when} ({source})"
    if rule is Rule.FORCED:
        early = f", before {when} ({source})" if verdict.expires_ms > view.now_ms else ""
        return f"deletable, {rule.value}{early}{_pins(verdict.pins)}"
    if rule is Rule.RELEASED:
        return f"deletable, {rule.value}, before {when} ({source})"
    if rule is Rule.KEPT_BY_TOPIC:
        holder = view.topics.own_holder if view.topics is not None else ""
        return f"kept, {rule.value}: {holder}; its own time was {when}"
    if rule is Rule.NOT_EXPIRED:
        return f"kept until {when} ({source}){held}"
    if rule in {Rule.PINNED, Rule.REFUSED}:
        return f"kept, {rule.value}{_pins(verdict.pins)}"
    if rule is Rule.BEHIND_KEPT and verdict.expires_ms <= view.now_ms:
        return f"kept, {rule.value}; its own time was {when}{held}"
    if rule is Rule.BEHIND_KEPT:
        return f"kept until {when} ({source}){held}"
    return f"kept, {rule.value}"


def _pins(pins: tuple[Pin, ...]) -> str:
    return "".join(f"; needed by {pin.kind.value} {pin.holder}" for pin in pins)


def _level(percent: float, free_bytes: int) -> str:
    return f"{percent:g} %" if not free_bytes else f"the point where {size_text(free_bytes)} are free"
