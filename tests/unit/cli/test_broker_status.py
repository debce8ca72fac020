"""Figures of a broker, for people."""

from __future__ import annotations

import pytest

from tailrace.cli.broker_status import fields_of

FIGURES = {
    "tailraceVersion": "0.1.0", "brokerVersionDesc": "V5_3_3", "runtime": "[ 0 days, 1 hours, 40 minutes, 40 seconds ]",
    "putTps": "7.1362 0.4000 0.0000 ", "getTotalTps": "8.0 ", "getTransferredTps": "0.0 ",
    "putLatency99": "0.42", "commitLogMinOffset": "0",
    "commitLogMaxOffset": "7898201", "dispatchBehindBytes": "2048", "remainHowManyDataToFlush": "1.5 KiB",
    "commitLogDirCapacity": "Total : 252.0 GiB, Free : 53.1 GiB.", "commitLogDiskRatio": "0.42",
    "timerReadBehind": "0", "timerCongestNum": "12000"}


def test_every_figure_has_its_unit():
    assert fields_of("h:1", FIGURES, {}) == {
        "broker": "h:1", "version": "Tailrace 0.1.0; Java clients see V5_3_3", "readOnly": "",
        "runningFor": "1 h 40 min", "messagesIn": "7.1/s in the last 10 s", "messagesOut": "0.0/s in the last 10 s",
        "99PercentOfPutsWithin": "0.42 ms", "logBytes": 7898201, "logPositions": "0 to 7,898,201",
        "notSynced": "1.5 KiB", "notDispatchedBytes": 2048, "disk": "42 % used, 53.1 GiB of 252.0 GiB free",
        "timers": "12,000 pending, 0 ms late"}


@pytest.mark.parametrize(("figures", "name", "shown"), [
    ({}, "version", ""), ({}, "logBytes", None), ({}, "disk", ""), ({}, "timers", ""), ({}, "runningFor", ""),
    ({"brokerVersionDesc": "V5_5_0"}, "version", "V5_5_0"),
    ({"runtime": "[ 0 days, 0 hours, 0 minutes, 0 seconds ]"}, "runningFor", "0 s"),
    ({"runtime": "[ 3 days, 0 hours, 0 minutes, 9 seconds ]"}, "runningFor", "3 d 9 s"),
    ({"commitLogDirCapacity": "unknown", "commitLogDiskRatio": "x"}, "disk", "unknown"),
    ({"commitLogDiskRatio": "-1.0", "commitLogDirCapacity": "Total : 1.0 GiB, Free : 0 B."}, "disk",
     "0 B of 1.0 GiB free"),
    ({"putLatency99": "0.00"}, "99PercentOfPutsWithin", ""),
    ({"putTps": "odd"}, "messagesIn", "odd"), ({"readOnly": "read-only: x"}, "readOnly", "read-only: x"),
])
def test_a_figure_that_is_missing_or_odd_is_no_error(figures, name, shown):
    assert fields_of("h:1", figures, {})[name] == shown


def slave(**more):
    return {"addr": "h:2", "diff": 0, "inSync": True, **more}


@pytest.mark.parametrize(("status", "shown"), [
    ({"master": True, "haConnectionInfo": []}, {"slaves": "no slave is connected"}),
    ({"master": True, "haConnectionInfo": [slave(), slave(addr="h:3", diff=12345, inSync=False)]},
     {"slaves": "h:2 has all; h:3 lacks 12,345 bytes, not in sync"}),
    ({"master": True, "haConnectionInfo": [slave(diff=7)]}, {"slaves": "h:2 lacks 7 bytes"}),
    ({"master": False, "haClientRuntimeInfo": {
        "masterAddr": "h:9", "maxOffset": 10, "masterMaxOffset": 1010, "state": "stopped", "reason": "too long"}},
     {"slaveOf": "h:9", "replication": "stopped, too long, lacks 1,000 bytes"}),
    ({"master": False, "haClientRuntimeInfo": {"masterAddr": "h:9", "maxOffset": 10}},
     {"slaveOf": "h:9", "replication": ""}),
])
def test_the_state_of_a_master_and_of_a_slave(status, shown):
    fields = fields_of("h:1", FIGURES, status)
    assert {name: fields[name] for name in ("slaves", "slaveOf", "replication") if name in fields} == shown
