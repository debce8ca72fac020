"""Small files of Tailrace's own: one JSON object, replaced as a whole.

The first member, ``checksum``, has the CRC-32 of the object without it. A file of an earlier release has no checksum.
"""

from __future__ import annotations

from typing import Annotated, Final, Generic, TypeVar, final

import msgspec
from isal import isal_zlib

from tailrace.env.filesystem import FileSystem
from tailrace.env.whole_files import read_if_there, replace_file
from tailrace.errors import ChecksumMismatchError, CorruptionError

__all__ = ["Number", "StateFile"]

T = TypeVar("T")
Number = Annotated[int, msgspec.Meta(ge=0)]
"""Type of a member: a whole number that is not negative."""
_START: Final = b'{"checksum":"'
_WIDTH: Final = len(b'{"checksum":"01234567",')


@final
class StateFile(Generic[T]):
    """A file with a value of the type ``kind``, which msgspec encodes as an object with at least one member.

    At most ``most`` bytes are read; a longer file is damaged. With None the whole file is read.
    """

    def __init__(self, file_system: FileSystem, path: str, kind: type[T], most: int | None = 65_536) -> None:
        self._file_system = file_system
        self._path = path
        self._kind = kind
        self._most = most

    def read(self) -> T | None:
        """Return the value, None without a file. Raises CorruptionError or OSError."""
        data = read_if_there(self._file_system, self._path, self._most)
        if data is None:
            return None
        if data.startswith(_START):
            start, data = data[:_WIDTH], b"{" + data[_WIDTH:]
            if start != _checksum(data):
                raise ChecksumMismatchError("its checksum does not match", path=self._path)
        try:
            return msgspec.json.decode(data, type=self._kind)
        except ValueError as error:
            raise CorruptionError(f"it is not of the form that Tailrace writes: {error}", path=self._path) from error

    def write(self, value: T) -> None:
        """Replace the file; durable on return. Raises OSError or FatalStorageError; the old file is then unchanged."""
        self._file_system.makedirs(self._path.rpartition("/")[0])
        data = msgspec.json.encode(value)
        replace_file(self._file_system, self._path, _checksum(data) + data[1:])

    def remove(self) -> None:
        """Remove the file; durable on return. Raises OSError or FatalStorageError."""
        self._file_system.remove(self._path)
        self._file_system.sync_dir(self._path.rpartition("/")[0])


def _checksum(data: bytes) -> bytes:
    return b'{"checksum":"%08x",' % isal_zlib.crc32(data)
