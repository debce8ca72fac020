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
PLAIN = "connections with users are not encrypted"


@pytest.mark.parametrize(("config", "remoting", "http", "encrypted", "phrases"), [
    (OPEN, HERE, HERE, False, []),
    (OPEN, HERE, None, False, []),
    (OPEN, ELSEWHERE, HERE, False, ["anybody who reaches this address may read, write and delete"]),
    (HALF, ELSEWHERE, HERE, False, ["every user may read, write and delete", PLAIN]),
    (HALF, ELSEWHERE, HERE, True, ["every user may read, write and delete"]),
    (CLOSED, ELSEWHERE, None, False, [PLAIN]),
    (CLOSED, ELSEWHERE, None, True, []),
    (CLOSED, HERE, None, False, []),
    (OPEN, HERE, ELSEWHERE, True, ["anybody who reaches this address may read metrics and messages"]),
    (CLOSED, HERE, ELSEWHERE, True, ["anybody who reaches this address may read metrics"]),
    (CLOSED, HERE, ELSEWHERE, False, ["anybody who reaches this address may read metrics", PLAIN]),
])
def test_an_open_address_is_named_with_what_it_allows(config, remoting, http, encrypted, phrases, caplog):
    _warn_about_remote(config, [(remoting, encrypted), (None, False)], (http, encrypted))
    assert [record.getMessage() for record in caplog.records] == [f"{phrase} address=0.0.0.0:80" for phrase in phrases]


@pytest.mark.parametrize(("remote", "encrypted", "grpc_encrypted"), list(itertools.product(
    [set(), {"broker"}, {"namesrv"}, {"http"}, {"grpc"}, {"broker", "namesrv", "http", "grpc"}],
    [True, False], [True, False])))
def test_exactly_the_plain_ports_of_other_machines_stop_the_start(remote, encrypted, grpc_encrypted):
    places = Places(**{
        name: ("192.0.2.1" if name in remote else "127.0.0.1", port)
        for port, name in enumerate(("broker", "namesrv", "http", "grpc"), 1)}, names=("--listen", "--namesrv-listen"))
    wanted = [
        f"{option} 192.0.2.1:{port}" for port, (name, option) in enumerate(
            (("broker", "--listen"), ("namesrv", "--namesrv-listen"), ("http", "--http"), ("grpc", "--grpc")), 1)
        if name in remote and not (grpc_encrypted if name == "grpc" else encrypted)]
    files = {"tls.server.certPath": "/c", "tls.server.keyPath": "/k"}
    tls = {**files, "tls.server.mode": "enforcing"} if encrypted else files
    places.refuse_plain(take_settings(tls), grpc_encrypted=grpc_encrypted)  # without users
    settings = take_settings(tls, first_user=("root", "a-long-password-of-root"))
    if not wanted:
        places.refuse_plain(settings, grpc_encrypted=grpc_encrypted)
        return
    with pytest.raises(ConfigError, match="--allow-plain") as caught:
        places.refuse_plain(settings, grpc_encrypted=grpc_encrypted)
    named = str(caught.value).partition("reach ")[2].partition(" without TLS")[0].split(" and ")
    assert sorted(named) == sorted(wanted)


@pytest.mark.parametrize(("host", "here"), [
    ("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False),
    ("10.0.0.1", False), ("localhost.example.com", False), ("::ffff:10.0.0.1", False), ("", False)])
def test_hosts_of_this_machine(host, here):
    assert is_of_this_machine(host) is here
