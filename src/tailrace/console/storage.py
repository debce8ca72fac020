"""The pages of retention and of the disk."""

from __future__ import annotations

from typing import Any, Final
from xml.etree.ElementTree import Element

from tailrace.console.action_links import retention_actions
from tailrace.console.disk import disk_meter, disk_of, disk_troubles
from tailrace.console.elements import (
    BAD,
    GOOD,
    NOTE,
    WARN,
    Child,
    Column,
    card,
    facts,
    h,
    notice,
    plural,
    stats,
    table,
)
from tailrace.console.viewer import Viewer, only_if
from tailrace.console.words import ago, clock_time, moment, span
from tailrace.doctor.disk_usage import disk_usage
from tailrace.doctor.retention import RetentionView, explain_directory
from tailrace.env.clock import Clock
from tailrace.node.message_store import MessageStore
from tailrace.spellings import size_text
from tailrace.store.retention.pins import Pin, PinKind
from tailrace.store.retention.rules import Rule, SegmentVerdict

__all__ = ["disk_page", "retention_page", "retention_view"]

FILES_MAX: Final = 200
"""Files of the log that a page lists, the oldest ones."""
_KINDS: Final = {
    "commitlog": "Messages", "consumequeue": "Queues", "index": "Index of keys", "compaction": "Compacted topics",
    "config": "Topics, groups and offsets", "timer": "Timers", "quarantine": "Damaged bytes that were kept",
    "trash": "Deleted, about to be removed", "hints": "Notes for a faster start", "other": "Other files"}
_HOLDERS: Final = {PinKind.TIMER: "a timer", PinKind.ARCHIVE: "the archive", PinKind.GROUP: "group"}


def retention_view(store: MessageStore, clock: Clock) -> RetentionView:
    """Return what retention would do now, by the files, the clock and the topics of the broker."""
    return explain_directory(store.path, store.config, clock, store.file_system, topics=store.topics)


def retention_page(store: MessageStore, clock: Clock, viewer: Viewer) -> list[Child]:
    """Return what is deleted when, and what keeps the rest."""
    only_if(viewer.lists, "List on the cluster, because this page names topics and groups")
    view = retention_view(store, clock)
    deletable = [verdict for verdict in view.segments if verdict.rule.deletable]
    usage, now = min(view.usages, key=lambda one: one.percent), view.now_ms
    rows: list[list[Child]] = [
        [moment(verdict.facts.time_ms), size_text(verdict.facts.allocated or verdict.facts.size),
         _leaves(verdict, now), _why(verdict, view)]
        for verdict in view.segments[:FILES_MAX]]
    columns = (Column("Messages up to"), Column("Size", "number"), Column("Leaves", ""), Column("Why", "wide"))
    return [
        _next(view, deletable, store.config.delete_when), retention_actions(viewer),
        stats({
            "Messages are kept for": span(store.config.file_reserved_time * 3_600_000),
            "They are deleted": _hours(store.config.delete_when),
            "The log has": f"{plural(len(view.segments), 'file')}, {size_text(view.log_bytes)}",
            "The disk": f"{usage.percent} % used, {size_text(usage.usable)} free"}),
        _lost(view), _rules(view),
        card("Files of the log", table(columns, rows, "There is no file.", "Files of the log, the oldest first"),
             h("p", f"The oldest {FILES_MAX} of {len(view.segments):,}.") if len(view.segments) > FILES_MAX else None)]


def _next(view: RetentionView, deletable: list[SegmentVerdict], delete_when: str) -> Element:
    """Return what happens next."""
    count = plural(len(deletable), "file")
    size = size_text(sum(verdict.facts.allocated or verdict.facts.size for verdict in deletable))
    if not deletable and view.disk.clean:
        return notice(BAD, f"The disk needs room, but no file of the log may be deleted. {_why_nothing(view)}")
    if not deletable:
        return notice(GOOD, f"Nothing is to be deleted now. {_why_nothing(view)}")
    if view.trigger.clean_at_once and any(verdict.forced for verdict in deletable):
        return notice(BAD, f"{count} ({size}) may be deleted now, some before their time, because the disk is full.")
    if view.trigger.space:
        return notice(WARN, f"{count} ({size}) may be deleted now, because the disk fills up.")
    if view.trigger.time_up:
        return notice(NOTE, f"{count} ({size}) may be deleted now, because it is the hour for it.")
    return notice(NOTE, f"{count} ({size}) may be deleted, and will be {_hours(delete_when)}.")


def _why_nothing(view: RetentionView) -> str:
    if not view.segments:
        return "The log has no file."
    oldest = view.segments[0]
    if oldest.rule is Rule.LAST_FILE:
        return "The log has one file, which is still written."
    if oldest.rule is Rule.NOT_EXPIRED:
        return f"The oldest messages stay for {span(oldest.expires_ms - view.now_ms)} more."
    return f"The oldest file stays: {_reason(oldest, view)}."


def _leaves(verdict: SegmentVerdict, now: int) -> Child:
    if verdict.rule.deletable:
        return "may be deleted"
    if verdict.rule is Rule.LAST_FILE:
        return "is still written"
    return ago(verdict.expires_ms, now) if verdict.expires_ms > now else "stays"


def _why(verdict: SegmentVerdict, view: RetentionView) -> str:
    if verdict.rule in {Rule.NOT_EXPIRED, Rule.LAST_FILE} and not verdict.pins:
        return ""
    return _reason(verdict, view)


def _reason(verdict: SegmentVerdict, view: RetentionView) -> str:
    rule = verdict.rule
    # A pin keeps all files from its position onwards, but only the file with that position names it.
    held = "; ".join(_pin(pin) for pin in verdict.pins if pin.phy_offset >= verdict.facts.file_from_offset)
    if rule is Rule.EXPIRED:
        text = "expired"
    elif rule is Rule.FORCED:
        text = "the disk needs room" + (", before its time" if verdict.expires_ms > view.now_ms else "")
    elif rule is Rule.KEPT_BY_TOPIC and view.topics is not None:
        text = f"kept by the rule of topic {view.topics.own_holder}"
    else:
        text = "" if rule is Rule.LAST_FILE else rule.value
    return "; ".join(filter(None, (text, held)))


def _pin(pin: Pin) -> str:
    return f"needed by {_HOLDERS[pin.kind]} {pin.holder}"


def _hours(delete_when: str) -> str:
    hours = sorted({int(hour) for hour in delete_when.split(";")})
    return "at any hour" if len(hours) == 24 else "from " + " and from ".join(
        f"{hour:02d}:00 to {hour + 1:02d}:00" for hour in hours)


def _lost(view: RetentionView) -> Element | None:
    """Return the files that were deleted before their time."""
    rows: list[list[Child]] = [
        [clock_time(_number(entry.get("time")), view.now_ms), _lost_of(entry)] for entry in view.forced[:-11:-1]]
    return card(
        "Deleted before their time", table(("When", "Lost"), rows, "", "Files deleted before their time"),
        h("p", f"{plural(len(view.forced), 'file')} in all.")) if rows else None


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _lost_of(entry: dict[str, Any]) -> str:
    messages = entry.get("messages")
    lost = [f"{count} of {topic}" for topic, count in messages.items()] if isinstance(messages, dict) else []
    if timers := _number(entry.get("timersLost")):
        lost.append(plural(timers, "pending timer"))
    return ", ".join(lost) or "no message"


def _rules(view: RetentionView) -> Element | None:
    rows: list[list[Child]] = [[topic, rule] for topic, rule in sorted(view.rules.items())[:FILES_MAX]]
    idle = [h("p", f"Group {group} should keep messages, but it has consumed nothing here.")
            for group in view.idle_groups]
    if not rows and not idle:
        return None
    return card("Rules of topics", table(("Topic", "Rule"), rows, "", "Rules of topics") if rows else None, *idle)


def disk_page(store: MessageStore) -> list[Child]:
    """Return how full the disk is, and the bytes by kind of file."""
    disk = disk_of(store)
    found = disk_usage(store.file_system, store.path, store.config)
    rows: list[list[Child]] = [
        [_KINDS.get(entry.kind, entry.kind), entry.files, size_text(entry.allocated_bytes),
         _share(entry.allocated_bytes, disk.usage.total)]
        for entry in found]
    every = sum(entry.allocated_bytes for entry in found)
    rows.append([h("strong", "All"), sum(entry.files for entry in found), h("strong", size_text(every)),
                 _share(every, disk.usage.total)])
    columns = (Column("Kind", "name"), Column("Files", "number"), Column("On the disk", "number"),
               Column("Of the disk", "number wide"))
    others = [usage for usage in store.retention.disk.measure() if usage.path != disk.usage.path]
    paths: dict[str, Child] = {usage.path: f"{usage.percent} % used, {size_text(usage.usable)} free"
                               for usage in others if usage.total != disk.usage.total}
    return [
        [notice(trouble.level, trouble.text) for trouble in disk_troubles(disk)],
        card("Room", *disk_meter(disk), facts({"Directory": store.path, **paths})),
        card("By kind of file", table(columns, rows, "There is no file.", "Bytes by kind of file"))]


def _share(size: int, total: int) -> str:
    share = size * 100 / total if total > 0 else 0
    return "0 %" if not size else "< 0.1 %" if share < 0.1 else f"{share:.1f} %"
