# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The lock of the log: one put at a time."""

import cython


@cython.cclass
class PutLock:
    """The lock of the log, a context manager. Puts take it by a C call, which takes a quarter of the time."""

    _mutex: cython.pymutex

    def __init__(self) -> None:
        if not cython.compiled:
            self._mutex = cython.pymutex()

    @cython.cfunc
    def _enter(self) -> cython.void:
        self._mutex.acquire()

    @cython.cfunc
    def _leave(self) -> cython.void:
        self._mutex.release()

    def __enter__(self):
        """Take the lock; wait while another thread has it."""
        self._mutex.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        """Release it."""
        self._mutex.release()
