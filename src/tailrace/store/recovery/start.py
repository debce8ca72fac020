"""Pass 2 of recovery: choose where the walk over the log starts. Nothing on disk is changed.

Own progress is compared with everything that it names. If it does not match, checkpoint or clean stop give a
start, which is moved back to the first record that queues or index lack.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, final

from isal import isal_zlib

from tailrace.env.filesystem import FileSystem
from tailrace.formats.checkpoint import Checkpoint
from tailrace.formats.consumequeue import PRE_BLANK_SIZE
from tailrace.segments import MappedFile
from tailrace.store.commit_log import CommitLog
from tailrace.store.consume_queue import ConsumeQueue
from tailrace.store.consume_queue_store import ConsumeQueueStore
from tailrace.store.index_service import IndexService
from tailrace.store.multi_dispatch import is_lmq
from tailrace.store.progress import Progress, checkpoint_bytes
from tailrace.store.recovery.coverage import Coverage
from tailrace.store.recovery.table import StartDecision, decide_start
from tailrace.store.store_checkpoint import StoreCheckpoint

__all__ = ["RecoveryReport", "RecoveryStart", "is_next", "lost_ends"]

_LAST_FILES: Final = 3
_MARGIN_MS: Final = 3000
_FEW_UNITS: Final = 10_000_000
_FEW_FILES: Final = 3
"""Number of last index files that are read completely if no progress says which ones are unchanged."""


@dataclass(slots=True)
class RecoveryReport:
    """Result of a recovery. Positions are physical offsets."""

    mode: str = "empty"
    why: str = ""
    decision: str = "NOTHING"
    """Name of a StartDecision of ``table``: where the walk started."""
    at_end: str = "END"
    """Name of a StopDecision of ``table``: what happened where the walk ended."""
    start: int = 0
    end: int = 0
    scanned: int = 0
    cut: list[dict[str, Any]] = field(default_factory=list)
    stepped_over: list[dict[str, Any]] = field(default_factory=list)
    sealed: list[dict[str, Any]] = field(default_factory=list)
    rebuilt: list[str] = field(default_factory=list)
    quarantined_bytes: int = 0
    read_only: str = ""
    check_crc: bool = True
    ms: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON object that ``tailrace recover`` prints."""
        return {
            "mode": self.mode, "decision": self.decision, "from": self.start, "why": self.why,
            "to": self.end, "atEnd": self.at_end,
            "scanned": self.scanned, "cut": self.cut, "steppedOver": self.stepped_over,
            "sealed": self.sealed, "rebuilt": self.rebuilt, "quarantinedBytes": self.quarantined_bytes,
            "checkCRCOnRecover": self.check_crc, "readOnly": self.read_only or None,
            "ms": round(self.ms, 1),
        }


def is_next(log: CommitLog, phy_offset: int, following: int) -> bool:
    """Return True if the record at ``phy_offset`` ends at ``following``."""
    data = log.record_at(phy_offset)
    return data is not None and phy_offset + len(data) == following


@final
@dataclass
class RecoveryStart:
    """Chooses the start for one loaded directory. Sets the ends of the queues as it examines them."""

    _file_system: FileSystem
    _commit_log: CommitLog
    _queues: ConsumeQueueStore
    _index: IndexService | None
    _checkpoint: StoreCheckpoint
    _report: RecoveryReport
    _bad_index: str
    _last_exit_ok: bool

    def __post_init__(self) -> None:
        self._index_times: dict[str, int] | None = None
        self._has_lmq = any(is_lmq(topic) for topic, _ in self._queues.table)

    def decide(self, found: Progress | None, *, rebuild: bool, wrong: str = "") -> Progress | None:
        """Choose the start by ``START_TABLE``; set ``start``, ``decision`` and ``why`` in the report.

        ``found`` is own progress. Return it if the walk starts there, else None. With ``rebuild`` the walk
        starts at the first segment. ``wrong`` is why own progress does not match, if that is known already.
        """
        report, log = self._report, self._commit_log
        files = log.queue.files
        if files:
            wrong = wrong or ("it is missing" if found is None else self.mismatch(found))
        decision = decide_start({
            "log": bool(files), "progress": not wrong, "abort": not self._last_exit_ok,
            "checkpoint": self.checkpoint_is_sane()})
        if decision is StartDecision.NOTHING:
            return None
        report.mode = "normal" if self._last_exit_ok else "abnormal"
        report.why = decision.value
        report.decision = decision.name
        if rebuild:
            report.mode, report.why, report.start = "rebuild", "asked for", log.min_offset
            report.rebuilt += ["queues", "index"]
            self._from_files()
            return None
        if decision is StartDecision.PROGRESS and found is not None:
            report.start = max(found.start, log.min_offset)
            return found
        if decision is StartDecision.LAST_FILES:
            start = files[max(len(files) - _LAST_FILES, 0)].file_from_offset
        elif decision is StartDecision.CHECKPOINT:
            start = self.by_checkpoint()
        else:
            start = log.min_offset
        report.start = self.moved_back(start)
        if report.start < start:
            report.decision = StartDecision.REBUILD_PART.name
        if not self._last_exit_ok:
            report.why += ", after a kill"
        if found is not None:
            report.why += f"; own progress does not match: {wrong}"
        return None

    def mismatch(self, found: Progress) -> str:
        """Return why the directory does not match a progress, or ""."""
        self._has_lmq = self._has_lmq or any(map(is_lmq, found.queues))
        if found.index is not None:
            self._index_times = dict(zip(found.index["files"], found.index["times"], strict=False))
        log, queue = self._commit_log, self._commit_log.queue
        if checkpoint_bytes(self._file_system, self._checkpoint.path) not in found.checkpoints:
            return "the checkpoint is another one"
        if found.last >= log.min_offset:
            data = queue.read(found.last, found.until - found.last)
            if len(data) != found.until - found.last or isal_zlib.crc32(data) != found.last_crc:
                return f"the record at {found.last} is another one"
        elif found.until > log.max_offset:
            return "the log is shorter"
        elif found.until < log.min_offset:  # its queues lack the units of deleted messages that were dispatched later
            return f"the log begins after it, at {log.min_offset}"
        if log.min_offset < found.min:  # after a power loss; their units and entries may be deleted
            return f"deleted segments are back, from {log.min_offset}"
        if found.segment and found.segment_size != queue.file_size:
            return "segments have another length"
        return (
            self._index_mismatch(found) or self._queue_mismatch(found)
            or self._uncovered_mismatch(found)
        )

    def _uncovered_mismatch(self, found: Progress) -> str:
        """Return why units are missing in files that were growing, or "". Not checked above 10 million units."""
        queues = self._queues.table.values()
        if found.clean and self._last_exit_ok:
            return ""  # the times of change cover every file
        if sum(queue.max_offset - queue.first_offset for queue in queues) > _FEW_UNITS:
            return ""
        ends = {key: queue.max_offset for key, queue in self._queues.table.items()}
        coverage = Coverage(self._commit_log.queue.files, queues)
        for (topic, queue_id), end in ends.items():
            if self._queues.table[topic, queue_id].max_offset != end:
                return f"units of queue {topic}/{queue_id} are gone"
        segment = self._commit_log.queue.find(found.start)
        low = segment.file_from_offset if segment is not None else 0
        gap = coverage.first_gap(low)
        return "" if gap == low else f"queues lack units of messages from {gap} onwards"

    def _index_mismatch(self, found: Progress) -> str:
        if self._index is None:
            return ""
        if found.index is None:
            return self._bad_index or "there was no index"
        names, wanted, times = self._index.names(), found.index["files"], found.index["times"]
        gone = 0
        while gone < len(wanted) and wanted[gone] not in names:  # retention deletes old files
            gone += 1
        wanted, times = wanted[gone:], times[gone:]
        exact = found.clean and self._last_exit_ok
        if self._bad_index:
            # A kill may leave a new file without its length or header. It has entries of records after that progress
            # only.
            first_bad = min(self._index.names_left_out(), default="")
            if exact or first_bad <= max(found.index["files"], default=""):
                return self._bad_index
        if names[: len(wanted)] != wanted or (not wanted and found.index["count"] > 1) or (
            exact and len(names) != len(wanted)
        ):
            return "index files are others"
        if not wanted:
            return ""
        if not self._last_exit_ok:
            times = [*times[:-1], -1]  # after a clean stop the last file may have grown since
        for file, time in zip(self._index.files, times, strict=False):
            if time not in {-1, file.mtime_ms()}:
                return f"index file {file.path.rpartition('/')[2]} was changed"
        if gone and self._commit_log.min_offset == found.min:
            return "index files are gone"
        header = self._index.header(self._index.files[len(wanted) - 1])
        if header.index_count < found.index["count"] or header.end_phy_offset < found.index["end"]:
            return f"index file {wanted[-1]} is older"
        return ""

    def _queue_mismatch(self, found: Progress) -> str:
        log_min = self._commit_log.min_offset
        for topic, queues in found.queues.items():
            for queue_id, (end, last, stamps) in queues.items():
                queue = self._queues.get(topic, int(queue_id))
                if queue is None or (end and not queue.files.files):
                    return f"queue {topic}/{queue_id} is gone"
                if not queue.has_stamps(
                    stamps, trimmed=log_min > found.min,
                    grown=found.clean and not self._last_exit_ok,
                ):
                    return f"files of queue {topic}/{queue_id} were changed"
                queue.set_end(end)
                if last >= 0:
                    unit = queue.unit(end - 1)
                    if unit is None or unit.phy_offset != last:
                        return f"queue {topic}/{queue_id} does not end as it did"
                queue.last_phy_offset = last
        return ""

    def checkpoint_is_sane(self) -> bool:
        """Return True if the checkpoint is not empty and not after the end of the log."""
        fields, end = self._checkpoint.fields, self._commit_log.max_offset
        if fields == Checkpoint(0, 0, 0, 0, 0, 0) or fields.logics_physical_offset > end:
            return False
        return fields.logics_physical_offset > 0 or min(fields[:2]) > _MARGIN_MS

    def by_checkpoint(self) -> int:
        """Return the start of a segment, chosen as a Java broker does.

        5.5.0 has the position of the last dispatched record in the field at byte 40: its segment. Earlier
        releases: the last segment whose first record is 3 s older than the lesser time in the checkpoint.
        """
        fields, start = self._checkpoint.fields, self._commit_log.min_offset
        for file in self._commit_log.queue.files:
            if fields.logics_physical_offset > 0:
                if file.file_from_offset > fields.logics_physical_offset:
                    break
            else:
                begun = self._commit_log.store_timestamp_at(file.file_from_offset)
                if not 0 < begun <= min(fields[:2]) - _MARGIN_MS:
                    break
            start = file.file_from_offset
        return start

    def _from_files(self) -> Coverage:
        """End each queue at its first invalid unit on disk. Return which records the units cover."""
        queues = self._queues.table.values()
        for queue in queues:
            queue.find_end()
        return Coverage(self._commit_log.queue.files, queues)

    def moved_back(self, start: int) -> int:
        """Return ``start``, moved back to the first position from which queues or index lack records.

        With LMQ queues return the start of the log, because ``Coverage`` does not count their units.
        """
        log = self._commit_log
        gap = self._from_files().first_gap(start)
        if gap < start:
            self._report.why += f", moved back: queues lack units of messages from {gap} onwards"
            self._report.rebuilt.append(f"queues from {gap}")
            start = gap
        if self._has_lmq and start > log.min_offset:
            self._report.why += ", moved back: only the log says which units LMQ queues must have"
            start = log.min_offset
        if self._index is not None:
            good = self._cut_of_index(min(start, self._index_good_until())) if start > log.min_offset else start
            if good < start:
                self._report.why += f", moved back: the index ends at {good}"
                self._report.rebuilt.append(f"index from {good}")
                start = good
        return start

    def _index_good_until(self) -> int:
        """Return the position up to which the index is complete, judged by the index files alone."""
        assert self._index is not None
        log, low = self._commit_log, self._commit_log.min_offset
        files = self._index.files
        at = low
        for number, file in enumerate(files):
            header = self._index.header(file)
            before = self._index.header(files[number - 1]).end_phy_offset if number else low
            if header.index_count > 1 and header.begin_phy_offset > max(before, low) and not (
                number and is_next(log, before, header.begin_phy_offset)
            ):
                return self._within(at)
            if file is not files[-1] and self._is_suspicious(file, len(files) - number) and (
                not self._index.is_whole(file)
            ):
                return self._within(at)
            at = max(at, header.end_phy_offset)
        good = self._index.good_until()
        return self._within(max(good, low))

    def _cut_of_index(self, start: int) -> int:
        """Return ``start``, moved back until the file whose later entries are removed for it is whole.

        Of a damaged file only the entries before the damage stay, and no record before ``start`` is indexed again.
        """
        assert self._index is not None
        files, low = self._index.files, self._commit_log.min_offset
        for number in range(len(files) - 1, -1, -1):
            file = files[number]
            if self._index.header(file).begin_phy_offset >= start > low:
                continue
            examined = file is files[-1] or self._is_suspicious(file, len(files) - number)  # by `_index_good_until`
            if start <= low or examined or self._index.is_whole(file):
                break
            start = self._within(self._index.header(files[number - 1]).end_phy_offset if number else low)
        return start

    def _is_suspicious(self, file: MappedFile, from_end: int) -> bool:
        """Return True if a full index file may have changed since its sync, or may not have been synced."""
        if self._index_times is None:
            synced_ms = self._checkpoint.fields.index_msg_timestamp
            assert self._index is not None
            return from_end <= _FEW_FILES or self._index.header(file).end_timestamp > synced_ms
        return self._index_times.get(file.path.rpartition("/")[2], -1) != file.mtime_ms()

    def _within(self, phy_offset: int) -> int:
        """Return ``phy_offset`` if a record starts there, else the start of the log."""
        low = self._commit_log.min_offset
        if phy_offset > low and self._commit_log.record_at(phy_offset) is None:
            return low
        return max(phy_offset, low)


def has_gap(files: Sequence[MappedFile]) -> bool:
    """Return whether a segment file is missing between two others."""
    first, last = files[0], files[-1]
    return last.file_from_offset - first.file_from_offset != (len(files) - 1) * first.size


def lost_ends(
    files: Sequence[MappedFile], queues: Iterable[ConsumeQueue], found: Progress | None
) -> dict[tuple[str, int], int]:
    """Return for queues the least offset of their next message, so that no queue offset is used twice.

    ``found`` is own progress. Return {} without reading a queue if no file is missing between two others.

    Usually a queue ends after its last record in the log. If a segment file was deleted by hand or lost with its disk,
    the last messages of a queue may have been in it. A new message would then get the offset of a lost message, and a
    consumer that had read that offset would never see the new message.

    A crash removes only the end of the log. So if the log continues after a file that is missing, that one was not lost
    in a crash; if it ends before it, the result of this function does not count. In the first case a queue ends after
    its last unit that names a position of a missing file, or where own progress says. Recovery writes pre-blank units
    up to that end, so that later opens find it. If every file of the log is missing, own progress gives the ends of
    queues that have no files either. Without queue files and without own progress the end of a queue is not known.

    If the last segment files are missing, that is the end of the log: positions and queue offsets after the last
    remaining message are used again, and a broker sets consumers back to that end.
    """
    if files and not has_gap(files):
        return {}
    starts = [file.file_from_offset for file in files]
    ends: dict[tuple[str, int], int] = {}
    if found is not None:
        ends = {(topic, int(queue_id)): state[0] for topic, numbers in found.queues.items()
                for queue_id, state in numbers.items()}
    held = set(starts)
    for queue in queues:
        last, offset = queue.last_unit()
        if last is None:
            continue
        at = last.phy_offset
        inside = starts[0] <= at < starts[-1] and at - at % files[0].size not in held
        if last.size == PRE_BLANK_SIZE or inside:
            key = (queue.topic, queue.queue_id)
            ends[key] = max(ends.get(key, 0), offset + 1)
    return ends
