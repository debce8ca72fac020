"""Denied requests: counted by reason, and logged so that clients fill neither the log nor the memory."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Final, final

from tailrace import events
from tailrace.auth.accesses import RESOURCE_MAX, Access
from tailrace.auth.addresses import network_of
from tailrace.auth.model import NAME_MAX
from tailrace.env.clock import Clock
from tailrace.formats.requests.table import Action
from tailrace.logs import get_logger

__all__ = ["REASONS", "Denials", "action_names"]

_log = get_logger(__name__)

REASONS: Final = (
    "missing", "user", "disabled", "signature", "password", "permission", "request", "attempts", "binding")
UNPROVEN: Final = frozenset({"missing", "user", "disabled", "signature", "password", "attempts"})
"""Reasons of requests whose user is not proven: the name in them is any text, so it makes no kind of its own."""
LOG_PERIOD_NS: Final = 10_000_000_000
"""One denied request of a kind is logged in this time; the next line has the number of the others."""
LOGGED_MAX: Final = 1_000
"""Kinds that are remembered; the one that was not logged for the longest time is forgotten."""
LINES_MAX: Final = 10
"""Lines in a second, of all kinds together."""
SECOND_NS: Final = 1_000_000_000
SHOWN_MAX: Final = 400
"""Characters of a name that are logged, and kept."""


@final
class Denials:
    """Counts and logs denied requests. Used in one thread."""

    def __init__(self, clock: Clock, record: Callable[..., None] | None = None) -> None:
        """``record`` is called with the fields of each line of the log."""
        self._clock, self._record = clock, record
        self._logged: OrderedDict[tuple[object, ...], list[int]] = OrderedDict()
        self._second = 0
        self._lines = 0
        self._left_out = 0
        """Denied requests that the limit of lines kept out of the log since the last line."""
        self.counts: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
        """Denied requests by reason."""

    def note(
        self, address: str, call: int | str, reason: str, name: str, cause: str, access: Access | None = None
    ) -> None:
        """Count a denied request, and log it unless one of its kind was logged a short time ago.

        ``call`` is the code of the request or the name of the call.
        """
        self.counts[reason] += 1
        key: tuple[object, ...]
        if reason in UNPROVEN or not name:
            key = reason, network_of(address)
        else:
            key = reason, name[:NAME_MAX], address, call, access and (access.actions, access.key[:SHOWN_MAX])
        now, last = self._clock.monotonic_ns(), self._logged.get(key)
        if last is not None and now - last[0] < LOG_PERIOD_NS:
            last[1] += 1
            return
        if not self._may_log(now):
            if last is not None:
                last[1] += 1
            else:
                self._left_out += 1
            return
        if last is None and len(self._logged) >= LOGGED_MAX:
            self._left_out += self._logged.popitem(last=False)[1][1]
        actions, resource = (action_names(access.actions), access.key) if access else ("", "")
        more = last[1] if last else 0
        events.ACCESS_DENIED.log(
            _log, user=_shown(name), address=address, code=call, action=actions, resource=_shown(resource),
            reason=cause, more=more, others=self._left_out)
        if self._record is not None:
            self._record(
                user=name[:SHOWN_MAX], address=address, code=call, action=actions, resource=resource[:SHOWN_MAX],
                reason=cause[:SHOWN_MAX], more=more, others=self._left_out)
        self._left_out = 0
        self._logged[key] = [now, 0]
        self._logged.move_to_end(key)

    def _may_log(self, now: int) -> bool:
        second = now // SECOND_NS
        if second != self._second:
            self._second, self._lines = second, 0
        self._lines += 1
        return self._lines <= LINES_MAX


def _shown(text: str) -> str:
    return repr(text) if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]!r}... ({len(text)} characters)"


def action_names(actions: Action) -> str:
    """Return the names of actions as entries have them."""
    return ",".join((action.name or "").capitalize() for action in actions)


assert RESOURCE_MAX <= SHOWN_MAX
