# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The end of a file of fixed size, in memory that Python and compiled code share."""

import array

import cython

if cython.compiled:
    from cython.cimports.cpython.buffer import PyBUF_WRITE
    from cython.cimports.cpython.memoryview import PyMemoryView_FromMemory

from tailrace.kernels.shared.file_end import advance

SOURCE_SHA256 = ""


@cython.cclass
class FileEnd:
    """The base of a file of ``size`` bytes: the position after its last written byte."""

    _end: cython.longlong[2]

    def __init__(self, size: cython.longlong):
        if not cython.compiled:
            self._end = array.array("q", (0, 0))
        self._end[0], self._end[1] = 0, size

    @property
    def wrote_position(self) -> int:
        """Position after the last written byte."""
        return self._end[0]

    @wrote_position.setter
    def wrote_position(self, position: cython.longlong):
        self._end[0] = position

    def numbers(self):
        """Return the numbers of ``shared.file_end`` as memory, for its verbs. It is valid while the file exists."""
        if cython.compiled:
            return PyMemoryView_FromMemory(
                cython.cast(cython.p_char, cython.address(self._end[0])), 16, PyBUF_WRITE).cast("q")
        return self._end

    def advance(self, n: cython.longlong) -> None:
        """Publish the next ``n`` bytes, which are in place. Raises AssertionError if the file is shorter (M1)."""
        advance(self._end, n)
