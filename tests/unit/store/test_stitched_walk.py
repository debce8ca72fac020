"""A stitched walk equals a plain walk: the same records, damage and end, whatever the scans guessed."""

from __future__ import annotations

import random
import shutil

import pytest
from segmented_store import SEGMENT, Seen, damaged_copy, overwrite, plain, sound_store

from tailrace.kernels.shared import constants as C
from tailrace.store.directory import StoreDirectory
from tailrace.store.walk.stitched import Piece, StitchedWalk, first_piece, scan_pieces


def stitched(directory):
    """From pieces that were scanned segment by segment; also how many of them were no use."""
    pieces = {}
    for file in directory.log_files:
        chunks = []
        for item in scan_pieces(file, file.file_from_offset, directory.readable_until, C.CHECK_ALL):
            if isinstance(item, Piece):
                pieces[item.start] = chunks, item
                chunks = []
            else:
                chunks.append(item)
    missed = []

    def source(file, start):
        if start not in pieces:
            missed.append(start)
            yield from first_piece(file, start, directory.readable_until, C.CHECK_ALL)
            return
        chunks, piece = pieces.pop(start)
        yield from chunks
        yield piece

    seen = Seen()
    walk = StitchedWalk(
        directory.log_files, directory.min_phy_offset, directory.readable_until, C.CHECK_ALL,
        seen.next_of, source)
    return seen.walk(walk), len(missed)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return sound_store(tmp_path_factory.mktemp("stitched") / "store")


def test_without_damage_every_piece_is_used(made):
    directory = StoreDirectory(str(made[0]), raw=True)
    assert len(directory.log_files) > 3
    assert stitched(directory) == (plain(directory), 0)


def test_random_damage_is_decided_alike(made, tmp_path):
    """Flipped bytes, zeroed and random ranges, missing segments, old segments after the end."""
    rnd = random.Random(20)
    path = tmp_path / "store"
    kinds = set()
    for _ in range(60):
        kinds |= damaged_copy(rnd, made, path)
        directory = StoreDirectory(str(path), raw=True)
        found, _ = stitched(directory)
        assert found == plain(directory)
    assert len(kinds) == 5


def test_a_scan_that_guessed_wrong_is_not_believed(made, tmp_path):
    """A segment that lost its first record and whose next ones are older than what was before."""
    path = tmp_path / "store"
    shutil.copytree(made[0], path)
    directory = StoreDirectory(str(path), raw=True)
    first = [p for p in made[1] if p // SEGMENT == 2]
    overwrite(path, first[0], b"\0" * 40)
    overwrite(path, first[3] + 56, b"\0" * 8)  # its store time: older than every other
    overwrite(path, first[1], b"\0" * 8)
    overwrite(path, first[2], b"\0" * 8)
    found, missed = stitched(directory)
    assert found == plain(directory)
    assert [damage.phy_offset for damage in found[1]] == [first[0]]
    assert missed == 1, "the scan began behind the gap with a record that does not count"
