"""The long fault matrix: every cut and every flipped bit that the tests take a part of.

SEED=n replays one, CASES=n bounds each part. Prints counts, and by field what no checksum, length,
position or unit detects. A violation ends it with the case that shows it.
"""

import argparse
import collections
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
"""The records are those of so many stores, each of its own seed: an open reads a fourth of them."""


class ViolationError(Exception):
    """A case that should not be."""


def run(name, cases, case_of, limit):
    began = time.time()
    outcomes = collections.Counter()
    random.Random(1).shuffle(cases)
    for number, case in enumerate(cases[:limit]):
        try:
            outcomes[case_of(case)] += 1
        except Exception as error:
            raise ViolationError(f"after {number} cases: {name} {case}: {error!r}") from error
        if number % 5000 == 4999:
            print(f"  {name}: {number + 1} cases, {time.time() - began:.0f} s", flush=True)
    count = min(len(cases), limit)
    print(f"{name}: {count} of {len(cases)} cases, {time.time() - began:.0f} s", flush=True)
    return outcomes


def flips(name, config, seed, limit):
    """Every bit of the records, and the table by field and kind of stop."""
    table = collections.Counter()
    each = RECORDS // STORES
    for number in range(STORES):
        source = faults.Source(seed + number, each + 65, config)

        def flip(case, source=source):
            field, what = faults.flip_record(source, *case)
            must = faults.must_be_found(field, case[2], config, case[0], len(source.records))
            assert what == "lost" or not must, f"{field} is {what}"
            return field, case[2], what

        cases = faults.all_flips(source, 0, each)
        table += run(f"flips {name} seed={seed + number}", cases, flip, limit // STORES)
    print(f"of 100 flipped bits that are served, {name}")
    print(f"  {'field':20}" + "".join(f"{mode:>10}" for mode in faults.MODES))
    for field in sorted({field for field, *_ in table}):
        shares = []
        for mode in faults.MODES:
            all_of = sum(n for (f, m, _), n in table.items() if (f, m) == (field, mode))
            shares.append(100 * table[field, mode, "served"] / max(all_of, 1))
        print(f"  {field:20}" + "".join(f"{share:10.1f}" for share in shares))


def main():
    logging.disable(logging.CRITICAL)
    seed = int(os.environ.get("SEED", "1"))
    limit = int(os.environ.get("CASES", "10000000"))
    began = time.time()
    source = faults.Source(seed)
    try:
        run("log cuts", faults.all_log_cuts(source), lambda c: faults.cut_log(source, *c), limit)
        run("derived cuts", faults.all_derived_cuts(source),
            lambda c: faults.cut_derived(source, *c), limit)
        checked = faults.Source(seed, 120, faults.CHECKED)
        outcomes = run(
            "random flips", [seed * 1_000_003 + n for n in range(10_000)],
            lambda c: faults.random_flip(checked, c), limit)
        print(f"  {dict(outcomes)}")
        flips("without enabledAppendPropCRC", faults.PLAIN, seed, limit)
        flips("with enabledAppendPropCRC", faults.CHECKED, seed, limit)
    except ViolationError as violation:
        print(f"VIOLATION seed={seed} {violation}")
        return 1
    print(f"0 violations, seed {seed}, {time.time() - began:.0f} s")
    return 0


if __name__ == "__main__":
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    sys.exit(main())
