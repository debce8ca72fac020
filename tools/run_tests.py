"""The tests: ``make test`` as they are, then those of bytes with interpreted kernels; ``make long`` with ``--long``.

The second part runs although the first failed, and the last lines say how both ended and how many tests ran twice.

Tests that failed are run once more, alone, if all of them use other programs or real sockets. Such a test can fail on
a busy machine because another program, or the network, was late. Alone it has the machine for itself. Unit tests and
tests of bytes, of the store and of crashes get no other try, because what passes then is a race to find. With
``--no-reruns``, as for a release, no test gets one.

A worker takes its own unit tests and then one file after the other of the rest (tests/support/file_scheduling.py), in
the order of tests/conftest.py, which has the longest ones first. By itself pytest-xdist starts the files with the most
tests first, and the longest ones have few.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")
WITH_OTHER_PROGRAMS = ("packages/", "tests/browser/", "tests/integration/", "tests/interop/", "tests/spark/")
BYTES = ["tests/unit/formats", "tests/unit/kernels"]
"""What holds kernels to the formats: in every run. tests/property compares both forms of a kernel in the first part."""
MORE_BYTES = ["tests/unit/spark", "tests/unit/store", "tests/unit/timer"]
"""Rooms that use kernels: only the long run has their tests with interpreted kernels."""
WORKERS = (
    "-n", os.environ.get("WORKERS") or str((os.cpu_count() or 1) + 1), "--dist", "loadfile", "--no-loadscope-reorder")
"""One more than processors, because some tests wait. With two more, all collect more and nothing ends earlier."""
NOT_INHERITED = {"PYTHONDONTWRITEBYTECODE"}
"""Tests start hundreds of processes. Each of them would compile all it imports, half of the time of a short one."""
ALWAYS = {"OPENBLAS_NUM_THREADS": "1"}
"""NumPy would start a thread for each processor in each process, which spins for a while. Nothing here uses it."""
TRIES_MAX = 10
"""More failures than these are no accident."""


def main(options: list[str]) -> int:
    """Run the parts of ``make test``, or with ``--long`` those of ``make long``; return 0 if both passed, else 1."""
    LAST_FAILED.unlink(missing_ok=True)
    long = "--long" in options
    first = part([*WORKERS, "-m", "long"], {"TAILRACE_LONG": "1"}) if long else part([*WORKERS])
    again = [] if "--no-reruns" in options else tried_again(first)
    if again:
        print(f"{len(again)} tests failed that use other programs or sockets; each is run once more, alone:")
        print("".join(f"  {name}\n" for name in again), end="", flush=True)
        first = part(["-p", "no:xdist", *again], {"TAILRACE_LONG": "1"})
    interpreted = part([*WORKERS, *(MORE_BYTES if long else BYTES)], {"TAILRACE_INTERPRETED": "1"})
    print(f"\n{'long' if long else 'all'} tests: {ending(first)}\ntests that ran twice: {len(again)}")
    print(f"tests of bytes with interpreted kernels: {ending(interpreted)}")
    return int(bool(first or interpreted))


def tried_again(failed: list[str]) -> list[str]:
    """Return the failed tests if each may be run once more, else none."""
    may = len(failed) <= TRIES_MAX and all(name.startswith(WITH_OTHER_PROGRAMS) for name in failed)
    return failed if may else []


def part(arguments: list[str], environment: Mapping[str, str] = {}) -> list[str]:
    """Run pytest; return the names of the failed tests, or its exit code as the only name if it named none."""
    inherited = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments], env={**inherited, **ALWAYS, **environment}, check=False)
    if done.returncode == 0:
        return []
    named = list(json.loads(LAST_FAILED.read_text())) if done.returncode == 1 and LAST_FAILED.exists() else []
    LAST_FAILED.unlink(missing_ok=True)
    return named or [f"pytest ended with exit code {done.returncode}"]


def ending(failed: list[str]) -> str:
    """Return how a part ended, with the failed tests."""
    return "".join(["failed", *(f"\n  {name}" for name in failed)]) if failed else "passed"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
