"""Files of fixed size that together are one stream of bytes. Knows positions, not messages."""

from __future__ import annotations

from tailrace.segments.lease import Lease
from tailrace.segments.mapped_file import MappedFile
from tailrace.segments.mapped_file_queue import MappedFileQueue
from tailrace.segments.open_files import OpenFiles

__all__ = ["Lease", "MappedFile", "MappedFileQueue", "OpenFiles"]
