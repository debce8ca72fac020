"""Runs a simulation for many seeds: SEED is the first, RUNS how many."""

import collections
import gc
import logging
import os
import time

__all__ = ["over_seeds", "steps"]


def steps(usual):
    """Return STEPS, how long a run is, or the usual number."""
    return int(os.environ.get("STEPS", usual))


def over_seeds(what, play):
    """Call ``play``, which returns a Counter, with each seed, and print the sums. Return the exit code.

    The first error ends it: it is printed with its seed, and raised if TRACEBACK is set.
    """
    logging.disable(logging.CRITICAL)
    first, runs = int(os.environ.get("SEED", "1")), int(os.environ.get("RUNS", "1"))
    began, counts = time.time(), collections.Counter()
    for number, seed in enumerate(range(first, first + runs), 1):
        try:
            counts += play(seed)
        except Exception as error:
            print(f"VIOLATION SEED={seed}: {type(error).__name__}: {error}")
            if os.environ.get("TRACEBACK"):
                raise
            return 1
        gc.collect()  # stores and their files are cycles, and large
        if number % 100 == 0:
            print(f"{number} seeds, {time.time() - began:.0f} s", flush=True)
    print(f"{what}: {runs} seeds from SEED={first}, 0 violations, {time.time() - began:.0f} s")
    print(", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
    return 0
