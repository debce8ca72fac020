"""Clients on a simulated network, from seeds: SEED is the first, RUNS how many, of each kind of consumer.

A broker dies in one phase of a rebalance in every third run; in the others anything fails at any time. In every second
run the brokers have slaves. A run that finds something prints its seed, and the tool ends with 1; the same SEED with
RUNS=1 shows it again.
"""

import argparse
import collections
import sys
from pathlib import Path

from seeds import over_seeds

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))


def play_each(seed):
    from client_world import KINDS, PHASES, play

    strike = None
    if not seed % 3:
        code = PHASES[seed // 3 % len(PHASES)]
        strike = code, ("before", "after")[seed % 2], seed // 6 % 2 == 1
    return sum((play(seed, kind, strike=strike, slaves=seed % 2 == 0).counts for kind in KINDS), collections.Counter())


if __name__ == "__main__":
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    sys.exit(over_seeds("clients", play_each))
