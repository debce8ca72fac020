"""The last events of a log as a report for other people shows them: without keys, bodies and texts of other programs.

A line counts only if `tailrace.events` declares its phrase. `SHOWN` and `HIDDEN` decide about each key of an event, so
a key that is in neither of them fails a test.
"""

from __future__ import annotations

import json
import os
import re
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

from tailrace import events as table
from tailrace.events import EVENTS, Event

__all__ = ["HIDDEN", "LOG_BYTES", "SHOWN", "last_events"]

LOG_BYTES: Final = 4 << 20
"""Number of bytes at the end of a log file that are read."""
_EVENTS_MAX: Final = 200
_FRAMES_MAX: Final = 30
_TEXT_MAX: Final = 300
_SHOWN: Final = """
    action actual address advertised ahead_ms all_bytes archive at batch before broker by_ms bytes certificate checks
    client_auth code congestion connections copy count counts cut_at decision default_topic deliveries directory
    dropped elapsed_ms end entries epoch expected expires_ms export failures file files first freed from get_found_tps
    get_miss_tps group groups hours id in_flight kept kept_in kind known last_store_time led left_out length level
    limit lines listeners listens lmq_queues logical_min lost manifests max max_delay_s max_offset messages method
    min_offset min_phy_offset mode ms namesrv needed next_offset not_consumed now of offset offset_behind operations
    passes path peer percent phy_offset pins pos position put_back put_failed put_max_ms put_tps query queue queue_id
    queue_offset queues quota read_behind_ms read_queues read_time_ms reads refused renewed retry_topic rounds scanned
    seconds segment sends setting signal size skipped socket status store store_timestamp stream target then threshold
    time_ms timers_lost timers_rewritten tls to to_look_at topic topics tried tries trigger under_way units until used
    verified wait_ms waiting window_s
    after attempt behind_bytes by compared job late operation removed role table unavailable
"""
SHOWN: Final = frozenset(_SHOWN.split())
"""Keys of events whose values are shown: figures, positions, and names of files, addresses, topics and groups."""
_HIDDEN: Final = """
    cause client columns command consequence correlation detail expression key message more name names other_client
    other_subscription others reason resource result settings subscription txn unique_key usage user users values who
    why
"""
HIDDEN: Final = frozenset(_HIDDEN.split())
"""Keys of events whose values are hidden: keys and ids of messages, users, expressions, and texts of errors."""
HIDDEN_OF: Final[Mapping[Event, frozenset[str]]] = {
    table.CREDENTIALS_CAN_BE_READ_BY_OTHER_USERS_OF_THIS_MACHINE: frozenset({"file"})}
"""More hidden keys of single events: the path of a key or of another secret."""
_TIME: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9:.,+Z-]{5,30}")
_LINE: Final = re.compile(
    r"(?:^|: )(?:(?P<time>[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:,]{8,12}) )?(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) "
    r"(?:(?P<logger>tailrace[A-Za-z_.]*) )?(?P<rest>.*)", re.ASCII)
_LOGGER: Final = re.compile(r"tailrace[a-z0-9_.]{0,100}", re.ASCII)
_FRAME: Final = re.compile(r'\s*File "(?P<file>[^"\n]{1,300})", line (?P<line>[0-9]+), in (?P<name>[\w<>.]{1,100})')
_ERROR: Final = re.compile(r"\s*(?P<name>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Warning))(?::|$)")
_ERRNO: Final = re.compile(r"\[Errno ([0-9]{1,3})\]")
_BY_PHRASE: Final[Mapping[str, tuple[Event, ...]]] = {
    phrase: tuple(event for event in EVENTS if event.phrase == phrase)
    for phrase in sorted({event.phrase for event in EVENTS}, key=len, reverse=True)}


def last_events(text: str) -> dict[str, Any]:
    """Return the last events of a log in either format, and the number of lines that are not events.

    A line of an unknown form is counted and not shown. Of a traceback only files, lines, functions and the class of
    the exception are shown.
    """
    found: deque[dict[str, Any]] = deque(maxlen=_EVENTS_MAX)
    others, above = 0, False
    for line in text.splitlines():
        event = _of_json(line) if line.startswith("{") else _of_text(line)
        if event is not None:
            found.append(event)
            above = True
        elif above and line.startswith((" ", "\t", "Traceback")):
            _add_frame(found[-1], line)
        elif line.strip():
            others, above = others + 1, False
    return {"events": [*found], "otherLines": others}


def _of_json(line: str) -> dict[str, Any] | None:
    try:
        read = json.loads(line)
    except ValueError:
        return None
    if not isinstance(read, dict) or read.get("event") not in _BY_PHRASE:
        return None
    events = _BY_PHRASE[read["event"]]
    event = next((event for event in events if all(key in read for key in event.keys)), None)
    if event is None:
        return None
    made = _made(
        str(read.get("time", "")), event, str(read.get("logger", "")), {key: read[key] for key in event.keys})
    for frame in str(read.get("traceback", "")).splitlines():
        _add_frame(made, frame)
    return made


def _of_text(line: str) -> dict[str, Any] | None:
    parts = _LINE.search(line)
    if parts is None:
        return None
    rest = parts["rest"]
    for phrase, events in _BY_PHRASE.items():
        if rest != phrase and not rest.startswith(f"{phrase} "):
            continue
        for event in events:
            values = _values(event.keys, rest[len(phrase):])
            if values is not None:
                return _made(parts["time"] or "", event, parts["logger"] or "", values)
    return None


def _values(keys: Iterable[str], rest: str) -> dict[str, str] | None:
    """Return the values of a line by key; None if the keys are others.

    A value may have the text of a later key in it. Then the end of the value is not known, so all are hidden.
    """
    keys = tuple(keys)
    places = [rest.find(f" {key}=") for key in keys]
    if not keys:
        return None if rest.strip() else {}
    if places != sorted(places) or places[0] != 0:
        return None
    if any(rest.count(f" {key}=") > 1 for key in keys):
        return dict.fromkeys(keys, "(hidden)")
    ends = (*places[1:], len(rest))
    return {key: rest[at + len(key) + 2:end] for key, at, end in zip(keys, places, ends, strict=True)}


def _made(time: str, event: Event, logger: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **({"time": time} if _TIME.fullmatch(time) else {}), "level": event.level,
        **({"logger": logger} if _LOGGER.fullmatch(logger) else {}), "event": event.phrase,
        **{key: _shown(event, key, value) for key, value in values.items()}}


def _shown(event: Event, key: str, value: Any) -> Any:
    if key in SHOWN and key not in HIDDEN_OF.get(event, ()):
        return value if value is None or isinstance(value, bool | int | float) else str(value)[:_TEXT_MAX]
    found = _ERRNO.search(str(value))
    number = int(found[1]) if found is not None else 0
    return f"(hidden: errno {number}, {os.strerror(number)})" if number else "(hidden)"


def _add_frame(event: dict[str, Any], line: str) -> None:
    """Add a line of a traceback, if it is a place or the class of the exception."""
    trace: list[str] = event.get("traceback", [])
    if (frame := _FRAME.match(line)) is not None:
        trace.append(f"{frame['file']}:{frame['line']} {frame['name']}")
    elif (error := _ERROR.match(line)) is not None:
        trace.append(error["name"])
    if trace:
        event["traceback"] = trace[-_FRAMES_MAX:]
