"""Times, sizes, versions, orders and recoveries as people read them."""

from __future__ import annotations

import pytest

from tailrace.config import StoreConfig
from tailrace.console.disk import Disk, _left, _lines, disk_troubles
from tailrace.console.elements import Column, Sorting, address, plural, table
from tailrace.console.recovery import recovery_card, recovery_troubles
from tailrace.console.words import ago, client_version, local_time, span
from tailrace.formats.remoting import MQ_VERSION, VERSION_V5_3_1
from tailrace.store.recovery.start import RecoveryReport
from tailrace.store.retention.disk_state import DiskVerdict, PathUsage, disk_levels

GIB = 1 << 30


@pytest.mark.parametrize(("ms", "text"), [
    (0, "0 ms"), (999, "999 ms"), (1_000, "1 s"), (119_000, "119 s"), (120_000, "2 min"), (7_199_000, "119 min"),
    (7_200_000, "2 h"), (47 * 3_600_000, "47 h"), (48 * 3_600_000, "2 d"), (-5, "0 ms")])
def test_a_duration_has_one_unit(ms, text):
    assert span(ms) == text


def test_times_are_past_present_or_to_come_and_never_fail():
    assert (ago(1_000, 4_000), ago(4_000, 4_000), ago(9_000, 4_000)) == ("3 s ago", "now", "in 5 s")
    assert local_time(0) == "-"
    assert local_time(1 << 62) == str(1 << 62)


@pytest.mark.parametrize(("number", "text"), [
    (MQ_VERSION, "5.3.3"), (VERSION_V5_3_1, "5.3.1"), (213, "4.0.0"), (212, "4.0.0-SNAPSHOT"), (411, "4.9.9"),
    (413, "5.0.0"), (611, "5.9.9"), (612, "after 5.9.9"), (0, "before 4.0.0"), (-1, "before 4.0.0"),
    (1 << 31, "after 5.9.9")])
def test_the_version_of_a_client_is_the_one_of_its_number(number, text):
    assert client_version(number) == text


def test_nouns_follow_their_number():
    assert [plural(0, "message"), plural(1, "retry", "retries"), plural(2_000, "retry", "retries")] == [
        "0 messages", "1 retry", "2,000 retries"]


# -- tables


def test_a_heading_sorts_by_its_column_and_then_the_other_way():
    columns = [Column("Name", "name", "name"), Column("Lag", "number", "lag")]

    def heads(query):
        made = table(columns, [["a", 1]], "", "", Sorting("groups", query, "-lag", {"name", "lag"}))
        return [(one.get("aria-sort"), one[0].get("href")) for one in made.iter("th")]

    assert heads({}) == [(None, address("groups", sort="name")), ("descending", address("groups", sort="lag"))]
    assert heads({"sort": "name", "filter": "x", "from": "200"}) == [
        ("ascending", address("groups", filter="x", sort="-name")), (None, address("groups", filter="x"))]
    assert heads({"sort": "<script>"}) == heads({})


def test_numbers_are_aligned_as_their_heading():
    made = table([Column("Name"), Column("Lag", "number")], [["a", 1]], "", "")
    assert [one.get("class") for one in made.iter("th")] == [one.get("class") for one in made.iter("td")]


# -- disk


def disk(percent, *, full=False, **settings):
    total = 100 * GIB
    free = total * (100 - percent) // 100
    usage, levels = PathUsage("/srv", total, free, free), disk_levels(StoreConfig(**settings))
    return Disk(usage, levels.level(usage), DiskVerdict(full, False, False, "", ()), _lines(levels, usage),
                _left(levels, usage))


@pytest.mark.parametrize(("found", "text"), [
    (disk(50), None),
    (disk(80), "The disk is 80 % full, so expired messages are deleted at any hour. Sends stop after 10.0 GiB more."),
    (disk(88), "so the oldest messages are deleted before their time. Sends stop after 2.0 GiB more."),
    (disk(95, full=True), "The disk is 95 % full, so sends are refused until there is room."),
    (disk(50, full=True), "The store has reached the size that its settings allow"),
])
def test_the_disk_says_where_sends_stop(found, text):
    said = [trouble.text for trouble in disk_troubles(found)]
    assert len(said) == (text is not None)
    assert text is None or text in said[0]


def test_lines_of_the_disk_may_be_free_bytes():
    found = disk(50, disk_free_bytes_warning_level=10 * GIB)
    assert [(line.percent, line.where) for line in found.lines] == [
        (75, "above 75 %"), (85, "above 85 %"), (90.0, "below 10.0 GiB free")]
    assert found.left == 40 * GIB


# -- the last start


def report(**fields):
    return RecoveryReport(**fields).as_dict()


def test_damage_is_named_with_its_size_and_names_no_topic():
    damaged = report(
        mode="abnormal", scanned=4_628, end=1 << 20, ms=812.0, quarantined_bytes=25_513,
        stepped_over=[{"physicalOffset": 77, "length": 25_513, "reason": "bad body checksum"}],
        rebuilt=["queue secret/2: too short", "index from 5"])
    [trouble] = recovery_troubles(damaged)
    assert trouble.text == ("The last start found 1 damaged place among the stored messages (24.9 KiB). The messages "
                            "there are lost, all others are served.")
    text = " ".join(recovery_card(damaged).itertext())
    for part in ("killed, or the machine lost power", "4,628 messages, 1.0 MiB, in 812 ms", "a body that has changed",
                 "the queues, the index of keys", "24.9 KiB of removed or damaged bytes"):
        assert part in text
    assert "secret" not in text


@pytest.mark.parametrize(("fields", "text"), [
    ({}, "The store was new."), ({"mode": "normal"}, "had been closed cleanly"), ({"mode": "rebuild"}, "were rebuilt")])
def test_an_ordinary_start_is_no_trouble(fields, text):
    assert not [*recovery_troubles(report(**fields))]
    assert text in " ".join(recovery_card(report(**fields)).itertext())


def test_a_torn_end_is_a_note():
    [trouble] = recovery_troubles(report(cut=[{"file": "x", "position": 1, "length": 40, "reason": "zero"}]))
    assert (trouble.level, "40 B" in trouble.text) == ("note", True)
