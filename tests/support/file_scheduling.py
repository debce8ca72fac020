"""How xdist gives files of tests to workers: each worker alone collects its part of `OWN`, and all collect the rest.

In a fresh clone it takes 38 s of processor time to collect all files, because pytest compiles the assertions of each,
and 11 s later on. Most of them are unit tests. A worker takes its own files first, and then one after the other of the
rest, the longest first. So no worker waits long for another one at the end.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from xdist.scheduler import LoadFileScheduling

__all__ = ["ONE_SESSION", "Scheduling", "collects", "has_parts"]

OWN: Final = "tests/unit/"
"""Files below this folder have one worker each."""
ONE_SESSION: Final = "tests/spark/"
"""The files of this folder share a Spark session, so one worker runs all of them, and begins with them."""


def has_parts(distribution: str, arguments: Iterable[str]) -> bool:
    """Return whether each worker collects a part of `OWN`: not if a test or a file is named, which must be found."""
    return distribution == "loadfile" and all(Path(argument).is_dir() for argument in arguments)


def collects(name: str, worker: int, count: int) -> bool:
    """Return whether a worker of ``count`` collects a file. One that replaces a worker that has died collects all."""
    return not name.startswith(OWN) or worker >= count or zlib.crc32(name.encode()) % count == worker


class Scheduling(LoadFileScheduling):
    """A worker takes one file after the other of those that it has collected."""

    def __init__(self, config, log=None) -> None:
        super().__init__(config, log)
        self._places: dict = {}
        """For each worker the place of each test in its collection."""
        self._workers: dict[str, list] = {}
        """The workers that have collected a file."""

    def _split_scope(self, nodeid: str) -> str:
        return ONE_SESSION if nodeid.startswith(ONE_SESSION) else super()._split_scope(nodeid)

    def add_node_collection(self, node, collection: Sequence[str]) -> None:
        assert node in self.assigned_work
        self.registered_collections[node] = list(collection)
        self._places[node] = {nodeid: place for place, nodeid in enumerate(collection)}
        for scope in dict.fromkeys(map(self._split_scope, collection)):
            self._workers.setdefault(scope, []).append(node)

    def schedule(self) -> None:
        if self.collection is None:
            self.collection = list(dict.fromkeys(
                nodeid for collection in self.registered_collections.values() for nodeid in collection))
            if session := self.config.pluginmanager.get_plugin("session"):
                session.testscollected = len(self.collection)  # for the percentage of tests that have run
            for nodeid in self.collection:
                self.workqueue.setdefault(self._split_scope(nodeid), {})[nodeid] = False
        for node in self.nodes:
            self._reschedule(node)

    def _reschedule(self, node) -> None:
        """Give a worker files until it has some tests, because it runs a test only when it knows the next one.

        After a worker has died the queue also has its files whose tests have all run.
        """
        while not node.shutting_down and self._pending_of(self.assigned_work[node]) <= 2:
            scope = self._next_of(node)
            if scope is None:
                node.shutdown()
                return
            unit = self.workqueue.pop(scope)
            self.assigned_work[node][scope] = unit
            node.send_runtest_some([self._places[node][nodeid] for nodeid, done in unit.items() if not done])

    def _next_of(self, node) -> str | None:
        """Return the file that a worker takes next."""
        if ONE_SESSION in self.workqueue and node in self._workers[ONE_SESSION]:
            return ONE_SESSION
        mine = [scope for scope in self.workqueue if node in self._workers[scope]]
        return next((scope for scope in mine if len(self._workers[scope]) == 1), mine[0] if mine else None)
