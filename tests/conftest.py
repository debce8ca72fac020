"""For all tests."""

import os
import pathlib
import signal

import pytest


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


def pytest_collection_modifyitems(items):
    """Run a test once more when it fails and it starts other programs: a port or a second may be taken.

    The summary of the run lists it, and ``make test`` tries it again alone (tools/run_tests.py). Tests of bytes, of
    one process and of crashes have one try.
    """
    here = pathlib.Path(__file__).parent
    for item in items:
        if item.path.relative_to(here).parts[0] in {"browser", "integration", "interop", "spark"}:
            item.add_marker(pytest.mark.flaky(reruns=1))
        if item.get_closest_marker("long") is not None and not os.environ.get("TAILRACE_LONG"):
            item.add_marker(pytest.mark.skip(reason="takes minutes, another case is run here: make long"))
