"""Requests about replication at a master: 907 and 908."""

import json

import pytest

from tailrace.broker.admin.replication import ReplicationProcessor
from tailrace.errors import RefusalError


@pytest.fixture
def replication(broker):
    return ReplicationProcessor(broker)


def test_a_master_without_slaves_shows_its_log(replication, kit, channel, store):
    found = json.loads(replication.status(channel, kit.request(907)).body)
    assert (found["master"], found["masterCommitLogMaxOffset"]) == (True, store.real.max_phy_offset)
    assert (found["inSyncSlaveNums"], found["haConnectionInfo"]) == (0, [])


def test_what_a_slave_knows_of_its_master_is_nothing_to_a_master(replication, kit, channel):
    assert replication.reset_master_flush_offset(channel, kit.request(908, {"masterFlushOffset": "5"})).code == 0
    with pytest.raises(RefusalError, match="masterFlushOffset"):
        replication.reset_master_flush_offset(channel, kit.request(908, {"masterFlushOffset": "x"}))
