"""A bash that runs one command after another, on a pseudo-terminal of 80 columns or in a pipe."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import tempfile
import termios
import threading
from pathlib import Path
from typing import Final

__all__ = ["COMMAND_TIMEOUT_S", "START_TIMEOUT_S", "Screen", "Shell", "rendered"]

START_TIMEOUT_S: Final = 120.0
COMMAND_TIMEOUT_S: Final = 120.0
COLUMNS: Final = 80
_MARK: Final = "\036"
# Commands come on descriptor 9, so that a command reads from the terminal as it does at a reader's.
_LOOP: Final = 'while IFS= read -r -d "" -u 9 _typed; do eval "$_typed" 9<&-; printf "\\036%s\\036\\n" "$?"; done'


class Screen:
    """Everything that arrives at a descriptor, read by a thread, so that the writer never waits."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._text, self._seen = descriptor, bytearray(), 0
        self._ended, self._changed = False, threading.Condition()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while True:
            try:
                read = os.read(self._descriptor, 65_536)
            except OSError:  # a pseudo-terminal whose other end is closed
                read = b""
            with self._changed:
                self._text += read
                self._ended = not read
                self._changed.notify_all()
            if not read:
                os.close(self._descriptor)
                return

    def _unseen(self) -> str:
        return self._text[self._seen:].decode(errors="replace").replace("\r\n", "\n")

    def until(self, pattern: str, timeout_s: float) -> str:
        """Return the new text up to the end of ``pattern``, or all of it if the writer ends before."""
        wanted = re.compile(pattern, re.MULTILINE)
        with self._changed:
            arrived = self._changed.wait_for(lambda: self._ended or wanted.search(self._unseen()), timeout_s)
            text = self._unseen()
            assert arrived, f"this did not end within {timeout_s} s: {text}"
            self._seen = len(self._text)
            return text


def rendered(text: str) -> str:
    """Return what a terminal shows after a program has moved the cursor and erased lines, as a progress bar does."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[\??\d*(?:;\d+)*[A-Za-z]|\r|\n|[^\x1b\r\n]+", text):
        if part == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif part == "\r":
            column = 0
        elif part.startswith("\x1b"):
            if part.endswith("A"):
                row = max(0, row - int(part[2:-1] or 1))
            elif part.endswith("K"):
                lines[row] = "" if part[2:-1] == "2" else lines[row][:column]
        else:
            lines[row] = lines[row][:column].ljust(column) + part + lines[row][column + len(part):]
            column += len(part)
    return "\n".join(lines)


class Shell:
    """One bash in ``folder``; its variables, folder and background jobs last until it is closed."""

    def __init__(self, folder: Path, environment: dict[str, str], *, terminal: bool) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="page-")
        self.scratch = Path(self._temporary.name)
        given, self._commands = os.pipe()
        if terminal:
            shown, end = pty.openpty()
            fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
            source = end
        else:
            shown, end = os.pipe()
            source = os.open(os.devnull, os.O_RDONLY)
        self._process = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-c", f"exec 9<&{given} {given}<&-; {_LOOP}"],
            cwd=folder, env=environment, stdin=source, stdout=end, stderr=end, pass_fds=[given], start_new_session=True)
        for used in {given, end, source}:
            os.close(used)
        self.screen = Screen(shown)

    def folder(self) -> Path:
        """Return the folder in which the shell is now."""
        return Path(f"/proc/{self._process.pid}/cwd").readlink()

    def send(self, text: str) -> None:
        """Type a command without waiting for its end."""
        os.write(self._commands, text.encode() + b"\0")

    def run(self, text: str) -> str:
        """Return what a command prints."""
        self.send(text)
        got = self.screen.until(rf"{_MARK}\d+{_MARK}\n", COMMAND_TIMEOUT_S)
        assert _MARK in got, f"the shell ended at {text}: {got}"
        return rendered(re.sub(rf"{_MARK}\d+{_MARK}\n", "", got))

    def runs(self) -> bool:
        """Return whether the shell, or the program that replaced it, has not ended."""
        return self._process.poll() is None

    def wait(self) -> None:
        """Wait until the program that replaced the shell has ended."""
        self._process.wait(START_TIMEOUT_S)

    def close(self) -> None:
        """End the shell and everything that it started."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()
        os.close(self._commands)
        self._temporary.cleanup()
