"""Offsets up to which the delay levels are delivered: ``delayOffset.json``."""

from __future__ import annotations

from typing import Any, Final, final

from tailrace.env.clock import Clock
from tailrace.env.filesystem import FileSystem
from tailrace.formats.filenames import is_number
from tailrace.node.config_manager import ConfigManager, Owned, write_config

__all__ = ["DelayOffsetManager"]

VERSION_STEP: Final = 200
"""Updates between two data versions (delayOffsetUpdateVersionStep)."""


@final
class DelayOffsetManager(ConfigManager[int, int]):
    """Next offsets by level. The file is written as a Java broker writes it, numbers as keys."""

    owned = Owned.BY_LOCK

    def __init__(self, file_system: FileSystem, config_dir: str, clock: Clock) -> None:
        super().__init__(file_system, config_dir, "delayOffset.json")
        self._clock = clock
        self._updates = 0
        self.dirty = False

    def query(self, level: int) -> int:
        """Return the next offset of a level, or -1 if it is unknown."""
        return self._table.get(level, -1)

    def update(self, level: int, offset: int) -> None:
        """Remember the next offset of a level."""
        self._table[level] = offset
        self.dirty = True
        self._updates += 1
        if self._updates % VERSION_STEP == 0:
            self.data_version.next(self._clock.now_ms())

    def encode(self, *, pretty: bool = True) -> bytes:
        """Return the text of the file; without ``pretty`` in compact form."""
        version = "".join(
            f'\t\t"{name}":{number},\n' for name, number in sorted(self.data_version.to_json().items()))
        entries = ",\n".join(f"\t\t{level}:{offset}" for level, offset in sorted(self._table.items()))
        table = f"{{\n{entries}\n\t}}" if entries else "{}"
        text = f'{{\n\t"dataVersion":{{\n{version[:-2]}\n\t}},\n\t"offsetTable":{table}\n}}'
        return text.encode() if pretty else text.translate({9: None, 10: None}).encode()

    def persist(self) -> None:
        """Write the table; durable on return."""
        self.write(self.encode())

    def write(self, text: bytes) -> None:
        """Write a text that ``encode`` returned earlier; durable on return."""
        with self._lock:
            write_config(self._file_system, self._config_dir, self._name, text)

    def _decode(self, value: dict[str, Any]) -> None:
        found = value.pop("offsetTable", None)
        self._table = {
            int(level): int(offset) for level, offset in (found or {}).items()
            if is_number(str(level)) and isinstance(offset, int)
        }

    def _encode(self, table: dict[int, int]) -> dict[str, Any]:
        return {"offsetTable": {str(level): offset for level, offset in sorted(table.items())}}
