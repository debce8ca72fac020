"""versitygw as a server of S3 on loopback, a second opinion beside SeaweedFS (``make object-store``, with Go)."""

import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import pytest
from seaweedfs import free_ports

_START_S = 60


@contextlib.contextmanager
def versitygw():
    """Yield the endpoint of a server that has the bucket ``lake`` and the access key ``key``; skip without Go."""
    program = pathlib.Path(sys.executable).with_name("versitygw")
    if not program.exists():
        if shutil.which("go") is None:
            pytest.skip("versitygw is built with Go, which is not installed")
        pytest.fail("make object-store builds versitygw")
    (port,) = free_ports(1)
    endpoint = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(prefix="versitygw-") as place, open(f"{place}/log", "wb") as log:
        pathlib.Path(place, "root/lake").mkdir(parents=True)  # a directory is a bucket
        pathlib.Path(place, "attributes").mkdir()  # of objects; not every file system has those of files
        process = subprocess.Popen(
            [program, "--port", f"127.0.0.1:{port}", "--quiet", "posix", "--sidecar", f"{place}/attributes",
             f"{place}/root"],
            stdout=log, stderr=subprocess.STDOUT, cwd=place, env={
                **os.environ, "HOME": place, "ROOT_ACCESS_KEY": "key", "ROOT_SECRET_KEY": "secret-of-the-test"})
        try:
            _wait(process, endpoint, place)
            yield endpoint
        finally:
            process.kill()
            process.wait()


def _wait(process, endpoint, place):
    until = time.monotonic() + _START_S
    while time.monotonic() < until and process.poll() is None:
        try:
            urllib.request.urlopen(endpoint, timeout=1).close()
        except urllib.error.HTTPError:
            return  # it answers
        except OSError:
            time.sleep(0.02)
            continue
        return
    raise AssertionError(f"versitygw does not start:\n{pathlib.Path(place, 'log').read_text()[-3000:]}")
