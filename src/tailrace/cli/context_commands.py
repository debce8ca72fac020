"""``tailrace context``: names for servers, with their TLS and user, in the file of contexts."""

import os
from pathlib import Path
from typing import Annotated, Any, Final, Optional

import typer

from tailrace.cli import completion, output
from tailrace.cli.arguments import AsJson, Broker, Namesrv, complain, errors, key_values, usage
from tailrace.cli.contexts import (
    change_context,
    contexts_file,
    contexts_of_file,
    no_context,
    select_context,
)
from tailrace.cli.output import show

__all__ = ["list_all", "remove", "save", "select", "show_one"]

_SECRET: Final = "key_password"
Name = Annotated[str, typer.Argument(
    metavar="NAME", help="The name of a context.", autocompletion=completion.contexts)]


def _line(name: str, selected: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return a context for people and programs, without secrets."""
    tls = values.get("tls", False)
    if isinstance(tls, dict):
        tls = {key: "(hidden)" if key == _SECRET else value for key, value in tls.items()}
    return {
        "context": name, "selected": name == selected, "namesrv": values.get("namesrv", ""),
        "broker": values.get("broker", ""), "tls": tls, "credentials": values.get("credentials", "")}


def _known(name: str, table: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a context. Raises ConfigError with the most similar name."""
    if name not in table:
        raise no_context(name, table)
    values: dict[str, Any] = table[name]
    return values


def list_all(as_json: AsJson = False) -> None:
    """List the contexts.

    The selected one is that of commands which name no target. NAMESRV_ADDR wins over it.
    """
    with errors():
        selected, table = contexts_of_file()
    show((_line(name, selected, values) for name, values in sorted(table.items())), as_json=as_json,
         empty="there is no context; tailrace context save NAME --namesrv HOST:PORT makes one")
    _note_environment(selected)


def show_one(name: Name = "", as_json: AsJson = False) -> None:
    """Show a context, by default the selected one."""
    with errors():
        selected, table = contexts_of_file()
        if not (name := name or selected):
            raise usage("no context is selected: name one, or run tailrace context select NAME")
        line = _line(name, selected, _known(name, table))
    line["file"] = str(contexts_file())
    output.show_one(line, as_json=as_json)


def save(
    name: Name, broker: Broker = "", namesrv: Namesrv = "",
    credentials: Annotated[Optional[Path], typer.Option(  # noqa: UP045 - typer reads the annotation at run time
        "--credentials", metavar="FILE", help="File with accessKey and secretKey of the user.")] = None,
    tls: Annotated[bool, typer.Option("--tls", help="Use TLS.")] = False,
    tls_option: Annotated[Optional[list[str]], typer.Option(  # noqa: UP045
        "--tls-option", metavar="NAME=VALUE", help="TLS with an option, such as trust_cert_path=ca.pem; may be "
        "repeated.")] = None,
    select: Annotated[bool, typer.Option("--select", help="Select it.")] = False,
) -> None:
    """Add a context, or replace it.

    The file of contexts gets the mode 0600. Its other lines stay as they are.
    """
    if bool(broker) == bool(namesrv):
        raise usage("use one of --broker and --namesrv")
    options = key_values(tls_option or [], "--tls-option")
    with errors():
        from tailrace.client.arguments import check_address  # noqa: PLC0415 - sockets

        check_address("--namesrv" if namesrv else "--broker", namesrv or broker, 9876 if namesrv else 10911)
        values: dict[str, Any] = {"namesrv": namesrv} if namesrv else {"broker": broker}
        if tls or options:
            values["tls"] = _tls(options)
        if credentials is not None:
            from tailrace.client.credentials import read_credentials  # noqa: PLC0415

            read_credentials(str(credentials))  # a path that is wrong is found now
            values["credentials"] = str(credentials.absolute())
        change_context(name, values)
        if select:
            select_context(name)
        selected, _ = contexts_of_file()
    print(f"context {name} saved in {contexts_file()}" + (", selected" if name == selected else ""))
    if select:
        _note_environment(selected)


def _tls(options: dict[str, str]) -> bool | dict[str, Any]:
    """Return the value of ``tls`` for the file, with absolute paths. Raises ConfigError."""
    from tailrace.remoting.tls import tls_options  # noqa: PLC0415 - OpenSSL

    tls_options(options, "--tls-option")
    found: dict[str, Any] = {}
    for name, value in options.items():
        is_choice = value.lower() in {"true", "false"}
        found[name] = value.lower() == "true" if is_choice else (
            str(Path(value).absolute()) if name.endswith("_path") else value)
    return found or True


def select(name: Name) -> None:
    """Make a context the one of commands that name no target."""
    with errors():
        select_context(name)
    print(f"context {name} selected")
    _note_environment(name)


def remove(name: Name) -> None:
    """Remove a context."""
    with errors():
        _known(name, contexts_of_file()[1])
        change_context(name, None)
    print(f"context {name} removed")


def _note_environment(selected: str) -> None:
    if selected and (address := os.environ.get("NAMESRV_ADDR")):
        complain(f"NAMESRV_ADDR={address} of the environment wins over the selected context {selected}")
