"""Every setting of a Java broker's file is honoured, harmless, or stops the start."""

from __future__ import annotations

import dataclasses

import pytest

from tailrace.auth_settings import AuthConfig
from tailrace.config import BrokerConfig, StoreConfig, option_name
from tailrace.errors import ConfigError
from tailrace.java_settings import (
    REASONS,
    java_settings,
    refuse_settings,
    refused_settings,
    unused_settings,
)
from tailrace.tls_settings import TLS_ALIASES, TLS_NAMES

KNOWN = {option_name(f) for config in (StoreConfig, BrokerConfig, AuthConfig) for f in dataclasses.fields(config)} | {
    *TLS_NAMES, *TLS_ALIASES}
NAMED_BY_THE_ISSUE = (
    "aclEnable", "migrateAuthFromV1Enabled", "enableSlaveActingMaster", "allAckInSyncStateSet", "enableRemoteEscape",
    "enableDLegerCommitLog", "enableControllerMode", "duplicationEnable", "storeType")


def test_every_row_has_a_decision_with_a_reason():
    for setting in java_settings().values():
        assert setting.decision in {"honoured", "harmless", "refused"}, setting
        assert (setting.reason == "-") == (setting.decision == "honoured"), setting
        if setting.decision == "honoured":
            assert setting.name in KNOWN, setting
        else:
            assert setting.reason in REASONS, setting
    assert {s.reason for s in java_settings().values()} - {"-"} == set(REASONS)
    assert {n for n in KNOWN & set(java_settings()) if java_settings()[n].decision != "honoured"} == set()


def test_the_table_is_as_long_as_the_classes():
    count = {}
    for setting in java_settings().values():
        for name in setting.classes:
            count[name] = count.get(name, 0) + 1
    assert count == {  # fields of 5.5.0 and 5.5.1; tests/interop/test_java_leftovers.py compares each of them
        "AuthConfig": 26, "BrokerConfig": 251, "ControllerConfig": 28, "MessageStoreConfig": 225,
        "NettyClientConfig": 20, "NettyServerConfig": 18, "TlsSystemConfig": 26}


@pytest.mark.parametrize("name", NAMED_BY_THE_ISSUE)
def test_a_promise_that_is_not_kept_stops_the_start(name):
    setting = java_settings()[name]
    value = {"storeType": "defaultRocksDB"}.get(name, "true")
    with pytest.raises(ConfigError) as caught:
        refuse_settings({name: value, "maxMessageSize": "1"})
    (problem,) = caught.value.problems
    assert f"{name}={value} ({REASONS[setting.reason]})" in problem
    assert f"--ignore-setting {name}" in problem
    assert refuse_settings({name: value}, [name]).keys() == {name}


def test_all_promises_are_in_one_sentence_and_values_on_one_line():
    with pytest.raises(ConfigError) as caught:
        refuse_settings({"aclEnable": "true", "storeType": "x\n"}, [])
    assert str(caught.value).count("--ignore-setting") == 2
    assert "\n" not in str(caught.value)


def test_the_default_of_a_java_broker_promises_nothing():
    values = {s.name: s.default for s in java_settings().values() if s.default not in {"*", "-"}}
    assert not refused_settings(values)
    assert not unused_settings(values)
    assert not refused_settings({"aclEnable": " FALSE "})


def test_to_ignore_what_is_not_refused_is_a_mistake():
    for values in ({}, {"aclEnable": "false"}, {"maxMessageSize": "5"}):
        for name in ("aclEnable", "maxMessageSize", "aclEnabel"):
            with pytest.raises(ConfigError, match=f"--ignore-setting {name}: the file has no such"):
                refuse_settings(values, [name])


def test_settings_without_effect_are_listed():
    assert unused_settings({
        "sendMessageThreadPoolNums": "4", "waitTimeMillsInSendQueue": "200", "maxMesageSize": "4",
        "slaveReadEnabel": "true", "aclEnable": "true", "nothingLikeIt": "1",
    }, without=["aclEnable"]) == [
        "maxMesageSize (is maxMessageSize meant?)", "nothingLikeIt", "sendMessageThreadPoolNums",
        "slaveReadEnabel (is slaveReadEnable meant?)"]
