"""All tests: as they are, then those of bytes once more with interpreted kernels. ``make test`` runs them.

The second part runs although the first failed, and the last lines say how both ended.

Tests that failed are run once more, alone, if all of them use other programs or real sockets. Such a test can fail on
a busy machine because another program, or the network, was late. Alone it has the machine for itself. Tests of bytes,
of the store and of crashes get no other try, so a run in which one of them failed has failed.

A worker takes one file after the other in the order of tests/conftest.py, which has the longest ones first. By itself
pytest-xdist starts the files with the most tests first, and the longest ones have few.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")
WITH_OTHER_PROGRAMS = (
    "tests/browser/", "tests/integration/", "tests/interop/", "tests/spark/",
    "tests/unit/broker/", "tests/unit/client/", "tests/unit/proxy/", "tests/unit/remoting/")
BYTES = [f"tests/unit/{room}" for room in ("formats", "kernels", "spark", "store", "timer")]
WORKERS = ("-n", str((os.cpu_count() or 1) + 1), "--dist", "loadfile", "--no-loadscope-reorder")
"""One more than processors, because tests with other programs wait for a third of their time."""
NOT_INHERITED = {"PYTHONDONTWRITEBYTECODE"}
"""Tests start hundreds of processes. Each of them would compile all it imports, half of the time of a short one."""
ALWAYS = {"OPENBLAS_NUM_THREADS": "1"}
"""NumPy would start a thread for each processor in each process, which spins for a while. Nothing here uses it."""
TRIES_MAX = 10
"""More failures than these are no accident."""


def main() -> int:
    """Return 0 if both parts passed, else 1."""
    LAST_FAILED.unlink(missing_ok=True)
    compiled = everything()
    interpreted = part([*WORKERS, *BYTES], {"TAILRACE_INTERPRETED": "1"})
    print(f"\nall tests: {ending(compiled)}\ntests of bytes with interpreted kernels: {ending(interpreted)}")
    return int(bool(compiled or interpreted))


def everything() -> list[str]:
    """Run all tests; return those that failed, and failed again where that is allowed."""
    failed = part([*WORKERS])
    if not failed or len(failed) > TRIES_MAX or not all(name.startswith(WITH_OTHER_PROGRAMS) for name in failed):
        return failed
    print(f"{len(failed)} tests failed that use other programs or sockets; each is run once more, alone:", flush=True)
    for name in failed:
        print(f"  {name}", flush=True)
    return part(["-p", "no:xdist", *failed])


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
    sys.exit(main())
