"""A shell on a pseudo-terminal in the folder of a test, and a served broker with one message."""

import os
import sys

import pytest
from page_shell import Shell

from tailrace.pytest_plugin import TailraceBroker


@pytest.fixture
def environment():
    """The variables of the shell: the commands of this installation, on a terminal of 80 columns."""
    return {**os.environ, "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}", "COLUMNS": "80"}


@pytest.fixture
def shell(tmp_path, environment):
    made = Shell(tmp_path, environment, terminal=True)
    yield made
    made.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    served = TailraceBroker(tmp_path_factory.mktemp("walk") / "store")
    served.start()
    with served.client() as client:
        client.send("orders", b"42 apples", keys=["42"])
    yield served
    served.kill()
