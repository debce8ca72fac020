"""A configuration that was built is valid; otherwise the error lists everything that is wrong."""

from __future__ import annotations

import dataclasses

import pytest

from tailrace.config import (
    BrokerConfig,
    FlushDiskType,
    RecoveryMode,
    StoreConfig,
    option_name,
    whole_number,
)
from tailrace.errors import ConfigError


def problems(config=StoreConfig, **settings):
    with pytest.raises(ConfigError) as caught:
        config(**settings)
    return caught.value.problems


def test_the_name_of_a_member_becomes_the_member():
    config = StoreConfig(flush_disk_type="SYNC_FLUSH", recovery_mode="ABSOLUTE")
    assert config.flush_disk_type is FlushDiskType.SYNC_FLUSH
    assert config.recovery_mode is RecoveryMode.ABSOLUTE
    assert problems(flush_disk_type="sync") == (
        "flushDiskType=sync is not one of SYNC_FLUSH, ASYNC_FLUSH",)


@pytest.mark.parametrize(("settings", "problem"), [
    ({"mapped_file_size_commit_log": -1}, "mappedFileSizeCommitLog=-1 is outside 4096 to 2147483647"),
    ({"mapped_file_size_commit_log": 1}, "mappedFileSizeCommitLog=1 is outside 4096 to 2147483647"),
    ({"mapped_file_size_commit_log": "1024"}, "mappedFileSizeCommitLog=1024 is not a whole number"),
    ({"mapped_file_size_commit_log": 4096.5}, "mappedFileSizeCommitLog=4096.5 is not a whole number"),
    ({"max_msgs_num_batch": True}, "maxMsgsNumBatch=True is not a whole number"),
    ({"max_msgs_num_batch": None}, "maxMsgsNumBatch=None is not a whole number"),
    ({"max_store_bytes": 1 << 64}, "maxStoreBytes=18446744073709551616 is outside 0 to 9223372036854775807"),
    ({"flush_interval_commit_log": 1 << 62},
     "flushIntervalCommitLog=4611686018427387904 is outside 1 to 316224000000"),
    ({"message_index_enable": "false"}, "messageIndexEnable=false is not true or false"),
    ({"file_reserved_time": float("nan")}, "fileReservedTime=nan is not a number"),
    ({"file_reserved_time": float("inf")}, "fileReservedTime=inf is outside 0 to 2147483647"),
    ({"file_reserved_time": -0.5}, "fileReservedTime=-0.5 is outside 0 to 2147483647"),
    ({"delete_when": 4}, "deleteWhen=4 is not text"),
    ({"delete_when": "¹"}, "deleteWhen=¹ is not a list of hours from 0 to 23, separated by `;`"),
    ({"delete_when": "24"}, "deleteWhen=24 is not a list of hours from 0 to 23, separated by `;`"),
    ({"store_path_commit_log": "a\0b"}, r"storePathCommitLog=a\x00b has a control character"),
    ({"expire_by": "age"}, "expireBy=age is not one of storeTimestamp, mtime"),
])
def test_a_value_that_cannot_work_is_refused(settings, problem):
    assert problems(**settings) == (problem,)
    with pytest.raises(ConfigError):
        dataclasses.replace(StoreConfig(), **settings)


HUGE = ("9" * 19 + "9", "-" + "9" * 30, "1" * 41, "9" * 100, "0" * 50 + "9" * 50, "9" * 5_000, "-" + "8" * 5_000)


@pytest.mark.parametrize("text", HUGE, ids=len)
def test_a_number_of_any_length_is_refused_with_the_bounds(text):
    for kind in (StoreConfig, BrokerConfig):
        numbers = {option_name(field): text for field in dataclasses.fields(kind)
                   if isinstance(field.default, int | float) and not isinstance(field.default, bool)}
        with pytest.raises(ConfigError) as caught:
            kind.from_properties(numbers)
        assert len(caught.value.problems) == len(numbers)
        assert [one for one in caught.value.problems if " is outside " not in one or len(one) > 250] == []


def test_all_problems_are_said_together():
    assert len(problems(mapped_file_size_commit_log=1, flush_disk_type="x", delete_when="¹")) == 3
    with pytest.raises(ConfigError) as caught:
        StoreConfig.from_properties({"maxMessageSize": "abc", "syncFlushTimeout": "0"})
    assert caught.value.problems == (
        "maxMessageSize=abc is not a whole number", "syncFlushTimeout=0 is outside 1 to 316224000000")


def test_a_broker_configuration_is_checked_too():
    assert problems(BrokerConfig, broker_id=-1, broker_name="a\nb") == (
        r"brokerName=a\nb has a control character",
        "brokerId=-1 is outside 0 to 9223372036854775807")
    assert problems(BrokerConfig, bind_address="") == (
        "bindAddress is empty; say 0.0.0.0 for all addresses of this machine",)
    for name in ("", "a b", " "):
        assert problems(BrokerConfig, broker_name=name) == (
            f"brokerName={name} must be a name without blanks, as popped messages name their broker so",)
    assert problems(BrokerConfig, listen_port=65_536) == ("listenPort=65536 is outside 0 to 65535",)


@pytest.mark.parametrize("text", [
    "nan", "NaN", "inf", "-Infinity", "1e999", "1_0", "٣", "¹", "0x10", "", "1 0", "9" * 5000])
@pytest.mark.parametrize("name", ["fileReservedTime", "maxMsgsNumBatch"])
def test_a_number_of_a_file_is_written_in_ascii_digits(name, text):
    with pytest.raises(ConfigError, match=f"{name}="):
        StoreConfig.from_properties({name: text})


def test_numbers_of_a_file_are_read():
    config = StoreConfig.from_properties(
        {"fileReservedTime": "1.5e1", "maxMsgsNumBatch": "+7", "deleteWhen": "04; 16"})
    assert (config.file_reserved_time, config.max_msgs_num_batch) == (15.0, 7)


@pytest.mark.parametrize("config", [StoreConfig, BrokerConfig])
@pytest.mark.parametrize("value", [
    None, True, -1, 0, 10**400, -(10**400), float("nan"), 1e308, b"x", "", "x" * 5000, "\ud800", [], object(),
    RecoveryMode.ABSOLUTE, FlushDiskType.SYNC_FLUSH])
def test_any_value_is_taken_or_refused_with_a_sentence(config, value):
    for f in dataclasses.fields(config):
        for make in (
            lambda f=f: config(**{f.name: value}),
            lambda f=f: config.from_properties({option_name(f): str(value)[:6000]}),
        ):
            try:
                make()
            except ConfigError as error:
                assert all(problem.startswith(option_name(f)) for problem in error.problems)


@pytest.mark.parametrize("config", [StoreConfig, BrokerConfig])
def test_every_setting_accepts_its_default_from_a_file(config):
    default = config()
    texts = {
        option_name(f): str(getattr(value, "value", value)) for f in dataclasses.fields(config)
        for value in [getattr(default, f.name)]}
    assert config.from_properties(texts) == default


def test_a_whole_number_is_ascii_and_fits_64_bits():
    assert whole_number("0042") == 42
    assert whole_number(str((1 << 63) - 1)) == (1 << 63) - 1
    for text in ("", "-1", "¹", "٣", str(1 << 63), "9" * 5000, " 1"):
        assert whole_number(text) is None
