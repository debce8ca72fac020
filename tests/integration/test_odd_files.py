"""Each file of a store is replaced by something that is not a regular file, or is too large (odd_files.py)."""

from __future__ import annotations

import json
import os
import pickle
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.cli.problems import explained
from tailrace.env.filesystem import OsFileSystem
from tailrace.env.whole_files import (
    WHOLE_FILE_MAX,
    open_hint,
    read_file,
    read_hint,
    read_if_there,
    replace_file,
)
from tailrace.errors import OddFileError
from tailrace.formats.filenames import file_name_to_offset
from tailrace.node.serve_hint import serve_hint

WORKER = Path(__file__).with_name("odd_files.py")
BEYOND = "99999999999999999999", "09223372036854775808", "09223372036854710272"
CASES = [
    *(("clean", oddity) for oddity in (
        "fifo", "directory", "dangling", "device", "socket", "huge", "unreadable", "fifo-for-directory",
        *(f"named-{name}" for name in BEYOND))),
    *(("crashed", oddity) for oddity in ("fifo", "directory", "dangling", "huge", "unreadable")),
]
IN_EACH_RUN = {("clean", "huge"), ("crashed", "fifo")}


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize(("state", "oddity"), [
    pytest.param(state, oddity, marks=[pytest.mark.long] * ((state, oddity) not in IN_EACH_RUN))
    for state, oddity in CASES])
def test_an_odd_file_hangs_nothing_loses_nothing_and_is_named(tmp_path, state, oddity):
    done = subprocess.run(
        [sys.executable, WORKER, tmp_path, state, oddity], capture_output=True, text=True, timeout=400,
        check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"at {lines[-1:]}: {done.stderr[-3000:]}"
    assert [line for line in lines if "wrong" in line] == []
    names = {Path(name).name for name in lines[-1]["names"]}
    assert lines[-1]["cases"] >= 5
    if oddity == "fifo":
        assert names & {"progress.0", "progress.1"}, "a killed store has one of them or both"
        assert {"lock", "checkpoint", "timerwheel", "timercheck", "format.json",
                "manifest.jsonl", "topics.json", "00000000000000065536"} <= names


def odd(path, kind):
    """Make something other than a regular file; return its name in the error."""
    match kind:
        case "directory":
            path.mkdir()
            return "is a directory, not a regular file"
        case "fifo":
            os.mkfifo(path)
            return "is a FIFO, not a regular file"
        case "socket":
            with socket.socket(socket.AF_UNIX) as made:
                here = Path.cwd()
                os.chdir(path.parent)  # the path of a socket is short
                try:
                    made.bind(path.name)
                finally:
                    os.chdir(here)
            return "is a socket, not a regular file"
        case "device":
            path.symlink_to("/dev/zero")
            return "is a character device, not a regular file"
        case "dangling":
            path.symlink_to(path.parent / "nothing")
            return f"is a symbolic link to {path.parent / 'nothing'}, which does not exist"
    raise AssertionError(kind)


KINDS = "directory", "fifo", "socket", "device", "dangling"


@pytest.mark.parametrize("kind", KINDS)
def test_the_file_system_refuses_what_is_no_regular_file_and_names_it(tmp_path, kind):
    files, path = OsFileSystem(), tmp_path / "x"
    what = odd(path, kind)
    calls = [
        lambda: files.open(str(path)), lambda: files.open(str(path), writable=True),
        lambda: files.open(str(path), writable=True, create=True), lambda: files.lock(str(path)),
        lambda: files.lock_holder(str(path)), lambda: read_if_there(files, str(path)),
    ]
    if kind != "directory":
        calls.append(lambda: files.stat(str(path)))
    if kind == "dangling":
        calls.remove(calls[4])  # no process locks a link to nothing
        assert files.lock_holder(str(path)) is None
    for call in calls:
        with pytest.raises(OddFileError) as caught:
            call()
        assert caught.value.what == what
        assert explained(caught.value) == f"{path}: {what}; move it away or put the right file there"
        again = pickle.loads(pickle.dumps(caught.value))
        assert (str(again), again.errno, again.filename) == (
            str(caught.value), caught.value.errno, str(path))
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_a_hint_counts_as_damaged_and_is_replaced_but_for_a_directory(tmp_path, kind, caplog):
    files, path = OsFileSystem(), tmp_path / "x"
    odd(path, kind)
    assert read_hint(files, str(path)) is None
    assert f"hint cannot be read, it counts as damaged file={path}" in caplog.text
    if kind == "directory":
        with pytest.raises(OddFileError):
            open_hint(files, str(path))
        with pytest.raises(OddFileError, match="x is a directory"):
            replace_file(files, str(path), b"new")
        return
    open_hint(files, str(path)).close()
    assert f"odd file replaced file={path}" in caplog.text
    assert path.is_file()
    assert not path.is_symlink()


def test_a_link_to_a_regular_file_is_followed(tmp_path):
    (tmp_path / "target").write_bytes(b"there")
    (tmp_path / "x").symlink_to("target")
    files = OsFileSystem()
    assert read_file(files, str(tmp_path / "x")) == b"there"
    assert files.stat(str(tmp_path / "x")).size == 5
    open_hint(files, str(tmp_path / "x")).close()
    assert (tmp_path / "x").is_symlink()


def test_a_file_that_is_too_large_to_be_read_as_a_whole_is_refused(tmp_path):
    path = tmp_path / "x"
    path.touch()
    os.truncate(path, WHOLE_FILE_MAX + 1)
    with pytest.raises(OddFileError, match=f"has {WHOLE_FILE_MAX + 1} bytes, a file of its kind has at"):
        read_file(OsFileSystem(), str(path))
    assert read_file(OsFileSystem(), str(path), 4) == bytes(4)
    assert read_hint(OsFileSystem(), str(path)) is None


def test_directories_are_not_made_over_files(tmp_path):
    odd(tmp_path / "x", "fifo")
    with pytest.raises(OddFileError, match="x is not a directory"):
        OsFileSystem().makedirs(str(tmp_path / "x" / "y"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_note_of_a_server_that_is_odd_counts_as_none(tmp_path, kind):
    (tmp_path / "tailrace").mkdir()
    odd(tmp_path / "tailrace" / "serve.json", kind)
    assert serve_hint(str(tmp_path)) == {}


def test_a_name_that_says_more_than_a_position_is_not_that_of_a_segment():
    assert file_name_to_offset("09223372036854775807") == (1 << 63) - 1
    assert file_name_to_offset("09223372036854775808") is None
    assert file_name_to_offset("99999999999999999999") is None
