"""The long crash sweep of brokers with transactions and POP: every operation, kills and power losses, failing reads.

CASES=n bounds it, SEED=n is the first seed. Prints counts and seeds. A violation ends it with the arguments of
`crash_at` or `fail_reads` in tests/support/broker_life.py that show it again.
"""

import argparse
import collections
import logging
import os
import sys
import time
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"
sys.path.insert(0, str(TESTS / "support"))

import broker_life  # noqa: E402


def main():
    logging.disable(logging.CRITICAL)
    first, wanted = int(os.environ.get("SEED", "1")), int(os.environ.get("CASES", "5000"))
    step = int(os.environ.get("STEP", "3"))
    began, counts, seed = time.time(), collections.Counter(), first
    while counts["cases"] < wanted:
        for sync in (True, False):
            for keep in (None, 0, 50, 100):
                try:
                    counts += broker_life.sweep(seed, keep, sync=sync, step=step)
                except broker_life.ViolationError as error:
                    print(f"VIOLATION SEED={seed} after {counts['cases']} cases: {error}")
                    return 1
            try:
                counts += broker_life.sweep_reads(seed, sync=sync, step=7 * step)
                counts += broker_life.sweep_reads(seed, sync=sync, step=20 * step, percent=30, width=60)
            except broker_life.ViolationError as error:
                print(f"VIOLATION SEED={seed} after {counts['cases']} cases: {error}")
                return 1
        print(f"{counts['cases']} cases, seeds {first} to {seed}, {time.time() - began:.0f} s", flush=True)
        seed += 1
    print(f"{counts['cases']} cases, seeds {first} to {seed - 1}, 0 violations, {time.time() - began:.0f} s")
    print(", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
    return 0


if __name__ == "__main__":
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    sys.exit(main())
