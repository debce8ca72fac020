"""Releases of RocketMQ: of the reference that tests run, and of the brokers that wrote the fixtures.

The line in ``tests/interop/reference/RELEASE`` chooses the reference. The fixtures keep the release in their names.
"""

import pathlib

__all__ = ["CLEAN", "CRASHED", "FIXTURES", "REFERENCE"]

_INTEROP = pathlib.Path(__file__).parents[1] / "interop"
REFERENCE = (_INTEROP / "reference" / "RELEASE").read_text().strip()
FIXTURES = _INTEROP / "fixtures"
[_packed] = FIXTURES.glob("clean-*.tar.xz")
CLEAN = _packed.name.removesuffix(".tar.xz")
"""Name of the directory that was closed, packed as ``CLEAN.tar.xz``."""
CRASHED = CLEAN.replace("clean", "crashed", 1)
"""Name of the directory of the killed broker."""
