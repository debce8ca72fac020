"""TLS settings: names of the reference, their other names, and the file that tls.config.file names."""

from __future__ import annotations

import pytest

from tailrace.errors import ConfigError
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
