"""Settings that a running server shows and changes: requests 25, 26, 318 and 319."""

from __future__ import annotations

import asyncio
import json

import pytest

from tailrace.broker.controller import BrokerController
from tailrace.broker.core.settings import (
    RunningSettings,
    SettingsFile,
    SettingsProcessor,
    properties_in,
    settings_of,
)
from tailrace.config import BrokerConfig, NameServerConfig, StoreConfig
from tailrace.env.clock import SystemClock
from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import RefusalError
from tailrace.properties import parse_properties, with_settings
from tailrace.remoting.client import RemotingClient
from tailrace.requests.worker import RequestWorker


@pytest.fixture
def path(tmp_path):
    found = tmp_path / "broker.conf"
    found.write_text("# ours\nbrokerName=b\nfileReservedTime = 48\nlongPollingEnable: true\n")
    return found


@pytest.fixture
def configs():
    return StoreConfig(), BrokerConfig()


@pytest.fixture
def running(clock, configs, path):
    shown = settings_of(*configs, listenPort="10911")
    return RunningSettings(clock, configs, shown, SettingsFile(OsFileSystem(), str(path)))


def changed(running, kit, channel, text, code=25):
    return SettingsProcessor(running, RequestWorker(None)).update(channel, kit.request(code, body=text))


def test_settings_are_shown_as_properties_with_a_version(running, kit, channel, clock):
    processor = SettingsProcessor(running, RequestWorker(None))
    answer = processor.show(channel, kit.request(26))
    lines = answer.body.decode().splitlines()
    for line in ("brokerName=broker-a", "listenPort=10911", "flushDiskType=ASYNC_FLUSH", "brokerIP1="):
        assert line in lines
    assert json.loads(answer.ext["version"]) == {"counter": 0, "stateVersion": 0, "timestamp": clock.ms}


def test_a_change_holds_is_shown_and_is_in_the_file(running, configs, kit, channel, path, clock):
    store, broker = configs
    clock.ms += 5
    answer = changed(running, kit, channel, b"fileReservedTime=24\nlongPollingEnable=false\nmaxTopics=7\n")
    assert (answer.code, answer.remark) == (0, None)
    assert (store.file_reserved_time, broker.long_polling_enable, broker.max_topics) == (24.0, False, 7)
    processor = SettingsProcessor(running, RequestWorker(None))
    shown = processor.show(channel, kit.request(26))
    assert {"fileReservedTime=24.0", "longPollingEnable=false"} < set(shown.body.decode().splitlines())
    assert json.loads(shown.ext["version"]) == {"counter": 1, "stateVersion": 0, "timestamp": clock.ms}
    assert path.read_text() == "# ours\nbrokerName=b\nfileReservedTime=24\nlongPollingEnable=false\nmaxTopics=7\n"
    assert BrokerConfig.from_properties(parse_properties(path.read_text())).max_topics == 7


def test_without_a_file_the_answer_says_that_the_change_ends_with_the_server(clock, configs, kit, channel):
    running = RunningSettings(clock, configs, settings_of(*configs))
    answer = changed(running, kit, channel, b"timerStopDequeue=true")
    assert answer.code == 0
    assert "no file of settings" in answer.remark
    assert configs[0].timer_stop_dequeue


@pytest.mark.parametrize(("text", "code", "said"), [
    (b"brokerConfigPath=/x", 16, "Can not update config in black list: brokerConfigPath"),
    (b"maxTopics=5\nmappedFileSizeCommitLog=9999", 16, "start again: mappedFileSizeCommitLog"),
    (b"listenPort=1", 16, "start again: listenPort"),
    (b"maxTopics=5\nsendMessageThreadPoolNums=3", 29, "has no effect here: sendMessageThreadPoolNums"),
    (b"maxTopic=5", 29, "is not a setting: maxTopic"),
    (b"maxTopics=many", 29, "maxTopics=many is not a whole number"),
    (b"longPollingEnable=false\nmaxTopics=0", 29, "maxTopics=0 is outside 1 to"),
    (b"deleteWhen=25\nmaxTopics=0", 29, "deleteWhen=25 is not a list of hours from 0 to 23, separated by `;`; maxTop"),
    (b"\xff=1", 1, "string2Properties error: byte 0 of the body is not UTF-8"),
    (b"\n".join(b"a%d=1" % i for i in range(201)), 29, "201 settings, over the limit of 200"),
])
def test_what_cannot_be_changed_is_named_and_nothing_changes(
    running, configs, kit, channel, path, text, code, said
):
    before = settings_of(*configs), dict(running.shown), path.read_text()
    with pytest.raises(RefusalError) as refused:
        changed(running, kit, channel, text)
    assert refused.value.code == code
    assert said in refused.value.remark
    assert (settings_of(*configs), running.shown, path.read_text()) == before


def test_a_changed_file_keeps_its_permissions(running, kit, channel, path):
    path.chmod(0o640)
    changed(running, kit, channel, b"maxTopics=5")
    assert "maxTopics=5" in path.read_text()
    assert path.stat().st_mode & 0o7777 == 0o640


def test_a_file_that_cannot_be_written_leaves_everything_as_it_was(clock, configs, kit, channel, tmp_path):
    file = SettingsFile(OsFileSystem(), str(tmp_path / "gone" / "broker.conf"))
    running = RunningSettings(clock, configs, settings_of(*configs), file)
    with pytest.raises(RefusalError, match=r"nothing is changed, the file of settings .*broker\.conf") as refused:
        changed(running, kit, channel, b"maxTopics=5")
    assert refused.value.code == 1
    assert configs[1].max_topics == 100_000
    assert running.shown["maxTopics"] == "100000"


def test_a_name_server_changes_its_own(clock, kit, channel):
    config = NameServerConfig()
    running = RunningSettings(clock, (config,), settings_of(config, listenPort="9876"))
    assert changed(running, kit, channel, b"orderMessageEnable=true", 318).code == 0
    assert config.order_message_enable
    text = SettingsProcessor(running, RequestWorker(None)).show_name_server(channel, kit.request(319)).body
    assert b"orderMessageEnable=true\n" in text
    with pytest.raises(RefusalError, match="kvConfigPath"):
        changed(running, kit, channel, b"kvConfigPath=/x", 318)


@pytest.mark.parametrize(("text", "after"), [
    ("", "a=1\n"),
    ("b=2", "b=2\na=1\n"),
    ("a=0\nb=2\na=5\n", "b=2\na=1\n"),
    ("# a=0\n! a=0\n", "# a=0\n! a=0\na=1\n"),
    ("  a : 0\r\nb=2\n", "a=1\nb=2\n"),
    ("b=x\\\na=0\nc=1\n", "b=x\\\na=0\nc=1\na=1\n"),
    ("a=x\\\n  y\nb=2\n", "a=1\nb=2\n"),
])
def test_a_properties_text_keeps_its_other_lines(text, after):
    assert with_settings(text, {"a": "1"}) == after
    assert parse_properties(after)["a"] == "1"


def test_only_live_settings_change_in_place(configs):
    with pytest.raises(AssertionError, match="broker_name"):
        configs[1].take({"broker_name": "c"})


def test_a_running_broker_and_its_name_server_change_settings_in_the_file(tmp_path, kit, path):
    async def test():
        broker_config = BrokerConfig()
        controller = BrokerController(
            kit.open_store(tmp_path / "store", clock=SystemClock()), broker_config, settings_file=str(path))
        await controller.start(("127.0.0.1", 0), ("127.0.0.1", 0))
        client = RemotingClient()
        try:
            place = controller.broker_address
            done = await client.invoke(place, 25, {}, b"maxTopics=7\nflushConsumerOffsetInterval=1000\n")
            assert (done.code, done.remark) == (0, None)
            refused = await client.invoke(place, 25, {}, b"brokerName=c\n")
            assert refused.code == 16
            assert "brokerName" in refused.remark
            assert b"maxTopics=7\n" in (await client.invoke(place, 26, {})).body
            place = controller.namesrv_address
            assert (await client.invoke(place, 318, {}, b"enableTopicList=false")).code == 0
            assert (await client.invoke(place, 224, {"cluster": "DefaultCluster"})).code == 1
            assert b"enableTopicList=false\n" in (await client.invoke(place, 319, {})).body
        finally:
            await client.close()
            await controller.stop()
        assert (broker_config.max_topics, broker_config.flush_consumer_offset_interval) == (7, 1000)

    asyncio.run(test())
    values = parse_properties(path.read_text())
    assert values == {
        "brokerName": "b", "fileReservedTime": "48", "longPollingEnable": "true", "maxTopics": "7",
        "flushConsumerOffsetInterval": "1000", "enableTopicList": "false"}
    assert not NameServerConfig.from_properties(values).enable_topic_list


def test_a_text_of_settings_that_would_hold_the_event_loop_is_refused():
    assert properties_in(b"a=1\n" * 60_000) == {"a": "1"}
    with pytest.raises(RefusalError, match="the body has 4000000 bytes, over the limit of 262144") as refused:
        properties_in(bytes(4_000_000))
    assert refused.value.code == 29
