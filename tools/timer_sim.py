"""The long run of the timer model: random sends, recalls, failing reads, kills, power losses, clock steps.

SEED is the first seed and SEEDS how many there are. Prints counts and every violation with its seed;
exits 1 when there was one. ``SEED=n SEEDS=1`` plays one again.
"""

import argparse
import importlib.util
import logging
import os
import sys
import time
from collections import Counter
from pathlib import Path

spec = importlib.util.spec_from_file_location(
    "timer_model", Path(__file__).parents[1] / "tests/crash/timer_model.py")
timer_model = importlib.util.module_from_spec(spec)
spec.loader.exec_module(timer_model)


def main():
    logging.disable(logging.CRITICAL)
    first = int(os.environ.get("SEED", "1"))
    count = int(os.environ.get("SEEDS", "1000"))
    began, total, bad = time.time(), Counter(), []
    for number, seed in enumerate(range(first, first + count), 1):
        wrong, counts = timer_model.violations(seed)
        total.update(counts)
        if wrong:
            bad.append(seed)
            print(f"SEED={seed} VIOLATION {'; '.join(wrong)}", flush=True)
        if number % 100 == 0 or number == count:
            told = ", ".join(f"{what} {n}" for what, n in total.items())
            print(f"seeds {first} to {seed}: {len(bad)} violations; {told}; "
                  f"{time.time() - began:.0f} s", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    sys.exit(main())
