"""Target of a command: a directory, an address, or a context of the file of contexts.

The file of contexts is ``$TAILRACE_CONTEXTS``, or ``tailrace/contexts.toml`` in
``$XDG_CONFIG_HOME`` (``~/.config``)::

    default = "test"

    [test]
    namesrv = "127.0.0.1:9876"

    [shop]
    broker = "10.0.0.7:10911"
    tls = { trust_cert_path = "/etc/shop/ca.pem" }
    credentials = "/home/ann/shop.credentials"

``tls`` is true, false, or a table with members of `tailrace.remoting.tls.TlsOptions`. The variable ``TAILRACE_TLS``
is true or false; ``TAILRACE_TLS_TRUST_CERT_PATH`` and others set the members.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import re
import tomllib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

from tailrace.cli.arguments import Broker, Context, Namesrv, Tls, Where, errors, usage
from tailrace.errors import ConfigError
from tailrace.spellings import meant

if TYPE_CHECKING:
    from tailrace.remoting.tls import TlsOptions

__all__ = [
    "CREDENTIALS", "DEFAULT_NAMESRV", "Target", "change_context", "contexts_file", "contexts_of_file", "no_context",
    "select_context", "target_of", "tls_of", "with_target",
]

DEFAULT_NAMESRV: Final = "127.0.0.1:9876"
"""Default address of the name server of `tailrace serve`."""
_KINDS: Final = ("namesrv", "broker")
CREDENTIALS: Final = "TAILRACE_CREDENTIALS"
"""Environment variable with the path of the credentials with which clients sign, see `client.credentials`."""


_TLS: Final = "TAILRACE_TLS"
_HEAD: Final = re.compile(r"\s*\[\s*([A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')")
"""The head of a table, with the name of its context."""


class Target(NamedTuple):
    """The target of a command. Exactly one of ``store``, ``broker`` and ``namesrv`` is set."""

    store: str = ""
    broker: str = ""
    namesrv: str = ""
    chosen_by: str = ""
    """What selected the server if the command did not name one, for errors."""
    tls: TlsOptions | None = None
    """TLS settings of connections to it; None for connections without TLS."""

    def __str__(self) -> str:
        return self.store or self.broker or self.namesrv


_SERVER: Final = {"broker": (Broker, ""), "namesrv": (Namesrv, ""), "context": (Context, ""), "tls": (Tls, None)}


def with_target(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the arguments that name its target, in place of its parameter ``target``, see `Target`.

    A parameter ``name`` of the command gets the last word of ``[STORE] NAME``. Without that parameter the command
    has the argument STORE, unless it calls its target ``server``. Errors are printed as one line, see `errors`.
    """
    wanted: dict[str, tuple[Any, Any]] = {}
    given = inspect.signature(command).parameters
    for name, parameter in given.items():
        if name in {"target", "server"}:
            wanted |= ({"store": (Where, "")} if "name" not in given and name == "target" else {}) | _SERVER
        elif name == "name":
            wanted["words"] = Annotated[list[str], parameter.annotation.__metadata__[0]], parameter.default
        else:
            wanted[name] = parameter.annotation, parameter.default
    place = "server" if "server" in given else "target"

    @functools.wraps(command)
    def call(**values: Any) -> None:
        server = {option: values.pop(option) for option in _SERVER}
        directory = [store] if (store := values.pop("store", "")) else []
        if "words" in values:
            *directory, values["name"] = values.pop("words")
        with errors():
            command(**{place: target_of(directory, **server)}, **values)

    call.__signature__ = inspect.Signature([  # type: ignore[attr-defined]
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
        for name, (annotation, default) in wanted.items()])
    return call


def target_of(
    directory: list[str], broker: str = "", namesrv: str = "", context: str = "", *, tls: bool | None = None
) -> Target:
    """Return the target of a command. Ends with exit code 2 if several are named. Raises ConfigError.

    ``tls`` is the option --tls or --no-tls; None if neither is given.
    """
    named = {
        "STORE": directory[0] if directory else "", "--broker": broker, "--namesrv": namesrv,
        "--context": context,
    }
    said = [name for name, value in named.items() if value]
    if len(directory) > 1:
        raise usage(f"one STORE is expected, not {' '.join(directory)}")
    if len(said) > 1:
        raise usage(f"{' and '.join(said)} name different targets: use one of STORE, --broker, "
                    "--namesrv and --context")
    if said and said[0] != "--context":
        return Target(named["STORE"], broker, namesrv, tls=tls_of(wanted=tls))
    if not context and (address := os.environ.get("NAMESRV_ADDR", "")):
        return Target(namesrv=address, chosen_by="NAMESRV_ADDR of the environment", tls=tls_of(wanted=tls))
    return _named(context, tls)


def tls_of(
    said: bool | dict[str, Any] | None = None, *, wanted: bool | None = None, where: str = ""
) -> TlsOptions | None:
    """Return the TLS settings; None for connections without TLS. Raises ConfigError.

    ``wanted`` is the option --tls or --no-tls. ``said`` is the value of the context in the file ``where``; it
    has precedence over the environment.
    """
    switch = os.environ.get(_TLS, "").strip().lower()
    if switch not in {"", "true", "false"}:
        raise ConfigError(f"{_TLS}={switch} is neither true nor false")
    chosen = said is not False if said is not None else switch == "true"
    if not (chosen if wanted is None else wanted):
        return None
    from tailrace.remoting.tls import tls_options  # noqa: PLC0415 - OpenSSL, which most commands do not need

    prefix = f"{_TLS}_"
    values: dict[str, Any] = {
        name.removeprefix(prefix).lower(): value for name, value in os.environ.items() if name.startswith(prefix)}
    tls_options(values, f"the environment ({prefix}*)")
    return tls_options(values | (said if isinstance(said, dict) else {}), where)


def contexts_file() -> Path:
    """Return the path of the file of contexts, which need not exist."""
    if path := os.environ.get("TAILRACE_CONTEXTS"):
        return Path(path)
    home = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(home).expanduser() / "tailrace" / "contexts.toml"


def contexts_of_file() -> tuple[str, dict[str, dict[str, Any]]]:
    """Return the name of the selected context, "" without one, and the values of every context. Raises ConfigError."""
    known = _read(contexts_file())
    selected = known.pop("default", "")
    return str(selected), {name: value if isinstance(value, dict) else {} for name, value in known.items()}


def no_context(name: str, known: Collection[str]) -> ConfigError:
    """Return the error for a context that the file does not have, with the most similar name."""
    return ConfigError(f"{contexts_file()} has no context {name}" + (
        meant(name, known) or f"; it has: {', '.join(known) or 'none'}"))


def change_context(name: str, values: dict[str, Any] | None) -> None:
    """Set the values of a context in the file, or remove it with None. Other lines and comments stay as they are.

    The file is replaced, with mode 0600. Raises ConfigError or OSError.
    """
    if values is not None and not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise ConfigError(f"context {name!r}: a name has letters, digits, - and _ only")
    if name == "default":
        raise ConfigError("default is the line that names the selected context; choose another name")
    path = contexts_file()
    lines, kept, inside = _lines(path), list[str](), False
    for line in lines:
        if found := _HEAD.match(line):
            inside = found[1].strip("\"'") == name
        if not inside:
            kept.append(line)
    wanted = {key: value for key, value in _read(path).items() if key != name}
    if values is None and wanted.get("default") == name:
        kept, wanted = _with_default(kept, ""), {key: one for key, one in wanted.items() if key != "default"}
    if values is not None:
        kept += [*([""] if kept and kept[-1].strip() else []), f"[{name}]",
                 *(f"{key} = {_toml(value)}" for key, value in values.items())]
        wanted[name] = values
    _write(path, kept, wanted)


def select_context(name: str) -> None:
    """Make a context that of commands without a target. Raises ConfigError or OSError."""
    path = contexts_file()
    _named(name, None)  # it must exist, and be right
    _write(path, _with_default(_lines(path), name), {**_read(path), "default": name})


def _lines(path: Path) -> list[str]:
    return path.read_text("utf-8").splitlines() if path.exists() else []


def _with_default(lines: list[str], name: str) -> list[str]:
    """Return the lines with another ``default``, or without it; it is before the first table."""
    end = next((place for place, line in enumerate(lines) if _HEAD.match(line)), len(lines))
    above = [line for line in lines[:end] if not re.match(r"\s*[\"']?default[\"']?\s*=", line)]
    return [*([f"default = {_toml(name)}"] if name else []), *above, *lines[end:]]


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + " }"
    return json.dumps(value)  # texts and booleans are the same in TOML


def _write(path: Path, lines: list[str], wanted: dict[str, Any]) -> None:
    """Replace the file, if its text has the values that are ``wanted``. Raises ConfigError or OSError."""
    from tailrace.env.filesystem import OsFileSystem  # noqa: PLC0415 - only changes need it
    from tailrace.env.whole_files import replace_file  # noqa: PLC0415

    text = "\n".join(lines).strip("\n") + "\n"
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        found = {}
    if found != wanted:
        raise ConfigError(f"{path} is written in a form that this command cannot change: edit it by hand")
    OsFileSystem().makedirs(str(path.absolute().parent))
    replace_file(OsFileSystem(), str(path.absolute()), text.encode())


def _named(context: str, tls: bool | None) -> Target:
    path, (selected, known) = contexts_file(), contexts_of_file()
    name = context or selected
    if not name:
        return Target(namesrv=DEFAULT_NAMESRV, chosen_by="the default, no STORE or server is named",
                      tls=tls_of(wanted=tls))
    if name not in known:
        if not path.exists():
            raise ConfigError(f"there is no context {name}: the file of contexts {path} does not exist")
        raise no_context(name, known)
    values = dict(known[name])
    said, credentials = values.pop("tls", None), values.pop("credentials", None)
    where = f"context {name} of {path}"
    if said is not None and not isinstance(said, bool | dict):
        raise ConfigError(f"{where}: tls is true, false or a table")
    if len(values) != 1 or not values.keys() <= {*_KINDS} or not all(
            isinstance(value, str) and value for value in (*values.values(), credentials or "-")):
        raise ConfigError(
            f'{path}: context {name} needs one line, namesrv = "HOST:PORT" or broker = "HOST:PORT", and may have '
            'tls and credentials = "FILE"')
    if credentials:
        os.environ.setdefault(CREDENTIALS, str(path.parent / Path(credentials).expanduser()))
    return Target(**values, chosen_by=where, tls=tls_of(said, wanted=tls, where=where))


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
