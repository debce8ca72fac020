"""Reads of a log none of which is in the page cache."""

import mmap

import numpy as np

from tailrace.segments import MappedFile


def nothing_is_cached(monkeypatch):
    """Let readers see, in place of the mapping of each segment, one whose pages are not in memory.

    Return the addresses of these, by path. Pages that a reader has seen in memory before still count as cached for
    100 ms. Interpreted kernels do not look at the page cache.
    """
    addresses, hold = {}, MappedFile.hold_view

    def hold_view(file):
        view = hold(file)
        if view is None:
            return None
        view = memoryview(mmap.mmap(-1, len(view)))
        addresses[file.path] = np.frombuffer(view, np.uint8).ctypes.data
        return view

    monkeypatch.setattr(MappedFile, "hold_view", hold_view)
    return addresses
