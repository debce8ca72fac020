"""PySpark's daemon for workers, without a traceback for each task whose rows Spark has stopped to read.

After ``show`` or ``limit`` Spark closes the connection to a worker that still writes. The worker ends, and PySpark's
daemon prints the traceback of its BrokenPipeError. Spark starts this module as ``spark.python.daemon.module``.
"""

from __future__ import annotations

import sys
import traceback
from types import SimpleNamespace
from typing import Final

from pyspark import daemon

__all__ = ["QUIET_TRACEBACK"]


def _print_exc() -> None:
    if not isinstance(sys.exc_info()[1], BrokenPipeError):
        traceback.print_exc()


QUIET_TRACEBACK: Final = SimpleNamespace(print_exc=_print_exc, format_exc=traceback.format_exc)
"""What the daemon uses of the module ``traceback``."""

if __name__ == "__main__":
    vars(daemon)["traceback"] = QUIET_TRACEBACK
    daemon.manager()
