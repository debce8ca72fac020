"""versitygw, a second server of S3 on loopback, which Go builds once below ~/.cache and compares with its database."""

import contextlib
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time

import pytest
from seaweedfs import _free_ports

VERSION = "v1.8.0"
_PLACE = pathlib.Path("~/.cache/tailrace-versitygw").expanduser() / VERSION


def _program():
    there = _PLACE / "versitygw"
    if not there.exists():
        if not shutil.which("go"):
            pytest.skip("Go is not installed")
        subprocess.run(
            ["go", "install", f"github.com/versity/versitygw/cmd/versitygw@{VERSION}"], check=True, timeout=1800,
            env={**os.environ, "GOBIN": str(_PLACE), "CGO_ENABLED": "0"})
    return there


@contextlib.contextmanager
def versitygw():
    """Yield the endpoint of a server that has the bucket ``lake`` and the access key ``key``."""
    program, (port,) = _program(), _free_ports(1)
    with tempfile.TemporaryDirectory(prefix="versity-") as place:
        pathlib.Path(place, "files", "lake").mkdir(parents=True)
        with open(f"{place}/log", "wb") as log:
            process = subprocess.Popen(
                [program, "--port", f"127.0.0.1:{port}", "posix", f"{place}/files"], stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "ROOT_ACCESS_KEY": "key", "ROOT_SECRET_KEY": "secret-of-the-test"})
        try:
            until = time.monotonic() + 30
            while time.monotonic() < until and process.poll() is None:
                with contextlib.suppress(OSError):
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                time.sleep(0.02)
            else:
                raise AssertionError(f"versitygw does not start:\n{pathlib.Path(place, 'log').read_text()[-3000:]}")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait()
