"""A long comparison of the lanes with the ordinary path: answers, log, offsets and counts must be the same.

FRAMES is the number of frames, at least, and SEED the first seed. Each block of some thousand frames is served by two
brokers, one without the lanes: frames at the borders of what is plain, the same with other bytes in their headers, and
segments of many of them together, and frames that clients have sent, which `record_frames.py` has recorded. Every
second block is of pulls, with some sends between them. Prints each difference with the seed of its block; exits 1 if
there was one, or if a lane takes none of the recorded frames.
``SEED=n FRAMES=1`` plays one block again.
"""

import argparse
import logging
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
from lane_world import (
    CAPTURES,
    borders,
    captured,
    differences,
    dispatch,
    filled,
    joined,
    member,
    mutated,
    own,
    pull,
    pull_borders,
    send,
    served,
)

from tailrace.config import FlushDiskType

BLOCK = 4000
"""Number of mutated frames of a block; it has about ten times as many in all."""
FILLED = 199
"""Sends of `filled` that take the lane: all to one topic but the first."""
LATER = 1 << 42
"""A version of a subscription after those of all recorded pulls, in ms since 1970."""
KINDS = ({}, {"enabled_append_prop_crc": True}, {"flush_disk_type": FlushDiskType.SYNC_FLUSH})


def healthy(frames: list[bytes]) -> list[bytes]:
    """Return those of the frames after which the connection is used again."""
    scratch = Path(tempfile.mkdtemp(dir=os.environ.get("TMPDIR")))
    try:
        answers = served(scratch, frames, lane=False).answers
    finally:
        shutil.rmtree(scratch)
    return [frame for frame, answer in zip(frames, answers, strict=True) if not answer.endswith(b"closed")]


def recorded(paths: list[Path]) -> tuple[list[bytes], list[bytes]]:
    """Return the sends and the pulls in files. Raises SystemExit if both ways differ, or a lane takes none."""
    kinds: tuple[list[bytes], list[bytes]] = [], []
    taken = [0, 0]
    for path in paths:
        text = []
        for number, (kind, frames) in enumerate(zip(("sends", "pulls"), captured(path), strict=True)):
            scratch = Path(tempfile.mkdtemp(dir=os.environ.get("TMPDIR")))
            before = filled(topic="PlainLong")
            try:
                outcome, found = differences(scratch, [*before, member(version=LATER), *frames])
            finally:
                shutil.rmtree(scratch)
            if found:
                sys.exit(f"{path}: {kind} differ\n" + "\n".join(found))
            in_lane = outcome.in_lane - FILLED
            taken[number] += in_lane
            text.append(f"{in_lane} of {len(frames)} {kind} in a lane")
            kinds[number].extend(frames)
        print(f"{path.name}: {', '.join(text)}", flush=True)
    if not all(taken):
        sys.exit(f"the lanes take {taken[0]} of the recorded sends and {taken[1]} of the pulls")
    return kinds


def sends_of(chance: random.Random, edges: list[bytes], known: list[bytes], seed: int) -> list[Any]:
    """Return the chunks of a block of sends."""
    frames = mutated(known, BLOCK, seed) + chance.sample(edges, len(edges) // 2)
    return [send(), send({"topic": "PlainLong"}), *frames, *joined(frames, BLOCK // 20, seed),
            *joined(known, BLOCK // 4, seed)]


def pulls_of(chance: random.Random, edges: list[bytes], known: list[bytes], seed: int) -> list[Any]:
    """Return the chunks of a block of pulls, with sends and changes of the subscription between them."""
    plain = [pull({
        "queueOffset": str(chance.randrange(70)), "queueId": str(chance.randrange(4)),
        "maxMsgNums": str(chance.randrange(40)), "commitOffset": str(chance.randrange(-1, 99)),
        **chance.choice(({}, own(), own("t1")))},
        binary=chance.random() < 0.5, opaque=n) for n in range(200)]
    frames = mutated(known + 5 * plain, BLOCK, seed) + chance.sample(edges, len(edges) // 2)
    chunks = [*frames, *joined(frames[:200] + 5 * plain, BLOCK // 8, seed)]
    for _ in range(20):
        tags = chance.choice(("*", "*", "t0", "t2"))
        chunks.insert(chance.randrange(len(chunks)), member(
            tags=tags, version=chance.choice((1795688144160, 1795688144161, 1795688144162, LATER))))
        at = chance.randrange(len(chunks))
        chunks[at:at] = [send(), dispatch]
    return [*filled(), *chunks]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("captures", nargs="*", type=Path, default=CAPTURES, help="files of recorded frames")
    logging.disable(logging.CRITICAL)
    sent, pulled = recorded(parser.parse_args().captures)
    wanted, seed = int(os.environ.get("FRAMES", "1000000")), int(os.environ.get("SEED", "1"))
    began, count, in_lane, bad = time.monotonic(), 0, 0, 0
    edges, pull_edges = borders(), pull_borders()
    sends, pulls = healthy(edges), healthy(pull_edges)
    while count < wanted:
        chance = random.Random(seed)
        if seed % 2:
            chunks = sends_of(chance, edges, sends + chance.choices(sent, k=len(sends)), seed)
        else:
            chunks = pulls_of(chance, pull_edges, pulls + chance.choices(pulled, k=len(pulls)), seed)
        scratch = Path(tempfile.mkdtemp(dir=os.environ.get("TMPDIR")))
        try:
            outcome, found = differences(scratch, chunks, store_config={
                "mapped_file_size_commit_log": 1 << 25, **KINDS[seed % len(KINDS)]})
        finally:
            shutil.rmtree(scratch)
        count, in_lane, bad = count + outcome.frames, in_lane + outcome.in_lane, bad + len(found)
        for text in found[:3]:
            print(f"SEED={seed} differs: {text}", flush=True)
        print(f"seed {seed}: {count} requests, {in_lane} of them in a lane, {bad} differences; "
              f"{time.monotonic() - began:.0f} s", flush=True)
        seed += 1
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
