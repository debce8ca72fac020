"""Masters and slaves on a simulated network, from seeds: SEED is the first, RUNS how many, STEPS how long each.

A run that finds something prints its seed and trace and ends with 1; the same SEED with RUNS=1 shows it again.
"""

import argparse
import collections
import gc
import logging
import os
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))


def main():
    from replication_world import play

    from tailrace.testing.sent import ViolationError

    logging.disable(logging.CRITICAL)
    first, runs = int(os.environ.get("SEED", "1")), int(os.environ.get("RUNS", "1"))
    steps = int(os.environ.get("STEPS", "40"))
    began, counts = time.time(), collections.Counter()
    for seed in range(first, first + runs):
        try:
            counts += play(seed, steps=steps).counts
        except ViolationError as error:
            print("\n".join(error.world.trace))
            print(f"VIOLATION {error}")
            if os.environ.get("TRACEBACK"):
                raise
            return 1
        gc.collect()  # stores and their files are cycles, and large
        if (seed - first) % 100 == 99:
            print(f"{seed - first + 1} seeds, {time.time() - began:.0f} s", flush=True)
    print(f"replication: {runs} seeds from SEED={first}, 0 violations, {time.time() - began:.0f} s")
    print(", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
    return 0


if __name__ == "__main__":
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    sys.exit(main())
