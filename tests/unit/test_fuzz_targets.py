"""The inputs that fuzzing has kept: each takes its target little time and memory and finds no fault.

`make fuzz` looks for new ones. The inputs of faults that were found, and are mended, are in tests/fuzz/faults.
"""

from __future__ import annotations

import gc
import importlib.util
import sys
import tracemalloc
from pathlib import Path

import fuzz_targets
import pytest

ROOT = Path(__file__).resolve().parents[2]
FUZZ = ROOT / "tests" / "fuzz"
MEMORY_MAX = 64 << 20
CORPUS_BYTES_MAX = 1 << 20
COSTLY = {"store", "timer"}
"""Targets that open a store for each input: a run that is not long has some inputs."""
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("fuzz", ROOT / "tools" / "fuzz.py")
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module


def inputs_of(tool, target, step):
    """The seeds, the inputs of faults, and each ``step``-th one of those that reached something new."""
    return [*fuzz_targets.seeds(target), *tool.lines_of(FUZZ / "corpus" / f"{target}.txt")[::step],
            *tool.lines_of(FUZZ / "faults" / f"{target}.txt")]


@pytest.mark.parametrize(("target", "step"), [
    *(pytest.param(target, 5 if target in COSTLY else 1, id=target) for target in fuzz_targets.TARGETS),
    *(pytest.param(target, 1, id=f"{target}, all", marks=pytest.mark.long) for target in sorted(COSTLY))])
def test_no_input_that_was_kept_finds_a_fault(tool, target, step):
    run = fuzz_targets.TARGETS[target]
    inputs = inputs_of(tool, target, step)
    assert len(inputs) >= 2
    run(inputs[0])  # what is loaded and made once
    tracemalloc.start()
    try:
        for data in inputs:
            if target in tool.COMPILED:
                gc.collect(1)  # a store that was closed refers to itself
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            try:
                run(data)
            except Exception as error:
                raise AssertionError(f"{target} {data.hex()}: {error!r}") from error
            assert tracemalloc.get_traced_memory()[1] - before < MEMORY_MAX, data.hex()
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("target", fuzz_targets.TARGETS)
def test_every_target_has_a_small_corpus(tool, target):
    kept = tool.lines_of(FUZZ / "corpus" / f"{target}.txt")
    assert kept
    assert all(len(data) <= tool.KEPT_BYTES for data in kept)
    assert len(kept) <= tool.KEPT_MAX


def test_the_corpora_are_small_and_of_targets_that_exist():
    files = [*FUZZ.rglob("*.*")]
    assert {path.stem for path in files} <= set(fuzz_targets.TARGETS)
    assert sum(path.stat().st_size for path in files) < CORPUS_BYTES_MAX


def test_a_broken_rule_is_found(monkeypatch):
    """The checks of the targets can fail."""
    monkeypatch.setattr(fuzz_targets, "decode_properties", lambda stored: {"another": "property"})
    message = fuzz_targets.seeds("grpc")[0]
    with pytest.raises(fuzz_targets.FoundError, match="properties change"):
        fuzz_targets.TARGETS["grpc"](message)


def test_an_undeclared_error_of_a_request_is_found(monkeypatch):
    broker = fuzz_targets._Broker()
    try:
        broker._begin()
        code = 34  # HEART_BEAT

        def fail(channel, request):
            raise KeyError("not declared")

        monkeypatch.setitem(broker.controller.servers[0].processors, code, fail)
        with pytest.raises(fuzz_targets.UndeclaredError, match="not declared"):
            broker.ask(code, {}, b"")
        monkeypatch.undo()
        broker.ask(code, {}, b"{}")
    finally:
        broker.close()
