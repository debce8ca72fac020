"""Makes what tests of several folders share importable."""

import importlib.util
import pathlib
import signal
import sys

import pytest

_spec = importlib.util.spec_from_file_location(
    "segmented_store", pathlib.Path(__file__).with_name("segmented_store.py"))
_module = importlib.util.module_from_spec(_spec)
sys.modules["segmented_store"] = _module
_spec.loader.exec_module(_module)


@pytest.fixture(autouse=True, scope="session")
def hang_up_is_not_ignored():
    """Commands inherit a SIGHUP that is ignored, as under nohup; tests are about an ordinary start."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
