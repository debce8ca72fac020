"""Dispatch of a recovery: what a queue shows where its units on disk, or damage, disagree with the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from tailrace import events
from tailrace.formats.consumequeue import CQ_UNIT, PRE_BLANK, PRE_BLANK_SIZE
from tailrace.kernels.shared import constants as C
from tailrace.logs import get_logger
from tailrace.store.consume_queue import ConsumeQueue
from tailrace.store.consume_queue_store import ConsumeQueueStore
from tailrace.store.dispatch import Dispatcher, Run
from tailrace.store.index_service import IndexService
from tailrace.store.lives import EndedLives, begin_after, has_ended
from tailrace.store.record_batch import RecordBatch
from tailrace.store.walk.log_walk import Damage
from tailrace.store.walk.scan import Rows

__all__ = ["RebuildDispatcher"]

_log = get_logger(__name__)
NextOffset = Callable[[str, int, int], int]
"""(topic, queue id, position): queue offset of the queue's first record at or after a position, -1 if not near."""


@final
class RebuildDispatcher(Dispatcher):
    """Dispatches the records of a walk over the log.

    Units that are on disk after the end of a queue are compared, and written only if they differ. ``next_offset`` looks
    ahead in the log if the next record of the queue must decide about a record.
    """

    appends = False

    def __init__(
        self, queues: ConsumeQueueStore, index: IndexService | None, levels: list[int], lives: EndedLives,
        next_offset: NextOffset,
    ) -> None:
        super().__init__(queues, index, levels, lives, [])
        self._next_offset = next_offset
        self._damage: dict[int, Damage] = {}
        """Damage by its position, in the order of the log."""
        self._newest = 0

    def dispatch_batch(self, batch: RecordBatch) -> None:
        """As that of `Dispatcher`. Gaps in queues then cover the damage that placeholders of the batch stand for."""
        self._damage.update((damage.phy_offset, damage) for damage in batch.sealed)
        super().dispatch_batch(batch)
        if len(batch):
            self._newest = max(self._newest, int(batch.rows[-1, C.STORE_TIMESTAMP]))

    def note_damage(self, damage: Damage) -> None:
        """Note damage, so that units of messages that are missing after it cover the damaged bytes.

        If the damaged record still names its queue and offset and is the next one of that queue, its unit
        is written immediately.
        """
        self._damage[damage.phy_offset] = damage
        claim = damage.claim
        if claim is not None and claim.has_unit and damage.phy_offset >= self._lives.deleted_up_to(claim.topic):
            queue = self._queues.get(claim.topic, claim.queue_id)
            if queue is not None and queue.files.files and queue.max_offset == claim.queue_offset:
                queue.write_one(claim.queue_offset, _damaged_unit(damage), claim.count)
                queue.last_phy_offset = damage.phy_offset
                self._queues.dirty.add(queue)

    def _write_run(self, queue: ConsumeQueue, rows: Rows, run: Run) -> None:
        skip = self._known(queue, rows, run) if 0 <= run.start < queue.max_offset else 0
        if skip >= len(run.chosen) or run.start < 0:
            return
        start, phy_offset = rows[run.chosen[skip], [C.QUEUE_OFFSET, C.PHY]].tolist()
        gap = PRE_BLANK
        if start > queue.max_offset and queue.files.files and self._is_next_life(queue, start):
            queue.remove_files()  # a crash left them: their removal was not durable
        if start > queue.max_offset and queue.files.files:
            gap = self._gap_unit(queue, phy_offset)
            room = phy_offset - queue.last_phy_offset
            is_new_life = start == begin_after(queue.max_offset, self._queues.units_per_file)
            if (
                start - queue.max_offset > room // queue.least_bytes and not is_new_life
            ) or queue.follows(phy_offset):
                # The log has no room for that many messages, or the queue has its unit at another offset:
                # the queue offset in the record is damaged. Without room a queue moves only to the offset at which
                # its next life begins, if the note of a deletion is lost or could not be written.
                self._log_gap(queue, start)
                return
        if start == queue.max_offset:
            skip += queue.skip_written(run.units[skip * queue.unit_size :]) // queue.unit_size
        self._write(queue, rows, run, skip, gap)

    def _is_next_life(self, queue: ConsumeQueue, start: int) -> bool:
        """Return True if the unit at ``start`` is of the next life of a queue that has only the ended one's units."""
        ended = self._lives.table.get(queue.topic)
        return (
            ended is not None and queue.max_offset <= ended.begins.get(queue.queue_id, 0) <= start
            and has_ended(queue, ended, queue.queue_id))

    def _known(self, queue: ConsumeQueue, rows: Rows, run: Run) -> int:
        """Return the number of records of the run whose unit exists; 0 if the queue was deleted and starts again."""
        chosen, start, following = run.chosen, run.start, run.following
        if not queue.files.files:
            return 0
        phy_offset = int(rows[chosen[0], C.PHY])
        if following < 0 and start == 0 and len(chosen) == 1:
            # The last record of its queue in these rows: look ahead in the log for the next one.
            following = self._next_offset(
                queue.topic, queue.queue_id, phy_offset + int(rows[chosen[0], C.SIZE]))
        # One record that the next run does not continue, or whose unit is the next one: its offset is damaged.
        rotted = len(chosen) == 1 and (following > run.end or queue.follows(phy_offset))
        if start < queue.first_offset and (not rotted or queue.first_offset >= queue.max_offset):
            events.THE_FIRST_FILES_OF_A_QUEUE_ARE_GONE.log(_log, topic=queue.topic, queue_id=queue.queue_id)
            queue.remove_files()
            return 0
        there = queue.unit(max(start, queue.first_offset))
        assert there is not None
        if there.size != PRE_BLANK_SIZE and there.phy_offset >= phy_offset:
            return self._below_end(queue, rows, run)
        hole = there.size == PRE_BLANK_SIZE or there.phy_offset in self._damage
        # A queue that is created again starts with offsets 0 and 1. Other records have a damaged offset, or
        # they are stale: older than the records before them and left after an earlier end of the log.
        rotted = rotted or (len(chosen) == 1 and start > 0)
        if start < queue.first_offset or (
            not hole and (rotted or self._is_stale(rows, int(chosen[0])))
        ):
            events.RECORDS_HAVE_NO_PLACE_IN_THEIR_QUEUE.log(
                _log, topic=queue.topic, queue_id=queue.queue_id, queue_offset=start, count=len(chosen),
                phy_offset=phy_offset)
            return len(chosen)
        # The topic was deleted and created again: the log still has the messages of the old queue.
        events.QUEUE_STARTS_AGAIN.log(
            _log, topic=queue.topic, queue_id=queue.queue_id, queue_offset=start, phy_offset=phy_offset)
        queue.truncate(start)
        return 0

    def _is_stale(self, rows: Rows, number: int) -> bool:
        """Return True if a record has an older store time than a record before it in the log."""
        before = rows[:number, C.STORE_TIMESTAMP]
        newest = max(self._newest, int(before.max()) if number else 0)
        return int(rows[number, C.STORE_TIMESTAMP]) < newest

    def _gap_unit(self, queue: ConsumeQueue, phy_offset: int) -> bytes:
        """Return the unit for messages that are missing before the record at ``phy_offset``."""
        for damage in self._damage.values():
            if queue.last_phy_offset < damage.phy_offset < phy_offset:
                return _damaged_unit(damage)
        return PRE_BLANK


def _damaged_unit(damage: Damage) -> bytes:
    """Return a unit that covers damaged bytes. A reader finds no valid record there."""
    return CQ_UNIT.pack(damage.phy_offset, min(damage.size, PRE_BLANK_SIZE - 1), 0)
