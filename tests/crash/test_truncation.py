"""The log, or a file derived from it, ends too early: what was whole before that is all there.

A seeded part of all places; ALL=1 runs every one, as tools/fault_matrix.py does.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import random

import pytest
from long_runs import LONG

_spec = importlib.util.spec_from_file_location("faults", pathlib.Path(__file__).with_name("faults.py"))
faults = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(faults)

SEED = int(os.environ.get("SEED", "1"))
ALL = bool(os.environ.get("ALL"))
pytestmark = pytest.mark.crash


@pytest.fixture(scope="module")
def source():
    made = faults.Source(SEED)
    assert made.look(made.image("bare"), keys=True) == made.wanted
    return made


def some(cases, count):
    return cases if ALL else random.Random(SEED).sample(cases, count)


@pytest.mark.slow
def test_a_log_that_is_cut_at_any_byte_keeps_what_is_before(source):
    cases = faults.all_log_cuts(source)
    always = [(record.at, "killed", "zero") for record in source.records[-64::9]]
    for case in always + some(cases, 100 if LONG else 40):
        try:
            faults.cut_log(source, *case)
        except Exception as error:
            raise AssertionError(f"SEED={SEED} {case}: {error}") from error


@pytest.mark.slow
def test_a_derived_file_that_is_cut_at_any_length_heals(source):
    cases = faults.all_derived_cuts(source)
    paths = {path for path, *_ in cases}
    assert {path.split("/")[2] for path in paths} == {"consumequeue", "index", "checkpoint", "tailrace"}
    empty = [(path, 0, "clean") for path in sorted(paths)]
    for case in empty + some(cases, 100 if LONG else 40):
        try:
            faults.cut_derived(source, *case)
        except Exception as error:
            raise AssertionError(f"SEED={SEED} {case}: {error}") from error
