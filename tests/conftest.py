"""Makes what tests of several folders share importable."""

import importlib.util
import pathlib
import sys

_spec = importlib.util.spec_from_file_location(
    "segmented_store", pathlib.Path(__file__).with_name("segmented_store.py"))
_module = importlib.util.module_from_spec(_spec)
sys.modules["segmented_store"] = _module
_spec.loader.exec_module(_module)
