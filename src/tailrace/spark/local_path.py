"""Conversion of the paths that Spark passes to paths of this machine."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

__all__ = ["local_path"]


def local_path(name: str, text: str, problems: list[str]) -> str:
    """Return the path of a ``file:`` URI, as Spark's catalog writes one; any other text is returned unchanged.

    Adds a problem for a URI of another file system, because stores are read as local files.
    """
    scheme, separator, rest = text.partition(":")
    if not separator or "/" in scheme or not rest.startswith("/"):
        return text
    if scheme != "file" or (rest.startswith("//") and not rest.startswith("///")):
        problems.append(
            f"{name}={text} is not a local path: use one that the driver and all executors can reach")
        return text
    path = rest.removeprefix("//")
    return path if Path(path).exists() else unquote(path)
