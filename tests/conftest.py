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
def signals_are_not_ignored():
    """Commands inherit ignored signals, as under nohup or of a shell's job; tests start them as usual."""
    hang_up = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    interrupt = signal.getsignal(signal.SIGINT)
    if interrupt is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGHUP, hang_up)
    signal.signal(signal.SIGINT, interrupt)
