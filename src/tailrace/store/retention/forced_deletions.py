"""Files that were deleted before they expired: ``tailrace/forced-deletions.jsonl``, one JSON object per line.

The file is for operators and is not needed to open a store. The newest lines are kept. If the disk has no
room for a line, only the log has it.
"""

from __future__ import annotations

from typing import Any, Final, final

import orjson

from tailrace import events
from tailrace.env.filesystem import FileSystem
from tailrace.env.whole_files import json_lines, overwrite_file, read_hint
from tailrace.formats.filenames import FORCED_DELETIONS
from tailrace.logs import get_logger

__all__ = ["ForcedDeletions"]

_log = get_logger(__name__)
_MOST_LINES: Final = 200


@final
class ForcedDeletions:
    """The list of one store directory. There is one writer."""

    def __init__(self, file_system: FileSystem, root: str) -> None:
        self._file_system = file_system
        self._path = f"{root}/{FORCED_DELETIONS}"

    def read(self) -> list[dict[str, Any]]:
        """Return every line that can be read, oldest first."""
        return json_lines(read_hint(self._file_system, self._path))

    def note(self, entry: dict[str, Any]) -> None:
        """Add a line; remove the oldest if there are too many."""
        try:
            known = (read_hint(self._file_system, self._path) or b"").splitlines()
            lines = [*known[1 - _MOST_LINES :], orjson.dumps(entry)]
            self._file_system.makedirs(self._path.rpartition("/")[0])
            overwrite_file(self._file_system, self._path, b"\n".join(lines) + b"\n", sync=False)
        except OSError as error:
            events.A_FORCED_DELETION_IS_NOT_ON_RECORD.log(_log, file=self._path, cause=error)
