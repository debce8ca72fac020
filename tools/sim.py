"""Whole stores, simulated from seeds: SEED is the first, RUNS how many, STEPS how long each.

A run that finds something prints its seed and trace and ends with 1; the same SEED with RUNS=1 shows
it again.
"""

import argparse
import sys

from seeds import over_seeds, steps

from tailrace.testing.simulation import Simulation


def play(seed):
    simulation = Simulation(seed, steps(300))
    try:
        simulation.run()
    except Exception:
        print("\n".join(simulation.trace))
        raise
    return simulation.counts


if __name__ == "__main__":
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    sys.exit(over_seeds("stores", play))
