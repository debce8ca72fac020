"""The file of ``tailrace sql --out``."""

import errno
import os

import pytest

from tailrace.cli.sql import _new_file


def write(out, error=None):
    with _new_file(out) as part:
        part.write_text("half")
        if error is not None:
            raise error


def test_a_full_disk_is_an_error_that_names_the_file_and_leaves_no_part(tmp_path):
    out = tmp_path / "rows.csv"
    # As Arrow and a text file say it: without a name.
    error = OSError(errno.ENOSPC, f"Error writing: {os.strerror(errno.ENOSPC)}")
    with pytest.raises(OSError, match=f"No space left on device: '{out}'"):
        write(out, error)
    assert list(tmp_path.iterdir()) == []


def test_an_error_that_has_a_name_keeps_it(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"rows\.csv\.part"):
        write(tmp_path / "gone" / "rows.csv")
