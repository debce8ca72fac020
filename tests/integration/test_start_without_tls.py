"""`tailrace serve` with users on addresses of other machines: every port uses TLS, or the start is refused."""

import contextlib
import socket
import ssl
import subprocess
import sys

import pytest

pytest.importorskip("rocketmq.grpc_protocol")
pytest.importorskip("cryptography", reason="certificates of tests are made with it")
from certificates import Ca

pytestmark = [pytest.mark.slow, pytest.mark.integration]
REFUSED = 78
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
"""How a connection of HTTP/2 begins; the bytes are not a frame of remoting, either."""
ALERT = 21
REMOTE = {
    "--listen": ("--listen", "0.0.0.0:0"), "--namesrv-listen": ("--namesrv-listen", "0.0.0.0:0"),
    "--http": ("--http", "0.0.0.0:0", "--allow-remote"), "--grpc": ("--grpc", "0.0.0.0:0"),
    "bindAddress": ("bindAddress=0.0.0.0",), "IPv6": ("--listen", "[::]:0")}


@pytest.fixture(scope="module")
def ca(tmp_path_factory):
    return Ca(tmp_path_factory.mktemp("ca"))


@pytest.fixture
def files(ca, tmp_path):
    cert, key = ca.make("server")
    return {"tls.server.certPath": cert, "tls.server.keyPath": key}


class Start:
    """A start of the server; it has ended, or serves at the addresses of ``words``."""

    def __init__(self, process, line, log):
        self.process, self._log = process, log
        self.words = dict(word.split("=", 1) for word in line.split()[1:] if "=" in word)
        self.code = None if line.startswith("ready ") else process.wait(60)

    @property
    def text(self):
        return self._log.read_text()


@contextlib.contextmanager
def started(tmp_path, *options, settings=(), user=True):
    (tmp_path / "root.password").write_text("root-secret-of-sixteen\n")
    lines = [option for option in options if option.startswith("bind")]
    options = [option for option in options if option not in lines]
    (tmp_path / "serve.conf").write_text("\n".join(
        [*lines, *(f"{name}={value}" for name, value in dict(settings).items()), ""]))
    if "--listen" not in options and not lines:
        options += ["--listen", "127.0.0.1:0"]
    elif lines:
        (tmp_path / "serve.conf").write_text((tmp_path / "serve.conf").read_text() + f"listenPort={free_port()}\n")
    if "--namesrv-listen" not in options:
        options += ["--namesrv-listen", "127.0.0.1:0"]
    if user:
        options += ["--user", "root", "--password-file", str(tmp_path / "root.password")]
    log = tmp_path / "serve.log"
    with open(log, "w") as out, subprocess.Popen(
        [sys.executable, "-m", "tailrace.cli", "serve", str(tmp_path / "store"), "--config",
         str(tmp_path / "serve.conf"), *options], stdout=subprocess.PIPE, stderr=out, text=True,
    ) as process:
        try:
            yield Start(process, process.stdout.readline(), log)
        finally:
            process.terminate()
            process.wait(60)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.mark.parametrize("mode", ["disabled", "permissive"])
@pytest.mark.parametrize("port", sorted(REMOTE))
def test_users_on_a_plain_remote_address_are_refused(port, mode, files, tmp_path):
    settings = {"tls.server.mode": mode}
    if mode == "permissive" and port != "--grpc":
        settings.update(files)
    with started(tmp_path, *REMOTE[port], settings=settings) as start:
        assert start.code == REFUSED
    assert "0.0.0.0:" in start.text or "[::]:" in start.text
    assert "--allow-plain" in start.text
    assert "tls.server.mode=enforcing" in start.text
    assert len(start.text.splitlines()) == 1
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("port", ["--grpc", "--http", "bindAddress"])
def test_allow_plain_starts_and_warns_about_each_address(port, tmp_path):
    with started(tmp_path, *REMOTE[port], "--allow-plain") as start:
        assert start.code is None
    warned = [line for line in start.text.splitlines() if "connections with users are not encrypted" in line]
    assert len(warned) == 1
    assert "WARNING" in warned[0]


def test_enforced_tls_starts_and_closes_plain_connections_on_every_port(files, ca, tmp_path):
    options = [option for port in ("--listen", "--namesrv-listen", "--http", "--grpc") for option in REMOTE[port]]
    with started(tmp_path, *options, settings={**files, "tls.server.mode": "enforcing"}) as start:
        assert start.code is None, start.text
        assert "not encrypted" not in start.text
        ports = {name: start.words[name].rpartition(":")[2] for name in ("broker", "namesrv", "grpc")}
        ports["http"] = start.text.partition("http=0.0.0.0:")[2].split()[0]
        trusting = ssl.create_default_context(cafile=ca.path)
        for name, port in ports.items():
            with socket.create_connection(("127.0.0.1", int(port)), timeout=20) as plain:
                plain.sendall(b"GET /ready HTTP/1.1\r\n\r\n" if name == "http" else PREFACE)
                assert not is_served(plain), name
            with (socket.create_connection(("127.0.0.1", int(port)), timeout=20) as raw,
                  trusting.wrap_socket(raw, server_hostname="localhost") as encrypted):
                assert encrypted.version() == "TLSv1.3"


def is_served(connection):
    """Return whether the server answers in plain text; an alert of TLS or the end of the connection is no answer."""
    try:
        found = connection.recv(1000)
    except ConnectionResetError:
        return False
    return bool(found) and found[0] != ALERT


def test_without_users_or_on_this_machine_nothing_changes(tmp_path):
    with started(tmp_path, *REMOTE["--listen"], "--allow-remote", user=False) as start:
        assert start.code is None
        assert "not encrypted" not in start.text


def test_plain_ports_of_this_machine_need_no_option(tmp_path):
    with started(tmp_path, "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0") as start:
        assert start.code is None
        assert "not encrypted" not in start.text


def test_the_certificate_of_grpc_alone_is_enough_for_its_own_port(tmp_path):
    with started(tmp_path, *REMOTE["--grpc"], "--grpc-tls", "self-signed") as start:
        assert start.code is None
        assert "the certificate is made by the server" in start.text
