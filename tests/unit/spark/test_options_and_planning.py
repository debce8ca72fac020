"""Options and splits need no Spark."""

import itertools

import numpy as np
import pytest

from tailrace.errors import ConfigError
from tailrace.spark.options import parse_options
from tailrace.spark.planning import plan_splits

COLUMNS = ("topic", "body")


def test_names_are_read_in_any_case():
    found = parse_options(
        {"PATH": "/s/name", "Topic": "a, b", "startingoffsets": '{"a": {"0": 5}}',
         "endingOffsets": "latest", "Columns": "body"}, COLUMNS)
    assert found.topics == {"a", "b"}
    assert found.starting_offsets == {"a": {"0": 5}}
    assert (found.columns, found.store) == (("body",), "name")
    assert found.wants("a")
    assert not found.wants("c")


def test_every_problem_is_named_at_once():
    with pytest.raises(ConfigError) as caught:
        parse_options(
            {"colums": "x", "columns": "nope", "body": "raw", "topic": "a", "subscribePattern": "(",
             "startingOffsets": "soon", "queueId": "-1", "splitBytes": "0"}, COLUMNS)
    for word in ("colums", "nope", "raw", "subscribePattern", "startingOffsets", "queueId",
                 "splitBytes", "path"):
        assert word in str(caught.value), word
    assert len(caught.value.problems) == 9


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
        assert all(start < end and start in positions for start, end in splits)
