"""Options and splits of the source, tested without Spark."""

import itertools

import numpy as np
import orjson
import pytest

from tailrace.errors import ConfigError
from tailrace.spark.source.brokers import Brokers
from tailrace.spark.source.options import parse_options
from tailrace.spark.source.planning import plan_splits
from tailrace.testing import SimClock

COLOUR = "; is columns meant?"


def names(mode):
    return ("topic", "body", "damaged") if mode == "PERMISSIVE" else ("topic", "body")


@pytest.fixture
def root(tmp_path):
    (tmp_path / "name" / "commitlog").mkdir(parents=True)
    return str(tmp_path / "name")


def test_names_are_read_in_any_case(root):
    found = parse_options(
        {"PATH": root, "Topic": "a, b", "startingoffsets": '{"a": {"0": 5}}',
         "endingOffsets": "LATEST", "Columns": "body"}, names)
    assert found.topics == found.named_topics() == {"a", "b"}
    assert (found.start.by, found.start.table) == ("offsets", {"a": {0: 5}})
    assert found.end.by == "latest"
    assert (found.columns, found.roots) == (("body",), (("name", root),))
    assert found.wants("a", 3)
    assert not found.wants("c", 0)


def test_every_problem_is_named_at_once():
    with pytest.raises(ConfigError) as caught:
        parse_options(
            {"colums": "x", "columns": "nope", "body": "raw", "topic": "a", "subscribePattern": "(",
             "startingOffsets": "soon", "queueId": "-1", "splitBytes": "0"}, names)
    for word in ("colums; is columns meant?", "nope", "raw", "subscribePattern", "startingOffsets", "queueId",
                 "splitBytes", "path"):
        assert word in str(caught.value), word
    assert len(caught.value.problems) == 10


def test_the_requests_of_a_read_know_which_slaves_were_suggested():
    own = parse_options({"broker": "127.0.0.1:9", "topic": "a"}, names).brokers
    with Brokers(own) as brokers:
        async def made():
            return brokers.calls

        assert brokers.run(made()) is brokers.run(made())


@pytest.mark.parametrize(("given", "meant"), [
    ("topci", "; is topic meant?"), ("startingtimestmp", "; is startingTimestamp meant?"),
    ("kafkaConsumerPollTimeoutMs", ""), ("maxoffsetpertrigger", "; is maxOffsetsPerTrigger meant?")])
def test_an_unknown_option_is_reported_as_it_was_written_with_a_suggestion_and_the_list(root, given, meant):
    with pytest.raises(ConfigError) as caught:
        parse_options({"path": root, given: "x", "colour": "y"}, names)
    unknown = sorted([f"unknown option {given}{meant}", f"unknown option colour{COLOUR}"])
    assert [*caught.value.problems[:2]] == unknown
    assert caught.value.problems[2].startswith("known options are archive, assign, body, columns, config, ending")
    assert len(caught.value.problems) == 3


NOW = SimClock().now_ms()
HOUR = 3_600_000


@pytest.mark.parametrize(("text", "time"), [
    ("2026-01-31T12:00Z", 1_769_860_800_000), ("2026-01-31T12:00:00.250+02:00", 1_769_853_600_250),
    ("1769860800000", 1_769_860_800_000), ("-1h", NOW - HOUR), ("-1d12h", NOW - 36 * HOUR), ("-99999d", 0),
])
def test_times_are_iso_numbers_or_before_the_query(root, text, time):
    clock = SimClock()
    for name in ("startingTimestamp", "endingTimestamp"):
        found = parse_options({"path": root, name: text}, names, clock)
        assert (found.start if name[0] == "s" else found.end).timestamp == time
    for name in ("startingOffsetsByTimestamp", "endingOffsetsByTimestamp"):
        table = orjson.dumps({"a": {"0": text, "1": 7}}).decode()
        found = parse_options({"path": root, name: table}, names, clock)
        assert (found.start if name[0] == "s" else found.end).table == {"a": {0: time, 1: 7}}


@pytest.mark.parametrize(("text", "ms"), [
    ("90s", 90_000), ("15m", 900_000), ("15min", 900_000), ("2 Min", 120_000), ("500", 500), ("1h30m", 5_400_000),
    ("250ms", 250)])
def test_durations_have_a_unit_or_are_milliseconds(root, text, ms):
    given = {"path": root, "minOffsetsPerTrigger": "2", "maxTriggerDelay": text}
    assert parse_options(given, names).max_trigger_delay_ms == ms


@pytest.mark.parametrize(("given", "by", "timestamp", "table"), [
    ({}, "", 0, {}),
    ({"startingOffsets": "Earliest"}, "earliest", 0, {}),
    ({"startingOffsets": "latest"}, "latest", 0, {}),
    ({"startingOffsets": '{"a": {"0": -2, "1": -1}}'}, "offsets", 0, {"a": {0: -2, 1: -1}}),
    ({"startingOffsets": "latest", "startingOffsetsByTimestamp": '{"a": {"3": 9}}'},
     "timestamps", 0, {"a": {3: 9}}),
    ({"startingOffsets": "latest", "startingOffsetsByTimestamp": '{"a": {"3": 9}}',
      "startingTimestamp": "77"}, "timestamp", 77, {}),
])
def test_where_a_read_starts_by_precedence(root, given, by, timestamp, table):
    found = parse_options({"path": root, **given}, names).start
    assert (found.by, found.timestamp, found.table) == (by, timestamp, table)


@pytest.mark.parametrize(("given", "by", "timestamp", "table"), [
    ({}, "latest", 0, {}),
    ({"endingOffsets": '{"a": {"0": -1}}'}, "offsets", 0, {"a": {0: -1}}),
    ({"endingOffsets": "latest", "endingOffsetsByTimestamp": '{"a": {"3": 9}}'},
     "timestamps", 0, {"a": {3: 9}}),
    ({"endingOffsetsByTimestamp": '{"a": {"3": 9}}', "endingTimestamp": "78"},
     "timestamp", 78, {}),
])
def test_where_a_read_ends_by_precedence(root, given, by, timestamp, table):
    found = parse_options({"path": root, **given}, names).end
    assert (found.by, found.timestamp, found.table) == (by, timestamp, table)


@pytest.mark.parametrize(("given", "problem"), [
    ({"topic": "a", "assign": '{"a": [0]}'}, "only one of topic, subscribe, assign and"),
    ({"assign": "a"}, "assign=a is not JSON"),
    ({"assign": '{"a": [-1]}'}, "is not JSON"),
    ({"assign": '{"a": 0}'}, "is not JSON"),
    ({"subscribePattern": "["}, "is not a regular expression"),
    ({"startingOffsets": '{"a": {"0": -3}}'}, "startingOffsets="),
    ({"startingOffsets": '{"a": {"0": 1.5}}'}, "startingOffsets="),
    ({"startingOffsets": '{"a": {"0": true}}'}, "startingOffsets="),
    ({"startingOffsets": '{"a": {"-1": 0}}'}, "startingOffsets="),
    ({"startingOffsets": "[]"}, "neither|not earliest, latest or JSON"),
    ({"endingOffsets": "earliest"}, "not latest or JSON"),
    ({"endingOffsets": '{"a": {"0": -2}}'}, "endingOffsets="),
    ({"startingTimestamp": "-1"}, "startingTimestamp=-1 is not a time; write 2026-01-31T12:00Z, -1h for"),
    ({"startingTimestamp": "²"}, "is not a time"),
    ({"endingTimestamp": str(1 << 63)}, "is not a time"),
    ({"startingOffsetsByTimestamp": '{"a": {"0": -1}}'}, "startingOffsetsByTimestamp="),
    ({"startingOffsetsByTimestampStrategy": "soon"}, "not one of latest, error"),
    ({"maxOffsetsPerTrigger": "0"}, "whole number from 1 to"),
    ({"minOffsetsPerTrigger": "0"}, "whole number from 1 to"),
    ({"minOffsetsPerTrigger": "6", "maxOffsetsPerTrigger": "5"}, "is more than maxOffsetsPerTrigger=5"),
    ({"minOffsetsPerTrigger": "6", "maxTriggerDelay": "soon"}, "maxTriggerDelay 'soon' is not a duration"),
    ({"maxTriggerDelay": "1m"}, "needs minOffsetsPerTrigger"),
    ({"minPartitions": "0"}, "whole number from 1 to"),
    ({"failOnDataLoss": "maybe"}, "not one of true, false"),
    ({"mode": "lenient"}, "not one of FAILFAST, PERMISSIVE, DROPMALFORMED"),
    ({"columns": "damaged"}, "columns=damaged"),
    ({"columns": "topci"}, "columns=topci; is topic meant"),
    ({"startingOffsetsByTimestamp": '{"a": {"0": true}}'}, "startingOffsetsByTimestamp="),
    ({"startingOffsetsByTimestamp": '{"a": {"0": "soon"}}'}, "startingOffsetsByTimestamp="),
    ({"columns": "body,body"}, "names one twice"),
    ({"config": "/nowhere"}, "is not a file"),
    ({"paths": '["/nowhere/x"]'}, "/nowhere/x is not a store directory"),
    ({"store": "a,b"}, "1 stores need as many different labels"),
])
def test_what_cannot_work_is_refused(root, given, problem):
    with pytest.raises(ConfigError, match=problem) as caught:
        parse_options({"path": root, **given}, names)
    assert len(caught.value.problems) == 1


def test_assigned_queues_alone_are_read(root):
    found = parse_options({"path": root, "assign": '{"a": [0, 2], "b": [1]}'}, names)
    assert [found.wants(*queue) for queue in (("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1))] == [
        True, False, True, False, True]


def test_options_of_the_other_kind_of_query_are_refused(root):
    found = parse_options({"path": root, "MAXOFFSETSPERTRIGGER": "5"}, names)
    with pytest.raises(ConfigError, match="maxOffsetsPerTrigger is for streams"):
        found.refuse(("maxOffsetsPerTrigger",), "is for streams")


@pytest.mark.parametrize(
    ("positions", "until", "split", "least", "want"),
    [
        ([], 0, 10, 1, []),
        ([0], 5, 10, 4, [(0, 5)]),
        ([0, 10, 20, 30], 40, 20, 1, [(0, 20), (20, 40)]),
        ([100, 110, 120, 130], 140, 1000, 2, [(100, 120), (120, 140)]),
        ([0, 1000], 1010, 100, 1, [(0, 1000), (1000, 1010)]),
    ],
)
def test_splits(positions, until, split, least, want):
    assert plan_splits(np.array(positions, dtype=np.int64), until, split, least) == want


def test_splits_never_drop_nor_overlap():
    random = np.random.default_rng(7)
    for _ in range(200):
        positions = np.unique(random.integers(0, 10_000, random.integers(1, 300)))
        until = int(positions[-1]) + int(random.integers(1, 50))
        splits = plan_splits(
            positions, until, int(random.integers(1, 3000)), int(random.integers(1, 9)))
        assert splits[0][0] == positions[0]
        assert splits[-1][1] == until
        assert all(a[1] == b[0] for a, b in itertools.pairwise(splits))
