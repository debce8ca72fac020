"""Result lines: what was measured, where, on what commit."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tailrace.kernels import compiled

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
# A benchmark that gets SIGTERM stops the servers and programs that it has started, as it does after Ctrl-C.
signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def commit() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=ROOT, capture_output=True,
        text=True, check=False)
    return done.stdout.strip() or "unknown"


def report(name: str, parameters: dict[str, Any], metrics: dict[str, Any]) -> None:
    """Append the line to benchmarks/results/NAME.jsonl and show it."""
    line = {
        "benchmark": name,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": commit(),
        "machine": {
            "processor": processor(), "cpus": os.cpu_count(), "kernel": platform.release(),
            "memory_mb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20,
        },
        "python": platform.python_version(),
        "kernels": "compiled" if compiled() else "interpreted",
        "parameters": parameters,
        "metrics": metrics,
    }
    text = json.dumps(line)
    RESULTS.mkdir(parents=True, exist_ok=True)
    with (RESULTS / f"{name}.jsonl").open("a") as file:
        file.write(text + "\n")
    print(text)


def note(text: str) -> None:
    """Progress, on stderr: stdout has the result alone."""
    print(text, file=sys.stderr, flush=True)


def output_hash(parts: list[bytes]) -> str:
    """A short hash of the output, so that a faster run that does less is noticed."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()[:16]
