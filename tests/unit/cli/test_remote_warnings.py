"""What ``serve`` logs at its start about addresses that other machines reach."""

from __future__ import annotations

import pytest

from tailrace.auth_settings import AuthConfig
from tailrace.cli.serve import _warn_about_remote

HERE, ELSEWHERE = ("127.0.0.1", 80), ("0.0.0.0", 80)
OPEN = AuthConfig()
CLOSED = AuthConfig(authentication_enabled=True, authorization_enabled=True)
HALF = AuthConfig(authentication_enabled=True)


@pytest.mark.parametrize(("config", "remoting", "http", "encrypted", "phrases"), [
    (OPEN, HERE, HERE, False, []),
    (OPEN, HERE, None, False, []),
    (OPEN, ELSEWHERE, HERE, False, ["anybody who reaches this address may read, write and delete"]),
    (HALF, ELSEWHERE, HERE, False, ["every user may read, write and delete"]),
    (CLOSED, ELSEWHERE, None, False, []),
    (OPEN, HERE, ELSEWHERE, True, ["anybody who reaches this address may read metrics and messages"]),
    (CLOSED, HERE, ELSEWHERE, True, ["anybody who reaches this address may read metrics"]),
    (CLOSED, HERE, ELSEWHERE, False, [
        "anybody who reaches this address may read metrics", "passwords for the console are not encrypted"]),
])
def test_an_open_address_is_named_with_what_it_allows(config, remoting, http, encrypted, phrases, caplog):
    _warn_about_remote(config, remoting, None, http, encrypted=encrypted)
    assert [record.getMessage() for record in caplog.records] == [f"{phrase} address=0.0.0.0:80" for phrase in phrases]
