"""kill -9 in the middle of rebuilds of a log of many parts, by all processors.

Makes a store, removes its queues, index and progress, and rebuilds them once. Then it rebuilds them repeatedly with
up to three kills at any moment, sometimes with progress saved so often that the next open continues in the middle.
The result must be the same files, byte for byte.
ROUNDS=n, MESSAGES=n and SEED=n; prints counts.
"""

import argparse
import hashlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tailrace import Message, MessageStore

NESTED = 3
AT_ONCE = 500
DERIVED = ("consumequeue", "index")
SAVES_MS = (10, 50, 5000)
OPENER = """
import sys
from tailrace import MessageStore
from tailrace.node.store_opening import StoreParts
from tailrace.store.recovery import passes
passes._SAVE_NS = int(sys.argv[2]) * 1_000_000
print("go", flush=True)
MessageStore.open(sys.argv[1], parts=StoreParts(services=False)).close()
"""


def make(path: Path, count: int, rng: random.Random) -> None:
    """Messages of 0 to 2 KB, some delayed, in 20 queues."""
    body = rng.randbytes(4096)
    with MessageStore.open(path) as store:
        for topic in range(5):
            store.topics.create_if_missing(f"T{topic}", 4)
        for first in range(0, count, AT_ONCE):
            topic, queue_id = first // AT_ONCE % 5, first // AT_ONCE // 5 % 4
            store.put_many([
                Message(topic=f"T{topic}", body=body[: rng.randrange(2048)], tags=f"t{number % 7}",
                        keys=[f"k{number}", f"g{number // 10}"][: number % 3])
                for number in range(first, min(first + AT_ONCE, count))], queue_id=queue_id)


def forget(path: Path) -> None:
    """Leave nothing but the log and the configuration, as after a kill."""
    for name in (*DERIVED, "tailrace"):
        shutil.rmtree(path / name, ignore_errors=True)
    (path / "checkpoint").unlink(missing_ok=True)
    (path / "abort").write_text("1")


def derived(path: Path) -> dict[str, str]:
    """Digests of all queue and index files."""
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
        for name in DERIVED for file in sorted((path / name).rglob("*")) if file.is_file()}


def open_once(path: Path, save_ms: int, after_s: float) -> bool:
    """Open it in a process that is killed after a while; whether it was still at it."""
    process = subprocess.Popen(
        [sys.executable, "-c", OPENER, str(path), str(save_ms)], stdout=subprocess.PIPE)
    with process.stdout:
        if process.stdout.readline() != b"go\n":
            raise AssertionError("the opener did not begin")
        try:
            process.wait(after_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return True
    if process.returncode:
        raise AssertionError(f"an open ended with {process.returncode}")
    return False


def main() -> int:
    seed, rounds = int(os.environ.get("SEED", "1")), int(os.environ.get("ROUNDS", "40"))
    count = int(os.environ.get("MESSAGES", "300000"))
    rng = random.Random(seed)
    killed = 0
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "store"
        make(path, count, rng)
        forget(path)
        began = time.monotonic()
        open_once(path, SAVES_MS[-1], 600)
        whole_s = time.monotonic() - began
        wanted = derived(path)
        for number in range(rounds):
            forget(path)
            for _ in range(rng.randint(1, NESTED)):
                killed += open_once(path, rng.choice(SAVES_MS), rng.uniform(0, whole_s / 2))
            open_once(path, SAVES_MS[-1], 600)
            found = derived(path)
            if found != wanted:
                other = [name for name in wanted.keys() | found.keys() if found.get(name) != wanted.get(name)]
                print(f"VIOLATION seed={seed} round={number}: {len(other)} files differ, {sorted(other)[:3]}")
                return 1
    print(f"{rounds} rebuilds of {count} messages, {len(wanted)} files, {killed} kills on the way; "
          f"0 violations, seed {seed}")
    return 0


if __name__ == "__main__":
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    sys.exit(main())
