"""The ``tailrace`` command: registration of its subcommands, which other modules define."""

import os
import sys
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand

from tailrace.cli import (
    acl,
    context_commands,
    directories,
    doctor,
    groups,
    pipeline,
    pipeline_archive,
    pipeline_tables,
    pipeline_upkeep,
    replica,
    topics,
)
from tailrace.cli.backup import backup, restore
from tailrace.cli.broker_status import status
from tailrace.cli.completion import complete_in_bash
from tailrace.cli.contexts import CREDENTIALS
from tailrace.cli.log_output import log_to_stderr
from tailrace.cli.message_commands import send, tail
from tailrace.cli.output import layout
from tailrace.cli.serve_command import serve
from tailrace.cli.sql import sql

__all__ = ["app", "run"]

app = typer.Typer(
    name="tailrace",
    help="A durable message store and broker that speaks Apache RocketMQ 5.",
    no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False,
    rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]},
)
_COMMANDS: Final[tuple[Callable[..., Any], ...]] = (
    serve, directories.dump, directories.query, directories.recover, directories.verify, directories.repair,
    directories.disk_usage, directories.retention, directories.timers, backup, restore, replica.promote, send, tail,
    sql,
)
_GROUPS: Final[dict[str, tuple[str, dict[str, Callable[..., Any]]]]] = {
    "topic": ("List and change the topics of a directory or broker.", {
        "list": topics.list_all, "create": topics.create, "stats": topics.stats, "delete": topics.delete,
        "purge": topics.purge}),
    "group": ("List and change the consumer groups of a directory or broker.", {
        "list": groups.list_all, "show": groups.show_one, "create": groups.create, "reset": groups.reset,
        "delete": groups.delete}),
    "acl": ("List and change users and permissions.", {
        "allow": acl.allow, "deny": acl.deny, "list": acl.list_entries, "remove": acl.remove, "test": acl.may,
        "import": acl.import_plain}),
    "acl user": ("List and change users.", {
        "add": acl.user_add, "update": acl.user_update, "remove": acl.user_remove, "list": acl.user_list}),
    "context": ("List and change named servers.", {
        "list": context_commands.list_all, "show": context_commands.show_one, "save": context_commands.save,
        "select": context_commands.select, "remove": context_commands.remove}),
    "broker": ("Look at running brokers.", {"status": status}),
    "replica": ("Repair slaves.", {"reset": replica.reset}),
    "doctor": ("Describe an installation and a directory for an issue.", {"report": doctor.report}),
    "pipeline": ("Run Spark jobs over store directories. They need the extra `spark` and Java 17.", {
        "audit": pipeline.audit, "rebuild": pipeline.rebuild, "replay": pipeline.replay,
        "archive": pipeline_archive.archive, "restore": pipeline_archive.restore,
        "compact": pipeline_upkeep.compact, "expire": pipeline_upkeep.expire, "forget": pipeline_upkeep.forget,
        "traffic": pipeline_tables.traffic, "lag": pipeline_tables.lag, "timers": pipeline_tables.timers,
        "retention": pipeline_tables.retention}),
}


class _Command(TyperCommand):
    """A command; if it prints tables, which its option --json shows, it has the option --wide as well."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if any("--json" in param.opts for param in self.params):
            self.params.append(_wide_option())

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Return the remaining arguments. The error about a missing one names all that are needed.

        Otherwise `pipeline archive STORE` would only say that STORE is missing: its single argument counts as ARCHIVE.
        """
        try:
            return list(super().parse_args(ctx, args))
        except typer.BadParameter as error:
            needed = [
                one.metavar or str(one.name) for one in self.params
                if one.param_type_name == "argument" and one.required]
            if hasattr(error, "param_type") and error.param in self.params and len(needed) > 1:
                error.message = f"Needed are {' and '.join(needed)}."
            raise


@lru_cache
def _wide_option() -> Any:
    """Return the option as typer makes it: the arguments of its own class differ between releases of typer."""
    options = typer.Typer(add_completion=False)

    @options.command()
    def command(wide: Annotated[bool, typer.Option(
        "--wide", expose_value=False, callback=_set_wide, help="Print whole rows of tables, however wide.",
    )] = False) -> None: ...

    return typer.main.get_command(options).params[0]


def _set_wide(wanted: bool) -> None:
    layout.wide = wanted


def _version(wanted: bool) -> None:
    if wanted:
        from tailrace.cli.interpreted import version_text  # noqa: PLC0415 - kernels

        print(version_text())
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True,
                           help="Show the version, and whether the kernels are compiled.")
    ] = False,
    credentials: Annotated[
        str, typer.Option(metavar="FILE", help="File with accessKey and secretKey of the user for requests to "
                          "servers. Default: the file of TAILRACE_CREDENTIALS or of the context.")
    ] = "",
) -> None:
    """A durable message store and broker that speaks Apache RocketMQ 5."""
    if credentials:
        os.environ[CREDENTIALS] = credentials


for _command in _COMMANDS:
    app.command(_command.__name__.replace("_", "-"), cls=_Command)(_command)
_groups: dict[str, typer.Typer] = {"": app}
for _name, (_text, _members) in _GROUPS.items():
    _group = _groups[_name] = typer.Typer(help=_text, no_args_is_help=True, rich_markup_mode=None)
    for _word, _command in _members.items():
        _group.command(_word, cls=_Command)(_command)
    _above, _, _word = _name.rpartition(" ")
    _groups[_above].add_typer(_group, name=_word)


def run() -> None:
    """Run the command. An expected error is printed as one line, with exit code 1."""
    for stream in (sys.stdout, sys.stderr):  # the locale may not have every character of a message
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    run_app = partial(app, prog_name="tailrace")
    try:
        if not complete_in_bash(run_app):
            log_to_stderr("warning")
            run_app()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None
