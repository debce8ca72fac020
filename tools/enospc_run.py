"""A disk that becomes full at every write of a long life of a store: what it says, loses and does.

The life puts, syncs, delivers timers and delay levels, deletes by time, purges a topic and is opened
three times. In each case the disk is full from one more write on, for 25 seconds. Then: every error says
that the disk is full, nothing acknowledged is missing, and puts are taken again one check of the disks
later. STEP=n takes every n-th write. Prints counts; a violation ends it with its case.
"""

import argparse
import collections
import importlib.util
import logging
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, "tests/support")  # what tests of several folders share
spec = importlib.util.spec_from_file_location("enospc", Path("tests/crash/enospc.py"))
enospc = importlib.util.module_from_spec(spec)
spec.loader.exec_module(enospc)


def main():
    logging.disable(logging.CRITICAL)
    step = int(os.environ.get("STEP", "1"))
    began = time.time()
    writes = enospc.growing_operations()
    counts = collections.Counter()
    cases = range(0, writes, step)
    for number, place in enumerate(cases, 1):
        life = enospc.Life(place)
        try:
            life.run()
        except Exception as error:
            print(f"VIOLATION full from write {place}: {error!r}")
            return 1
        counts += life.counts
        if number % 100 == 0:
            print(f"  {number} of {len(cases)} cases, {time.time() - began:.0f} s", flush=True)
    print(f"{len(cases)} cases of {writes} writes that take room, 0 violations, {time.time() - began:.0f} s")
    for name, count in sorted(counts.items()):
        print(f"  {count:9,} {name}")
    return 0


if __name__ == "__main__":
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    sys.exit(main())
