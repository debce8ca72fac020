"""A counted right to read the bytes of a mapped file (RocketMQ's ReferenceResource.hold)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, final

if TYPE_CHECKING:
    from tailrace.segments.mapped_file import MappedFile

__all__ = ["Lease"]


@final
class Lease:
    """Bytes of a file. ``buffer`` is valid until the lease ends; use the lease as a context manager."""

    __slots__ = ("_file", "buffer")

    def __init__(self, file: MappedFile, buffer: memoryview) -> None:
        self._file: MappedFile | None = file
        self.buffer = buffer

    def release(self) -> None:
        """End the lease; a second call does nothing."""
        file = self._file
        if file is not None:
            self._file = None
            self.buffer.release()
            file.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
