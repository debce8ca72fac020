"""What may be deleted: every row of the table, ages, hours and pins."""

from __future__ import annotations

import itertools

import pytest

from tailrace import StoreConfig
from tailrace.store.retention.pins import Pin, PinKind, PinPolicy, pin_policies
from tailrace.store.retention.rules import (
    Rule,
    SegmentFacts,
    explain,
    is_time_to_delete,
    segment_time,
    select_to_free,
)
from tailrace.store.retention.topic_rules import TopicNeeds

HOUR = 3_600_000
NOW = 1_000 * HOUR
POLICIES = pin_policies(StoreConfig())


def segments(*ages_hours, size=100, **more):
    return [
        SegmentFacts(f"/l/{i}", i * size, size, NOW - round(age * HOUR), "mtime", **more)
        for i, age in enumerate(ages_hours)
    ]


def rules(facts, *, at_once=False, requested=False, pins=(), hours=72.0, policies=POLICIES, topics=None):
    return [v.rule for v in explain(
        facts, now_ms=NOW, reserved_hours=hours, clean_at_once=at_once, requested=requested, pins=pins,
        policies=policies, topics=topics)]


def test_every_combination_of_a_file_has_one_row():
    expected = {}
    for requested, last, kept, flushed, (dispatched, has_units), expired, pin, at_once, topics in itertools.product(
        (False, True), (False, True), (False, True), (False, True), ((False, False), (False, True), (True, True)),
        (False, True),
        (None, PinPolicy.DELETE_OLDEST, PinPolicy.REFUSE_WRITES), (False, True),
        (None, TopicNeeds(own_from=0, default_from=0), TopicNeeds(default_from=1 << 40))
    ):
        facts = segments(73 if expired else 71, flushed=flushed, dispatched=dispatched, has_units=has_units)
        if kept:  # an older file stays
            facts = [SegmentFacts("/l/old", -100, 100, NOW, "mtime", flushed=False), *facts]
        if not last:
            facts = [*facts, *segments(0)]
        pins = [Pin(PinKind.GROUP, 0, "g")] if pin else []
        rule = rules(facts, at_once=at_once, requested=requested, pins=pins, topics=topics,
                     policies={PinKind.GROUP: pin})[1 if kept else 0]
        goes = rule.deletable
        # Safety, said without the table:
        if last or kept or not flushed or not has_units:
            assert not goes
        elif requested and not at_once:
            assert goes == (dispatched and not pin)
        elif not at_once:
            aged = expired if topics is None else topics.own_from > 0
            assert goes == (aged and dispatched and not pin)
        else:
            assert goes == (pin is not PinPolicy.REFUSE_WRITES)
        expected.setdefault(rule, 0)
        expected[rule] += 1
    assert set(expected) == set(Rule), "every rule is reached"


def test_expired_head_files_go_up_to_the_first_that_stays():
    found = rules(segments(100, 72, 71.9, 90, 0))
    assert found == [
        Rule.EXPIRED, Rule.EXPIRED, Rule.NOT_EXPIRED, Rule.BEHIND_KEPT, Rule.LAST_FILE]


def test_the_last_file_stays_whatever_happens():
    assert rules(segments(9999), at_once=True, hours=0) == [Rule.LAST_FILE]
    assert rules([]) == []


def test_fractions_of_an_hour_count():
    assert rules(segments(0.11, 0), hours=0.1)[0] is Rule.EXPIRED
    assert rules(segments(0.09, 0), hours=0.1)[0] is Rule.NOT_EXPIRED


def test_a_pin_keeps_its_file_and_all_later_ones_but_not_earlier_ones():
    pins = [Pin(PinKind.GROUP, 150, "orders")]
    found = rules(segments(99, 99, 99, 99), pins=pins)
    assert found == [Rule.EXPIRED, Rule.PINNED, Rule.BEHIND_KEPT, Rule.LAST_FILE]


@pytest.mark.parametrize(("kind", "rule"), [
    (PinKind.TIMER, Rule.FORCED), (PinKind.GROUP, Rule.FORCED), (PinKind.ARCHIVE, Rule.REFUSED)])
def test_under_pressure_the_kind_of_a_pin_decides(kind, rule):
    assert rules(segments(99, 0), pins=[Pin(kind, 5, "p")], at_once=True)[0] is rule


def test_the_strictest_of_several_pins_decides():
    pins = [Pin(PinKind.GROUP, 0, "g"), Pin(PinKind.ARCHIVE, 50, "a")]
    assert rules(segments(99, 0), pins=pins, at_once=True)[0] is Rule.REFUSED


def test_an_expired_file_that_a_forced_pass_deletes_does_not_count_as_forced():
    found = explain(segments(99, 1, 0), now_ms=NOW, reserved_hours=72, clean_at_once=True,
                    policies=POLICIES)
    assert [(v.rule, v.forced) for v in found[:2]] == [(Rule.EXPIRED, False), (Rule.FORCED, True)]


def test_w27_age_is_the_store_time_of_the_next_message_not_the_time_of_the_copy():
    assert segment_time("storeTimestamp", NOW - 80 * HOUR, NOW, NOW) == (
        NOW - 80 * HOUR, "storeTimestamp")
    assert segment_time("mtime", NOW - 80 * HOUR, NOW - 5, NOW) == (NOW - 5, "mtime")


@pytest.mark.parametrize("unreadable", [-1, 0, NOW + 1])
def test_the_time_of_the_file_counts_where_no_store_time_can_be_right(unreadable):
    assert segment_time("storeTimestamp", unreadable, NOW - 7, NOW) == (NOW - 7, "mtime")


@pytest.mark.parametrize("listed", ["04", "4", "02;04", " 4 ; 23", "4;4"])
def test_the_hour_is_up_for_all_of_it(listed):
    assert is_time_to_delete(listed, 4)
    assert not is_time_to_delete(listed, 5)


def test_a_request_takes_whole_files_up_to_its_bytes_and_no_more():
    facts = [f._replace(allocated=40) for f in segments(1, 1, 1, 1)]
    verdicts = explain(facts, now_ms=NOW, reserved_hours=72, clean_at_once=False, requested=True, policies=POLICIES)
    for wanted, count in ((1, 1), (40, 1), (41, 2), (120, 3)):
        going, stopped = select_to_free(verdicts, wanted)
        assert ([v.facts.path for v in going], stopped) == ([f"/l/{i}" for i in range(count)], ""), wanted
    assert all(v.forced for v in going), "they have not expired"
    assert select_to_free(verdicts, 121) == (going, "/l/3 stays, it is the last file")
    assert select_to_free([], 1) == ([], "there is no file")
