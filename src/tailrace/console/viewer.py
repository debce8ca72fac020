"""What the user of a request may see, and the errors that a page answers with."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable
from typing import Final, final

from tailrace.auth.accesses import CLUSTER, Access, group_access, topic_access
from tailrace.formats.requests.table import Action
from tailrace.observe.http_status import May
from tailrace.spellings import nearest

__all__ = ["SUGGESTED_MAX", "ForbiddenError", "NotThereError", "Viewer", "only_if", "similar_name"]

READ: Final = Action.GET | Action.SUB
SUGGESTED_MAX: Final = 300
"""Names that a field suggests."""
LOOKED_MAX: Final = 5_000
"""Names that are looked at for them."""
COMPARED_MAX: Final = 3_000
"""Names with which one that does not exist is compared, which takes about half a second."""
LENGTHS: Final = 3
"""They are at most this many characters longer or shorter."""


class NotThereError(Exception):
    """The topic or group that a page is about does not exist."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"There is no {kind} {name}.")
        self.kind, self.name = kind, name


class ForbiddenError(Exception):
    """The user of the request may not see what the page is about."""


@final
class Viewer:
    """What the user of a request may see.

    Messages and what is in them need Get or Sub on their topic. Names and numbers of topics and groups need the same,
    or List on the cluster, as requests that list them. A lag needs both its group and its topic.
    """

    def __init__(self, may: May, cluster: str, *, acts: bool = False) -> None:
        self._may = functools.cache(may)
        self.lists = may(Access(CLUSTER, cluster, Action.LIST))
        """Whether the user may see all names."""
        self.acts = acts
        """Whether pages lead to actions."""

    def reads(self, topic: str) -> bool:
        """Return whether the user may see messages of a topic."""
        return self._may(topic_access(topic, READ))

    def topic(self, name: str) -> bool:
        """Return whether the user may see the name and the numbers of a topic."""
        return self.lists or self.reads(name)

    def group(self, name: str) -> bool:
        """Return whether the user may see the name and the numbers of a group."""
        return self.lists or self._may(group_access(name, READ))

    def suggested(self, names: Iterable[str]) -> list[str]:
        """Return the first topics of ``names`` whose messages the user may see, for a field."""
        found = (name for name in itertools.islice(names, LOOKED_MAX) if self.reads(name))
        return [*itertools.islice(found, SUGGESTED_MAX)]


def similar_name(name: str, known: Iterable[str]) -> str:
    """Return the known name that is most similar to one that does not exist; empty without one."""
    alike = (one for one in known if abs(len(one) - len(name)) <= LENGTHS)
    return nearest(name, itertools.islice(alike, COMPARED_MAX))


def only_if(allowed: bool, what: str) -> None:
    """Raise ForbiddenError, which says what the user needs, unless it is allowed."""
    if not allowed:
        raise ForbiddenError(f"Your user needs {what}.")
