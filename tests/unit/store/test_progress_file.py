"""The two slots of a store's own progress: the newest whole one counts, and is never written over."""

from dataclasses import replace

import pytest

from tailrace.store.progress import Progress, ProgressFile
from tailrace.testing import CrashFileSystem

ONE = Progress(
    start=0, until=100, min=0, last=0, last_crc=0, last_timestamp=1, segment="0" * 20,
    segment_size=8192, checkpoints=[], index=None, queues={})


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_the_newest_slot_is_read_and_the_other_one_is_written(count):
    files = CrashFileSystem()
    for number in range(1, count + 1):
        again = ProgressFile(files, "/s")  # another process each time
        again.read()
        again.write(replace(ONE, until=100 * number))
    assert ProgressFile(files, "/s").read().until == 100 * count
    names = files.list("/s/tailrace")
    damaged = files.open(f"/s/tailrace/{newest(files, names)}", writable=True)
    damaged.pwrite(b"x", 20)
    left = ProgressFile(files, "/s").read()
    assert left == (replace(ONE, until=100 * (count - 1), seq=count - 1) if count > 1 else None)


def newest(files, names):
    """The name of the slot with the highest number."""
    def read(name):
        file = files.open(f"/s/tailrace/{name}")
        return int(file.pread(file.size(), 0).partition(b'"seq":')[2].partition(b"}")[0])
    return max(names, key=read)
