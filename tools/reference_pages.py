"""Pages of docs/reference about commands, limits, columns, findings and errors, from their declarations in the code."""

import ast
import inspect
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from reference_errors import CODE_LINKS, ERRORS, EXITS
from reference_limits import GROUPS

from tailrace import errors
from tailrace.arrow.schema import COLUMN_MEANINGS, COLUMN_TYPES, arrow_schema
from tailrace.cli.app import app
from tailrace.response_codes import MEANINGS, ResponseCode
from tailrace.store.findings import COMPACTION_KINDS, NOTES, STORE_KINDS, Remedy
from tailrace.timer.verification import TIMER_KINDS

HEAD = "<!-- Written by `make gen` from the code; change it there. -->\n\n"
_SEVERAL = 2
"""An option that this number of commands have, with the same help text and default, is explained once."""
_TARGET = ("--broker HOST:PORT", "--namesrv HOST:PORT", "--context NAME", "--tls/--no-tls")
_PRINTING = ("--json", "--wide")
_WRITES = "This command writes to STORE"


def commands() -> str:
    """docs/reference/cli.md: every command with its usage, and its options with defaults."""
    found = dict(_walk(typer.main.get_command(app), ()))
    counts = Counter(_row(p) for command in found.values() for p in _options(command))
    common = [row for row, count in counts.items() if count >= _SEVERAL]
    parts = [(
        "# Commands\n\nLook up the options of a command. For targets and output, see [Use the command line]"
        "(../how-to/operate/command-line.md). A\ncommand marked *writes* can change the directory STORE. The other "
        "commands do not change it.\n\n"
        "`tailrace --version` prints the version. `tailrace --credentials FILE COMMAND` sends requests as a user.\n\n"
        "## Options of several commands\n\nIn a usage line, TARGET is `--broker`, `--namesrv` or `--context`, with "
        f"or without `--tls`. {_about_printing(found)}\n\n"
        "| option | default | meaning |\n|---|---|---|")]
    parts += [f"| {' | '.join(row)} |" for row in common]
    for name, command in found.items():
        own = [p for p in _options(command) if _row(p) not in common]
        several = [p for p in _options(command) if _row(p) in common]
        writes = " *Writes.*" if _WRITES in " ".join((command.help or "").split()) else ""
        parts.append(f"\n## {name}\n\n{_sentence(command)}{writes}\n\n    {_usage(name, command, own, several)}")
        if own:
            parts.append("\n| option | default | meaning |\n|---|---|---|")
            parts += [f"| {' | '.join(_row(p))} |" for p in own]
    return HEAD + "\n".join(parts) + "\n"


def _about_printing(found: dict[str, Any]) -> str:
    """Return which commands have the options of tables and JSON lines, so that no usage line repeats them."""
    without = [name for name, command in found.items()
               if not {_names(p).strip("`") for p in _options(command)} >= {*_PRINTING}]
    return f"All commands have `--json` and `--wide`, except {', '.join(f'`{name}`' for name in without)}."


def _options(command: Any) -> list[Any]:
    return [p for p in command.params if p.param_type_name == "option" and "--help" not in p.opts]


def _walk(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    members = getattr(command, "commands", None)
    if not members:
        yield " ".join(words), command
        return
    for word, member in members.items():
        yield from _walk(member, (*words, word))


def _row(parameter: Any) -> tuple[str, str, str]:
    return _names(parameter), _default(parameter), _help(parameter)


def _names(parameter: Any) -> str:
    shown = parameter.opts if parameter.default is False else (*parameter.opts, *parameter.secondary_opts)
    value = "" if parameter.is_flag else f" {_metavar(parameter)}"
    return f"`{'/'.join(shown)}{value}`"


def _metavar(parameter: Any) -> str:
    named = parameter.metavar or parameter.name.upper().replace("_", "-")
    return "N" if parameter.type.name in {"integer", "float"} and not parameter.metavar else str(named)


def _help(parameter: Any) -> str:
    return re.sub(r"\s+", " ", parameter.help or "").replace("|", "\\|")


def _default(parameter: Any) -> str:
    value = parameter.default
    if parameter.required:
        return "required"
    if value in (None, "", False) or value == [] or callable(value):
        return ""
    if value is True:
        return f"`{parameter.opts[0]}`"
    return f"`{value}`"


def _sentence(command: Any) -> str:
    return inspect.cleandoc(command.help or "").split("\n\n")[0].replace("\n", " ")


def _usage(name: str, command: Any, own: list[Any], several: list[Any]) -> str:
    words = ["tailrace", name]
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            text = _metavar(parameter)
            words.append(text if parameter.required or text.startswith("[") else f"[{text}]")
    names = [name for p in several if not p.required and (name := _names(p).strip("`")) not in _PRINTING]
    words += [_names(p).strip("`") for p in several if p.required]
    if set(_TARGET) <= set(names):
        names = ["TARGET", *(name for name in names if name not in _TARGET)]
    return " ".join([*words, *(["[OPTIONS]"] if own else []), *(f"[{name.split()[0]}]" for name in names)])


def limits() -> str:
    """docs/reference/limits.md: the numbers of `reference_limits`, and what is not measured."""
    parts = [(
        "# Limits\n\nLook up the limits of sizes, lengths and numbers. A request over a limit gets an error that names "
        "the limit. The codes\nare explained in the [list of errors](errors.md). A number beside a setting is its "
        "default. The [list of\nsettings](config.md) has the units.\n")]
    for title, rows in GROUPS.items():
        parts.append(f"## {title}\n\n| what | limit | above it | setting |\n|---|---|---|---|")
        parts += [f"| {row.what} | {row.value} | {row.past} | {row.setting} |" for row in rows]
        parts.append("")
    parts.append(_OTHER_LIMITS)
    return HEAD + "\n".join(parts)


_OTHER_LIMITS = """## Limits without a number

- A store has one writer: one process on one machine.
- One thread of Python serves all connections of a broker.
- No metric shows the latency or the errors of requests over the remoting protocol. For gRPC,
  `rocketmq_rpc_latency_milliseconds` shows them.
"""


def message_columns() -> str:
    """docs/reference/message-columns.md: name and types of each column, and its meaning."""
    schema = arrow_schema(tuple(COLUMN_TYPES))
    assert {*COLUMN_MEANINGS} == {*COLUMN_TYPES}, {*COLUMN_MEANINGS} ^ {*COLUMN_TYPES}
    parts = [(
        "# Columns of a message\n\nLook up the columns of `store.to_arrow` and of the "
        "[Spark source](../how-to/data/spark.md).\nAn [archive](../how-to/data/archive.md) has the same columns except "
        "`store`, and some more. The column `damaged` exists only if\nSpark reads with `mode=PERMISSIVE`.\n\n"
        "| column | Spark | Arrow | meaning |\n|---|---|---|---|")]
    parts += [
        f"| `{name}` | `{kind}` | `{_arrow(schema.field(name).type)}` | {COLUMN_MEANINGS[name]} |"
        for name, kind in COLUMN_TYPES.items()]
    parts.append(_ABOUT_COLUMNS)
    return HEAD + "\n".join(parts)


_ABOUT_COLUMNS = """
**Time zone.** Times are in UTC, with the unit microsecond. Brokers and clients write times in milliseconds. Spark shows
a time in the zone of `spark.sql.session.timeZone`. `local_session()` sets this zone to UTC. Other sessions use the zone
of their machine.

**Damaged records.** If `damaged` has a text, only `store` and `commitLogOffset` also have a value. The other columns
are null, because every byte of the record may be wrong. `to_arrow` leaves such records out.

**Batch queues.** Each message of an inner batch is a row. The row has the position, size and ids of the record that
contains the batch.
"""


def _arrow(kind: Any) -> str:
    return re.sub(r"<(\w+): ", r"<", str(kind)).replace(", tz=UTC", ", UTC").replace(" ('element')", "")


def verify_findings() -> str:
    """docs/reference/verify-findings.md: each kind of finding with its meaning and remedy."""
    parts = [_FINDINGS_HEAD]
    for title, kinds in (
        ("Log, queues, index and configuration", STORE_KINDS), ("Timers", TIMER_KINDS),
        ("Topics with compaction", COMPACTION_KINDS),
    ):
        parts.append(f"## {title}\n\n| finding | meaning | do |\n|---|---|---|")
        parts += [
            f"| `{name}` | {kind.meaning} | {_REMEDIES[kind.remedy]}.{f' {kind.note}' if kind.note else ''} |"
            for name, kind in kinds.items()]
        parts.append("")
    parts.append(_FINDINGS_END.format(notes="\n".join(f"| `{name}` | {text} |" for name, text in NOTES.items())))
    return HEAD + "\n".join(parts)


_REMEDIES = {
    Remedy.RECOVER: "**recover**", Remedy.REPAIR: "**repair**", Remedy.TIMERS: "**rebuild timers**",
    Remedy.SEAL: "**restore**, or continue", Remedy.RESTORE: "**restore**, or continue",
    Remedy.NOTHING: "Nothing to do",
}
_FINDINGS_HEAD = """# Findings of verify

Look up what a finding of `tailrace verify STORE` or `tailrace pipeline audit STORE` means, and what to do. Each finding
has a kind, a file, a position in the file and a detail. The [exit code](errors.md#exit-codes-of-commands) says whether
there are findings.

1. Look for the cause first. `dmesg` shows errors of the disk. If the disk has errors, move the store to another disk
   before you repair it.
2. Stop the server and copy the directory, or check that a [backup](../how-to/operate/backup.md) exists.
3. If the directory was not closed cleanly, `verify` shows its files as the crash left them. Do **recover**, then verify
   again. Only findings that remain need a further action.

| do | how |
|---|---|
| **recover** | `tailrace recover STORE`. Each start of a server does the same. |
| **repair** | `tailrace repair STORE`. It builds queues and index again from the log. \
`--plan` only shows the changes. |
| **rebuild timers** | Delete `STORE/config/timercheck`, then **recover**. Recovery reads the timers again \
from the log. Timers that were delivered are not delivered again. |
| **restore** | Create the store from a [backup](../how-to/operate/backup.md) that is older than the damage, \
or segments from an [archive](../how-to/data/archive.md). |

**Continue** means that you start the server. Consumers then get all other messages. A Java broker ends the log at a
damaged record. `tailrace repair --seal-damage STORE` writes a placeholder over the record. A Java broker then reads the
whole log, and `verify` reports the record as a note.
"""
_FINDINGS_END = """## Notes

A note is not a finding, and the exit code stays 0.

| note | meaning |
|---|---|
{notes}

If a server has the directory open, `verify` checks only messages that were durable when it started. It leaves out the
checkpoint, the last slots of the index, links of timers and compaction logs, because they change all the time.
"""


def error_page() -> str:
    """docs/reference/errors.md: exceptions, exit codes and response codes, with what to do."""
    classes = {name: getattr(errors, name) for name in errors.__all__}
    assert {*ERRORS} == {*classes}, {*ERRORS} ^ {*classes}
    shown = {code.name for code in MEANINGS}
    assert shown == answered_codes(), shown ^ answered_codes()
    parts = [(
        "# Errors\n\nLook up what an exception, an exit code or a response code means, and what to do.\n"
        "The fields of each exception are in [the API reference](api/errors.md).\n\n"
        "## Exceptions of Python\n\nAn indented class is a subclass of the one above.\n\n"
        "| exception | meaning | do |\n|---|---|---|")]
    for depth, cls in _tree(errors.StoreError, {*classes.values()}, 0):
        if (text := ERRORS[cls.__name__])[:1] != "=":
            names = [cls.__name__, *(name for name, other in ERRORS.items() if other == f"={cls.__name__}")]
            parts.append(
                f"| {'&emsp;' * depth}{', '.join(f'`{name}`' for name in names)} | {_first(cls)} | {text.strip('-')} |")
    parts.append("\n## Exit codes of commands\n\n| code | meaning | do |\n|---|---|---|")
    parts += [f"| {code} | {meaning} | {action} |" for code, (meaning, action) in EXITS.items()]
    parts.append(
        "\n## Response codes\n\nA client of the remoting protocol shows the meaning, then `code N`. The remark has the "
        "reason. Clients handle the codes\nof polling (19, 20, 21, 208, 209, 210) themselves.\n\n"
        "| code | meaning | do |\n|---|---|---|")
    for meaning in dict.fromkeys(MEANINGS[code] for code in sorted(MEANINGS)):
        codes = sorted(code for code, other in MEANINGS.items() if other == meaning)
        names = ", ".join(f"{code.value} {code.name}" for code in codes)
        do = "; ".join(filter(None, (meaning.do, CODE_LINKS.get(codes[0].name))))
        parts.append(f"| {names} | {_capital(meaning.says)} | {_capital(do)} |")
    return HEAD + "\n".join(parts) + "\n"


_POLLING = {"SUCCESS", "PULL_NOT_FOUND", "PULL_RETRY_IMMEDIATELY", "PULL_OFFSET_MOVED", "NO_MESSAGE", "POLLING_FULL",
            "POLLING_TIMEOUT"}


def _capital(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def answered_codes() -> set[str]:
    """Return the names of the codes with which a server refuses a request."""
    found = set()
    for room in ("broker", "ha", "namesrv", "filters", "observe", "requests", "remoting", "auth", "node"):
        for path in Path("src/tailrace", room).rglob("*.py"):
            text = path.read_text()
            for node in ast.walk(ast.parse(text)) if "ResponseCode" in text else ():
                if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "ResponseCode":
                    found.add(node.attr)
    return {name for name in found if name in ResponseCode.__members__} - _POLLING - {
        "SLAVE_NOT_AVAILABLE", "FLUSH_SLAVE_TIMEOUT"}  # names of RocketMQ's statuses, which no put here has


def _tree(above: type, known: set[type], depth: int) -> Iterator[tuple[int, type]]:
    yield depth, above
    for cls in above.__subclasses__():
        if cls in known and cls.__bases__[0] is above:
            yield from _tree(cls, known, depth + 1)


def _first(cls: type) -> str:
    text = " ".join((cls.__doc__ or "").split("\n\n")[0].split()).replace("``", "`")
    return re.split(r"[.;] ", text)[0].rstrip(".") + "."
