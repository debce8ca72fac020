"""The ``tailrace`` command: argument parsing and printing, nothing else."""

from __future__ import annotations

import os
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command; exit codes: 0 fine, 1 refused, 2 usage, 3 something is not installed."""
    if not __debug__:
        print("tailrace: does not run under python -O: its assertions guard data", file=sys.stderr)
        raise SystemExit(3)
    # NumPy starts a thread a processor for linear algebra, which nothing here does; each spins for
    # a tenth of a second, just when a store is opened.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from tailrace.cli.app import run  # noqa: PLC0415 - after the check, and only when it is run

    run()
