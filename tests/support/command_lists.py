"""Every command of ``tailrace``: those that only read STORE, with calls to try, and those that write."""

import pathlib
from typing import Any

import click
import typer

from tailrace.cli.app import app

__all__ = [
    "READING", "READS", "WITHOUT_STORE", "WRITES", "WRITING", "WRITING_WITH", "calls", "every_command",
    "snapshot",
]

READS, WRITES = "nothing in store changes", "this command writes to store"
"""Sentences of the help text in lower case; each command has one of them."""

READING: dict[str, list[str]] = {
    "dump": ["STORE", "STORE --raw", "STORE --only index,timers,checkpoint", "STORE --topic orders --body"],
    "query": ["STORE --topic orders --key k7"],
    "verify": ["STORE", "STORE --all"],
    "disk-usage": ["STORE"],
    "retention": ["STORE", "STORE --json", "STORE --free 1GiB --dry-run"],
    "timers": ["STORE", "STORE --summary"],
    "sql": ["STORE SELECT/**/count(*)/**/FROM/**/messages"],
    "backup": ["STORE OUT", "STORE OUT --verify"],
    "tail": ["STORE --topic orders --from first --no-follow", "STORE --topic orders", "STORE --topic missing",
             "STORE --topic orders --last 2 --no-follow", "STORE --topic orders --since 1h --no-follow"],
    "topic list": ["STORE", "STORE --all"],
    "topic stats": ["STORE orders", "STORE missing"],
    "group list": ["STORE"],
    "group show": ["STORE readers", "STORE missing"],
    "acl list": ["STORE"],
    "acl test": ["STORE ann --on Topic:orders --action Pub", "STORE missing --on Topic:orders --action Pub"],
    "acl user list": ["STORE"],
    "doctor report": ["STORE", "STORE --out OUT"],
    "pipeline audit": ["STORE"],
    "pipeline replay": ["STORE --topic orders --to-store OUT"],
    "pipeline archive": ["STORE OUT"],
    "pipeline traffic": ["STORE"],
    "pipeline lag": ["STORE"],
    "pipeline timers": ["STORE"],
    "pipeline retention": ["STORE --all"],
    "repair": ["STORE --plan"],
    "promote": ["STORE --config OUT"],
}
"""Commands that have a form that only reads STORE, with arguments to try; OUT is a new name elsewhere."""

WRITING_WITH = {
    "repair": "", "retention": "--delete-now", "pipeline timers": "--revise"}
"""Commands of READING that write in another form: with this option, or with none."""

WITHOUT_STORE = {
    "broker status", "context list", "context show", "context save", "context select", "context remove",
    "pipeline compact", "pipeline expire", "pipeline forget"}
"""Commands that have no STORE."""

WRITING = {
    "serve", "recover", "send", "restore", "topic create", "topic delete", "topic purge", "group create", "group reset",
    "group delete", "acl allow", "acl deny", "acl remove", "acl import", "acl user add", "acl user update",
    "acl user remove", "pipeline rebuild", "pipeline restore", "replica reset"}
"""Commands that write to STORE, or make it."""


def every_command() -> dict[str, click.Command]:
    """Return all commands of the application by name, such as ``acl user list``."""
    found: dict[str, click.Command] = {}

    def walk(command: Any, words: tuple[str, ...]) -> None:
        if members := getattr(command, "commands", None):
            for word, member in members.items():
                walk(member, (*words, word))
        else:
            found[" ".join(words)] = command

    walk(typer.main.get_command(app), ())
    return found


def calls(on_spark: bool) -> list[tuple[str, ...]]:
    """Return the calls to try, as words."""
    return [
        (*name.split(), *arguments.split()) for name, forms in READING.items() for arguments in forms
        if name.startswith("pipeline ") is on_spark]


def snapshot(root: pathlib.Path) -> dict[str, tuple[int, int, int, bytes]]:
    """Return kind and mode, time of change, length and bytes of every name below a directory."""
    found = {}
    for path in (root, *sorted(root.rglob("*"))):
        stat = path.lstat()
        found[str(path.relative_to(root))] = (
            stat.st_mode, stat.st_mtime_ns, stat.st_size if path.is_file() else 0,
            path.read_bytes() if path.is_file() else b"")
    return found
