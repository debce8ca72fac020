"""Runs the code blocks of a page as a reader types them, and compares what they print with what the page shows.

The conventions of a page are in docs/contributing/pages.md. One bash runs the commands of the whole page, so ``cd``,
variables and background jobs carry over. It runs twice: on a terminal of 80 columns, whose output the page shows, and
in a pipe, where commands print JSON lines with the same values. ``tailrace serve`` runs in a terminal of its own, which
is opened in the folder of the shell, on ports that the system picks; later blocks get these in place of the default
ones. Workers, which last, run like servers. Values that differ from run to run (addresses, times, ids, durations) are
compared by their form.
"""

from __future__ import annotations

import json
import os
import re
import sys
import textwrap
import time
from pathlib import Path
from typing import Final, NamedTuple, Self

from page_shell import START_TIMEOUT_S, Screen, Shell, rendered

PATIENCE_S = 20.0
# What a reader sees a moment later than a program that does not wait.
_READS = ("tailrace ", "curl")
_CHANGES = re.compile(
    r"tailrace( --\S+ \S+)* (send|restore|backup|recover|repair|"
    r"acl (user )?(add|allow|deny|update|remove|import)|topic (create|purge|delete)|group (reset|delete))\b")
_SERVE = re.compile(r"(?:\w+=\S+ )*tailrace serve\b")
_WORKER = re.compile(r"(dramatiq|faststream run)\b")
_FENCE = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]*?) -->\n\n?)?^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<text>.*?)"
    r"^(?P=indent)```$", re.MULTILINE | re.DOTALL)
_PORTS = {"broker": (10911,), "namesrv": (9876,), "http": (8080,), "grpc": (8081,)}
_ADDRESS = r"(?:127\.0\.0\.1|0\.0\.0\.0|localhost):\d+"
_FORMS = (
    (re.compile(r"\b\d{4}-\d\d-\d\d\b"), "<date>"),
    (re.compile(r"[T ]?(?<!\d)\d\d:\d\d:\d\d([.,]\d+)?(Z|[+-]\d\d:\d\d)?"), " <time>"),
    (re.compile(rf"(?<![\d.]){_ADDRESS}"), "<address>"),
    (re.compile(r"(?<![0-9A-Za-z_.-])(?=\w*\d)[0-9A-Fa-f]{10,}(?![\w.-])"), "<id>"),
    (re.compile(r"(?<=_ms=)[\d.]+|(?<=\bms=)[\d.]+|(?<=\"ms\":)[\d.]+"), "<duration>"),
    (re.compile(r"[\d.]+ [KMGT]iB"), "<bytes>"),
    (re.compile(r"\b\d+ %"), "<percent>"),
    (re.compile(r"[ \t]+"), " "),
)

REASONS: Final = {
    "install": r"make setup|pip install|git clone|activate|/dev/tcp",
    "systemd": r"systemctl|journalctl|systemd|useradd|/etc/tailrace|/opt/tailrace",
    "containers": r"podman|docker",
    "Kubernetes": r"kubectl",
    "Prometheus": r"promtool|prometheus|amtool",
    "Java": r"mqadmin|mqshutdown|mqbroker|tools\.sh|\bjava\b",
    "S3 server": r"s3://",
    "Spark cluster": r"spark-submit|SPARK_HOME|PYSPARK_PYTHON|pipeline|--spark|plot_store",
    "another machine": r"ssh|rsync|example\.(com|org)|ns1:9876",
    "root": r"sudo|chown|chmod|install -d",
    "long": r"make |pytest|benchmarks/",
    "shown as a part": r"STORE|HOST:PORT",
}
"""Why blocks of commands may not be run, and what such a block must contain."""


class Block(NamedTuple):
    """A fenced block of a page; ``reason`` says why a test does not run it."""

    language: str
    text: str
    reason: str = ""


class Command(NamedTuple):
    """A command of a console block, and what it prints."""

    text: str
    printed: str


def blocks(page: str) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    return [Block(found["language"], textwrap.dedent(found["text"]), found["reason"] or "")
            for found in _FENCE.finditer(page)]


def commands(text: str) -> list[Command]:
    """Return the commands of a console block with the lines that follow each."""
    found: list[tuple[list[str], list[str]]] = []
    end = ""
    for line in text.splitlines():
        if found and (end or (found[-1][0][-1].endswith("\\") and not found[-1][1])):
            found[-1][0].append(line)
            end = "" if line == end else end
        elif line.startswith("$ "):
            found.append(([line[2:]], []))
            here = re.search(r"<<'(\w+)'", line)
            end = here[1] if here else ""
        else:
            assert found, f"a console block begins with a command: {line}"
            found[-1][1].append(line)
    return [Command("\n".join(typed), "\n".join(printed).strip()) for typed, printed in found]


def form(text: str) -> str:
    """Return a text without what differs from run to run."""
    for pattern, name in _FORMS:
        text = pattern.sub(name, text)
    return "\n".join(line.strip() for line in text.strip().splitlines())


def agrees(wanted: str, got: str) -> bool:
    """Return whether a command printed what a page shows."""
    expression = "".join(
        r"(?:.*\n)*" if line.strip() == "..."
        else ".*".join(map(re.escape, line.split("..."))) + "\n"
        for line in form(wanted).splitlines())
    return re.fullmatch(expression, form(got) + "\n" if got.strip() else "") is not None


def one_line(text: str) -> str:
    """Return a text without the ends of its lines, which a terminal also has where a line does not fit."""
    return " ".join(text.split())


def same_values(table: str, lines: str) -> bool:
    """Return whether the words of a table, as a terminal shows it, are those of JSON lines."""
    try:
        rows = [json.loads(line) for line in lines.splitlines() if line.startswith("{")]
    except json.JSONDecodeError:
        return False
    spelt = re.sub(r"([a-z])([A-Z])", r"\1 \2", lines)
    known = re.sub(r"\s+", "", spelt + lines + json.dumps(rows, ensure_ascii=False)).lower()
    words = re.findall(r"[\w<][\w.>]*", re.sub(r"(?<=\d),(?=\d)", "", form(table).replace("...", " ")).lower())
    missing = [word for word in words if not word.startswith("<") and word.strip(".") not in known
               and word not in {"yes", "no", "what", "value"}]
    return bool(rows) and not missing


class PageRunner:
    """Runs blocks in ``folder``; use it as a context manager, so that its shell and its servers end."""

    def __init__(self, folder: Path, *, replace: dict[str, str] | None = None, terminal: bool = True) -> None:
        self.folder, self.terminal = folder, terminal
        self._replace = dict(replace or {})
        self._servers: list[Shell] = []
        self._workers: list[Shell] = []
        programs = Path(sys.executable).parent
        home = folder.parent / f"{folder.name}-home"
        home.mkdir(exist_ok=True)
        self._environment = {
            name: value for name, value in os.environ.items()
            if name not in {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"} and not name.startswith("TAILRACE_")
        } | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "PYTHONWARNINGS": "error", "HOME": str(home),
             "TERM": "xterm"}
        self._shell = Shell(folder, self._environment, terminal=terminal)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for shell in (*self._workers, *self._servers, self._shell):
            shell.close()

    def run(self, page: str) -> int:
        """Run every block of a page and return how many commands and programs ran."""
        ran, found = 0, blocks(page)
        for number, block in enumerate(found):
            if block.reason:
                continue
            if block.language == "console":
                for command in commands(block.text):
                    self._command(command)
                    ran += 1
            elif block.language == "python":
                after = found[number + 1] if number + 1 < len(found) else Block("", "")
                self._program(Command(block.text, after.text if after.language == "text" else "..."))
                ran += 1
        for worker in self._workers:
            assert worker.runs(), f"a worker ended: {worker.screen.until('$', START_TIMEOUT_S)}"
        return ran

    def _replaced(self, text: str) -> str:
        for old, new in self._replace.items():
            text = text.replace(old, new)
        return text

    def _program(self, program: Command) -> None:
        path = self._shell.scratch / "program.py"
        path.write_text(self._replaced(program.text))
        # As typed into Python: the program's own folder is not a place of modules, the reader's folder is.
        read = "pathlib.Path(sys.argv[1]).read_text()"
        typed = f"""python -c 'import pathlib, sys; exec(compile({read}, "page", "exec"))' {path}"""
        self._compare(Command(typed, program.printed), typed)

    def _command(self, command: Command) -> None:
        text = self._replaced(command.text)
        if _SERVE.match(text):
            assert not text.rstrip().endswith("&"), f"a server has a terminal of its own, without &: {text}"
            self._checked(command, text, self._serve(command.text))
            return
        if _WORKER.match(text):
            self._workers.append(Shell(self._shell.folder(), self._environment, terminal=self.terminal))
            self._workers[-1].send(f"exec {text}")
            return
        self._compare(command, text)
        if text.startswith("kill") and self._servers:
            self._servers[-1].wait()  # a reader is slower than the next command here

    def _compare(self, command: Command, text: str) -> None:
        until = time.monotonic() + PATIENCE_S
        got = self._shell.run(text)
        while not self._shows(command, got) and text.startswith(_READS) and not _CHANGES.match(text) \
                and time.monotonic() < until:
            time.sleep(0.1)
            got = self._shell.run(text)
        self._checked(command, text, got)

    def _shows(self, command: Command, got: str) -> bool:
        wanted = self._replaced(command.printed)
        return agrees(wanted, got) or (not self.terminal and (
            same_values(wanted, got) or agrees(one_line(wanted), one_line(got))))

    def _checked(self, command: Command, text: str, got: str) -> None:
        where = "on a terminal" if self.terminal else "in a pipe"
        assert self._shows(command, got), (
            f"$ {text}\nis shown with\n{command.printed}\nand printed {where}\n{got}")

    def _serve(self, text: str) -> str:
        """Start a server in a terminal of its own and return what it printed until it was ready."""
        for old in [key for key in self._replace if re.fullmatch(_ADDRESS, key)]:
            del self._replace[old]
        text = re.sub(r"(--(?:http|grpc|listen)) \S+|(--namesrv-listen) (?!none)\S+",
                      lambda found: f"{found[1] or found[2]} 127.0.0.1:0", self._replaced(text))
        text += "".join(f" {name} 127.0.0.1:0" for name in ("--listen", "--namesrv-listen") if f"{name} " not in text)
        server = Shell(self._shell.folder(), self._environment, terminal=self.terminal)
        self._servers.append(server)
        server.send(f"exec {text}" if text.startswith("tailrace") else f"env {text}")
        screen: Screen = server.screen
        got = rendered(screen.until(r"^ready .*\n", START_TIMEOUT_S))
        for name, address in re.findall(rf"\b(\w+)=({_ADDRESS})", got):
            for port in _PORTS.get(name, ()):
                for host in ("127.0.0.1", "localhost"):
                    self._replace[f"{host}:{port}"] = address
            if name == "namesrv":
                self._environment["NAMESRV_ADDR"] = address  # the default of commands is 127.0.0.1:9876
                self._shell.run(f"export NAMESRV_ADDR={address}")
        return got
