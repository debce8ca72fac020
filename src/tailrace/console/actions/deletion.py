"""Deletion of expired files now: request 329, as ``tailrace retention --delete-now`` sends it."""

from __future__ import annotations

import asyncio
from typing import Final, final

from tailrace.auth.accesses import CLUSTER, Access
from tailrace.console.actions.calls import Calls
from tailrace.console.actions.forms import Action, Given, Plan
from tailrace.console.actions.jobs import Job
from tailrace.console.elements import Child, Column, address, h, link, table
from tailrace.console.storage import retention_view
from tailrace.console.words import moment
from tailrace.doctor.retention import RetentionView
from tailrace.formats.remoting import RequestCode
from tailrace.formats.requests import table as requests
from tailrace.spellings import size_text

__all__ = ["DeleteExpired"]

ROWS_MAX: Final = 200
LOOK_S: Final = 0.2
PASS_MAX_S: Final = 60
"""Longest time for which a job waits for the next pass of retention, which comes after cleanResourceInterval."""
DELETION_S: Final = 5
"""Time after the beginning of the pass until a job says that files are left; retention pauses between two files."""


@final
class DeleteExpired(Action):
    """Deletes expired files of the log at any hour."""

    name = "delete-expired"
    title = "Delete expired files now"

    async def form(self, calls: Calls, given: Given) -> list[Child]:
        """Return the button that shows the dry run."""
        calls.check(RequestCode.DELETE_EXPIRED_COMMITLOG)
        return [h("p", "Files of the log that have expired are deleted at the hours of deleteWhen. You can have them "
                       "deleted now."), h("button", "Show what would be deleted")]

    async def plan(self, calls: Calls, given: Given) -> Plan:
        """Return the files that a pass would delete now."""
        calls.check(RequestCode.DELETE_EXPIRED_COMMITLOG)
        store = calls.broker.store
        view: RetentionView = await calls.in_thread(retention_view, calls.broker.store, calls.broker.clock)
        files = [verdict for verdict in view.segments if verdict.rule.deletable]
        size = sum(verdict.facts.allocated or verdict.facts.size for verdict in files)
        names = [verdict.facts.path.rpartition("/")[2] for verdict in files]
        rows: list[list[Child]] = [
            [name, size_text(verdict.facts.allocated or verdict.facts.size), moment(verdict.facts.time_ms)]
            for name, verdict in zip(names, files, strict=True)]
        cluster = calls.broker.config.broker_cluster_name
        why = h("p", link("Why the other files stay", address("retention"))) if calls.may(
            Access(CLUSTER, cluster, requests.Action.LIST)) else None
        says: list[Child] = [
            h("p", f"{len(files)} of {len(view.segments)} files of the log are deleted, {size_text(size)}. Their "
                   "messages cannot be read any more." if files
              else "Nothing is deleted: no file has expired, or groups and timers still need those that have."),
            table((Column("File", "name"), Column("Size", "number"), Column("Messages up to")), rows[:ROWS_MAX], "",
                  "Files to delete") if rows else None, why]
        ends = [verdict.facts.until for verdict in files]

        async def run(job: Job, calls: Calls) -> list[Child]:
            await calls.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)
            left, wait_s = len(ends), min(store.config.clean_resource_interval / 1_000, PASS_MAX_S) + DELETION_S
            for _ in range(round(wait_s / LOOK_S) if ends else 0):
                left = sum(until > store.min_phy_offset for until in ends)
                if not left or job.stopping:
                    break
                await asyncio.sleep(LOOK_S)
            return [h("p", f"{len(ends) - left} of {len(ends)} files are deleted." + (
                " The others follow in the next passes of retention." if left else "")),
                h("p", link("Disk", address("disk")))]

        return Plan("Delete expired files", says, "Delete these files" if files else "", run, seen=" ".join(names))
