# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The end of a file as two numbers, the wrote position and the size, for compiled code that appends.

Readers see the bytes below the wrote position, so it moves when they are in place.
"""

import cython


@cython.cfunc
def numbers_of(memory: object) -> cython.p_longlong:
    """Return a pointer to the numbers that ``FileEnd.numbers`` returns; the caller keeps the file."""
    view: cython.longlong[::1]
    if cython.compiled:
        view = memory
        return cython.address(view[0])
    return memory


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def wrote(end: cython.p_longlong) -> cython.longlong:
    """Return the position after the last written byte."""
    return end[0]


@cython.cfunc
@cython.inline
@cython.exceptval(-1)
def advance(end: cython.p_longlong, n: cython.longlong) -> cython.int:
    """Publish the next ``n`` bytes, which are in place. Raises AssertionError if the file is shorter."""
    if not 0 <= n <= end[1] - end[0]:
        raise AssertionError(f"M1: {n} bytes after {end[0]} of {end[1]}")
    end[0] += n
    return 0
