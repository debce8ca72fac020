"""Arguments that several commands have, and their error messages."""

import math
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Optional

import typer

from tailrace.cli import completion
from tailrace.cli.problems import explained, missing_package, read_config_file
from tailrace.errors import ConfigError, MissingPackageError, StoreError
from tailrace.java_settings import refused_settings, unused_settings
from tailrace.spellings import duration_ms

__all__ = [
    "AsJson", "Broker", "Config", "Context", "Create", "Every", "Namesrv", "Store", "Tls", "Topic", "Where", "Yes",
    "complain", "confirm", "duration", "errors", "finite", "key_values", "note_unclean", "read_properties",
    "size_in_bytes", "usage",
]

MISSING_PACKAGE = 3
"""Exit code if a package is not installed."""
Store = Annotated[Path, typer.Argument(metavar="STORE", help="A store directory.", autocompletion=completion.stores)]
Config = Annotated[
    Optional[Path],  # noqa: UP045 - typer reads the annotation at run time
    typer.Option("--config", metavar="FILE", help="A settings file (name=value), such as RocketMQ's broker.conf."),
]
Broker = Annotated[
    str, typer.Option(metavar="HOST:PORT", help="A running broker.", autocompletion=completion.addresses)]
Namesrv = Annotated[
    str, typer.Option(metavar="HOST:PORT", help="A running name server. If no target is named: that of NAMESRV_ADDR, "
                      "of the default context, or 127.0.0.1:9876.", autocompletion=completion.name_servers)]
Context = Annotated[str, typer.Option(
    metavar="NAME", help="A server by its name in the file of contexts.", autocompletion=completion.contexts)]
Tls = Annotated[
    Optional[bool],  # noqa: UP045 - typer reads the annotation at run time
    typer.Option("--tls/--no-tls", help="Use TLS, with the settings of TAILRACE_TLS_* or the file of contexts.")]
Where = Annotated[
    str, typer.Argument(
        metavar="STORE", help="A store directory, if no server is named.", autocompletion=completion.stores)
]
Topic = Annotated[str, typer.Option("--topic", help="Name of a topic.", autocompletion=completion.topics)]
Create = Annotated[
    bool, typer.Option("--create", help="Make the directory STORE a store if it is not one yet.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON lines also on a terminal; a pipe always gets them.")]
Every = Annotated[bool, typer.Option("--all", help="Show system names in the table as well.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]


def complain(text: str) -> None:
    """Print an error or a warning as one line on stderr."""
    print(f"tailrace: {text}", file=sys.stderr)


def note_unclean(*, is_unclean: bool) -> None:
    """Print that a directory that was not closed is shown as recovery would leave it."""
    if is_unclean:
        complain("the store was not closed cleanly; it is shown as recovery would leave it")


@contextmanager
def errors(refused_setting: int = 1) -> Iterator[None]:
    """Print errors that a user can correct as one line, and end with exit code 1, or with 3 for a missing package.

    ``refused_setting`` is the exit code for a setting that is refused.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except (StoreError, OSError) as error:
        complain(explained(error))
        code = refused_setting if isinstance(error, ConfigError) else 1
        raise typer.Exit(MISSING_PACKAGE if isinstance(error, MissingPackageError) else code) from None
    except ModuleNotFoundError as error:
        complain(missing_package(error))
        raise typer.Exit(MISSING_PACKAGE) from None


def read_properties(config: Path | None, *, refused_too: bool = True) -> dict[str, str]:
    """Return the settings of a ``--config`` file; print the names of those that have no effect here.

    With ``refused_too=False`` the settings that stop a start are not printed, because the start reports them.
    """
    if config is None:
        return {}
    values, repeated = read_config_file(config)
    for text in repeated:
        complain(text)
    if unknown := unused_settings(values, without=() if refused_too else refused_settings(values)):
        complain(f"settings of {config} not used here: {', '.join(unknown)}")
    return values


def usage(text: str) -> typer.Exit:
    """Print what is wrong with the arguments; return the exit to raise."""
    complain(text)
    return typer.Exit(2)


def finite(value: float) -> float:
    """Return a number of the command line. Raises BadParameter for ``nan`` and ``inf``, which pass min and max."""
    if not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number")
    return value


def key_values(items: list[str], option: str = "--property") -> dict[str, str]:
    """Return the values of a repeatable option NAME=VALUE."""
    values = {}
    for item in items:
        name, separator, value = item.partition("=")
        if not separator or not name or not value:
            raise usage(f"{option} {item!r} is not NAME=VALUE")
        values[name] = value
    return values


def confirm(what: str, *, yes: bool) -> None:
    """Ask for confirmation before a change. Without a terminal ``--yes`` is required."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise usage(f"{what}: there is no terminal to ask for confirmation; add --yes if you mean it")
    if not typer.confirm(f"{what}?", err=True):
        raise typer.Exit(1)


def duration(text: str, option: str, most_ms: int = (1 << 63) - 1) -> int:
    """Return a duration of the command line in ms. Ends with exit code 2 for another text, one above ``most_ms``."""
    try:
        found = 0 if text.strip() == "0" else duration_ms(text, option)
    except ValueError as error:
        raise usage(str(error)) from None
    if found > most_ms:
        raise usage(f"{option} {text!r} is longer than {most_ms // 86_400_000}d")
    return found


def size_in_bytes(option: str, text: str) -> int:
    """Return a size such as 10GiB in bytes. Ends with exit code 2 if ``text`` is not a size above 0."""
    found = re.fullmatch(r"(\d{1,18}(?:\.\d{1,9})?) ?(?:([KMGT])iB|B)?", text.strip(), re.ASCII)
    size = round(float(found[1]) * 1024 ** (" KMGT".index(found[2]) if found[2] else 0)) if found else 0
    if not 0 < size < 1 << 63:
        raise usage(f"{option}: {text!r} is not a size above 0, such as 10GiB, 500MiB or a number of bytes")
    return size
