# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""What puts count, under the lock of the log."""

import cython

PUT_LIMITS_MS = (0, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10000)


@cython.cclass
class PutCounts:
    """Messages that were put, calls that failed, and how long calls took.

    ``distribution`` has the number of calls for each range of times. PUT_LIMITS_MS are the upper bounds of the
    ranges in ms; the last range has none. `Appender` counts calls that appended a record, under the lock of the log.
    The puts of one ``append_some`` count as calls of equal length.
    """

    times: int = cython.declare(cython.longlong, visibility="public")
    failed_times: int = cython.declare(cython.longlong, visibility="public")
    size: int = cython.declare(cython.longlong, visibility="readonly")
    time_max_ms: int = cython.declare(cython.longlong, visibility="readonly")
    distribution: list[int] = cython.declare(list, visibility="readonly")

    def __init__(self) -> None:
        self.times = self.failed_times = self.size = self.time_max_ms = 0
        self.distribution = [0] * (len(PUT_LIMITS_MS) + 1)

    @cython.cfunc
    def _done(
        self, calls: cython.longlong, records: cython.longlong, size: cython.longlong, elapsed_ns: cython.longlong,
    ) -> cython.void:
        elapsed_ms: cython.longlong = elapsed_ns // calls // 1_000_000
        place: cython.Py_ssize_t = 0
        self.times += records
        self.size += size
        if elapsed_ms > 0:
            self.time_max_ms = max(self.time_max_ms, elapsed_ms)
            while place < len(PUT_LIMITS_MS) and elapsed_ms > PUT_LIMITS_MS[place]:
                place += 1
        self.distribution[place] += calls
