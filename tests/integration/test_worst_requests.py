"""The probes of `make soak`, quickly: every code has a worst request, a small store serves them, and a wait for a
processor is not one for the server."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def tool(monkeypatch, name):
    monkeypatch.setattr(sys, "path", [*sys.path])
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def probe(monkeypatch):
    return tool(monkeypatch, "worst_requests")


@pytest.fixture
def delays(monkeypatch):
    return tool(monkeypatch, "run_delay")


@pytest.mark.long
@pytest.mark.slow
def test_no_code_holds_a_small_server_for_seconds(probe, tmp_path, capsys):
    """The bound is generous: a busy machine delays everything. Without a bound some took minutes."""
    assert probe.run(str(tmp_path), 50, 1, 0, 5_000) == 0
    shown = capsys.readouterr().out
    assert "no answer in 20 s" not in shown
    assert "none held the loop longer than 5000 ms" in shown


def test_a_code_without_a_worst_request_fails_the_probe(probe, tmp_path, capsys, monkeypatch):
    codes = probe.registered_codes(str(tmp_path / "store"))
    assert not (codes[0] | codes[1]) - set(probe.worst_requests(50, 0))
    monkeypatch.setattr(probe, "registered_codes", lambda directory: (codes[0] | {9999}, codes[1]))
    assert probe.run(str(tmp_path), 50, 1, 0, 50) == 1
    assert "no worst request is known for the codes [9999]" in capsys.readouterr().out


def test_a_wait_for_a_processor_is_not_one_for_the_event_loop(delays):
    assert delays.own_ms(140_000_000, 4_000_000, 130_000_000) == 10.0


def test_what_the_event_loop_ran_itself_is_never_taken_off(delays):
    assert delays.own_ms(140_000_000, 90_000_000, 900_000_000) == 90.0
    assert delays.own_ms(60_000_000, 0, 0) == 60.0, "a loop that sleeps in a system call is held"


def test_threads_of_a_process_are_read_from_its_scheduler_statistics(delays):
    busy = subprocess.Popen(
        [sys.executable, "-c", "print('up', flush=True)\nsum(range(3_000_000))\nprint('done', flush=True)\ninput()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with busy:
        threads = delays.Threads(busy.pid)
        busy.stdout.readline()
        before = threads.all()
        busy.stdout.readline()
        ran, waited = threads.loop_and_waits(before)
        assert ran > 5_000_000
        assert waited >= 0
        assert threads.loop().slower >= 1.0
        busy.stdin.write(b"\n")
        busy.stdin.close()
    assert threads.all() == {}


@pytest.mark.parametrize(("waited", "found"), [(0, 1), (3_000, 0)], ids=["a free machine", "a busy machine"])
def test_a_median_of_an_attack_counts_by_what_the_event_loop_could_run(monkeypatch, delays, waited, found):
    """The loop ran for 1 us and waited for a processor for 3: everything takes four times as long."""
    taken = delays.Taken
    row = {"turns": [taken(0, 0), taken(1000, 0), taken(2000, waited)], "mib": [0, 0, 0], "done": {}, "after": {},
           "before": {"send": ([1.0], [])}, "during": {"send": ([7.0], [])}}
    faults = tool(monkeypatch, "hostile_runs").faults_of(row)
    assert len(faults) == found
