"""Use an installed Tailrace as a newcomer does: serve a directory, send a message, consume it.

Run it with the Python that Tailrace is installed for. ``--compiled`` makes interpreted kernels a failure.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

COMMAND = Path(sysconfig.get_path("scripts")) / "tailrace"


def main() -> int:
    """Return the exit code."""
    version = subprocess.run([COMMAND, "--version"], capture_output=True, text=True, check=True).stdout
    print(version.strip())
    if "--compiled" in sys.argv and "(kernels compiled" not in version:
        return 1
    with tempfile.TemporaryDirectory() as scratch:
        server = subprocess.Popen(
            [COMMAND, "serve", f"{scratch}/store", "--listen", "127.0.0.1:0", "--namesrv-listen", "127.0.0.1:0",
             "--http", "127.0.0.1:0", "--log-level", "warning"], stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        try:
            fields = dict(part.split("=", 1) for part in server.stdout.readline().split()[1:])
            where = ("--namesrv", fields["namesrv"], "--topic", "orders")
            subprocess.run([COMMAND, "send", *where, "42 apples"], check=True, stdout=subprocess.DEVNULL)
            tailed = subprocess.run(
                [COMMAND, "tail", *where, "--from", "first", "--max", "1"], check=True, capture_output=True, text=True,
                timeout=60)
        finally:
            server.terminate()
            code = server.wait(30)
    body = json.loads(tailed.stdout)["body"]
    print(f"serve, send and tail work: {body}; serve exits {code}")
    return 0 if (body, code) == ("42 apples", 0) else 1


if __name__ == "__main__":
    sys.exit(main())
