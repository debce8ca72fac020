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

import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tailrace.cli.arguments import usage
from tailrace.errors import ConfigError
from tailrace.spellings import meant

if TYPE_CHECKING:
    from tailrace.remoting.tls import TlsOptions

__all__ = ["DEFAULT_NAMESRV", "Target", "contexts_file", "target_of", "tls_of"]

DEFAULT_NAMESRV: Final = "127.0.0.1:9876"
"""Default address of the name server of `tailrace serve`."""
_KINDS: Final = ("namesrv", "broker")
CREDENTIALS: Final = "TAILRACE_CREDENTIALS"
"""Environment variable with the path of the credentials with which clients sign, see `client.credentials`."""


_TLS: Final = "TAILRACE_TLS"


class Target(NamedTuple):
    """The target of a command. Exactly one of ``store``, ``broker`` and ``namesrv`` is set."""

    store: str = ""
    broker: str = ""
    namesrv: str = ""
    chosen_by: str = ""
    """What selected the server if the command did not name one, for errors."""
    tls: TlsOptions | None = None
    """TLS settings of connections to it; None for connections without TLS."""


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


def _named(context: str, tls: bool | None) -> Target:
    path = contexts_file()
    known = _read(path)
    name = context or known.pop("default", "")
    known.pop("default", None)
    if not name:
        return Target(namesrv=DEFAULT_NAMESRV, chosen_by="the default, no STORE or server is named",
                      tls=tls_of(wanted=tls))
    if name not in known:
        if not path.exists():
            raise ConfigError(f"there is no context {name}: the file of contexts {path} does not exist")
        raise ConfigError(f"{path} has no context {name}"
                          + (meant(str(name), known) or f"; it has: {', '.join(known) or 'none'}"))
    values = known[name]
    values = dict(values) if isinstance(values, dict) else {}
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
