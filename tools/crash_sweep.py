"""The long crash sweep: every crash point, many seeds, and every operation failing.

CASES=n bounds it. Prints counts and seeds; a violation ends it with the case that shows it.
"""

import argparse
import errno
import importlib.util
import logging
import os
import sys
import time
from pathlib import Path

spec = importlib.util.spec_from_file_location("sweep", Path("tests/crash/sweep.py"))
sweep = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sweep)


def cases(first_seed):
    seed = first_seed
    while True:
        for place in range(sweep.operations(seed)):
            for keep in (None, 0, 25, 50, 75, 100):
                yield sweep.crash_at, (place, keep, seed), {}
            for number in (errno.EIO, errno.ENOSPC):
                for sticky in (False, True):
                    yield sweep.fail_at, (place, number), {"sticky": sticky, "seed": seed}
        seed += 1


def main():
    logging.disable(logging.CRITICAL)
    first = int(os.environ.get("SEED", "1"))
    wanted = int(os.environ.get("CASES", "100000"))
    began = time.time()
    done = seed = 0
    for run, arguments, options in cases(first):
        if done == wanted:
            break
        seed = options.get("seed", arguments[-1])
        try:
            run(*arguments, **options)
        except Exception as error:
            print(f"VIOLATION after {done} cases: {run.__name__}{arguments} {options}: {error!r}")
            return 1
        done += 1
        if done % 5000 == 0:
            print(f"{done} cases, {time.time() - began:.0f} s", flush=True)
    print(f"{done} cases, seeds {first} to {seed}, 0 violations, {time.time() - began:.0f} s")
    return 0


if __name__ == "__main__":
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    sys.exit(main())
