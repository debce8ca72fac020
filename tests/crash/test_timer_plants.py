"""Each test of a weakness of timers fails on the behaviour of the reference, which is planted here."""

import importlib.util
import inspect
import pathlib
from collections import Counter

import pytest

from tailrace.store.directory_format import TimerFormat
from tailrace.testing import CrashFileSystem
from tailrace.timer import enqueue
from tailrace.timer.due_table import DueTable
from tailrace.timer.put_back import PutBack
from tailrace.timer.put_hook import TimerPutHook
from tailrace.timer.recovery import TimerRecovery
from tailrace.timer.schedule_message_service import ScheduleMessageService
from tailrace.timer.timer_log import TimerLog
from tailrace.timer.timer_message_store import TimerMessageStore
from tailrace.timer.timer_metrics import TimerMetrics
from tailrace.timer.timer_wheel import TimerWheel

pytestmark = pytest.mark.crash
UNIT = pathlib.Path(__file__).parents[1] / "unit" / "timer"


def _module(name):
    spec = importlib.util.spec_from_file_location(f"timer_plants_{name}", UNIT / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_module("conftest")  # the simulated world
services, recovery, schedule, files, metrics = map(_module, (
    "test_services", "test_recovery", "test_schedule", "test_files", "test_metrics"))


def w15_a_buffer_of_the_body_limit_and_some(patch):
    real = enqueue.read_records

    def read(log, positions, sizes, *more, **options):
        if (sizes > 900_100).any():
            raise ValueError("newLimit > capacity")
        return real(log, positions, sizes, *more, **options)

    patch.setattr(enqueue, "read_records", read)


def w17_a_put_back_is_dropped_after_three_tries(patch):
    real, tries = DueTable.put_off, Counter()

    def put_off(self, units, left):
        position = int(units["phy_offset"][0])
        tries[position] += 1
        if tries[position] >= 3:
            self.leave(units, self.slot_times(units))
        else:
            real(self, units, left)

    patch.setattr(DueTable, "put_off", put_off)


def w17_what_can_never_be_put_is_dropped(patch):
    patch.setattr(PutBack, "park", lambda *_: True)


def w18_rejection_is_most_likely_just_above_the_limit(patch):
    def is_reject(self, out):
        limit, num = self._config.timer_congest_num_each_slot, self._slot_num(out)
        return num > limit and (
            num >= 2 * limit
            or self._entropy.randrange(1000) > 1000 * (num - limit) / (limit + 0.1))

    patch.setattr(TimerPutHook, "_is_reject", is_reject)


def w19_all_of_the_wheel_is_flushed(patch):
    def take_dirty(self):
        return {
            page: bytes(self._bytes[page * 4096 : (page + 1) * 4096])
            for page in range(-(-self._size // 4096))}

    patch.setattr(TimerWheel, "take_dirty", take_dirty)


def w20_numbers_stay_what_was_on_disk(patch):
    real = TimerWheel.replay

    def replay(self, units, pos, begin_ms):
        found = real(self, units, pos, begin_ms)
        for time in self.live_slots(begin_ms):
            self.put_slot(time, *self.get_slot(time)[1:3], 0)
        return found

    patch.setattr(TimerWheel, "replay", replay)


def w20_metrics_are_what_the_file_says(patch):
    patch.setattr(TimerMetrics, "revise", lambda *_: None)


def w21_slot_times_are_by_the_precision_of_now(patch):
    patch.setattr(TimerFormat, "coarsest", lambda _self, precision: precision)


def w21_without_a_checkpoint_everything_that_survives_is_delivered(patch):
    patch.setattr(PutBack, "was_delivered", lambda *_, **__: False)


def w22_what_is_older_than_the_ring_is_not_read(patch):
    real = TimerRecovery.run

    def run(self, *given):
        found = real(self, *given)
        found.read_time_ms = max(found.read_time_ms, self._floor(self._clock.now_ms()) - 512_000)
        if self._clock.now_ms() - self._newest_ms() > 512_000:
            found.queue_offset = self._bounds()[1]
        return found

    patch.setattr(TimerRecovery, "_newest_ms", TimerRecovery._last_store_timestamp, raising=False)
    patch.setattr(TimerRecovery, "run", run)


def w32_a_level_is_looked_at_every_100_ms(patch):
    real = ScheduleMessageService.step
    patch.setattr(
        ScheduleMessageService, "step",
        lambda self: self._clock.now_ms() % 100 == 0 and real(self))


def w32_a_unit_that_throws_is_skipped(patch):
    real = ScheduleMessageService._time_up
    patch.setattr(ScheduleMessageService, "_time_up", lambda *given: real(*given) and "")


def w32_a_level_that_fails_holds_up_all(patch):
    real = ScheduleMessageService._time_up
    failed = []

    def time_up(self, level, unit, due_ms):
        if failed:
            return "another one failed"
        problem = real(self, level, unit, due_ms)
        if problem:
            failed.append(unit)
        return problem

    patch.setattr(ScheduleMessageService, "_time_up", time_up)


def w32_what_was_put_back_since_the_offsets_were_saved_comes_again(patch):
    patch.setattr(ScheduleMessageService, "_is_double", lambda *_: False)


def timers_are_late_by_a_slot(patch):
    real = TimerMessageStore.dequeue_step

    def step(self):
        """A slot is read when its second is over."""
        now = self._clock.now_ms()
        return now % 1000 < 1 and real(self)

    patch.setattr(TimerMessageStore, "dequeue_step", step)


def a_failed_append_is_skipped(patch):
    real = TimerLog.room

    def room(self):
        try:
            return real(self)
        except OSError:
            return 40

    patch.setattr(TimerLog, "room", room)
    patch.setattr(TimerLog, "append", lambda self, units: self.max_offset)


CASES = [
    (w15_a_buffer_of_the_body_limit_and_some, services.test_a_timer_of_any_legal_size_passes, {}),
    (w17_a_put_back_is_dropped_after_three_tries,
     services.test_a_put_back_that_fails_is_tried_for_ever, {"odd": False, "count": 1}),
    (w17_what_can_never_be_put_is_dropped,
     services.test_a_put_back_that_can_never_work_is_parked_with_its_reason, {}),
    (w18_rejection_is_most_likely_just_above_the_limit,
     services.test_congestion_rises_from_the_limit_to_twice_the_limit, {}),
    (w19_all_of_the_wheel_is_flushed, files.test_only_touched_pages_of_the_wheel_are_written,
     {"files": None}),
    (w20_numbers_stay_what_was_on_disk, recovery.test_the_wheel_s_numbers_come_out_of_the_log, {}),
    (w20_metrics_are_what_the_file_says, metrics.test_an_open_counts_anew_whatever_the_file_says,
     {"kept": True}),
    (w21_slot_times_are_by_the_precision_of_now, recovery.test_another_precision_misreads_no_slot,
     {"precision": 100, "stop": "kill"}),
    (w21_without_a_checkpoint_everything_that_survives_is_delivered,
     recovery.test_missing_files_are_made_again, {"what": "timercheck", "stop": "kill"}),
    (w22_what_is_older_than_the_ring_is_not_read, recovery.test_a_long_downtime,
     {"days": 8, "stop": "kill"}),
    (w22_what_is_older_than_the_ring_is_not_read, recovery.test_a_long_downtime,
     {"days": 60, "stop": "close"}),
    (w32_a_level_is_looked_at_every_100_ms,
     schedule.test_levels_are_delivered_in_order_and_hold_up_one_another_not, {}),
    (w32_a_unit_that_throws_is_skipped,
     schedule.test_a_put_that_fails_holds_up_its_level_only_and_nothing_is_lost,
     {"monkeypatch": None}),
    (w32_a_level_that_fails_holds_up_all,
     schedule.test_a_put_that_fails_holds_up_its_level_only_and_nothing_is_lost,
     {"monkeypatch": None}),
    (w32_what_was_put_back_since_the_offsets_were_saved_comes_again,
     schedule.test_after_a_kill_nothing_is_lost_and_nothing_comes_twice, {}),
    (timers_are_late_by_a_slot, services.test_each_timer_arrives_at_its_own_millisecond, {}),
    (a_failed_append_is_skipped, services.test_a_failed_append_to_the_timer_log_moves_nothing, {}),
]


def _run(test, how, monkeypatch):
    store_files = CrashFileSystem()
    store_files.makedirs("/store/config")
    given = {**how, "files": store_files, "monkeypatch": monkeypatch}
    test(**{word: given[word] for word in inspect.signature(test).parameters})


@pytest.mark.parametrize(
    ("plant", "test", "how"), CASES,
    ids=[f"{number}-{plant.__name__}" for number, (plant, _, _) in enumerate(CASES)])
def test_the_reference_fails(plant, test, how, monkeypatch):
    plant(monkeypatch)
    with pytest.raises((AssertionError, ValueError)):
        _run(test, how, monkeypatch)


@pytest.mark.parametrize("number", ["15", "17", "18", "19", "20", "21", "22", "32"])
def test_every_weakness_has_its_plant_and_its_name_in_a_test(number):
    assert [plant for plant, _, _ in CASES if plant.__name__.startswith(f"w{number}_")]
    assert any(f"W{number}:" in path.read_text() for path in UNIT.glob("test_*.py"))
