"""The long crash sweep: every crash point, many seeds, every operation failing, and every read failing.

CASES=n bounds the first part, in which operations that change something crash or fail. In the second part each place of
the code that reads fails once, with each errno; then STORMS=n lives have many failing reads, some lives have a record
that cannot be read for good, and every STEP-th read of each command fails. PART=changes or PART=reads runs one of them.
Prints counts and seeds; a violation ends it with the case that shows it.
"""

import argparse
import collections
import errno
import importlib.util
import logging
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, "tests/support")  # what tests of several folders share


def loaded(name):
    spec = importlib.util.spec_from_file_location(name, Path("tests/crash") / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


sweep, read_faults, commands = loaded("sweep"), loaded("read_faults"), loaded("read_fault_commands")


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


def reads(first):
    """(name, function, arguments) of each case of the second part."""
    count = len(read_faults.reads())
    for place in read_faults.places():
        for number in read_faults.ERRORS:
            yield "reads that fail once", read_faults.fail_at, (place, number)
    for seed in range(first, first + int(os.environ.get("STORMS", "500"))):
        yield "lives with many failing reads", read_faults.storm, (seed, count)
    for number in range(1, 80):
        yield "records that cannot be read", read_faults.bad_record, (number,)
    for clean in (True, False):
        for name in (*commands.READING, *commands.WRITING):
            runs = commands.Runs(name, clean=clean)
            for place in range(first % 3, runs.count, int(os.environ.get("STEP", "3"))):
                number = commands.ERRORS[place % len(commands.ERRORS)]
                yield f"reads of {name}, {'stopped' if clean else 'killed'}", runs.fail_at, (place, number)


def sweep_reads(first):
    began, counts = time.time(), collections.Counter()
    for name, run, arguments in reads(first):
        try:
            run(*arguments)
        except Exception as error:
            print(f"VIOLATION after {counts.total()} cases: {name} {arguments}: {error!r}")
            return 1
        counts[name] += 1
        if counts.total() % 500 == 0:
            print(f"{counts.total()} cases of failing reads, {time.time() - began:.0f} s", flush=True)
    for name, count in counts.items():
        print(f"{count} {name}")
    print(f"{counts.total()} cases of failing reads, SEED={first}, 0 violations, {time.time() - began:.0f} s")
    return 0


def sweep_changes(first):
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


def main():
    logging.disable(logging.CRITICAL)
    first, part = int(os.environ.get("SEED", "1")), os.environ.get("PART", "")
    if part not in {"", "changes", "reads"}:
        raise SystemExit(f"PART={part} must be changes or reads")
    failed = sweep_changes(first) if part != "reads" else 0
    return failed or (sweep_reads(first) if part != "changes" else 0)


if __name__ == "__main__":
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    sys.exit(main())
