"""Clients on a simulated network, from seeds: SEED is the first, RUNS how many, of each kind of consumer.

A broker dies in one phase of a rebalance in every third run; in the others anything fails at any time. In every second
run the brokers have slaves. A run that finds something prints its seed, and the tool ends with 1; the same SEED with
RUNS=1 shows it again.
"""

import argparse
import collections
import logging
import os
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))


def main():
    from client_world import KINDS, PHASES, play

    logging.disable(logging.CRITICAL)
    first, runs = int(os.environ.get("SEED", "1")), int(os.environ.get("RUNS", "1"))
    began, counts, bad = time.time(), collections.Counter(), 0
    for seed in range(first, first + runs):
        strike = None
        if not seed % 3:
            code = PHASES[seed // 3 % len(PHASES)]
            strike = code, ("before", "after")[seed % 2], seed // 6 % 2 == 1
        for kind in KINDS:
            try:
                counts += play(seed, kind, strike=strike, slaves=seed % 2 == 0).counts
            except AssertionError as error:
                bad += 1
                print(f"VIOLATION {error}", flush=True)
        if (seed - first) % 100 == 99:
            print(f"{seed - first + 1} seeds, {bad} violations, {time.time() - began:.0f} s", flush=True)
    print(f"clients: {runs} seeds from SEED={first}, {bad} violations, {time.time() - began:.0f} s")
    print(", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
    return 1 if bad else 0


if __name__ == "__main__":
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    sys.exit(main())
