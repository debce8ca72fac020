"""Makes the simulated place of a store importable."""

import importlib.util
import pathlib
import sys

_spec = importlib.util.spec_from_file_location(
    "retention_place", pathlib.Path(__file__).with_name("retention_place.py"))
_module = importlib.util.module_from_spec(_spec)
sys.modules["retention_place"] = _module
_spec.loader.exec_module(_module)
