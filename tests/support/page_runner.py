"""Runs the code blocks of a document in order, in one folder, and compares what they print.

A block ``console`` holds commands after ``$`` and what each prints. A line ``...`` stands for any
number of lines, and ``...`` in a line for any text. A command goes on over lines that end with a
backslash and over a here-document. A block ``python`` is a program; a block ``text`` after it is its
output. Other blocks are only shown.

``tailrace serve`` runs in the background, on ports that the system picks; later blocks get these in
place of the default ones. Values that differ from run to run (addresses, times, ids, durations) are
compared by their form.
"""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Self

START_TIMEOUT_S, COMMAND_TIMEOUT_S, PATIENCE_S = 60.0, 60.0, 20.0
# What a reader sees a moment later than a program that does not wait.
_READS = ("tailrace tail", "tailrace timers", "tailrace dump", "tailrace retention", "curl")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PORTS = {"broker": "127.0.0.1:10911", "namesrv": "127.0.0.1:9876", "http": "127.0.0.1:8080"}
_FORMS = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d([.,]\d+)?Z?"), "<time>"),
    (re.compile(r"\b127\.0\.0\.1:\d+"), "<address>"),
    (re.compile(r"\b[0-9A-Fa-f]{32,}\b"), "<id>"),
    (re.compile(r"(?<![\d.])1[78]\d{11}(?!\d)"), "<ms>"),
    (re.compile(r"(?<=_ms=)\d+|(?<=\bms=)[\d.]+|(?<=\"ms\":)[\d.]+"), "<duration>"),
    (re.compile(r"[\d.]+ [KMGT]iB"), "<bytes>"),
    (re.compile(r"\b\d+ %"), "<percent>"),
)


class Block(NamedTuple):
    """A fenced block of a document."""

    language: str
    text: str


class Command(NamedTuple):
    """A command of a console block, and what it prints."""

    text: str
    printed: str


def blocks(page: str) -> list[Block]:
    """Return the fenced blocks of a document, in order."""
    return [Block(*found) for found in _FENCE.findall(page)]


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
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def agrees(wanted: str, got: str) -> bool:
    """Return whether a command printed what a document shows."""
    expression = "".join(
        r"(?:.*\n)*" if line.strip() == "..."
        else ".*".join(map(re.escape, line.split("..."))) + "\n"
        for line in form(wanted).splitlines())
    return re.fullmatch(expression, form(got) + "\n" if got.strip() else "") is not None


class PageRunner:
    """Runs blocks in ``folder``; use it as a context manager, so that its servers end."""

    def __init__(self, folder: Path, *, replace: dict[str, str] | None = None) -> None:
        self.folder = folder
        self._replace = dict(replace or {})
        self._servers: list[subprocess.Popen[str]] = []
        programs = Path(sys.executable).parent
        self._environment = dict(
            os.environ, PATH=f"{programs}{os.pathsep}{os.environ['PATH']}", PYTHONWARNINGS="error",
            COLUMNS="100")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            server.kill()
            server.wait()
            assert server.stdout is not None
            server.stdout.close()

    def run(self, page: str) -> int:
        """Run every block of a document and return how many ran."""
        ran, found = 0, blocks(page)
        for number, block in enumerate(found):
            if block.language == "console":
                for command in commands(block.text):
                    self._command(command)
                    ran += 1
            elif block.language == "python":
                after = found[number + 1] if number + 1 < len(found) else Block("", "")
                self._compare(
                    Command(block.text, after.text if after.language == "text" else "..."),
                    lambda code: self._run([sys.executable, "-c", code]))
                ran += 1
        return ran

    def _replaced(self, text: str) -> str:
        for old, new in self._replace.items():
            text = text.replace(old, new)
        return text

    def _run(self, arguments: list[str]) -> str:
        done = subprocess.run(
            arguments, cwd=self.folder, env=self._environment, timeout=COMMAND_TIMEOUT_S, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return done.stdout

    def _command(self, command: Command) -> None:
        if command.text.startswith("tailrace serve"):
            self._compare(command, self._serve)
        else:
            self._compare(command, lambda text: self._run(["bash", "-c", text]))
        if command.text.startswith("kill"):
            self._servers[-1].wait(START_TIMEOUT_S)  # a reader is slower than the next command here

    def _compare(self, command: Command, run: Callable[[str], str]) -> None:
        text, until = self._replaced(command.text), time.monotonic() + PATIENCE_S
        got = run(text)
        while not agrees(self._replaced(command.printed), got) and command.text.startswith(_READS) \
                and time.monotonic() < until:
            time.sleep(0.1)
            got = run(text)
        assert agrees(self._replaced(command.printed), got), (
            f"$ {text}\nis shown with\n{command.printed}\nand printed\n{got}")

    def _serve(self, text: str) -> str:
        """Start a server, wait until it is ready, and return what it printed so far."""
        for old in [key for key in self._replace if key in _PORTS.values()]:
            del self._replace[old]
        text = re.sub(r"--http \S+", "--http 127.0.0.1:0", text)
        printed = self.folder.parent / f"{self.folder.name}-server-{len(self._servers)}.log"
        with printed.open("wb") as log:
            server = subprocess.Popen(
                ["bash", "-c", f"exec {text} --listen 127.0.0.1:0 --namesrv-listen 127.0.0.1:0"],
                cwd=self.folder, env=self._environment, stdout=subprocess.PIPE, stderr=log, text=True)
        self._servers.append(server)
        assert server.stdout is not None
        ready, _, _ = select.select([server.stdout], [], [], START_TIMEOUT_S)
        line = server.stdout.readline() if ready else ""
        said = printed.read_text()
        if not line.startswith("ready "):
            server.wait(START_TIMEOUT_S)
            return line + said
        for name, address in re.findall(r"\b(\w+)=(127\.0\.0\.1:\d+)", line + said):
            if name in _PORTS:
                self._replace[_PORTS[name]] = address
        return line + said
