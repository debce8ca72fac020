"""Requests about storage engines, replicas and features that do not exist here."""

from __future__ import annotations

import json

import pytest

from tailrace.broker.admin.engines import EnginesProcessor
from tailrace.config import StoreConfig
from tailrace.errors import RefusalError
from tailrace.formats.remoting import RequestCode
from tailrace.formats.requests.absent import ABSENT, why_not_supported


@pytest.fixture
def engines(broker):
    return EnginesProcessor(broker.store, broker.config, broker.cold_data)


def test_queues_are_files_and_configurations_are_json(engines, kit, channel):
    found = json.loads(engines.check_queues(channel, kit.request(354, {"topic": "orders"})).body)
    assert found["checkStatus"] == 0
    exported = engines.export_config(channel, kit.request(355, {"configType": "topics;ConsumerOffsets;"}))
    assert (exported.code, exported.remark) == (0, "export done.")
    with pytest.raises(RefusalError, match="Unknown config type: acls; known are topics"):
        engines.export_config(channel, kit.request(355, {"configType": "acls"}))


def test_thresholds_of_cold_reads_are_set_shown_and_removed(engines, broker, kit, channel):
    said = engines.set_cold_threshold(channel, kit.request(2001, body=b"g1=100\ng2=5\n"))
    assert (said.code, "nothing is limited until" in said.remark) == (0, True)
    assert engines.remove_cold_threshold(channel, kit.request(2002, body=b"g1")).code == 0
    assert engines.remove_cold_threshold(channel, kit.request(2002, body=b"none")).code == 0
    found = json.loads(engines.cold_data(channel, kit.request(2003)).body)
    assert (found["configTable"], found["cgColdReadThreshold"]) == ({"g2": 5}, 3 << 20)
    broker.config.take({"cold_data_flow_control_enable": True})
    assert not engines.set_cold_threshold(channel, kit.request(2001, body=b"g1=100\n")).remark
    with pytest.raises(RefusalError, match="g1 is not a whole number: 'x'"):
        engines.set_cold_threshold(channel, kit.request(2001, body=b"g1=x\n"))


@pytest.mark.parametrize(("ext", "code", "said"), [
    ({"READ_AHEAD_MODE": "0"}, 0, "mode: 0"),
    ({"READ_AHEAD_MODE": "1"}, 29, "READ_AHEAD_MODE=1 \\(random\\) is not supported"),
    ({"READ_AHEAD_MODE": "7"}, 29, "READ_AHEAD_MODE=7 is neither 0 nor 1"),
    ({"READ_AHEAD_MODE": "x"}, 1, "<READ_AHEAD_MODE> is not a whole number"),
    ({}, 1, "<READ_AHEAD_MODE> is null"),
])
def test_the_log_is_read_ahead_as_the_kernel_does(engines, kit, channel, ext, code, said):
    if code:
        with pytest.raises(RefusalError, match=said) as refused:
            engines.set_read_mode(channel, kit.request(2004, ext))
        assert refused.value.code == code
    else:
        assert said in engines.set_read_mode(channel, kit.request(2004, ext)).remark


@pytest.mark.parametrize(("ext", "code", "said"), [
    ({"E_T": "R"}, 29, "timerRocksDBEnable"), ({"E_T": "x"}, 29, "E_T='x'"), ({}, 29, "param error"),
])
def test_another_timer_engine_is_refused(engines, kit, channel, ext, code, said):
    with pytest.raises(RefusalError, match=said) as refused:
        engines.switch_timer_engine(channel, kit.request(5001, ext))
    assert refused.value.code == code


def test_the_timer_wheel_is_what_keeps_timers(engines, store, kit, channel):
    asked = kit.request(5001, {"E_T": "F"})
    assert engines.switch_timer_engine(channel, asked).remark == "switch timer engine success"
    store.config = StoreConfig(timer_stop_enqueue=True)
    with pytest.raises(RefusalError, match="timerStopEnqueue"):
        engines.switch_timer_engine(channel, asked)
    store.config = StoreConfig(timer_wheel_enable=False)
    with pytest.raises(RefusalError, match="timerWheelEnable is false"):
        engines.switch_timer_engine(channel, asked)


def test_epochs_are_refused_without_a_controller(engines, kit, channel):
    with pytest.raises(RefusalError, match="only for controllerMode"):
        engines.epochs(channel, kit.request(1007))


def test_records_of_pop_need_not_move(engines, kit, channel):
    assert engines.export_pop_records(channel, kit.request(200_056)).code == 0


def test_a_request_of_a_missing_feature_is_refused_by_its_name():
    assert why_not_supported(902) == (
        " request type 902 not supported: ADD_BROKER needs a broker container, which this server does not have")
    assert why_not_supported(4711) == " request type 4711 not supported"
    assert not {int(code) for code in RequestCode} & set(ABSENT)
