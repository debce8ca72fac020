"""``tailrace retention``: which files may go, why the others stay, and deleting now."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from tailrace.cli.problems import serve_hint
from tailrace.config import StoreConfig
from tailrace.doctor.retention import RetentionView, explain_directory
from tailrace.env import OsFileSystem, SystemClock
from tailrace.errors import RemotingCommandError, StoreLockedError
from tailrace.formats.remoting import RequestCode, ResponseCode
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.message_store import MessageStore
from tailrace.remoting.client import RemotingClient
from tailrace.store.directory import DirectoryState, StoreDirectory
from tailrace.store.log_paths import log_paths
from tailrace.store.own_settings import remembered
from tailrace.store.retention import Pin, Rule, SegmentVerdict

__all__ = ["answer_lines", "delete_now", "explain_retention", "json_lines"]

_WAITS = 100
_WAIT_S = 0.1
_QUIET_WAITS = 10
"""A server pauses between two files: it is done when nothing went for a second."""


def explain_retention(store: str, config: StoreConfig) -> RetentionView:
    """What a pass would find in a directory now."""
    return explain_directory(store, config, SystemClock(), OsFileSystem())


def delete_now(store: str, config: StoreConfig) -> tuple[list[str], str]:
    """Delete what may go: names of the files that went, and who deleted them.

    A directory that is being served is left to its server (request 329), which has settings of its
    own; otherwise one pass is made under the lock. Raises StoreError or OSError.
    """
    before = _log_files(store, config)
    if StoreDirectory(store, config=config).is_live:
        by = _ask_server(store)
        _wait_until_done(store, config, before)
    else:
        by = "one pass under the lock"
        with MessageStore.open(
            store, config=config, services=False, create=False, must_write=True
        ) as opened:
            offsets = ConsumerOffsetManager(
                OsFileSystem(), opened.config_dir, SystemClock(), lmq=config.enable_lmq)
            offsets.load()
            opened.keep_unconsumed(offsets)
            opened.retention.delete_now()
    return sorted(set(before) - set(_log_files(store, config))), by


def _wait_until_done(store: str, config: StoreConfig, before: list[str]) -> None:
    seen, quiet = before, 0
    for _ in range(_WAITS):
        threading.Event().wait(_WAIT_S)
        after = _log_files(store, config)
        quiet = quiet + 1 if after == seen else 0
        seen = after
        # Comparing a file with the archive takes a while, and so may the begin.
        slow = after == before or bool(config.archive_directory)
        if quiet >= _QUIET_WAITS * (5 if slow else 1):
            return


def _ask_server(store: str) -> str:
    try:
        address = str(serve_hint(store)["broker"])
    except KeyError:
        raise StoreLockedError(
            store, "a process that is no server of Tailrace; a Java broker is asked to delete by mqadmin "
            "deleteExpiredCommitLog") from None

    async def ask() -> None:
        client = RemotingClient()
        try:
            answer = await client.invoke(address, RequestCode.DELETE_EXPIRED_COMMITLOG, {})
            if answer.code != ResponseCode.SUCCESS:
                raise RemotingCommandError(answer.code, answer.remark or "", address)
        finally:
            await client.close()

    asyncio.run(ask())
    return f"the server at {address}"


def _log_files(store: str, config: StoreConfig) -> list[str]:
    root = str(Path(store).absolute())
    return sorted(
        found.name for path in log_paths(remembered(OsFileSystem(), root, config), root).all
        for found in Path(path).glob("[0-9]*") if found.stat().st_size)


# -- printing


def answer_lines(view: RetentionView, store: str, config: StoreConfig) -> Iterator[str]:
    """The view as sentences and a line per file."""
    usage, levels = min(view.usages, key=lambda usage: usage.percent), view.levels
    yield (
        f"{store}: {_files(len(view.segments))} of the CommitLog, {_size(view.log_bytes)} on disk; kept "
        f"for {config.file_reserved_time:g} h (fileReservedTime), deleted "
        f"{_hours(config.delete_when)} (deleteWhen)")
    for other in view.usages if len(view.usages) > 1 else ():
        yield f"path {other.path}: {other.percent} % used, {_size(other.available)} free"
    yield (
        f"disk: {usage.percent} % used, {_size(usage.available)} free; expired files go at any hour above "
        f"{_level(levels.clean, levels.clean_bytes)}, the oldest files above "
        f"{_level(levels.forcible, levels.forcible_bytes)}, puts are refused above "
        f"{_level(levels.warning, levels.warning_bytes)}")
    if view.disk.reason:
        yield f"disk: {view.disk.reason}"
    if view.trash_files:
        yield f"trash: {view.trash_files} files, {_size(usage.trash)} on their way out"
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
            yield (f"  {entry.get('file')} at {_time(entry.get('time', 0))}: {entry.get('reason')}; "
                   f"lost: {lost or 'no messages'}")
    if view.state is DirectoryState.UNCLEAN:
        yield "the directory was not closed; this is what its files say before a recovery"
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


def json_lines(view: RetentionView) -> Iterator[dict[str, Any]]:
    """The view as JSON objects: one for the disk, one per file."""
    usage = min(view.usages, key=lambda usage: usage.percent)
    yield {
        "kind": "disk", "state": view.state.value, "usedPercent": usage.percent,
        "availableBytes": usage.available, "trashBytes": usage.trash,
        "full": view.disk.full, "reason": view.disk.reason, **view.trigger._asdict(),
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
        return "the log has one file, and goes on in it"
    if oldest.rule is Rule.NOT_EXPIRED:
        return f"the oldest file is kept until {_time(oldest.expires_ms)}"
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
    when = _time(verdict.expires_ms)
    source = f"{facts.time_source} {_time(facts.time_ms)} + {config.file_reserved_time:g} h"
    # A pin needs everything from its position on: it is named where it is.
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
    return f"{percent:g} %" if not free_bytes else f"the point where {_size(free_bytes)} are free"


def _time(ms: int) -> str:
    when = datetime.fromtimestamp(ms / 1000)  # noqa: DTZ006 - for people at this machine
    return when.strftime("%Y-%m-%d %H:%M:%S")


def _size(size: int) -> str:
    value = float(size)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
