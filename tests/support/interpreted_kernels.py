"""Kernels as they run without a compiler, beside the compiled ones."""

import importlib.util
import pathlib
from types import ModuleType

from tailrace import kernels

ROOM = pathlib.Path(kernels.__file__).parent


def interpreted(name: str) -> ModuleType:
    """Return the source of a kernel as a module of its own."""
    spec = importlib.util.spec_from_file_location(f"interpreted_{name}", ROOM / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
