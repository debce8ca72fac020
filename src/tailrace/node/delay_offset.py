"""Offsets up to which the delay levels are delivered: ``delayOffset.json``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, final

from tailrace.env.clock import Clock
from tailrace.env.filesystem import FileSystem
from tailrace.formats.filenames import is_number
from tailrace.node.config_manager import ConfigManager, Owned

__all__ = ["DelayOffsetManager"]

VERSION_STEP: Final = 200
"""Updates between two data versions (delayOffsetUpdateVersionStep)."""


@final
class DelayOffsetManager(ConfigManager[int, int]):
    """Next offsets by level. The file is written as a Java broker writes it, numbers as keys."""

    owned = Owned.BY_LOCK

    def __init__(
        self, file_system: FileSystem, config_dir: str, clock: Clock, before_write: Callable[[], None] | None = None
    ) -> None:
        super().__init__(file_system, config_dir, "delayOffset.json", before_write=before_write)
        self._clock = clock
        self._updates = 0

    def query(self, level: int) -> int:
        """Return the next offset of a level, or -1 if it is unknown."""
        return self._table.get(level, -1)

    def update(self, level: int, offset: int) -> None:
        """Remember the next offset of a level."""
        self._table[level] = offset
        self._dirty = True
        self._updates += 1
        if self._updates % VERSION_STEP == 0:
            self.data_version.next(self._clock.now_ms())

    def encode(self, shown: Callable[[int, int], int] = lambda _, offset: offset) -> bytes:
        """Return the text of the file in compact form. ``shown`` returns what is shown for a level and its offset."""
        value = self.to_json()
        value["offsetTable"] = {level: shown(int(level), offset) for level, offset in value["offsetTable"].items()}
        return self.dumps(value).translate(None, b"\t\n")

    @staticmethod
    def dumps(value: Any) -> bytes:
        """Return the text of the file."""
        version = "".join(f'\t\t"{name}":{number},\n' for name, number in sorted(value["dataVersion"].items()))
        entries = ",\n".join(f"\t\t{level}:{offset}" for level, offset in value["offsetTable"].items())
        table = f"{{\n{entries}\n\t}}" if entries else "{}"
        return f'{{\n\t"dataVersion":{{\n{version[:-2]}\n\t}},\n\t"offsetTable":{table}\n}}'.encode()

    def _decode(self, value: dict[str, Any]) -> None:
        found = value.pop("offsetTable", None)
        self._table = {
            int(level): int(offset) for level, offset in (found or {}).items()
            if is_number(str(level)) and isinstance(offset, int)
        }

    def _encode(self, table: dict[int, int]) -> dict[str, Any]:
        return {"offsetTable": {str(level): offset for level, offset in sorted(table.items())}}
