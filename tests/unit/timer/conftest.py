"""Makes the simulated world importable."""

import importlib.util
import pathlib
import sys

_spec = importlib.util.spec_from_file_location(
    "timer_world", pathlib.Path(__file__).with_name("world.py"))
_module = importlib.util.module_from_spec(_spec)
sys.modules["timer_world"] = _module
_spec.loader.exec_module(_module)
