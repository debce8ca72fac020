"""What ``serve`` refuses or logs at its start about addresses that other machines reach."""

from __future__ import annotations

import itertools

import pytest

from tailrace.auth_settings import AuthConfig
from tailrace.cli.serve import _warn_about_remote, is_of_this_machine
from tailrace.cli.serve_settings import Places, take_settings
from tailrace.errors import ConfigError

HERE, ELSEWHERE = ("127.0.0.1", 80), ("0.0.0.0", 80)
OPEN = AuthConfig()
CLOSED = AuthConfig(authentication_enabled=True, authorization_enabled=True)
HALF = AuthConfig(authentication_enabled=True)


@pytest.mark.parametrize(("config", "remoting", "http", "phrases"), [
    (OPEN, HERE, HERE, []),
    (OPEN, HERE, None, []),
    (OPEN, ELSEWHERE, HERE, ["anybody who reaches this address may read, write and delete"]),
    (HALF, ELSEWHERE, HERE, ["every user may read, write and delete"]),
    (CLOSED, ELSEWHERE, None, []),
    (OPEN, HERE, ELSEWHERE, ["anybody who reaches this address may read metrics and messages"]),
    (CLOSED, HERE, ELSEWHERE, ["anybody who reaches this address may read metrics"]),
])
def test_an_open_address_is_named_with_what_it_allows(config, remoting, http, phrases, caplog):
    _warn_about_remote(config, remoting, None, http)
    assert [record.getMessage() for record in caplog.records] == [f"{phrase} address=0.0.0.0:80" for phrase in phrases]


@pytest.mark.parametrize(("remote", "encrypted", "grpc_encrypted"), list(itertools.product(
    [set(), {"broker"}, {"namesrv"}, {"http"}, {"grpc"}, {"broker", "namesrv", "http", "grpc"}],
    [True, False], [True, False])))
def test_exactly_the_plain_ports_of_other_machines_stop_the_start(remote, encrypted, grpc_encrypted, caplog):
    places = Places(**{
        name: ("192.0.2.1" if name in remote else "127.0.0.1", port)
        for port, name in enumerate(("broker", "namesrv", "http", "grpc"), 1)}, names=("--listen", "--namesrv-listen"))
    wanted = [
        f"{option} 192.0.2.1:{port}" for port, (name, option) in enumerate(
            (("broker", "--listen"), ("namesrv", "--namesrv-listen"), ("http", "--http"), ("grpc", "--grpc")), 1)
        if name in remote and not (grpc_encrypted if name == "grpc" else encrypted)]
    files = {"tls.server.certPath": "/c", "tls.server.keyPath": "/k"}
    tls = {**files, "tls.server.mode": "enforcing"} if encrypted else files
    places.check_plain(take_settings(tls), grpc_encrypted=grpc_encrypted, allowed=False)  # without users
    settings = take_settings(tls, first_user=("root", "a-long-password-of-root"))
    if not wanted:
        places.check_plain(settings, grpc_encrypted=grpc_encrypted, allowed=False)
        return
    with pytest.raises(ConfigError, match="--allow-plain") as caught:
        places.check_plain(settings, grpc_encrypted=grpc_encrypted, allowed=False)
    named = str(caught.value).partition("reach ")[2].partition(" without TLS")[0].split(" and ")
    assert sorted(named) == sorted(wanted)
    places.check_plain(settings, grpc_encrypted=grpc_encrypted, allowed=True)
    assert sorted(record.getMessage() for record in caplog.records) == sorted(
        f"connections with users are not encrypted address={one.rpartition(' ')[2]}" for one in wanted)


INNER = {"innerClientAuthenticationCredentials": '{"accessKey":"inner","secretKey":"a-long-password-of-inner"}'}


@pytest.mark.parametrize(("settings", "refused"), [
    ({"namesrvAddr": "192.0.2.9:9876"}, False),
    ({**INNER, "namesrvAddr": "127.0.0.1:9876"}, False),
    ({**INNER, "namesrvAddr": "127.0.0.1:9876;192.0.2.9:9876"}, True),
    ({**INNER, "namesrvAddr": "192.0.2.9:9876", "tls.enable": "true"}, False),
    ({**INNER, "namesrvAddr": "192.0.2.9:9876", "tls.server.mode": "enforcing", "tls.server.certPath": "/c",
      "tls.server.keyPath": "/k"}, False),
    ({**INNER, "namesrvAddr": "192.0.2.9:9876", "tls.server.mode": "enforcing", "tls.server.certPath": "/c",
      "tls.server.keyPath": "/k", "tls.enable": "false"}, True),
])
def test_requests_that_the_broker_signs_go_to_other_machines_with_tls_only(settings, refused, caplog):
    places = Places(HERE, None, None, None, ("--listen", "namesrvAddr"))
    if not refused:
        places.check_plain(take_settings(settings), grpc_encrypted=False, allowed=False)
        return
    with pytest.raises(ConfigError, match=r"signs .* 192\.0\.2\.9:9876 .*tls\.enable=true.*--allow-plain") as caught:
        places.check_plain(take_settings(settings), grpc_encrypted=False, allowed=False)
    assert "127.0.0.1" not in str(caught.value)
    places.check_plain(take_settings(settings), grpc_encrypted=False, allowed=True)
    assert [record.getMessage() for record in caplog.records] == [
        "signed requests are not encrypted address=192.0.2.9:9876"]


@pytest.mark.parametrize(("host", "here"), [
    ("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False),
    ("10.0.0.1", False), ("localhost.example.com", False), ("::ffff:10.0.0.1", False), ("", False)])
def test_hosts_of_this_machine(host, here):
    assert is_of_this_machine(host) is here
