"""The former names of the brokers for frameworks."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

NAMES = {
    "dramatiq": {"RocketmqBroker"},
    "faststream": {
        "RocketmqBroker", "RocketmqMessage", "RocketmqResponse", "RocketmqRouter", "TestRocketmqBroker"}}
MISSING = """
import sys
sys.modules[sys.argv[1]] = None
try:
    import tailrace.frameworks.{0}
except ImportError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize("name", NAMES)
def test_the_former_names_are_those_of_the_package(name):
    package = pytest.importorskip(f"tailrace_{name}", reason=f"tailrace-{name} is not installed")
    former = importlib.import_module(f"tailrace.frameworks.{name}")
    assert {*former.__all__} == {*package.__all__} == NAMES[name]
    assert all(getattr(former, one) is getattr(package, one) for one in NAMES[name])


@pytest.mark.parametrize("missing", ["{}", "tailrace_{}"])
@pytest.mark.parametrize("name", NAMES)
def test_without_the_package_the_error_names_it(name, missing):
    shown = subprocess.run(
        [sys.executable, "-c", MISSING.format(name), missing.format(name)], capture_output=True, text=True,
        check=True).stdout
    assert shown.startswith("MissingPackageError")
    assert f"pip install . ./packages/tailrace-{name} in the checkout" in shown
