"""The reference's consumers that pull, against `tailrace serve`."""

from __future__ import annotations

import subprocess

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.interop, pytest.mark.integration]
COUNT = 40


def test_the_pull_consumers_of_the_reference_work(reference, tailrace_broker):
    done = subprocess.run(
        [reference, "pull-clients", tailrace_broker.namesrv, "pulled", str(COUNT)],
        capture_output=True, text=True, timeout=180, check=False)
    said = {}
    for line in done.stdout.splitlines():
        name, _, value = line.partition(" ")
        said.setdefault(name, []).append(value)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    numbers = [str(n) for n in range(COUNT)]
    assert said == {
        "queues": ["4"], "end": ["true"] * 8, "illegal": ["OFFSET_ILLEGAL"] * 4,
        "by-time": ["true"] * 4, "max": [str(COUNT)], "min": ["0"],
        "all": [f"[{', '.join(numbers)}]"], "odd": [f"[{', '.join(numbers[1::2])}]"],
        "committed": ["true"], "by-id": ["true"], "by-key": ["1"], "waits": ["true"],
        "woken": ["FOUND [-1]"], "woken-in-time": ["true"],
        "lite-even": [f"[{', '.join(numbers[::2])}]"], "lite-committed": [str(COUNT // 2)],
        "lite-assigned": ["4"], "assign-all": [str(COUNT + 1)], "assign-seek": ["1"],
        "done": ["true"],
    }
