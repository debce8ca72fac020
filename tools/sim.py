"""Whole stores, simulated from seeds: SEED is the first, RUNS how many, STEPS how long each.

A run that finds something prints its seed and trace and ends with 1; the same SEED with RUNS=1 shows
it again.
"""

import argparse
import collections
import gc
import logging
import os
import sys
import time

from tailrace.testing.simulation import Simulation


def main():
    logging.disable(logging.CRITICAL)
    first, runs = int(os.environ.get("SEED", "1")), int(os.environ.get("RUNS", "1"))
    steps = int(os.environ.get("STEPS", "300"))
    began = time.time()
    counts = collections.Counter()
    for seed in range(first, first + runs):
        simulation = Simulation(seed, steps)
        try:
            simulation.run()
        except Exception as error:
            print("\n".join(simulation.trace))
            print(f"VIOLATION SEED={seed} STEPS={steps}: {type(error).__name__}: {error}")
            if os.environ.get("TRACEBACK"):
                raise
            return 1
        counts.update(simulation.counts)
        del simulation
        gc.collect()  # stores and their files are cycles, and large
        if (seed - first) % 100 == 99:
            print(f"{seed - first + 1} runs, {time.time() - began:.0f} s", flush=True)
    print(f"{runs} runs from SEED={first}, 0 violations, {time.time() - began:.0f} s")
    print(", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
    return 0


if __name__ == "__main__":
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    sys.exit(main())
