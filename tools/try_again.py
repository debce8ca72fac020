"""Run the tests that failed in the last run once more, alone, if all of them use other programs or real sockets.

Such a test can fail on a busy machine because another program, or the network, was late. Alone it has the machine for
itself. Tests of bytes, of the store and of crashes get no other try, so a run in which one of them failed has failed.
"""

import json
import subprocess
import sys
from pathlib import Path

CACHE = Path(".pytest_cache/v/cache/lastfailed")
FOLDERS = (
    "tests/browser/", "tests/integration/", "tests/interop/", "tests/spark/",
    "tests/unit/broker/", "tests/unit/client/", "tests/unit/proxy/", "tests/unit/remoting/")
TESTS_MAX = 10
"""More failures than these are no accident."""


def main() -> int:
    """Return the exit code of the second run, 1 without one."""
    failed = list(json.loads(CACHE.read_text())) if CACHE.exists() else []
    if not failed or len(failed) > TESTS_MAX or not all(name.startswith(FOLDERS) for name in failed):
        return 1
    print(f"{len(failed)} tests failed that use other programs or sockets; each is run once more, alone:", flush=True)
    for name in failed:
        print(f"  {name}", flush=True)
    return subprocess.run([sys.executable, "-m", "pytest", "-p", "no:xdist", *failed], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
