"""``tailrace doctor report``: what an issue needs, without secrets and without contents of messages."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Optional

import typer

from tailrace import __version__
from tailrace.cli import completion
from tailrace.cli.arguments import Config, errors, usage

if TYPE_CHECKING:
    from tailrace.client.admin import AdminClient

__all__ = ["report"]

_EXTRAS_OF_DEVELOPERS: Final = re.compile(r"extra\s*==\s*[\"'](dev|docs|plot)[\"']")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_JAVA: Final = re.compile(r'version "([0-9A-Za-z._+-]{1,40})"')
_JAVA_S: Final = 10


def report(
    store: Annotated[str, typer.Argument(
        metavar="STORE", help="A store directory, served or not.", autocompletion=completion.stores)] = "",
    out: Annotated[
        Optional[Path],  # noqa: UP045 - typer reads the annotation at run time
        typer.Option(metavar="FILE", help="Write the report to this new file, which only you can read.")] = None,
    log: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="FILE", help="A log of tailrace serve, text or JSON: its last 200 events are reported.")
    ] = None,
    config: Config = None,
) -> None:
    """Collect what an issue needs: versions, settings, files, disks and the last events.

    The report is JSON. It has no value of a secret, no path of a key file, no user, and no body, property or key of a
    message. Paths, addresses and, in events, names of topics and groups are in it: read it before you send it.

    If a server has STORE open, the report has the settings and figures of that server. Nothing in STORE changes.
    """
    from tailrace.doctor.report import events_report, store_report  # noqa: PLC0415 - NumPy and kernels
    from tailrace.env.filesystem import OsFileSystem  # noqa: PLC0415

    root = os.path.abspath(store) if store else ""
    if out is not None and root and Path(out).resolve().is_relative_to(Path(root).resolve()):
        raise usage(f"--out {out} is below STORE, where nothing changes")
    with errors():
        found: dict[str, Any] = {"versions": _versions()}
        values: dict[str, str] = {}
        if config is not None:
            found["settings"], values = _settings(config)
        if root:
            found["store"] = store_report(OsFileSystem(), root, _store_config(values))
            if found["store"]["state"].get("lockedByProcess"):
                found["server"] = _server(root)
        if log is not None:
            found["log"] = events_report(OsFileSystem(), str(log))
        _write(out, f"{json.dumps(found, indent=2)}\n".encode())


def _write(out: Path | None, data: bytes) -> None:
    """Print the report, or write it to a new file. Raises FileExistsError for a name that exists."""
    if out is None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    number = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(number, "wb") as file:
            file.write(data)
    except OSError:
        os.unlink(out)
        raise


def _versions() -> dict[str, Any]:
    from tailrace.kernels import compiled  # noqa: PLC0415 - loads all of them

    system = dict(line for line in _os_release().items() if line[0] in {"ID", "VERSION_ID"})
    return {
        "tailrace": __version__, "kernels": "compiled" if compiled() else "interpreted",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": platform.platform(), "distribution": " ".join(system.values()), "libc": " ".join(platform.libc_ver()),
        "processors": os.cpu_count(), "packages": _packages(), "java": _java()}


def _os_release() -> dict[str, str]:
    try:
        return platform.freedesktop_os_release()
    except OSError:
        return {}


def _packages() -> dict[str, str]:
    """Return the versions of the installed packages that Tailrace or one of its extras needs."""
    found = {}
    try:
        needed = metadata.requires("tailrace") or []
    except metadata.PackageNotFoundError:
        return {}
    for requirement in needed:
        name = _NAME.match(requirement)
        if name is None or _EXTRAS_OF_DEVELOPERS.search(requirement):
            continue
        try:
            found[name[0]] = metadata.version(name[0])
        except metadata.PackageNotFoundError:
            continue
    return dict(sorted(found.items()))


def _java() -> str:
    """Return the version of Java that Spark would use; empty without one."""
    home = os.environ.get("JAVA_HOME", "")
    java = f"{home}/bin/java" if home else shutil.which("java")
    if not java:
        return ""
    try:
        text = subprocess.run(
            [java, "-version"], capture_output=True, text=True, errors="replace", timeout=_JAVA_S, check=False).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"not run: {type(error).__name__}"
    named = _JAVA.search(text)
    return named[1] if named is not None else "unknown"


def _settings(config: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the settings of a file as the report shows them, and their values."""
    from tailrace.cli.problems import read_config_file  # noqa: PLC0415
    from tailrace.doctor.report import problem_of  # noqa: PLC0415
    from tailrace.doctor.report_settings import shown_settings  # noqa: PLC0415
    from tailrace.errors import ConfigError  # noqa: PLC0415

    found: dict[str, Any] = {"file": str(config)}
    try:
        values, _ = read_config_file(config)
    except ConfigError as error:
        return {**found, "problem": problem_of(error)}, {}
    found["values"] = shown_settings(values)
    if (more := values.get("tls.config.file", "").strip()) and Path(more).is_file():
        try:
            found["tlsValues"] = shown_settings(read_config_file(Path(more))[0])
        except (ConfigError, OSError) as error:
            found["tlsValues"] = {"problem": problem_of(error)}
    return found, values


def _store_config(values: dict[str, str]) -> Any:
    """Return the settings of the store; the default ones if a value cannot work."""
    from tailrace.config import StoreConfig  # noqa: PLC0415
    from tailrace.errors import ConfigError  # noqa: PLC0415

    try:
        return StoreConfig.from_properties(values)
    except ConfigError:
        return StoreConfig()


def _server(root: str) -> dict[str, Any]:
    """Return the settings that differ from the default, and the figures, of the server that has a directory open."""
    from tailrace.cli.admin import ask  # noqa: PLC0415
    from tailrace.cli.broker_status import FIGURES  # noqa: PLC0415
    from tailrace.cli.contexts import target_of  # noqa: PLC0415
    from tailrace.doctor.report import problem_of  # noqa: PLC0415
    from tailrace.doctor.report_settings import shown_settings  # noqa: PLC0415
    from tailrace.errors import StoreError  # noqa: PLC0415
    from tailrace.properties import parse_properties  # noqa: PLC0415

    async def question(admin: AdminClient) -> tuple[str, dict[str, str]]:
        [settings] = (await admin.broker_settings()).values()
        [figures] = (await admin.runtime_info()).values()
        return settings, figures

    try:
        settings, figures = ask(target_of([root]), question)
        return {
            "settings": shown_settings(parse_properties(settings), changed_only=True),
            "figures": {name: str(figures[name]).strip()[:100] for name in FIGURES if name in figures}}
    except (StoreError, OSError, ValueError) as error:
        return {"problem": problem_of(error)}
