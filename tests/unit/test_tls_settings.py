"""TLS settings: names of the reference, their other names, and the file that tls.config.file names."""

from __future__ import annotations

import pytest

from tailrace.errors import ConfigError
from tailrace.remoting.tls import TlsOptions, outgoing_tls
from tailrace.tls_settings import DEFAULT_TLS_FILE, TLS_ALIASES, TLS_NAMES, TlsConfig, tls_config_of

PAIR = "tls.server.certPath=/c\ntls.server.keyPath=/k\n"


def of(values, files=None):
    return tls_config_of(values, (files or {}).get)


def test_without_settings_there_is_no_certificate_and_plain_clients_are_served():
    made = of({"listenPort": "1"})
    assert made == TlsConfig()
    assert (made.mode, made.cert_path, made.test_mode, made.client_uses_tls) == ("permissive", "", False, False)


def test_each_other_name_is_the_setting():
    values = {"tlsServerMode": "Enforcing", "tlsServerCertPath": "/c", "tlsServerKeyPath": "/k", "useTLS": "false",
              "tlsServerKeyPassword": "p", "tlsServerNeedClientAuth": "REQUIRE", "tlsServerAuthClient": "true",
              "tlsServerTrustCertPath": "/t", "tlsTestModeEnable": "false"}
    made = of(values)
    assert made == of({TLS_ALIASES[name]: value for name, value in values.items()})
    assert (made.mode, made.need_client_auth, made.key_password, made.client_uses_tls) == (
        "enforcing", "require", "p", False)
    assert set(TLS_ALIASES.values()) <= TLS_NAMES


def test_two_names_of_one_setting_must_agree():
    assert of({"useTLS": "true", "tls.enable": "true"}).client_uses_tls
    with pytest.raises(ConfigError, match="have different values"):
        of({"tlsEnable": "true", "tls.enable": "false"})


def test_the_file_of_tls_settings_wins():
    made = of({"tls.server.certPath": "/other", "tls.config.file": "/f"}, {"/f": PAIR + "tls.test.mode.enable=false\n"})
    assert (made.cert_path, made.key_path) == ("/c", "/k")
    assert of({}, {DEFAULT_TLS_FILE: PAIR}).cert_path == "/c"


@pytest.mark.parametrize(("values", "files", "text"), [
    ({"tls.config.file": "/missing"}, {}, "/missing cannot be read"),
    ({"tls.config.file": "/f"}, {"/f": PAIR + "tls.server.mode=enforcing\n"}, "only counts in the file of --config"),
    ({"tls.server.mode": "on"}, {}, "tls.server.mode"),
    ({"tls.server.mode": "enforcing"}, {}, "no client could connect"),
    ({"tls.server.certPath": "/c"}, {}, "set both, or remove both"),
    ({"tls.test.mode.enable": "maybe"}, {}, "tls.test.mode.enable"),
    ({"tlsHandshakesMax": "0"}, {}, "tlsHandshakesMax"),
    ({"tls.config.file": "/f"}, {"/f": PAIR + "tls.server.needClientAuth=require\n"},
     "/f has tls.server.needClientAuth, which is not a setting of TLS; is tls.server.need.client.auth meant?"),
    ({"tls.config.file": "/f"}, {"/f": PAIR + "listenPort=1\n"}, "/f has listenPort, which is not a setting of TLS"),
    ({}, {DEFAULT_TLS_FILE: PAIR + "tls.server.authclient=true\n"}, "is tls.server.authClient meant?"),
    ({"tls.server.authclient": "true"}, {}, "has no setting tls.server.authclient; is tls.server.authClient meant?"),
    ({"tlsServerNeedClientauth": "require"}, {}, "is tlsServerNeedClientAuth meant?"),
    ({"tls.Server.mode": "enforcing"}, {}, "is tls.server.mode meant?"),
    ({"TLS.SERVER.MODE": "enforcing"}, {}, "has no setting TLS.SERVER.MODE"),
])
def test_mistakes_are_named(values, files, text):
    with pytest.raises(ConfigError) as caught:
        of(values, files)
    assert text in str(caught.value)


def test_a_password_is_in_no_message():
    with pytest.raises(ConfigError) as caught:
        of({"tls.server.keyPassword": "open\tsesame"})
    assert "sesame" not in str(caught.value)
    assert "tls.server.keyPassword" in str(caught.value)


def test_connections_of_the_broker_use_tls_if_its_own_port_does():
    pair = {"tls.server.certPath": "/c", "tls.server.keyPath": "/k"}
    assert of({"tls.server.mode": "enforcing", **pair}).client_uses_tls
    assert not of({"tls.server.mode": "enforcing", "tls.enable": "false", **pair}).client_uses_tls
    assert not of(pair).client_uses_tls


def test_the_own_connections_of_a_broker_verify_the_server_and_its_name():
    made = outgoing_tls(of({"tls.enable": "true", "tls.client.trustCertPath": "/ca"}))
    assert (made.auth_server, made.check_server_name, made.trust_cert_path) == (True, True, "/ca")
    enforcing = {"tls.server.mode": "enforcing", "tls.server.certPath": "/c", "tls.server.keyPath": "/k"}
    assert outgoing_tls(of(enforcing)) == TlsOptions()
    java = outgoing_tls(of({"tls.enable": "true", "tls.client.authServer": "false"}))
    assert not java.auth_server
    unnamed = outgoing_tls(of({"tls.enable": "true", "tls.client.checkServerName": "false"}))
    assert (unnamed.auth_server, unnamed.check_server_name) == (True, False)
    assert outgoing_tls(of({})) is None
