"""How long the threads of a process waited for a processor, because other programs had it.

A check of a time on a busy machine takes this off: what remains is what the process itself took. The source is
/proc/PID/task/TID/schedstat (Linux, Documentation/scheduler/sched-stats.rst): nanoseconds on a processor, nanoseconds
waiting for one, and a count.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

__all__ = ["Taken", "Threads", "own_ms"]


class Taken(NamedTuple):
    """What a thread, or several ones, had until now, in nanoseconds. A difference of two is that of a time between."""

    ran: int
    waited: int

    def __sub__(self, before: Taken) -> Taken:
        return Taken(self.ran - before.ran, self.waited - before.waited)

    @property
    def slower(self) -> float:
        """How many times as long the work took as with a processor for each thread; 1.0 on a free machine."""
        return (self.ran + self.waited) / self.ran if self.ran > 0 else 1.0


def _read(path: Path) -> Taken:
    """Return the numbers of a thread; those of a thread that has ended are 0."""
    try:
        ran, waited, _ = path.read_text().split()
    except (OSError, ValueError):
        return Taken(0, 0)
    return Taken(int(ran), int(waited))


class Threads:
    """The threads of a process, of which the first has its event loop."""

    def __init__(self, pid: int) -> None:
        self._tasks, self._loop = Path(f"/proc/{pid}/task"), str(pid)

    def loop(self) -> Taken:
        """Return what the thread of the event loop had."""
        return _read(self._tasks / self._loop / "schedstat")

    def all(self) -> dict[str, Taken]:
        """Return what each thread had, by its number; those of the loop and of a thread that asks are among them."""
        try:
            names = os.listdir(self._tasks)
        except OSError:
            return {}
        return {name: _read(self._tasks / name / "schedstat") for name in names}

    def loop_and_waits(self, before: dict[str, Taken]) -> tuple[int, int]:
        """Return how long the loop ran since ``before``, and how long all threads waited, in nanoseconds.

        A loop that needs the interpreter waits for the thread that has it, which may itself wait for a processor.
        """
        since = {name: now - before[name] for name, now in self.all().items() if name in before}
        return since[self._loop].ran if self._loop in since else 0, sum(one.waited for one in since.values())


def own_ms(took_ns: int, loop_ran_ns: int, waited_ns: int) -> float:
    """Return the part of a wait for an event loop that other programs did not cause, in milliseconds.

    The waits of several threads may overlap, so that their sum is too much; but what the loop ran itself is never
    taken off.
    """
    return max(min(took_ns, loop_ran_ns), took_ns - waited_ns) / 1e6
