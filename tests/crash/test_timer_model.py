"""The random runs of timer_model: nothing is lost, early, doubled, or delivered though recalled.

``SEED`` starts and ``SEEDS`` counts the runs; ``tools/timer_sim.py`` makes a thousand of them.
"""

import importlib.util
import os
import pathlib

import pytest

_spec = importlib.util.spec_from_file_location(
    "timer_model", pathlib.Path(__file__).with_name("timer_model.py"))
timer_model = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(timer_model)

FIRST = int(os.environ.get("SEED", "1"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("SEEDS", "12")))


@pytest.mark.crash
@pytest.mark.parametrize("seed", SEEDS)
def test_no_timer_is_lost_early_or_doubled(seed):
    wrong, _ = timer_model.violations(seed)
    assert not wrong, f"SEED={seed}"
