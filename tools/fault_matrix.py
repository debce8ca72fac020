"""The long fault matrix: every cut and every flipped bit that the tests take a part of, also in logs whose store times
step back.

SEED=n replays one, CASES=n bounds each part and START=n leaves out its first n cases, whose order is
always the same: so a run can be gone on with. Names of parts run only these, so that several processes
can share the work. Prints counts, and by field what no checksum, length, position or unit detects. Each
violation prints the case that shows it; the rest is also run.
"""

import argparse
import collections
import functools
import importlib.util
import logging
import os
import random
import sys
import time
from pathlib import Path

spec = importlib.util.spec_from_file_location("faults", Path("tests/crash/faults.py"))
faults = importlib.util.module_from_spec(spec)
spec.loader.exec_module(faults)

RECORDS = 200
STORES = 4
"""Number of stores that share the records, each with its own seed, so that an open reads a fourth of them."""


violations = 0
"""How many cases were not as they should be."""


def run(name, cases, case_of, limit, start=0):
    global violations
    began = time.time()
    outcomes = collections.Counter()
    random.Random(1).shuffle(cases)
    chosen = cases[start : start + limit]
    for number, case in enumerate(chosen, start):
        try:
            outcomes[case_of(case)] += 1
        except Exception as error:
            violations += 1
            print(f"VIOLATION after {number} cases: {name} {case}: {error!r}", flush=True)
        if number % 5000 == 4999:
            print(f"  {name}: {number + 1} cases, {time.time() - began:.0f} s", flush=True)
    print(f"{name}: {len(chosen)} of {len(cases)} cases, {time.time() - began:.0f} s", flush=True)
    return outcomes


def flips(name, config, seed, limit, start, *, steps=False):
    """Every bit of the records, and the table by field and kind of stop."""
    table = collections.Counter()
    each = RECORDS // STORES
    for number in range(STORES):
        source = faults.Source(seed + number, each + 65, config, steps=steps)

        def flip(case, source=source):
            field, what = faults.flip_record(source, *case)
            must = faults.must_be_found(field, case[2], config, case[0], len(source.records))
            assert what == "lost" or not must, f"{field} is {what}"
            return field, case[2], what

        cases = faults.all_flips(source, 0, each)
        table += run(f"flips {name} seed={seed + number}", cases, flip, limit // STORES, start)
        start = max(start - len(cases), 0)
    print(f"flipped bits that are served of all, {name}")
    print(f"  {'field':20}" + "".join(f"{mode:>16}" for mode in faults.MODES))
    for field in sorted({field for field, *_ in table}):
        counts = []
        for mode in faults.MODES:
            all_of = sum(n for (f, m, _), n in table.items() if (f, m) == (field, mode))
            counts.append(f"{table[field, mode, 'served']}/{all_of}")
        print(f"  {field:20}" + "".join(f"{count:>16}" for count in counts), flush=True)


def cuts(seed, limit, start):
    """A log and derived files that end at every byte."""
    source = faults.Source(seed)
    run("log cuts", faults.all_log_cuts(source), lambda c: faults.cut_log(source, *c), limit, start)
    run("derived cuts", faults.all_derived_cuts(source),
        lambda c: faults.cut_derived(source, *c), limit, start)


def random_flips(seed, limit, start):
    """10,000 bits anywhere."""
    source = faults.Source(seed, 120, faults.CHECKED)
    outcomes = run(
        "random flips", [seed * 1_000_003 + n for n in range(10_000)],
        lambda c: faults.random_flip(source, c), limit, start)
    print(f"  {dict(outcomes)}", flush=True)


PARTS = {
    "cuts": cuts,
    "random": random_flips,
    "plain": functools.partial(flips, "without enabledAppendPropCRC", faults.PLAIN),
    "stepped": functools.partial(flips, "with store times that step back", faults.PLAIN, steps=True),
    "checked": functools.partial(flips, "with enabledAppendPropCRC", faults.CHECKED),
}


def main(parts):
    logging.disable(logging.CRITICAL)
    seed = int(os.environ.get("SEED", "1"))
    limit = int(os.environ.get("CASES", "10000000"))
    start = int(os.environ.get("START", "0"))
    began = time.time()
    for part in parts or PARTS:
        PARTS[part](seed, limit, start)
    print(f"{violations} violations, seed {seed}, {time.time() - began:.0f} s")
    return 1 if violations else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="default: all")
    sys.exit(main(parser.parse_args().parts))
