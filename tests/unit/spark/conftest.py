"""What tests of this folder share."""

import importlib.util
import pathlib

import pytest


@pytest.fixture(scope="session")
def killed():
    """The module ``killed_files``, which no import finds in this layout."""
    path = pathlib.Path(__file__).with_name("killed_files.py")
    spec = importlib.util.spec_from_file_location("killed_files", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
