"""Check whether a recovery mode refuses a log, before anything is changed.

A refused open must not change the directory. So the first passes of recovery and a walk run once on an
``OverlayFileSystem``. This walk checks the same records and uses the same table as the later one. Only the strict
modes need it.
"""

from __future__ import annotations

from collections.abc import Mapping

from tailrace.config import RecoveryMode
from tailrace.errors import CorruptionError
from tailrace.kernels import record
from tailrace.kernels.shared import constants as C
from tailrace.store.commit_log import CommitLog
from tailrace.store.consume_queue import ConsumeQueue
from tailrace.store.multi_dispatch import rows_with_lmq
from tailrace.store.record_batch import rows_by_queue
from tailrace.store.recovery.table import StopDecision, checks_of, decide_stop
from tailrace.store.walk.log_walk import Damage, LogWalk, Walk
from tailrace.store.walk.scan import LogChunk
from tailrace.store.walk.stitched import PieceSource, StitchedWalk

__all__ = ["refuse_by_mode", "refuse_more"]


def refuse_by_mode(
    mode: RecoveryMode, log: CommitLog, start: int, check: int,
    queues: Mapping[tuple[str, int], ConsumeQueue], pieces: PieceSource | None = None,
) -> None:
    """Raise CorruptionError if ``mode`` refuses the log from ``start`` onwards.

    ``queues`` have the known ends of queues at ``start``. ``pieces`` is the source of records that were scanned
    elsewhere, if any.
    """
    seen = {
        key: queue.max_offset for key, queue in queues.items() if queue.last_phy_offset < start}
    files = log.queue.files

    def next_of(topic: str, queue_id: int) -> int:
        return seen.get((topic, queue_id), -1)

    walk: Walk[LogChunk] = (
        LogWalk(files, start, log.max_offset, check, next_of) if pieces is None
        else StitchedWalk(files, start, log.max_offset, check, next_of, pieces))
    for item in walk.items():
        if isinstance(item, LogChunk):
            _note_ends(item, seen)
        else:
            _decide(mode, item)
    end = walk.end
    data = any(
        True for file in files if end.phy_offset < file.file_from_offset + file.size
        for _ in file.nonzero(max(end.phy_offset - file.file_from_offset, 0)))
    conditions = {
        **checks_of(record.REASON_NAMES[end.reason]), "later": False, "data": data,
        "files": bool(files) and end.phy_offset < files[-1].file_from_offset}
    if decide_stop(mode, conditions) is StopDecision.REFUSE:
        raise CorruptionError(
            f"the log ends in bytes that are not a record, recoveryMode {mode.value} refuses: "
            f"{record.REASON_NAMES[end.reason]}", path=end.path, phy_offset=end.phy_offset)


def refuse_more(mode: RecoveryMode, path: str, phy_offset: int, *, is_last: bool) -> None:
    """Raise CorruptionError if ``mode`` refuses bytes that a segment has beyond its length."""
    conditions = {**checks_of(""), "later": not is_last, "files": not is_last, "data": True}
    if decide_stop(mode, conditions) is StopDecision.REFUSE:
        raise CorruptionError(
            f"a segment file is too long, recoveryMode {mode.value} refuses what follows its last byte",
            path=path, phy_offset=phy_offset)


def _decide(mode: RecoveryMode, damage: Damage) -> None:
    conditions = {**checks_of(damage.reason), "later": True, "files": False, "data": True}
    if decide_stop(mode, conditions) is StopDecision.REFUSE:
        raise CorruptionError(
            f"damage in the middle of the log, recoveryMode {mode.value} refuses: {damage.reason}",
            path=damage.path, phy_offset=damage.phy_offset)


def _note_ends(chunk: LogChunk, seen: dict[tuple[str, int], int]) -> None:
    rows = rows_with_lmq(chunk.data, chunk.rows)
    for topic, queue_id, chosen in rows_by_queue(chunk.data, rows):
        end = int(rows[chosen, C.QUEUE_OFFSET].max()) + 1
        seen[topic, queue_id] = max(seen.get((topic, queue_id), 0), end)
