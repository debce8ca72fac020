"""Write docs/reference, and the kernels' numbers, from the declarations in the code; ``--check`` only compares."""

import ast
import dataclasses
import enum
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parent))  # needed if a test loads this file by its path
import reference_limits
import reference_pages

from tailrace import config, metrics
from tailrace import events as event_table
from tailrace.auth_settings import AuthConfig
from tailrace.events import EVENTS, Event
from tailrace.formats import (
    checkpoint,
    commitlog,
    consumequeue,
    indexfile,
    timercheckpoint,
    timerlog,
    timerwheel,
)
from tailrace.formats.requests.absent import ABSENT
from tailrace.formats.requests.custom_header import CustomHeader
from tailrace.formats.requests.table import REQUESTS, Request, Role
from tailrace.java_settings import REASONS, java_settings, refused_settings
from tailrace.tls_settings import TlsConfig

OUT = Path("docs/reference")
SOURCES = Path("src/tailrace")
LEVELS = ("debug", "info", "warning", "error", "exception", "critical", "log")
_MAY_LOG = re.compile(rf"\bevents\.\w+\.log\(|\b(?:_log|logging)\.(?:{'|'.join(LEVELS)})\(")
"""What a module with a call that logs contains: most modules need not be parsed."""
LAYOUTS = {
    "CommitLog record, fixed head": commitlog.MESSAGE_HEAD,
    "CommitLog record, head of the body": commitlog.BODY_HEAD,
    "CommitLog blank record": commitlog.BLANK,
    "ConsumeQueue unit": consumequeue.CQ_UNIT,
    "Batch ConsumeQueue unit": consumequeue.BATCH_CQ_UNIT,
    "Index file header": indexfile.INDEX_HEADER,
    "Index file slot": indexfile.INDEX_SLOT,
    "Index file entry": indexfile.INDEX_ENTRY,
    "Checkpoint": checkpoint.CHECKPOINT,
    "Timer wheel slot": timerwheel.SLOT,
    "Timer log unit": timerlog.TIMER_UNIT,
    "Timer log blank unit": timerlog.TIMER_BLANK,
    "Timer checkpoint": timercheckpoint.TIMER_CHECKPOINT,
}


def formats() -> str:
    parts = [
        ("# Formats\n\nParse or write the files of a store. The tables show the bytes of each file, as the code "
         "declares them. Every\nnumber is big-endian.\n"), "## CommitLog record\n\nThe parts of a record, in order.\n",
        "\n".join((
            "| bytes | part | meaning |", "|---|---|---|",
            *(f"| {' or '.join(map(str, part.sizes))} | `{part.name}` | {part.about} |" for part in commitlog.RECORD),
        )) + "\n",
    ]
    for title, layout in LAYOUTS.items():
        about = (layout.record.__doc__ or "").strip()
        parts.append(f"## {title}\n\n{about} {layout.size} bytes.\n")
        parts.append("\n".join(layout.markdown()) + "\n")
    return reference_pages.HEAD + "\n".join(parts)


def protocol() -> str:
    parts = [(
        "# Requests\n\nWrite a client, or find the permission that a request needs. The tables list all requests with "
        "their fields. The values of\nfields are text. A field with `?` may be left out.\n\n"
        "The column `action` is for access control. A user that is not a super user needs one of these actions on "
        "each resource.\nThe brackets contain the fields that name the resources. `body` means that the body names "
        "them. A `*` marks a request\nthat a Java broker serves for every user. The column `also checked` lists other "
        "resources that a request uses. The user\nneeds a permission for these as well.\n")]
    for role in Role:
        parts.append(f"## Answered by a {role.value}\n\n"
                     "| code | name | action | also checked | fields | answer | changes |\n"
                     "|---|---|---|---|---|---|---|")
        parts.extend(
            f"| {r.code} | {r.code.name} | {_access(r)} | {_touches(r)} | {_fields(r.header)} | "
            f"{_fields(r.answer)} | {r.changes} |"
            for r in sorted(REQUESTS.values(), key=lambda r: r.code) if r.role is role)
        parts.append("")
    parts.append(
        "## Refused by name\n\nThe answer to these requests is REQUEST_CODE_NOT_SUPPORTED (3). Its remark names the "
        "feature.\n\n"
        "| code | name | needs |\n|---|---|---|")
    parts += [f"| {code} | {name} | {feature} |" for code, (name, feature) in sorted(ABSENT.items())]
    parts.append("")
    return reference_pages.HEAD + "\n".join(parts)


def _access(request: Request) -> str:
    named = ", ".join(f"`{part.partition(':')[2].rstrip('~^=?;,') or part}`" for part in request.named.split())
    mark = "" if request.reference or request.role is Role.CLIENT else "\\*"
    return f"{_names(request.action)} {_names(request.resource)}{f' ({named})' if named else ''}{mark}"


def _touches(request: Request) -> str:
    return ", ".join((flag.name or "").lower().replace("_", " ") for flag in request.touches or ())


def _names(flags: enum.Flag) -> str:
    return "/".join(flag.name or "" for flag in flags)


def _fields(header: type[CustomHeader] | None) -> str:
    if header is None:
        return ""
    return ", ".join(
        f"`{f.encode_name}`{'' if f.required else '?'}" for f in msgspec.structs.fields(header))


def settings() -> str:
    parts = [(
        "# Settings\n\nLook up a setting. For most brokers, decide about the settings in **bold** and do not change "
        "the others. For the settings\nof a task, see [Configure a broker](../how-to/operate/configure.md). "
        "The names are those of RocketMQ. The option `--config`\nnames the file with the settings. Write a size in "
        "this file as a number of bytes.\n\n"
        "A setting with ✓ is live: you can change it while the server runs (`mqadmin updateBrokerConfig`, "
        "`updateNamesrvConfig`). The\nserver also writes the change to that file. For a setting with D, a user needs "
        "Delete on the cluster to change it, because\nthe setting decides which messages are deleted.\n"
    )]
    for title, kind in (
        ("Store", config.StoreConfig), ("Broker", config.BrokerConfig), ("Name server", config.NameServerConfig),
        ("TLS", TlsConfig),
        ("Access control", AuthConfig),
    ):
        parts.append(f"## {title}\n\n| name | default | live | meaning |\n|---|---|---|---|")
        for f in dataclasses.fields(kind):
            mark = "**" if f.metadata["main"] else ""
            live = ("✓" if f.metadata["live"] else "") + ("D" if f.metadata["deletes"] else "")
            parts.append(
                f"| {mark}`{config.option_name(f)}`{mark} | {_default(f)} | {live} | {f.metadata['about']} |")
        parts.append("")
    parts.append(
        "## Settings of a Java broker that stop the start\n\n`serve` refuses these settings unless they have the "
        "default of a Java broker or `--ignore-setting` names them.\n\n| reason | settings |\n|---|---|")
    refused: dict[str, list[str]] = {}
    for setting in refused_settings(dict.fromkeys(java_settings(), "?")).values():
        refused.setdefault(REASONS[setting.reason], []).append(f"`{setting.name}`")
    parts += [f"| {reason} | {', '.join(names)} |" for reason, names in refused.items()]
    parts.append("")
    return reference_pages.HEAD + "\n".join(parts)


def _default(f: dataclasses.Field[object]) -> str:
    """Return the default of a setting with its unit; bytes in the largest unit that fits."""
    default, unit = getattr(f.default, "value", f.default), f.metadata["unit"]
    if isinstance(default, bool):
        return str(default).lower()
    if unit == "bytes" and isinstance(default, int) and default:
        return reference_limits.size(default)
    return f"{default}{'%' if unit in {'percent', '%'} else f' {unit}' if unit else ''}"


def logged(text: str) -> Iterator[tuple[str, tuple[str, ...], int]]:
    """Yield (name, keys, line) of every event that a module logs; a line that is not an event has an empty name."""
    if not _MAY_LOG.search(text):
        return
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Attribute(value=ast.Name(id="events"), attr=name), attr="log"),
                args=[ast.Name(id="_log")],
            ):
                keys = tuple((word.arg or "**").removesuffix("_") for word in node.keywords if word.arg != "exc_info")
                yield name, keys, node.lineno
            case ast.Call(func=ast.Attribute(value=ast.Name(id="_log" | "logging"), attr=level)) if level in LEVELS:
                yield "", (), node.lineno


def event_calls() -> tuple[dict[Event, set[str]], list[str]]:
    """Modules that log each event, and where calls and declarations differ."""
    known = {name: value for name, value in vars(event_table).items() if isinstance(value, Event)}
    calls: dict[Event, set[str]] = {event: set() for event in EVENTS}
    problems = ["declared twice"] if len({event[:3] for event in EVENTS}) != len(EVENTS) else []
    for path in sorted(SOURCES.rglob("*.py")):
        if path.parent == SOURCES / "events":
            continue
        parts_of = ("tailrace", *path.relative_to(SOURCES).with_suffix("").parts)
        for name, keys, line in logged(path.read_text()):
            event = known.get(name)
            if event is None:
                problems.append(f"{path}:{line}: {name or 'a line'} is not declared in tailrace.events")
            elif keys != event.keys:
                problems.append(f"{path}:{line}: the keys of {name} are {' '.join(event.keys)}, not {' '.join(keys)}")
            else:
                calls[event].add(".".join(parts_of).removesuffix(".__init__"))
    problems += [f"tailrace.events: no module logs {name}" for name, event in known.items() if not calls[event]]
    return calls, problems


def events() -> str:
    calls, problems = event_calls()
    if problems:
        sys.exit("\n".join(problems))
    parts = [
        ("# Events\n\nLook up what a log line means and what to do. A line starts with a fixed phrase, followed by "
         "`key=value` for each key.\n`tailrace serve` writes its lines to stderr. `--log-level` sets the lowest level "
         "that it writes. Each headline is in\nthe names of the loggers that write its section. See also "
         "[Report a defect](../how-to/operate/runbook.md#report-a-defect)."),
    ]
    rooms: dict[str, list[str]] = {}
    for event, modules in calls.items():
        by = sorted(modules)
        room = next((m for m in by if ".testing." not in m), by[0]).split(".")[1]
        line = " ".join([event.phrase, *(f"`{key}`" for key in event.keys)])
        rooms.setdefault(room, []).append(f"| {event.level} | {line} | {event.meaning} | {event.do} |")
    for room, rows in rooms.items():
        parts += ["", f"## {room}", "", "| level | line | meaning | what to do |", "|---|---|---|---|"]
        parts += rows
    return reference_pages.HEAD + "\n".join(parts) + "\n"


def metric_table() -> str:
    base = ", ".join(f"`{name}`" for name in metrics.BASE_LABELS)
    head = (
        "# Metrics\n\nLook up a metric. To find the metric for a question, see [Monitor a broker]"
        "(../how-to/operate/monitor.md).\n`tailrace serve --http HOST:PORT` serves the metrics at `/metrics`, in "
        "Prometheus' text format. Names without `tailrace_`\nare those of RocketMQ 5's own Prometheus exporter. "
        f"Every sample has the labels {base}.\n")
    parts = [
        head, "| name | kind | unit | labels | meaning |", "|---|---|---|---|---|",
    ]
    for metric in metrics.METRICS:
        labels = ", ".join(f"`{name}`" for name in metric.labels)
        parts.append(
            f"| `{metric.exposed}` | {metric.kind.value} | {metric.unit} | {labels} | "
            f"{metric.description} |")
    return reference_pages.HEAD + "\n".join(parts) + "\n"


def main() -> int:
    stale = []
    for path, text in (
        (OUT / "formats.md", formats()), (OUT / "protocol.md", protocol()), (OUT / "config.md", settings()),
        (OUT / "errors.md", reference_pages.error_page()), (OUT / "events.md", events()),
        (OUT / "metrics.md", metric_table()),
        (OUT / "cli.md", reference_pages.commands()), (OUT / "limits.md", reference_pages.limits()),
        (OUT / "message-columns.md", reference_pages.message_columns()),
        (OUT / "verify-findings.md", reference_pages.verify_findings()),
    ):
        if "--check" in sys.argv:
            if not path.exists() or path.read_text() != text:
                stale.append(str(path))
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    if stale:
        print(f"not current, run `make gen`: {', '.join(stale)}", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
