"""The long run of the POP model: pops, acknowledgements, resets, waits, restarts and kills in virtual time.

SEED is the first seed and SEEDS how many there are. Prints counts and every violation with its seed; exits 1 if
there was one. ``SEED=n SEEDS=1`` plays one again.
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
    from pop_model import Model

    logging.disable(logging.CRITICAL)
    first, seeds = int(os.environ.get("SEED", "1")), int(os.environ.get("SEEDS", "1000"))
    began, counts, bad = time.time(), collections.Counter(), 0
    for number, seed in enumerate(range(first, first + seeds), 1):
        run = Model(seed)
        try:
            counts += run.run()
        except Exception as error:
            bad += 1
            print(f"SEED={seed} VIOLATION {type(error).__name__}: {error}; last steps {run.trace[-5:]}", flush=True)
        if number % 100 == 0 or number == seeds:
            told = ", ".join(f"{what} {n}" for what, n in sorted(counts.items()))
            print(f"seeds {first} to {seed}: {bad} violations; {told}; {time.time() - began:.0f} s", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    sys.exit(main())
