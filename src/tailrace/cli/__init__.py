"""The ``tailrace`` command: argument parsing and printing, nothing else."""

from __future__ import annotations

import os
import sys

from tailrace.cli.importing import quick_imports
from tailrace.cli.signals import stop_at_signals

__all__ = ["main"]


def main() -> None:
    """Run the command. Exit codes: 0 done, 1 refused or failed, 2 wrong arguments, 3 a package is not installed.

    ``serve`` ends with 78 if a setting is refused. SIGINT, SIGTERM and SIGHUP end the command after it has closed
    everything that is open, see `signals`; while its modules are loaded as well.
    """
    if not __debug__:
        print("tailrace: does not run under python -O: its assertions guard data", file=sys.stderr)
        raise SystemExit(3)
    _open_standard_streams()
    stop_at_signals()
    # NumPy would start a thread for each processor, for linear algebra, which is not used here. Each thread spins
    # for a tenth of a second, at the time when a store is opened.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with quick_imports():
        from tailrace.cli.app import run  # noqa: PLC0415 - after the check, and only when it is run

    run()


def _open_standard_streams() -> None:
    """Open stdin, stdout and stderr on /dev/null if they are closed, such as by ``2>&-``.

    Otherwise a file of the store would get such a descriptor number, and printed text would be written into it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the least free number, which is this one
