"""Requests about replicas and about features that do not exist here."""

from __future__ import annotations

import json

import pytest

from tailrace.broker.processors.engines import EnginesProcessor
from tailrace.broker.processors.replicas import ReplicasProcessor
from tailrace.errors import RefusalError
from tailrace.formats.remoting import RequestCode
from tailrace.formats.requests.absent import ABSENT, why_not_supported


@pytest.fixture
def replicas(broker):
    return ReplicasProcessor(broker)


def test_a_master_without_slaves_shows_its_log(replicas, kit, channel, store):
    store.max_phy_offset = 1234
    found = json.loads(replicas.ha_status(channel, kit.request(907)).body)
    assert (found["master"], found["masterCommitLogMaxOffset"]) == (True, 1234)
    assert (found["inSyncSlaveNums"], found["haConnectionInfo"]) == (0, [])


def test_what_a_slave_knows_of_its_master_is_nothing_to_a_master(replicas, kit, channel):
    assert replicas.reset_master_flush_offset(channel, kit.request(908, {"masterFlushOffset": "5"})).code == 0
    with pytest.raises(RefusalError, match="masterFlushOffset"):
        replicas.reset_master_flush_offset(channel, kit.request(908, {"masterFlushOffset": "x"}))
    with pytest.raises(RefusalError, match="only for controllerMode"):
        replicas.epochs(channel, kit.request(1007))


def test_records_of_pop_need_not_move(broker, kit, channel):
    assert EnginesProcessor(broker).export_pop_records(channel, kit.request(200_056)).code == 0


def test_a_request_of_a_missing_feature_is_refused_by_its_name():
    assert why_not_supported(902) == (
        " request type 902 not supported: ADD_BROKER needs a broker container, which this server does not have")
    assert why_not_supported(4711) == " request type 4711 not supported"
    assert not {int(code) for code in RequestCode} & set(ABSENT)
