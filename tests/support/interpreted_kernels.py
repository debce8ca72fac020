"""Kernels as they run without a compiler, beside the compiled ones."""

import importlib.util
import pathlib
from types import ModuleType

from tailrace import kernels

ROOM = pathlib.Path(kernels.__file__).parent.parent


def interpreted(name: str, room: str = "kernels") -> ModuleType:
    """Return the source of a kernel, or of another compiled module, as a module of its own."""
    spec = importlib.util.spec_from_file_location(f"interpreted_{name}", ROOM / room / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
