"""Fixtures that the tests of this folder share."""

import importlib.util
import pathlib

import pytest


def loaded(name):
    """A module of this folder, which no import finds in this layout."""
    path = pathlib.Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def killed():
    """The module ``killed_files``."""
    return loaded("killed_files")


@pytest.fixture(scope="session")
def one_process():
    """A session that runs tasks in this process."""
    return loaded("one_process").Session()
