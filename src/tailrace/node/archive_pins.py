"""Pins of the archive: what is not archived yet is kept.

An archive is a directory with a file ``_manifests/<20 digits>.json`` for each CommitLog file that it
has, written last; the file counts as archived when its member ``verified`` is true. Nothing else of
the archive is looked at, and nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, final

from tailrace.env.filesystem import FileSystem
from tailrace.env.whole_files import read_if_there
from tailrace.formats import fastjson, filenames
from tailrace.store.retention import Pin, PinKind

__all__ = ["ArchivePins"]

_MANIFESTS: Final = "_manifests"


@final
class ArchivePins:
    """A pin source: the first of ``segments`` that has no verified manifest.

    ``segments`` gives the positions of the CommitLog files, oldest first. What was archived once
    stays so.
    """

    def __init__(
        self, file_system: FileSystem, directory: str, segments: Callable[[], Iterable[int]]
    ) -> None:
        self._file_system = file_system
        self._directory = directory
        self._segments = segments
        self._archived: set[int] = set()

    def __call__(self) -> Iterator[Pin]:
        """The pin, or none when everything is archived."""
        for offset in self._segments():
            if offset in self._archived:
                continue
            if why := self._why_not(offset):
                yield Pin(PinKind.ARCHIVE, offset, f"{self._directory} {why}")
                return
            self._archived.add(offset)

    def _why_not(self, offset: int) -> str:
        """Why a file does not count as archived; empty when it does."""
        name = f"{filenames.offset_to_file_name(offset)}.json"
        path = f"{self._directory}/{_MANIFESTS}/{name}"
        try:
            text = read_if_there(self._file_system, path)
            if text is None:
                return f"has no manifest {name}"
            value = fastjson.loads(text)
        except (OSError, ValueError) as error:
            return f"has no manifest {name} that can be read: {error}"
        verified = isinstance(value, dict) and value.get("verified") is True
        return "" if verified else f"has not verified {name}"
