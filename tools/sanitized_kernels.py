"""Kernels under the address sanitizer of GCC: the lanes on hostile frames, their fuzz target, and unit tests.

All kernels are built with ``-fsanitize=address`` into a scratch directory, and every object of Python has memory of
its own from malloc, so that a read or write of one byte too many ends the program with a report. FRAMES is the number
of frames of `lane_frames.py`, SECONDS the time of the fuzz target, SEED the first seed of both. Exits 1 if a part
found something, or if there is no sanitizer.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FLAGS = "-O1 -g -w -fsanitize=address -fno-omit-frame-pointer"
LIBRARIES = ("libasan.so", "libstdc++.so.6")
"""The second one is there, because the sanitizer looks for the exceptions of C++ when it starts."""
LOOK = """
import re
from tailrace import kernels
from tailrace.kernels import send_lane, unit_records
maps = open("/proc/self/maps").read()
assert kernels.compiled() and "libasan" in maps, "kernels are interpreted, or there is no sanitizer"
assert not re.findall(r"/src/tailrace/\\S+[.]so", maps), "kernels of the checkout are loaded"
"""


def library(compiler: str, name: str) -> str:
    """Return the path of a library of the compiler. Raises SystemExit."""
    found = subprocess.run(
        [compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
    if not Path(found).is_absolute():
        sys.exit(f"{compiler} has no {name}: install the address sanitizer of GCC")
    return found


def build(lib: Path, temporary: Path) -> None:
    """Build all kernels with the sanitizer beside a copy of the package. Raises CalledProcessError."""
    shutil.copytree(ROOT / "src" / "tailrace", lib / "tailrace", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", lib, "--build-temp", temporary], cwd=ROOT,
        env={**os.environ, "TAILRACE_CFLAGS": FLAGS, "TAILRACE_LDFLAGS": ""}, check=True)


def main() -> int:
    compiler = shutil.which("gcc")
    if compiler is None:
        sys.exit("gcc is missing: install it with its address sanitizer")
    preloaded = ":".join(library(compiler, name) for name in LIBRARIES)
    seed, frames, seconds = (os.environ.get(name, value) for name, value in (
        ("SEED", "1"), ("FRAMES", "50000"), ("SECONDS", "60")))
    began, bad = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="sanitized-") as scratch:
        lib = Path(scratch, "lib")
        build(lib, Path(scratch, "build"))
        print(f"kernels with -fsanitize=address built in {time.monotonic() - began:.0f} s", flush=True)
        environment = {
            **os.environ, "PYTHONPATH": str(lib), "LD_PRELOAD": preloaded, "PYTHONMALLOC": "malloc",
            "ASAN_OPTIONS": "detect_leaks=0", "SEED": seed, "FRAMES": frames, "SECONDS": seconds, "ONLY": "lanes"}
        for name, command in {
            "the kernels that are loaded": ["-c", LOOK],
            "frames through both ways": ["tools/lane_frames.py"],
            "the fuzz target of the lanes": ["tools/fuzz.py"],
            "unit tests of kernels": ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist",
                                      "tests/unit/kernels", "tests/property/test_appender.py"],
        }.items():
            print(f"-- {name}", flush=True)
            if subprocess.run([sys.executable, *command], cwd=ROOT, env=environment, check=False).returncode:
                bad.append(name)
    print(f"sanitized: SEED={seed} FRAMES={frames} SECONDS={seconds}, {time.monotonic() - began:.0f} s, "
          + (f"FOUND: {', '.join(bad)}" if bad else "nothing found"))
    return 1 if bad else 0


if __name__ == "__main__":
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    sys.exit(main())
