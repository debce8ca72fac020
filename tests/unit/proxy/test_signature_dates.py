"""Times of signatures: zones in which clients write them."""

import time
from types import SimpleNamespace

import pytest

pytest.importorskip("rocketmq.grpc_protocol")

from tailrace.auth_settings import AuthConfig
from tailrace.proxy.signature_dates import SignatureDates

NOW_MS = 1795435200_000
"""2026-11-23T12:00:00Z."""


def dates(zones="", max_age_s=900):
    return SignatureDates(
        SimpleNamespace(now_ms=lambda: NOW_MS), max_age_s, AuthConfig(grpc_signature_time_zones=zones).time_zones())


@pytest.fixture
def machine_zone(monkeypatch):
    def change(name):
        monkeypatch.setenv("TZ", name)
        time.tzset()
    yield change
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(("zones", "text"), [
    ("Europe/Berlin", "20261123T130000Z"), ("+08:00", "20261123T200000Z"), ("-03:30", "20261123T083000Z"),
    (" Asia/Kolkata , +08:00", "20261123T173000Z"), ("+08:00", "20261123T120000Z"), ("+14:00", "20261124T020000Z")])
def test_a_zone_of_the_setting_is_accepted_besides_utc(zones, text, machine_zone):
    machine_zone("UTC")
    assert dates(zones).refusal(text) == ""
    if not text.endswith("T120000Z"):
        assert "grpcSignatureTimeZones" in dates().refusal(text)


def test_the_zone_of_the_server_is_accepted(machine_zone):
    machine_zone("Asia/Shanghai")
    assert dates().refusal("20261123T200000Z") == dates().refusal("20261123T120000Z") == ""
    assert "3600 s ahead of the clock" in dates().refusal("20261123T130000Z")
    machine_zone("UTC")
    assert "28800 s ahead of the clock" in dates().refusal("20261123T200000Z")


@pytest.mark.parametrize("text", ["00010101T000000Z", "99991231T235959Z"])
@pytest.mark.parametrize("zone", ["+14:00", "-12:00", "Europe/Berlin"])
def test_times_at_the_ends_of_the_calendar_are_refused(text, zone, machine_zone):
    machine_zone("Pacific/Kiritimati")
    assert dates(zone).refusal(text)
