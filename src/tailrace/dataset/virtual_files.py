"""A file system whose files are parts of a dataset: each is made, in Arrow's file format, when Arrow opens it.

C++ code of Arrow, such as that of a join or of ``Scanner.from_dataset``, reads fragments as files and does not call the
methods of a subclass of Dataset. With these files it gets the same rows, although without reading columns only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyarrow import fs

__all__ = ["files_of"]


class _Files(fs.FileSystemHandler):
    """Read-only files that ``table_of`` makes of a path."""

    def __init__(self, table_of: Callable[[str], pa.Table]) -> None:
        self._table_of = table_of

    def get_type_name(self) -> str:
        return "tailrace"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[Any]:
        return [fs.FileInfo(path, fs.FileType.File) for path in paths]

    def open_input_file(self, path: str) -> pa.NativeFile:
        sink = pa.BufferOutputStream()
        table = self._table_of(path)
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        return pa.BufferReader(sink.getvalue())

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return self.open_input_file(path)

    def _refuse(self, *_: object) -> Any:
        raise NotImplementedError("a dataset of messages is read only, and its parts are not files")

    get_file_info_selector = create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = _refuse
    delete_file = move = copy_file = open_output_stream = open_append_stream = _refuse


def files_of(table_of: Callable[[str], pa.Table]) -> fs.PyFileSystem:
    """Return a file system in which the file ``path`` has the rows of ``table_of(path)``."""
    return fs.PyFileSystem(_Files(table_of))
