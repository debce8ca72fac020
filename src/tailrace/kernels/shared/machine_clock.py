# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The machine's clocks, read by the C function that ``env.clock`` lends. Interpreted code asks the clock itself."""

import cython

if cython.compiled:
    from cython.cimports.posix.time import timespec

WALL = cython.declare(cython.int, 0)
MONOTONIC = cython.declare(cython.int, 1)
"""The clocks of clock_gettime(2) on Linux that ``env.clock.SystemClock`` reads."""


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def nanoseconds(gettime: cython.size_t, which: cython.int) -> cython.longlong:
    """Return the time of a clock. ``gettime`` is the address of clock_gettime."""
    if cython.compiled:
        call = cython.declare("int (*)(int, timespec *) noexcept nogil")
        call = cython.cast("int (*)(int, timespec *) noexcept nogil", cython.cast(cython.p_void, gettime))
        now = cython.declare(timespec)
        call(which, cython.address(now))
        return now.tv_sec * 1_000_000_000 + now.tv_nsec
    return 0
