"""A process that serves prefers its event loop to its other threads."""

from __future__ import annotations

import gc
import sys

from tailrace.cli.serve import prefer_event_loop


def test_a_thread_that_computes_lets_the_event_loop_work_after_a_millisecond():
    before = sys.getswitchinterval()
    try:
        prefer_event_loop()
        assert sys.getswitchinterval() <= 0.001
        assert gc.get_freeze_count() > 0, "a full collection does not look at what the start has loaded"
    finally:
        sys.setswitchinterval(before)
        gc.unfreeze()
