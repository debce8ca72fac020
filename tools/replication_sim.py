"""Masters and slaves on a simulated network, from seeds: SEED is the first, RUNS how many, STEPS how long each.

A run that finds something prints its seed and trace and ends with 1; the same SEED with RUNS=1 shows it again.
"""

import argparse
import sys
from pathlib import Path

from seeds import over_seeds, steps

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))


def play_one(seed):
    from replication_world import play

    from tailrace.testing.sent import ViolationError

    try:
        return play(seed, steps=steps(40)).counts
    except ViolationError as error:
        print("\n".join(error.world.trace))
        raise


if __name__ == "__main__":
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    sys.exit(over_seeds("replication", play_one))
