"""The examples with users and TLS in deploy/: their command lines and settings start a server that only users reach.

Paths of a container are replaced by a directory of the test, and addresses by loopback addresses with any free port.
Containers themselves are not run.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import commands
import pytest
from page_runner import REASONS

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
TAILRACE = [sys.executable, "-m", "tailrace.cli"]
pytestmark = [
    pytest.mark.integration, pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("openssl"), reason="openssl is not installed")]


def entrypoint():
    text = (DEPLOY / "Containerfile").read_text().replace("\\\n", "")
    return json.loads(re.search(r"^ENTRYPOINT (.*)$", text, re.MULTILINE)[1])


def compose():
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    service = yaml.safe_load((DEPLOY / "secure" / "compose.yaml").read_text())["services"]["tailrace"]
    return [*entrypoint(), *service["command"]], (DEPLOY / "secure" / "broker.conf").read_text()


def kubernetes():
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    config, *_, broker = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    [container] = broker["spec"]["template"]["spec"]["containers"]
    return [*entrypoint(), *container["args"]], config["data"]["broker.conf"]


def systemd():
    text = (DEPLOY / "secure" / "tailrace.conf").read_text()
    return re.findall(r"^ExecStart=(\S.*)$", text, re.MULTILINE)[0].split(), (DEPLOY / "secure/broker.conf").read_text()


def here(text, path, secrets):
    """Replace what a container, a pod or a unit has by what a test has."""
    for old, new in (
        ("/etc/tailrace/tls/", f"{secrets}/"), ("/etc/tailrace-secrets/", f"{secrets}/"),
        ("/etc/tailrace/root.password", f"{secrets}/root.password"), ("${CREDENTIALS_DIRECTORY}", str(secrets)),
        ("/etc/tailrace/broker.conf", f"{path}/broker.conf"),
        ("/var/lib/tailrace/broker.conf", f"{path}/broker.conf"), ("/var/lib/tailrace", f"{path}/data"),
        ("brokerIP1=tailrace", "brokerIP1=127.0.0.1"),
    ):
        text = text.replace(old, new)
    return re.sub(r"(0\.0\.0\.0|127\.0\.0\.1):\d+", "127.0.0.1:0", text).replace("0.0.0.0", "127.0.0.1")


@contextlib.contextmanager
def started(path, secrets, command, settings):
    """Yield the addresses of the server, by name."""
    (path / "broker.conf").write_text(here(settings, path, secrets) + "listenPort=0\n")
    (path / "data").mkdir()
    words = [here(word, path, secrets) for word in command[2:]]
    with (path / "log").open("w") as log:
        process = subprocess.Popen(
            [*TAILRACE, "serve", *words, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, stderr=log, text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"})
        try:
            line = process.stdout.readline()
            assert line.startswith("ready "), (path / "log").read_text()
            found = dict(word.split("=", 1) for word in line.split()[1:])
            found["http"] = re.search(r"http=(\S+:\d+)", (path / "log").read_text())[1]
            yield found
        finally:
            process.terminate()
            process.wait(60)
            process.stdout.close()


def run(*words, **environment):
    return commands.run(*words, env=environment)


def probe():
    spec = importlib.util.spec_from_file_location("ready", DEPLOY / "ready.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("example", [compose, kubernetes, systemd])
def test_the_example_serves_users_over_tls_and_nobody_else(example, tmp_path):
    secrets = tmp_path / "secrets"
    made = subprocess.run(
        [DEPLOY / "secure" / "certificates.sh", secrets, "localhost", "127.0.0.1"], capture_output=True, text=True,
        timeout=60, check=False)
    assert made.returncode == 0, made.stderr
    password = (secrets / "root.password").read_text().strip()
    credentials = tmp_path / "root.credentials"
    credentials.write_text(f"accessKey: root\nsecretKey: {password}\n")
    credentials.chmod(0o600)
    trusts = {"TAILRACE_TLS_TRUST_CERT_PATH": str(secrets / "ca.pem")}
    with started(tmp_path, secrets, *example()) as addresses:
        send = ["send", "--namesrv", addresses["namesrv"], "--topic", "orders", "42 apples"]
        known = run("--credentials", str(credentials), *send[:1], "--tls", *send[1:], **trusts)
        assert known.returncode == 0, known.stderr
        stranger = run(*send[:1], "--tls", *send[1:], **trusts)
        assert "username cannot be null" in stranger.stderr
        assert run("--credentials", str(credentials), *send).returncode != 0, "a connection without TLS was served"
        for name in ("broker", "namesrv", "http"):
            assert is_closed_without_tls(addresses[name]), name
        assert probe().ready(int(addresses["http"].rpartition(":")[2])) == 200
        assert probe().alive(int(addresses["http"].rpartition(":")[2]))
    assert password not in (tmp_path / "log").read_text()


def is_closed_without_tls(address):
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), 20) as plain:
        plain.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        try:
            return b"HTTP/1.1 200" not in plain.recv(4096)
        except ConnectionError:
            return True


def test_the_image_alone_serves_nothing_beyond_its_container(tmp_path):
    with started(tmp_path, tmp_path, entrypoint(), "") as addresses:
        assert {addresses[name].rpartition(":")[0] for name in ("broker", "namesrv", "http")} == {"127.0.0.1"}
        assert probe().ready(int(addresses["http"].rpartition(":")[2])) == 200


def test_the_certificate_is_of_the_names_that_were_given(tmp_path):
    script = DEPLOY / "secure" / "certificates.sh"
    for names in (["broker.example.com", "10.0.0.7", "::1"], ["other.example.com"]):
        subprocess.run([script, tmp_path / "tls", *names], check=True, capture_output=True, timeout=60)
    shown = subprocess.run(
        ["openssl", "x509", "-in", tmp_path / "tls/broker.pem", "-noout", "-ext", "subjectAltName"],
        capture_output=True, text=True, check=True, timeout=20).stdout
    assert "DNS:broker.example.com, IP Address:10.0.0.7, IP Address:0:0:0:0:0:0:0:1" in shown
    assert "other" not in shown, "existing files are kept"
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "tls").iterdir()}
    assert {name for name, mode in modes.items() if mode & 0o077} == {"ca.pem", "broker.pem"}
    context = ssl.create_default_context(cafile=str(tmp_path / "tls/ca.pem"))
    assert context.get_ca_certs()
    assert subprocess.run([script, tmp_path / "tls"], check=False, capture_output=True, timeout=20).returncode == 2


def commands_in_comments(path):
    text = path.read_text().replace("\\\n#", "")
    return re.findall(r"^#   (\S.*)$", text, re.MULTILINE)


def test_commands_in_comments_run_in_a_checkout(tmp_path):
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    files = [path for path in DEPLOY.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    found = {path.name: commands_in_comments(path) for path in files if commands_in_comments(path)}
    assert {"Containerfile", "kubernetes.yaml", "compose.yaml", "tailrace.conf"} <= found.keys()
    for name, typed in found.items():
        for command in typed:
            if re.search(rf"{REASONS['containers']}|{REASONS['Kubernetes']}|{REASONS['root']}", command):
                continue  # needs a container engine, a cluster or root
            assert command.startswith("deploy/"), f"{name}: {command}"
            done = subprocess.run(
                ["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 0, done.stderr
    assert (tmp_path / "secrets" / "broker.pem").exists()
    assert (tmp_path / "deploy" / "secure" / "secrets" / "broker.pem").exists()


def test_the_probe_fails_without_a_server():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert probe().ready(port) == 0
    assert not probe().alive(port)
