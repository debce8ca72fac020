"""`tailrace serve --grpc`: the settings of TLS cover its port as all others."""

import re
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("rocketmq.grpc_protocol")
pytest.importorskip("cryptography", reason="certificates of tests are made with it")
import grpc
from certificates import Ca
from grpc_client import Code, GrpcClient, named
from rocketmq.grpc_protocol import service_pb2 as service
from served_process import served_process

pytestmark = [pytest.mark.slow, pytest.mark.integration]
WAIT_S = 30
OPTIONS = ("--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0")


@pytest.fixture
def ca(tmp_path):
    return Ca(tmp_path)


def tls_settings(files, **more):
    return {"tls.server.mode": "enforcing", "tls.server.certPath": files[0], "tls.server.keyPath": files[1], **more}


def ports_of(ours):
    """Return the port of each listener, by its name."""
    found = {name: int(ours.words[name].rpartition(":")[2]) for name in ("broker", "namesrv", "grpc")}
    found["http"] = int(ours.log().partition("http=127.0.0.1:")[2].split()[0])
    return found


def connected(port, ca, files=None, **versions):
    """Return an encrypted connection."""
    context = ssl.create_default_context(cafile=ca.path)
    context.set_alpn_protocols(["h2"])
    for name, value in versions.items():
        setattr(context, name, value)
    if files:
        context.load_cert_chain(*files)
    return context.wrap_socket(socket.create_connection(("127.0.0.1", port), WAIT_S), server_hostname="localhost")


def routed(port, credentials=None):
    """Return the code of an answer over gRPC."""
    with GrpcClient(f"localhost:{port}", credentials=credentials) as client:
        return client.call("QueryRoute", service.QueryRouteRequest(topic=named("orders")), timeout=10).status.code


def ready(port, ca, files=None):
    """Return the answer to a probe; empty if the connection is closed."""
    try:
        with connected(port, ca, files) as connection:
            connection.sendall(b"GET /ready HTTP/1.1\r\n\r\n")
            return connection.recv(1000)
    except (ssl.SSLError, ConnectionResetError):
        return b""


def trusting(ca, files=None):
    read = [Path(path).read_bytes() for path in (ca.path, *(reversed(files) if files else ()))]
    return grpc.ssl_channel_credentials(*read)


def test_enforcing_serves_grpc_with_tls_only_and_requires_certificates_of_clients(ca, tmp_path):
    files = ca.make("server", password="open sesame")
    own, foreign = ca.make("client"), Ca(tmp_path, "Other CA").make("foreign")
    settings = tls_settings(files, **{
        "tls.server.keyPassword": "open sesame", "tls.server.need.client.auth": "require",
        "tls.server.authClient": "true", "tls.server.trustCertPath": ca.path})
    with served_process(tmp_path, settings, *OPTIONS) as ours:
        ports = ports_of(ours)
        port = ports["grpc"]
        assert ready(ports["http"], ca, own).startswith(b"HTTP/1.1 200")
        assert ready(ports["http"], ca) == b""
        assert routed(port, trusting(ca, own)) == Code.TOPIC_NOT_FOUND
        for credentials in (None, trusting(ca), trusting(ca, foreign)):
            with pytest.raises(grpc.RpcError) as caught:
                routed(port, credentials)
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        assert "sesame" not in ours.log()


def shown(port, ca):
    with connected(port, ca) as connection:
        return connection.getpeercert()["subject"][0][0][1]


@pytest.mark.parametrize("own", [False, True])
def test_changed_files_are_used_by_new_connections_of_every_port(own, ca, tmp_path):
    paths = str(tmp_path / "used.pem"), str(tmp_path / "used.key")

    def put(files):
        for source, path in zip(files, paths, strict=False):
            Path(path).write_bytes(Path(source).read_bytes())

    put(ca.make("first"))
    settings, options = tls_settings(paths), OPTIONS
    if own:
        settings, options = {}, (*OPTIONS, "--grpc-tls", paths[0], "--grpc-tls-key", paths[1])
    with served_process(tmp_path, settings, *options) as ours:
        ports = ports_of(ours)
        used = {"grpc": ports["grpc"]} if own else ports
        with GrpcClient(f"localhost:{ports['grpc']}", credentials=trusting(ca)) as client:
            def ask():
                return client.call("QueryRoute", service.QueryRouteRequest(topic=named("orders"))).status.code

            assert ask() == Code.TOPIC_NOT_FOUND
            assert {shown(port, ca) for port in used.values()} == {"first"}
            put(ca.make("second")[:1])  # with the key of the first
            until(lambda: "certificate cannot be loaded again" in ours.log())
            assert {shown(port, ca) for port in used.values()} == {"first"}
            put(ca.make("third"))
            until(lambda: {shown(port, ca) for port in used.values()} == {"third"})
            assert ask() == Code.TOPIC_NOT_FOUND  # the open connection continues
        assert routed(ports["grpc"], trusting(ca)) == Code.TOPIC_NOT_FOUND


def until(done):
    end = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_metrics_say_when_each_certificate_expires(ca, tmp_path):
    server, old = ca.make("server"), ca.make("old", expired=True)
    options = (*OPTIONS, "--grpc-tls", old[0], "--grpc-tls-key", old[1])
    with served_process(tmp_path, tls_settings(server), *options) as ours:
        with connected(ports_of(ours)["http"], ca) as connection:
            connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            text = b"".join(iter(lambda: connection.recv(1 << 16), b"")).decode()
        left = {line.partition('certificate="')[2].partition('"')[0]: float(line.rpartition(" ")[2])
                for line in text.splitlines() if line.startswith("tailrace_tls_certificate_expires_seconds{")}
        assert left == {"tls.server.certPath": pytest.approx(86_400, abs=120), "--grpc-tls": pytest.approx(
            -2 * 86_400, abs=120)}
        assert f"certificate has expired setting=--grpc-tls file={old[0]} hours=48" in ours.log()


@pytest.mark.parametrize(("settings", "options", "words"), [
    ({}, (), "tls.server.mode=permissive serves connections with and without TLS on one port"),
    ({"tls.server.mode": "enforcing"}, ("--grpc-tls", "none"), "contradicts tls.server.mode=enforcing"),
    ({"tls.server.mode": "enforcing", "tls.server.need.client.auth": "optional", "tls.server.authClient": "true"}, (),
     "tls.server.need.client.auth=optional cannot be honoured"),
    ({"tls.server.mode": "enforcing", "tls.server.keyPath": "/missing"}, (), "/missing"),
    ({"tls.server.mode": "enforcing", "tls.protocols": "TLSv1.3"}, (), "tls.protocols"),
])
def test_what_grpc_cannot_honour_stops_the_start(settings, options, words, ca, tmp_path):
    files = ca.make("server")
    lines = {"tls.server.certPath": files[0], "tls.server.keyPath": files[1], **settings}
    (tmp_path / "serve.conf").write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    done = subprocess.run(
        [sys.executable, "-m", "tailrace.cli", "serve", tmp_path / "store", "--listen", "127.0.0.1:0",
         "--namesrv-listen", "none", "--config", tmp_path / "serve.conf", "--grpc", "127.0.0.1:0", *options],
        capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 78, done.stderr
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "store").exists()


def test_old_versions_compression_and_renegotiation_are_refused_on_every_port(ca, tmp_path):
    with served_process(tmp_path, tls_settings(ca.make("server")), *OPTIONS) as ours:
        for name, port in ports_of(ours).items():
            with connected(port, ca) as connection:
                assert (connection.version(), connection.compression()) == ("TLSv1.3", None), name
            with connected(port, ca, maximum_version=ssl.TLSVersion.TLSv1_2) as connection:
                assert (connection.version(), connection.compression()) == ("TLSv1.2", None), name
            for flag in ("-tls1_1", "-tls1"):
                assert "Cipher is (NONE)" in openssl(port, flag, "-cipher", "DEFAULT:@SECLEVEL=0"), (name, flag)
            # The first frame of the server may meet the new handshake, which then is neither accepted nor refused.
            text = next(text for text in (renegotiated(port) for _ in range(10)) if "unexpected record" not in text)
            assert "Cipher is (NONE)" not in text, name
            assert re.search(r"RENEGOTIATING\n.*(no.renegotiation|alert|unexpected eof)", text, re.DOTALL), (name, text)


def openssl(port, *options):
    """Return what `openssl s_client` prints about a connection."""
    done = subprocess.run(
        ["openssl", "s_client", "-connect", f"127.0.0.1:{port}", *options], stdin=subprocess.DEVNULL,
        capture_output=True, text=True, errors="replace", timeout=WAIT_S, check=False)
    return done.stdout + done.stderr


def renegotiated(port):
    """Return the same when the client asks for a new handshake; the program ends when the server refuses it."""
    with subprocess.Popen(
        ["openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-tls1_2", "-alpn", "h2"], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
    ) as client:
        client.stdin.write("R\n")
        client.stdin.flush()
        end = threading.Timer(WAIT_S, client.kill)
        end.start()
        try:
            return client.stdout.read()
        finally:
            end.cancel()
