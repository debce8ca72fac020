"""A counted right to read the bytes of a mapped file (RocketMQ's ReferenceResource.hold)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, final

if TYPE_CHECKING:
    from tailrace.segments.mapped_file import MappedFile

__all__ = ["Lease"]


@final
class Lease:
    """``buffer`` is valid until the lease ends; use it as a context manager."""

    __slots__ = ("_file", "buffer", "is_mapped", "start")

    def __init__(self, file: MappedFile | None, buffer: memoryview, start: int, *, is_mapped: bool) -> None:
        self._file = file
        self.buffer = buffer
        self.start = start
        """Position of ``buffer[0]`` in the stream."""
        self.is_mapped = is_mapped
        """Whether reading it may wait for the disk."""

    def release(self) -> None:
        """Give the bytes back; a second call does nothing."""
        if self._file is not None:
            self.buffer.release()
            self._file.release()
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
