"""The options of the gRPC endpoint: what stops the start, in one line."""

import commands
import pytest

from tailrace.cli import serve_grpc
from tailrace.cli.serve_grpc import GrpcPlace, grpc_place
from tailrace.cli.serve_settings import places_of, take_settings
from tailrace.env.clock import SystemClock
from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import ConfigError, MissingPackageError
from tailrace.remoting.tls_reload import TlsReload
from tailrace.tls_settings import TlsConfig

HERE = ("127.0.0.1", 0)


def test_a_port_of_the_file_is_on_the_address_of_the_broker():
    assert places_of(take_settings({}).broker).grpc is None
    config = take_settings({"grpcServerPort": "8081", "bindAddress": "0.0.0.0"}).broker
    assert places_of(config).grpc == ("0.0.0.0", 8081)
    assert places_of(config, grpc="127.0.0.1:0").grpc == ("127.0.0.1", 0)
    assert places_of(config, grpc="0.0.0.0:0").open_host(authenticated=False)[0] == "0.0.0.0"
    with pytest.raises(ValueError, match="--grpc 8081 is not HOST:PORT"):
        places_of(config, grpc="8081")


def test_options_that_do_not_fit_together_are_refused(tmp_path):
    pytest.importorskip("rocketmq.grpc_protocol")
    assert grpc_place(None, "", "", TlsConfig()) is None
    for listen, certificate, key in (
        (None, "self-signed", ""), (HERE, "self-signed", "key"), (HERE, "none", "key"), (HERE, "file", ""),
        (HERE, "", "key"), (None, "none", ""),
    ):
        with pytest.raises(ValueError, match="--grpc-tls"):
            grpc_place(listen, certificate, key, TlsConfig())
    place = grpc_place(HERE, str(tmp_path / "missing"), str(tmp_path / "missing"), TlsConfig())
    with pytest.raises(ConfigError, match=r"--grpc-tls .*missing: No such file"):
        place.credentials(TlsReload(OsFileSystem(), SystemClock()))


PAIR = {"cert_path": "/c", "key_path": "/k"}
CLIENTS = {"auth_client": True, "need_client_auth": "require"}
OWN = ("/own", "/own.key")


@pytest.mark.parametrize(("settings", "options", "place"), [
    ({}, ("", ""), {}),
    ({"mode": "disabled"}, ("", ""), {}),
    ({"mode": "disabled", **PAIR}, ("", ""), {}),
    ({"mode": "disabled", **PAIR}, OWN, {"cert_path": "/own", "key_path": "/own.key", "own": True}),
    ({}, ("none", ""), {}),
    ({**PAIR}, ("none", ""), {}),
    ({}, ("self-signed", ""), {"self_signed": "--grpc-tls self-signed"}),
    ({**PAIR}, OWN, {"cert_path": "/own", "key_path": "/own.key", "own": True}),
    ({"mode": "enforcing", **PAIR}, ("", ""), PAIR),
    ({"mode": "enforcing", **PAIR, "key_password": "p"}, ("", ""), {**PAIR, "key_password": "p"}),
    ({"mode": "enforcing", **PAIR, "key_password": "p"}, OWN,
     {"cert_path": "/own", "key_path": "/own.key", "own": True}),
    ({"mode": "enforcing", "test_mode": True}, ("", ""), {"self_signed": "tls.test.mode.enable"}),
    ({"mode": "enforcing", **PAIR, **CLIENTS, "trust_cert_path": "/t"}, ("", ""), {**PAIR, "trust_path": "/t"}),
    ({"mode": "enforcing", **PAIR, **CLIENTS, "trust_cert_path": "/t"}, OWN,
     {"cert_path": "/own", "key_path": "/own.key", "own": True, "trust_path": "/t"}),
    ({**PAIR, **CLIENTS, "trust_cert_path": "/t"}, ("self-signed", ""),
     {"self_signed": "--grpc-tls self-signed", "trust_path": "/t"}),
    ({"mode": "enforcing", **PAIR, "need_client_auth": "optional"}, ("", ""), PAIR),
    ({"mode": "enforcing", **PAIR, "protocols": "TLSv1.3,TLSv1.2"}, ("", ""), PAIR),
])
def test_the_settings_of_tls_cover_grpc(settings, options, place):
    pytest.importorskip("rocketmq.grpc_protocol")
    made = grpc_place(HERE, *options, TlsConfig(**settings))
    assert made == GrpcPlace(HERE, **place)
    assert made.encrypted == bool(place)


@pytest.mark.parametrize(("settings", "options", "words"), [
    ({**PAIR}, ("", ""), "tls.server.mode=permissive serves connections with and without TLS on one port"),
    ({"test_mode": True}, ("", ""), "--grpc-tls none for connections without TLS only"),
    ({"mode": "enforcing", **PAIR}, ("none", ""), "--grpc-tls none contradicts tls.server.mode=enforcing"),
    ({"mode": "enforcing", **PAIR, **CLIENTS, "need_client_auth": "optional"}, ("", ""), "auth=optional cannot be"),
    ({"mode": "enforcing", **PAIR, **CLIENTS}, ("", ""), "needs tls.server.trustCertPath"),
    ({"mode": "enforcing", **PAIR, **CLIENTS, "trust_cert_path": "/t", "crl_path": "/r"}, OWN, "tls.server.crlPath"),
    ({"mode": "enforcing", **PAIR, "protocols": "TLSv1.3"}, ("", ""), "tls.protocols=TLSv1.3 cannot be honoured"),
    ({"mode": "enforcing", **PAIR, "ciphers": "TLS_AES_128_GCM_SHA256"}, ("self-signed", ""), "tls.ciphers cannot"),
])
def test_a_setting_that_grpc_cannot_honour_stops_the_start(settings, options, words):
    pytest.importorskip("rocketmq.grpc_protocol")
    with pytest.raises(ConfigError) as caught:
        grpc_place(HERE, *options, TlsConfig(**settings))
    assert words in str(caught.value)


def test_every_setting_of_tls_has_a_decision_for_grpc():
    """A new setting is taken over, refused or of other connections; it must be put into one of these lists."""
    taken = {"mode", "test_mode", "cert_path", "key_path", "key_password", "need_client_auth", "auth_client",
             "trust_cert_path"}
    refused = {"ciphers", "protocols", "crl_path"}
    others = {"config_file", "handshake_timeout_seconds", "handshakes_max", "handshakes_per_address"}
    outgoing = {name for name in TlsConfig.__dataclass_fields__ if name.startswith("client_")}
    assert taken | refused | others | outgoing == set(TlsConfig.__dataclass_fields__)


def test_the_missing_extra_is_named(monkeypatch):
    monkeypatch.setattr(serve_grpc, "_PACKAGES", ("no_such_package.part",))
    with pytest.raises(MissingPackageError, match=r"no_such_package.part.*pip install '\.\[grpc\]' in the checkout"):
        grpc_place(HERE, "", "", TlsConfig())


@pytest.mark.slow
def test_mistakes_end_the_start_with_one_line(tmp_path):
    pytest.importorskip("rocketmq.grpc_protocol")
    (tmp_path / "text.pem").write_text("no certificate")
    for options, words in (
        (["--grpc", "0.0.0.0:0"], "--allow-remote"),
        (["--grpc", "127.0.0.1:0", "--grpc-tls", str(tmp_path / "text.pem"), "--grpc-tls-key",
          str(tmp_path / "text.pem")], "cannot be read as PEM"),
        (["--grpc", "127.0.0.1:0", "--grpc-tls", str(tmp_path / "text.pem"), "--grpc-tls-key",
          str(tmp_path / "missing.pem")], "missing.pem: No such file"),
        (["--grpc", "192.0.2.1:0", "--allow-remote"], "cannot listen on --grpc 192.0.2.1:0"),
    ):
        done = commands.run(
            "serve", tmp_path / "store", "--listen", "127.0.0.1:0", "--namesrv-listen", "127.0.0.1:0", *options)
        assert done.returncode != 0
        assert words in done.stderr
        assert "Traceback" not in done.stderr
