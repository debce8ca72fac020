"""Every input of the decision tables matches exactly one row."""

import itertools

import pytest

from tailrace.config import RecoveryMode
from tailrace.store.recovery_table import (
    START_TABLE,
    STOP_TABLE,
    StartDecision,
    StartRow,
    StopDecision,
    StopRow,
    decide_start,
    decide_stop,
)

FOUR = list(itertools.product([False, True], repeat=4))


def rows_for(table, values):
    return [r for r in table if all(c is None or c == v for c, v in zip(r[:4], values, strict=True))]


@pytest.mark.parametrize("values", FOUR)
def test_every_way_to_start_has_one_row(values):
    assert len(rows_for(START_TABLE, values)) == 1
    assert isinstance(decide_start(dict(zip(StartRow._fields[:4], values, strict=True))), StartDecision)


@pytest.mark.parametrize("mode", RecoveryMode)
@pytest.mark.parametrize("values", FOUR)
def test_every_place_has_one_row_in_every_mode(values, mode):
    assert len([r for r in rows_for(STOP_TABLE, values) if mode in r.modes]) == 1
    decision = decide_stop(mode, dict(zip(StopRow._fields[:4], values, strict=True)))
    valid, torn, _, _ = values
    assert (decision is StopDecision.ACCEPT) == (valid and not torn)
    if mode is RecoveryMode.TOLERATE_ANY:
        assert decision is not StopDecision.REFUSE, "the default mode always opens"
    if mode is RecoveryMode.ABSOLUTE:
        assert decision in {StopDecision.ACCEPT, StopDecision.END, StopDecision.REFUSE}


def test_no_row_is_out_of_reach():
    assert {row.decision for row in START_TABLE} == set(StartDecision)
    assert {row.decision for row in STOP_TABLE} == set(StopDecision)


def test_the_tables_are_the_ones_in_the_docstring():
    import tailrace.store.recovery_table as module

    text = module.__doc__
    for row in START_TABLE[1:]:
        assert row.decision.name in text
    lines = [line for line in text.splitlines() if line.startswith("  ") and line.split()[0] in {"yes", "no"}]
    assert len(lines) == len(STOP_TABLE)
