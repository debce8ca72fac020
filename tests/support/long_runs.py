"""Whether `make long` runs: tests of every case then take all of their cases, else some."""

from __future__ import annotations

import os
from typing import Final

__all__ = ["LONG"]

LONG: Final = bool(os.environ.get("TAILRACE_LONG"))
