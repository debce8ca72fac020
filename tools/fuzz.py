"""Fuzz what reads bytes of others, guided by coverage (Atheris): SECONDS for each target of fuzz_targets.py.

An input that raises, takes longer than 10 s or more than 2 GiB is a fault. It is printed in hex and kept in build/fuzz.
When the fault is mended, its line belongs into tests/fuzz/faults, so that the ordinary tests run it. Kernels run
interpreted, so that their branches count; those of COMPILED do not. KEEP=1 writes the inputs that found new branches
to tests/fuzz/corpus.

    SECONDS=60 python tools/fuzz.py
    ONLY=frame,sql SECONDS=600 SEED=7 KEEP=1 python tools/fuzz.py
"""

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUPPORT, CORPUS, FOUND = ROOT / "tests" / "support", ROOT / "tests" / "fuzz" / "corpus", ROOT / "build" / "fuzz"
KEPT_MAX, KEPT_BYTES = 150, 1_024
"""Inputs of a target that are kept, and the bytes of one."""
INPUT_MAX = 4_096
COMPILED = {"store", "timer", "request", "lanes"}
"""Targets whose kernels run compiled: interpreted they would try ten inputs a second, and have no lanes."""
TIMEOUT_S, MEMORY_MIB = 10, 2_048
sys.path.insert(0, str(SUPPORT))


def lines_of(path):
    """Return the inputs in a file that has one in hex in each line; none if there is no file."""
    return [bytes.fromhex(line) for line in path.read_text().split()] if path.exists() else []


def write_lines(path, inputs):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{data.hex()}\n" for data in sorted(inputs, key=lambda data: (len(data), data))))


def fuzz_here(target, arguments):
    """The process of a target: libFuzzer runs in it and ends it."""
    import atheris

    with atheris.instrument_imports(include=["tailrace", "fuzz_targets"], enable_loader_override=False):
        import fuzz_targets

    atheris.Setup([sys.argv[0], *arguments], fuzz_targets.TARGETS[target])
    atheris.Fuzz()


def child(target, *arguments):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(SUPPORT), *filter(None, [
        os.environ.get("PYTHONPATH")])])}
    if target not in COMPILED:
        environment["TAILRACE_INTERPRETED"] = "1"
    return subprocess.run(
        [sys.executable, __file__, "--target", target, *arguments], capture_output=True, text=True, errors="replace",
        env=environment, cwd=ROOT, check=False)


def unpack(directory, inputs):
    for data in inputs:
        (directory / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)


def run_target(target, seconds, seed, keep):
    """Fuzz one target. Return whether nothing was found."""
    import fuzz_targets

    FOUND.mkdir(parents=True, exist_ok=True)
    kept = CORPUS / f"{target}.txt"
    with tempfile.TemporaryDirectory(prefix=f"fuzz-{target}-") as place:
        corpus = Path(place, "corpus")
        corpus.mkdir()
        unpack(corpus, [*fuzz_targets.seeds(target), *lines_of(kept)])
        began, count = time.monotonic(), len(list(corpus.iterdir()))
        done = child(
            target, str(corpus), f"-max_total_time={seconds}", f"-seed={seed}", f"-timeout={TIMEOUT_S}",
            f"-rss_limit_mb={MEMORY_MIB}", f"-max_len={INPUT_MAX}", f"-artifact_prefix={FOUND}/{target}-",
            "-print_final_stats=1", "-verbosity=1")
        executions = re.search(r"number_of_executed_units: (\d+)", done.stderr)
        covered = re.findall(r"cov: (\d+)", done.stderr)
        print(f"{target:10} {executions[1] if executions else '?':>9} executions in {time.monotonic() - began:4.0f} s, "
              f"{covered[-1] if covered else '?':>5} branches, corpus {count} -> {len(list(corpus.iterdir()))}, "
              f"{'nothing found' if done.returncode == 0 else 'FOUND A FAULT'}", flush=True)
        if done.returncode:
            show_fault(target, done)
        if keep and done.returncode == 0:
            keep_inputs(target, corpus, kept)
    return done.returncode == 0


def show_fault(target, done):
    said = done.stdout + done.stderr
    trace = said.partition("=== Uncaught Python exception: ===")[2].partition("\n==")[0].strip()
    print("\n".join((trace or said).splitlines()[-25:]))
    for path in re.findall(r"Test unit written to (\S+)", done.stderr):
        print(f"input of {target} ({path}): {Path(path).read_bytes().hex()}", flush=True)


def keep_inputs(target, corpus, kept):
    """Write the inputs that found new branches: the small ones, and of very many a part of each size."""
    inputs = [path.read_bytes() for path in corpus.iterdir()]
    small = sorted((data for data in inputs if data and len(data) <= KEPT_BYTES), key=lambda data: (len(data), data))
    write_lines(kept, small[:: max(1, -(-len(small) // KEPT_MAX))])
    print(f"{target:10} kept {len(lines_of(kept))} inputs", flush=True)


def main(target=None, arguments=()):
    if target is not None:
        fuzz_here(target, arguments)
        return 0
    try:
        import atheris
    except ImportError:
        sys.exit("Atheris is not installed: pip install --require-hashes -r requirements/fuzz.txt")
    import fuzz_targets

    only = [name for name in os.environ.get("ONLY", "").split(",") if name] or list(fuzz_targets.TARGETS)
    unknown = set(only) - set(fuzz_targets.TARGETS)
    if unknown:
        sys.exit(f"unknown targets: {', '.join(sorted(unknown))}")
    seconds, seed = int(os.environ.get("SECONDS", "30")), int(os.environ.get("SEED", "1"))
    print(f"SEED={seed} SECONDS={seconds} {atheris.__name__} on Python {sys.version.split()[0]}", flush=True)
    results = [run_target(name, seconds, seed, os.environ.get("KEEP") == "1") for name in only]
    return 0 if all(results) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", help=argparse.SUPPRESS)
    parser.add_argument("arguments", nargs="*", help=argparse.SUPPRESS)
    known, further = parser.parse_known_args()
    sys.exit(main(known.target, [*known.arguments, *further]))
