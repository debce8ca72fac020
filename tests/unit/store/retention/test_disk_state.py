"""The disk state machine, by every combination of bands, previous flag and switches."""

from __future__ import annotations

import itertools

import pytest

from tailrace import StoreConfig
from tailrace.errors import ConfigError
from tailrace.store.retention.disk_state import (
    DiskLevel,
    DiskLevels,
    PathUsage,
    decide,
    disk_levels,
)

TOTAL = 1000
LEVELS = disk_levels(StoreConfig())
BANDS = {-1: None, 50: DiskLevel.OK, 75: DiskLevel.OK, 76: DiskLevel.CLEAN, 85: DiskLevel.CLEAN,
         86: DiskLevel.FORCIBLE, 89: DiskLevel.FORCIBLE, 90: DiskLevel.FORCIBLE,
         91: DiskLevel.WARNING, 100: DiskLevel.WARNING}


def usage(percent, path="/d", trash=0):
    if percent < 0:
        return PathUsage(path, 0, 0, 0, error="no such directory")
    free = TOTAL - percent * TOTAL // 100 - trash
    return PathUsage(path, TOTAL, free, free, trash)


@pytest.mark.parametrize("percent", [p for p in BANDS if p >= 0])
def test_a_percentage_is_in_the_band_of_the_table(percent):
    assert usage(percent).percent == percent
    assert LEVELS.level(usage(percent)) is BANDS[percent]


def test_the_state_machine_over_every_combination():
    """Against the table written down here a second time, in the reference's words."""
    cases = 0
    for log, second, queue, was_full, reference in itertools.product(
        BANDS, (None, *BANDS), BANDS, (False, True), (False, True)
    ):
        levels = LEVELS._replace(resume_at_forcible=reference)
        paths = [usage(log, "/a")] + ([usage(second, "/b")] if second is not None else [])
        measured = [p for p in (log, second) if p is not None and p >= 0]
        least = min(measured, default=-1)
        judged = [p for p in (least, queue) if p >= 0]
        unknown = -1 in {log, second, queue}
        found = decide(levels, paths, usage(queue, "/q"), was_full=was_full)
        case = (log, second, queue, was_full, reference)
        stays = 85 if reference else 89
        assert found.full == (
            any(p > 90 for p in judged) or (was_full and (unknown or any(p > stays for p in judged)))
        ), case
        assert found.clean == (unknown or any(p > 75 for p in judged)), case
        assert found.clean_immediately == any(p > 85 for p in judged), case
        assert set(found.full_paths) == {
            p.path for p in paths if p.percent > 85}, case
        assert len(found.errors) == sum(p == -1 for p in (log, second, queue)), case
        assert bool(found.reason) == (found.full or found.clean), case
        cases += 1
    assert cases == len(BANDS) ** 2 * (len(BANDS) + 1) * 4


def test_only_a_path_that_cannot_be_measured_forces_nothing():
    found = decide(LEVELS, [usage(-1)], usage(-1), was_full=False)
    assert (found.full, found.clean, found.clean_immediately) == (False, True, False)
    assert "no such directory" in found.reason


def test_an_unmeasured_path_does_not_hide_a_full_one():
    assert decide(LEVELS, [usage(-1, "/a"), usage(95, "/b")], usage(10), was_full=False).full


def test_used_share_is_rounded_up_and_counts_what_others_may_not_use():
    assert PathUsage("/d", 1000, 100, 50).percent == 95  # 900 used of 950 that count: 94.7
    assert PathUsage("/d", 1000, 999, 999).percent == 1
    assert PathUsage("/d", 1000, 0, 0).percent == 100
    assert PathUsage("/d", 0, 0, 0).percent == -1


def test_bytes_in_the_trash_count_as_free_already():
    going = usage(80, trash=0)._replace(free=50, usable=50, trash=150)
    assert going.percent == 80
    assert going.available == 200
    assert LEVELS.level(going) is DiskLevel.CLEAN


def test_levels_are_clamped_as_by_the_original_but_may_go_up_to_99():
    def of(**values):
        return disk_levels(StoreConfig(**values))[:3]

    assert of() == (90, 85, 75)
    assert of(disk_space_warning_level_ratio=100, disk_space_clean_forcibly_ratio=97,
              disk_max_used_space_ratio=98) == (99, 97, 98)
    assert of(disk_space_warning_level_ratio=1, disk_space_clean_forcibly_ratio=1,
              disk_max_used_space_ratio=1) == (35, 30, 10)


def test_the_system_property_names_win():
    config = StoreConfig.from_properties({
        "rocketmq.broker.diskSpaceWarningLevelRatio": "0.97",
        "rocketmq.broker.diskSpaceCleanForciblyRatio": "0.95",
        "diskSpaceWarningLevelRatio": "80",
    })
    assert disk_levels(config)[:2] == (97, 95)


def test_levels_in_free_bytes_take_the_place_of_percentages():
    levels = DiskLevels(90, 85, 75, warning_bytes=10, forcible_bytes=20, clean_bytes=30)
    for free, level in ((100, DiskLevel.OK), (30, DiskLevel.OK), (29, DiskLevel.CLEAN),
                        (20, DiskLevel.CLEAN), (19, DiskLevel.FORCIBLE), (10, DiskLevel.FORCIBLE),
                        (9, DiskLevel.WARNING)):
        assert levels.level(PathUsage("/d", TOTAL, free, free)) is level, free
    for free, stays in ((9, True), (10, True), (11, False)):
        assert levels.stays_full(PathUsage("/d", TOTAL, free, free)) is stays, free
    assert "writes return at 11 B free" in levels.describe(PathUsage("/d", TOTAL, 9, 9))


def test_each_level_is_a_percentage_of_the_disk_also_one_in_free_bytes():
    assert LEVELS.limits_percent(usage(50)) == {"delete": 75, "delete_unexpired": 85, "refuse_puts": 90}
    levels = LEVELS._replace(warning_bytes=80, forcible_bytes=2 * TOTAL)
    for trash in (0, 40):
        limits = levels.limits_percent(usage(50, trash=trash))
        assert limits == {"delete": 75, "delete_unexpired": 0, "refuse_puts": 92}
        used = next(used for used in range(TOTAL) if levels.level(
            PathUsage("/d", TOTAL, TOTAL - used, TOTAL - used)) is DiskLevel.WARNING)
        assert used - 1 == limits["refuse_puts"] * TOTAL / 100
    assert levels.limits_percent(usage(-1)) == {"delete": 75}


def test_the_error_names_path_use_level_option_and_the_way_back():
    reason = decide(LEVELS, [usage(93, "/log")], usage(10), was_full=False).reason
    for part in ("disk full", "/log", "93 %", "diskSpaceWarningLevelRatio", "90 %", "at 89 %"):
        assert part in reason
    reference = LEVELS._replace(resume_at_forcible=True)
    assert "at 85 %" in decide(reference, [usage(93)], usage(10), was_full=False).reason


@pytest.mark.parametrize(("ratio", "clean", "immediately"), [
    (0.5, False, False), (0.75, False, False), (0.76, True, False), (0.8, True, False),
    (0.81, True, True)])
def test_brokers_that_share_a_partition_look_at_their_part(ratio, clean, immediately):
    # The partition itself is above the lowest level, which is not asked in this mode.
    found = decide(LEVELS, [usage(80)], usage(80), was_full=False, logical_ratio=ratio)
    assert (found.clean, found.clean_immediately, found.full) == (clean, immediately, False)
    full = decide(LEVELS, [usage(95)], usage(80), was_full=False, logical_ratio=ratio)
    assert (full.clean, full.clean_immediately, full.full) == (True, True, True)


def test_a_store_above_its_cap_deletes_and_refuses_only_when_it_may_not():
    cap = {"was_full": False, "max_store_bytes": 100}
    assert not decide(LEVELS, [usage(1)], usage(1), store_bytes=100, **cap).clean
    over = decide(LEVELS, [usage(1)], usage(1), store_bytes=101, **cap)
    assert (over.full, over.clean, over.clean_immediately) == (False, True, True)
    blocked = decide(LEVELS, [usage(1)], usage(1), store_bytes=101, blocked="archive", **cap)
    assert blocked.full
    assert "maxStoreBytes allows 100" in blocked.reason
    assert "archive" in blocked.reason


@pytest.mark.parametrize("values", [
    {"deleteWhen": "24"}, {"deleteWhen": "4;x"}, {"deleteWhen": ""}, {"expireBy": "size"},
    {"fileReservedTime": "-1"}, {"pinPolicyArchive": "forget"}])
def test_settings_that_cannot_work_are_refused(values):
    with pytest.raises(ConfigError) as error:
        StoreConfig.from_properties(values)
    assert next(iter(values)) in str(error.value)
