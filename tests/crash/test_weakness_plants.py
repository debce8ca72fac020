"""Each test of a weakness fails on the behaviour of the reference, which is planted here.

A test that passes with its plant would prove nothing. Plants are the least that makes ours behave as
the reference does in that case.
"""

import importlib.util
import inspect
import pathlib

import pytest

import tailrace.node.store_opening as opening
from tailrace.errors import StoreError, StoreLockedError
from tailrace.kernels.shared import constants as C
from tailrace.model import (
    GetMessageResult,
    GetMessageStatus,
    PutMessageResult,
    PutMessageStatus,
    places_of,
)
from tailrace.node import directory_opening
from tailrace.segments.mapped_file_queue import MappedFileQueue
from tailrace.store import consume_queue
from tailrace.store.consume_queue import ConsumeQueue
from tailrace.store.default_message_store import DefaultMessageStore
from tailrace.store.index_service import IndexService
from tailrace.store.reading import MessageReader
from tailrace.store.recovery import passes
from tailrace.store.recovery.rebuild_dispatcher import RebuildDispatcher
from tailrace.store.recovery.start import RecoveryStart
from tailrace.store.reput import ReputMessageService
from tailrace.store.walk.log_walk import Walk
from tailrace.timer.recovery import TimerRecovery

_spec = importlib.util.spec_from_file_location(
    "weaknesses", pathlib.Path(__file__).with_name("test_weaknesses.py"))
weaknesses = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(weaknesses)

pytestmark = pytest.mark.crash


def _no_progress(patch):
    patch.setattr(RecoveryStart, "mismatch", lambda *_: "not looked at")


def _ends_found(self):
    for queue in self._queues.table.values():
        queue.find_end()


def w1_dispatch_goes_on_behind_the_record_that_starts_where_the_newest_unit_ends(patch):
    def newest(self, _start):
        _ends_found(self)
        units = [queue.unit(queue.max_offset - 1) for queue in self._queues.table.values()]
        end = max([unit.phy_offset + unit.size for unit in units if unit], default=0)
        return end + len(self._commit_log.record_at(end) or b"")

    _no_progress(patch)
    patch.setattr(RecoveryStart, "moved_back", newest)


def w2_a_bad_record_ends_the_log(patch):
    patch.setattr(Walk, "_damage", lambda _self, *, torn: None)


def w3_a_truncation_moves_positions_only(patch):
    clearing = MappedFileQueue.truncate_dirty_files

    def truncate(self, offset, *, clear=True):
        if self.file_size == weaknesses.stores.QUEUE_FILE:
            self.set_end(offset)
        else:
            clearing(self, offset, clear=clear)

    patch.setattr(MappedFileQueue, "truncate_dirty_files", truncate)


def w4_a_whole_record_counts_whenever_it_was_stored(patch):
    patch.setattr(Walk, "_counts", lambda self, _in_file, at, *_: self._claim(at, self._check) is not None)


def w4_a_unit_goes_wherever_its_record_says(patch):
    def truncate(_self, queue, _rows, run):
        queue.truncate(run.start)
        return 0

    patch.setattr(RebuildDispatcher, "_known", truncate)


def w4_the_physical_offset_is_not_compared(patch):
    patch.setattr(passes, "checks_of", lambda _: C.CHECK_BODY_CRC)


def w5_the_checkpoint_is_believed(patch):
    def believed(self, start):
        _ends_found(self)
        return start

    patch.setattr(RecoveryStart, "moved_back", believed)


def w6_the_last_index_file_is_deleted_after_a_kill(patch):
    patch.setattr(IndexService, "rewind", lambda self, *_, **__: self.clear())
    patch.setattr(RecoveryStart, "_index_good_until", lambda _: 1 << 62)


def w7_the_index_is_not_truncated(patch):
    patch.setattr(IndexService, "rewind", lambda *_, **__: None)
    patch.setattr(IndexService, "drop_unfinished", lambda *_, **__: True)
    patch.setattr(RecoveryStart, "_index_good_until", lambda _: 1 << 62)


def w8_what_is_behind_an_unreadable_record_is_left_out_and_there_is_no_lag(patch):
    step = ReputMessageService._step

    def skipping(self):
        more = step(self)
        if self._logged_bad >= 0:
            self.reput_from_offset = self._log.max_offset
            self._flags.bits = 0
        return more

    patch.setattr(ReputMessageService, "_step", skipping)


def w9_a_record_that_fits_no_file_is_answered_with_put_ok(patch):
    put = DefaultMessageStore.put

    def answering(self, message):
        if len(message.body) >= self.commit_log.queue.file_size:
            return PutMessageResult(PutMessageStatus.PUT_OK, phy_offset=0, until=0)
        return put(self, message)

    patch.setattr(DefaultMessageStore, "put", answering)


def w10_the_first_unit_of_a_file_is_not_looked_at(patch):
    find = consume_queue.find_units_end
    patch.setattr(consume_queue, "find_units_end", lambda file: max(find(file), 1))
    patch.setattr(RecoveryStart, "moved_back", lambda self, start: _ends_found(self) or start)
    patch.setattr(ConsumeQueue, "rewind", lambda *_: None)


def w11_a_queue_begins_at_0(patch):
    patch.setattr(ConsumeQueue, "correct_min_offset", lambda self, _: setattr(self, "_min_offset", 0))


def w12_an_unreadable_unit_moves_readers_to_the_next_file(patch):
    read = MessageReader.get_message

    def skipping(self, topic, queue_id, offset, *how, **more):
        result = read(self, topic, queue_id, offset, *how, **more)
        per_file = self._queues.get(topic, queue_id).files.file_size // 20
        for place, found in enumerate(result.queue_offsets):
            if found != offset + place:
                result.record_count, result.places = place, result.places[: 16 * place]
                result.data = result.data[: max(result.ends, default=0)]
                result.next_begin_offset = found + per_file - found % per_file
                break
        return result

    patch.setattr(MessageReader, "get_message", skipping)


def w13_files_are_changed_before_the_lock_is_asked_for(patch):
    lock = opening.lock_store

    def late(file_system, root, **how):
        file = file_system.open(f"{root}/checkpoint", writable=True, create=True)
        file.pwrite(b"changed", file.size())
        file.close()
        return lock(file_system, root, **how)

    patch.setattr(opening, "lock_store", late)


def w14_checksums_are_for_recovery_only(patch):
    read = MessageReader.get_message

    def unchecked(self, topic, queue_id, offset, *how, **more):
        result = read(self, topic, queue_id, offset, *how, **more)
        queue = self._queues.get(topic, queue_id)
        unit = queue.unit(offset) if queue is not None else None
        if unit is None:
            return result
        found = [self._log.queue.read(unit.phy_offset, unit.size)]
        return GetMessageResult(
            GetMessageStatus.FOUND, offset + 1, result.min_offset, result.max_offset, found[0], 1,
            places_of(found, [offset]))

    patch.setattr(MessageReader, "get_message", unchecked)


def w29_a_stop_on_a_full_disk_is_a_kill_without_progress(patch):
    _no_progress(patch)


def w30_other_queues_are_left_alone(patch):
    patch.setattr(directory_opening, "_UNKNOWN_DIRECTORIES", ())


def n1_no_more_than_ten_files_are_looked_at(patch):
    def capped(self, start):
        _ends_found(self)
        files = self._commit_log.queue.files
        return max(start, files[max(len(files) - 10, 0)].file_from_offset)

    patch.setattr(RecoveryStart, "moved_back", capped)


def n2_snapshots_stay(patch):
    patch.setattr(TimerRecovery, "_remove_snapshots", lambda _: None)


def n3_left_over_bytes_are_records(patch):
    patch.setattr(passes, "checks_of", lambda _: C.CHECK_BODY_CRC)


def n4_the_offset_of_the_checkpoint_is_where_the_log_goes_on(patch):
    patch.setattr(RecoveryStart, "by_checkpoint", lambda self: self._checkpoint.fields[5])
    patch.setattr(RecoveryStart, "checkpoint_is_sane", lambda _: True)
    w2_a_bad_record_ends_the_log(patch)
    w5_the_checkpoint_is_believed(patch)


def n5_a_failed_start_removes_the_abort_file(patch):
    lock = opening.lock_store

    def removing(file_system, root, **how):
        try:
            return lock(file_system, root, **how)
        except StoreLockedError:
            file_system.remove(f"{root}/abort")
            raise

    patch.setattr(opening, "lock_store", removing)


KILLED = {"killed": True}
CASES = [
    (w1_dispatch_goes_on_behind_the_record_that_starts_where_the_newest_unit_ends,
     "w1_a_queue_behind_the_log_after_a_clean_stop", [
         {"left": left, "ours": ours} for left in (0, 2, 4) for ours in (True, False)]),
    (w2_a_bad_record_ends_the_log, "w2_one_bad_record_costs_one_message", [
        {"killed": killed, "fields": weaknesses.NOTHING} for killed in (True, False)]),
    (w3_a_truncation_moves_positions_only, "w3_units_behind_a_truncation_stay_dead", [{}]),
    (w3_a_truncation_moves_positions_only, "w3_our_own_truncation_leaves_no_units", [{}]),
    (w4_a_whole_record_counts_whenever_it_was_stored, "w4_records_behind_an_old_end_of_the_log",
     [KILLED, {"killed": False}]),
    (w4_a_whole_record_counts_whenever_it_was_stored, "w4_records_after_an_old_end_that_are_too_near_for_a_record",
     [{}]),
    (w4_a_whole_record_counts_whenever_it_was_stored, "w4_records_after_a_torn_record_of_another_size", [
        {"torn_at": 100}, {"torn_at": 400}]),
    (w4_a_unit_goes_wherever_its_record_says, "w4_old_records_that_follow_without_a_gap", [{}]),
    (w4_the_physical_offset_is_not_compared, "w4_a_record_of_another_place", [{}]),
    (w5_the_checkpoint_is_believed, "w5_a_checkpoint_that_is_ahead_of_the_queues", [
        {"release": "5.3.3"}, {"release": "5.5.0"}]),
    (w6_the_last_index_file_is_deleted_after_a_kill, "w6_a_kill_does_not_cost_the_index", [{}]),
    (w7_the_index_is_not_truncated, "w7_keys_of_messages_behind_a_truncation",
     [KILLED, {"killed": False}]),
    (w8_what_is_behind_an_unreadable_record_is_left_out_and_there_is_no_lag,
     "w8_a_record_that_dispatch_cannot_read", [{}]),
    (w9_a_record_that_fits_no_file_is_answered_with_put_ok,
     "w9_a_record_that_fits_no_file_is_refused", [{}]),
    (w10_the_first_unit_of_a_file_is_not_looked_at, "w10_no_phantom_in_an_empty_queue_file",
     [KILLED, {"killed": False}]),
    (w11_a_queue_begins_at_0, "w11_the_least_offset_of_a_queue_that_began_above_0", [
        {"killed": killed, "ours": ours} for killed in (True, False) for ours in (True, False)]),
    (w12_an_unreadable_unit_moves_readers_to_the_next_file,
     "w12_one_unreadable_unit_costs_one_message", [{}]),
    (w13_files_are_changed_before_the_lock_is_asked_for, "w13_a_second_store_changes_nothing", [{}]),
    (w14_checksums_are_for_recovery_only,
     "w14_a_record_that_rots_before_the_part_that_recovery_reads", [{}]),
    (w29_a_stop_on_a_full_disk_is_a_kill_without_progress,
     "w29_a_stop_on_a_full_disk_costs_no_replay", [{}]),
    (w30_other_queues_are_left_alone, "w30_queues_of_a_kind_that_we_do_not_read_are_refused", [
        {"name": "consumequeue_ext"}]),
    (n1_no_more_than_ten_files_are_looked_at, "n1_queues_are_rebuilt_from_all_files_of_the_log", [
        {"killed": True, "what": "queues"}, {"killed": False, "what": "all"}]),
    (n2_snapshots_stay, "n2_snapshots_of_a_timer_wheel_that_cannot_be_right_are_not_believed", [{}]),
    (n3_left_over_bytes_are_records, "n3_ghosts_of_writes_without_mmap", [KILLED, {"killed": False}]),
    (n4_the_offset_of_the_checkpoint_is_where_the_log_goes_on,
     "n4_a_checkpoint_whose_offset_is_no_record", [
         {"at": "off-boundary"}, {"at": "beyond-end"}]),
    (n5_a_failed_start_removes_the_abort_file,
     "n5_a_second_start_leaves_the_abort_file_of_the_first", [{"count": 0}]),
]


@pytest.mark.parametrize(
    ("plant", "name", "how"),
    [(plant, name, how) for plant, name, hows in CASES for how in hows],
    ids=[f"{plant.__name__}-{number}" for plant, _, hows in CASES for number in range(len(hows))])
def test_the_reference_fails(plant, name, how, tmp_path, monkeypatch):
    test = getattr(weaknesses, f"test_{name}")
    plant(monkeypatch)
    given = {"path": tmp_path / "s", "tmp_path": tmp_path, **how}
    wanted = {word: given[word] for word in inspect.signature(test).parameters}
    with pytest.raises((AssertionError, StoreError, OSError, ValueError, pytest.fail.Exception)):
        test(**wanted)


def test_no_weakness_is_without_a_plant():
    tests = {name.partition("_")[2] for name in vars(weaknesses) if name.startswith(("test_w", "test_n"))}
    assert tests == {name for _, name, _ in CASES}
