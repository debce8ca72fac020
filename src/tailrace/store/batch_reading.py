"""Choose the units of a batch ConsumeQueue for one read. Limits count messages, and a record is never divided."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tailrace.formats.consumequeue import CQ_UNIT, PRE_BLANK_SIZE
from tailrace.model import GetMessageResult
from tailrace.store.batch_units import BatchPlaces

__all__ = ["BatchWindow", "batch_window"]

_Numbers = np.ndarray[Any, np.dtype[np.int64]]


class BatchWindow(NamedTuple):
    """Units in the form of a plain queue (20 bytes), from queue offset ``begin`` onwards, and their records."""

    begin: int
    units: bytes
    starts: _Numbers
    """First message of each record, counted from ``begin``."""
    ends: _Numbers
    """Offset after the last message of each record, counted from ``begin``."""

    def take_whole(self, result: GetMessageResult) -> None:
        """Set in ``result`` the next offset after the last whole record, and the number of messages found."""
        at = result.next_begin_offset - self.begin
        last = int(np.searchsorted(self.starts, at)) - 1
        if last >= 0:
            result.next_begin_offset = self.begin + max(at, int(self.ends[last]))
        places = np.searchsorted(self.starts, np.array(result.queue_offsets, dtype=np.int64) - self.begin)
        result.inner_messages = int((self.ends[places] - self.starts[places]).sum()) - len(places)


def batch_window(places: BatchPlaces, offset: int, count: int, most: int, codes: _Numbers | None) -> BatchWindow:
    """Return the units for a read from ``offset`` onwards.

    The window starts at the first message of the record that has the message at ``offset`` and examines ``count``
    queue offsets. It has at most ``most`` messages whose tags code is one of ``codes`` (of any code if ``codes``
    is None), and at least one record, so a long first record may exceed ``most``.
    """
    covering = places.covering(offset)
    begin, end = (covering.base, covering.end) if covering is not None else (offset, offset + 1)
    place = covering.place if covering is not None else places.place_of(offset)
    units, last = places.look(begin, max(count, end - begin), place)
    view = CQ_UNIT.view(units)
    starts = np.flatnonzero(view["size"] != PRE_BLANK_SIZE)
    if not len(starts):
        return BatchWindow(begin, units, starts, starts)
    ends = np.append(starts[1:], last - begin)
    wanted = np.isin(view["tags_code"][starts], codes) if codes is not None else np.ones(len(starts), dtype=bool)
    messages = np.cumsum(np.where(wanted, ends - starts, 0))
    over = np.flatnonzero((messages > most) | (ends > len(view)))
    first = int(np.argmax(wanted)) if bool(wanted.any()) else 0
    over = over[over > first]
    until = int(starts[over[0]]) if len(over) else len(view)
    return BatchWindow(begin, units[: until * CQ_UNIT.size], starts, ends)
