"""What users have confirmed: it runs to its end even if the browser has gone, and its page says how far it is."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, final

from tailrace import events
from tailrace.console.elements import BAD, WARN, Child, notice
from tailrace.errors import RefusalError, StoreError
from tailrace.formats.remoting import ResponseCode
from tailrace.logs import get_logger

__all__ = ["Job", "Jobs"]

_log = get_logger(__name__)

KEPT: Final = 200
"""Jobs whose results are kept, of all users together."""
RUNNING_MAX: Final = 8
PATIENCE_S: Final = 1.0
"""Seconds that the answer to a confirmation waits for the end of its job."""
STOP_S: Final = 3.0
"""Seconds that a stop of the broker waits for jobs, which end before their next step."""


@final
class Job:
    """Something that a user has confirmed."""

    def __init__(self, number: str, user: str, title: str, action: str, form: str) -> None:
        """``form`` has the fields of the form of the action, as a confirmation carries them."""
        self.number, self.user, self.title, self.action, self.form = number, user, title, action, form
        self.done = self.total = 0
        """Steps that are done, of how many; 0 of 0 for a job of one step."""
        self.stopping = False
        """Set when the job shall end before its next step."""
        self.verdict = "Done"
        """How it ended, in the title of its page."""
        self.result: list[Child] | None = None
        """What the job has done; None while it runs."""
        self.task: asyncio.Task[None] | None = None


@final
class Jobs:
    """Runs jobs, and keeps the results of the last ones. Used on the event loop."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._stopped = False

    def get(self, number: str, user: str) -> Job | None:
        """Return a job of a user."""
        job = self._jobs.get(number)
        return job if job is not None and job.user == user else None

    def check_room(self) -> None:
        """Raise RefusalError if no job can be started."""
        running = sum(job.result is None for job in self._jobs.values())
        if self._stopped or running >= RUNNING_MAX:
            raise RefusalError(ResponseCode.SYSTEM_BUSY, f"{running} actions run already; try again later")

    async def run(self, job: Job, work: Callable[[Job], Awaitable[list[Child]]]) -> None:
        """Start a job, and wait a moment for its end."""
        self._jobs[job.number] = job
        while len(self._jobs) > KEPT and (ended := next(
                (one for one in self._jobs.values() if one.result is not None), None)) is not None:
            del self._jobs[ended.number]
        job.task = asyncio.create_task(self._work(job, work))
        await asyncio.wait((job.task,), timeout=PATIENCE_S)

    async def _work(self, job: Job, work: Callable[[Job], Awaitable[list[Child]]]) -> None:
        try:
            job.result = await work(job)
        except (RefusalError, StoreError, TimeoutError) as error:
            job.verdict = "Failed"
            job.result = [notice(
                WARN, str(error) or "The broker has not answered in time. It may still do it, so look before you "
                                    "repeat it.")]
        except Exception as error:  # noqa: BLE001 - the outermost step of a job: log, show
            job.verdict = "Failed"
            events.STATUS_REQUEST_FAILED.log(_log, target=job.title[:100], reason=repr(error))
            job.result = [notice(BAD, f"{type(error).__name__}: {error}")]

    async def stop(self) -> None:
        """Have all jobs end before their next step, and wait for them."""
        self._stopped = True
        tasks = [job.task for job in self._jobs.values() if job.task is not None and job.result is None]
        for job in self._jobs.values():
            job.stopping = True
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=STOP_S)
            for task in late:
                task.cancel()
