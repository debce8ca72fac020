"""What triggers a pass, and passes by hand beside the services."""

from __future__ import annotations

import dataclasses
import itertools
import threading
import types

import pytest
from retention_place import HOUR, SIZE, Place

from tailrace.store.retention.rules import Rule, Trigger
from tailrace.store.running_flags import DISK_FULL


@pytest.fixture
def place():
    made = Place()
    yield made
    made.store.close()


def test_what_triggers_a_pass_over_every_combination():
    """Ratio band of two paths and the queues, previous flag, count by hand, hour and switch."""
    place = Place(hour=4, store_path_commit_log="/s/commitlog,/second/commitlog")
    place.fill(1)
    clean, disk, used = place.clean, place.store.retention.disk, {}

    def disk_usage(path):
        free = 1000 - 10 * used[path]
        return types.SimpleNamespace(total=1000, free=free, usable=free)

    place.files.disk_usage = disk_usage
    flags = place.store.inner.flags
    switches = [(on, dataclasses.replace(place.config, clean_file_forcibly_enable=on)) for on in (True, False)]
    bands = (50, 76, 86, 91)
    cases = 0
    for listed in (True, False):
        for log, second, queue, was_full, by_hand, (forcibly, config) in itertools.product(
            bands, bands, bands, (True, False), (0, 1, 20), switches
        ):
            used.update({"/s/commitlog": log, "/second/commitlog": second, "/s/consumequeue": queue})
            clean._config, clean.manual_times = config, by_hand
            disk.verdict = disk.verdict._replace(full=was_full)
            if was_full:
                flags.set(DISK_FULL, "")
            else:
                flags.clear(DISK_FULL)
            clean._begin_pass()
            worst = max(min(log, second), queue)
            case = (listed, log, second, queue, was_full, by_hand, forcibly)
            assert clean._trigger == Trigger(
                listed, worst > 75, by_hand > 0, forcibly and worst > 85), case
            assert clean._left == (10 if listed or worst > 75 or by_hand else 0), case
            assert clean.manual_times == max(by_hand - 1, 0), case
            assert disk.verdict.full == (worst > 90 or (was_full and worst > 89)), case
            assert place.store.is_writeable != disk.verdict.full, case
            assert set(disk.verdict.full_paths) == {
                path for path in ("/s/commitlog", "/second/commitlog") if used[path] > 85}, case
            found = place.clean.verdicts()[0].rule
            assert found is (Rule.FORCED if forcibly and worst > 85 else Rule.NOT_EXPIRED), case
            cases += 1
        place.clock.advance(HOUR)
    assert cases == 2 * 4 ** 3 * 2 * 3 * 2
    clean._left = 0
    place.store.close()


def test_two_threads_may_empty_the_trash_at_the_same_time(place):
    """A pass by hand runs at the same time as the service: each file is freed once, and no thread fails."""
    place.fill(3)
    place.clock.advance(80 * HOUR)
    others, failing = [], []

    def meet(_number, name, path):
        if name == "remove" and "/trash/" in path and not others:
            others.append(threading.Thread(target=empty))
            others[0].start()
            others[0].join(0.2)

    def empty():
        try:
            place.store.retention.trash.step()
        except Exception as error:
            failing.append(error)

    place.files.before = meet
    assert place.store.retention.delete_now() == 3
    others[0].join(10)
    place.files.before = None
    assert failing == []
    assert place.files.list("/s/tailrace/trash") == []
    assert place.store.retention.trash.freed_bytes == 3 * SIZE


def test_two_threads_may_clean_the_queues_at_the_same_time(place, monkeypatch):
    """A pass by hand beside the service, which comes when its time is up."""
    place.fill(4)
    place.clock.advance(80 * HOUR)
    service, met = place.store.retention.clean_consume_queue, []
    clean = type(service)._clean

    def meet(self, queue):
        if not met:
            met.append(threading.Thread(target=service.step))
            met[0].start()
            met[0].join(0.2)
            assert met[0].is_alive(), "it waits for its turn"
        return clean(self, queue)

    monkeypatch.setattr(type(service), "_clean", meet)
    assert place.store.retention.delete_now() == 4
    met[0].join(10)
    assert not met[0].is_alive()
    queue = place.store.inner.queues.get("t", 0)
    assert queue.unit(queue.min_offset).phy_offset >= place.store.min_phy_offset


@pytest.mark.parametrize(("hysteresis", "back"), [("onePoint", 89), ("reference", 85)])
def test_puts_return_below_the_warning_level_or_as_by_the_reference(hysteresis, back):
    place = Place(disk_full_hysteresis=hysteresis, clean_file_forcibly_enable=False)
    taken = {}
    for percent in (91, back + 1, back):
        place.use(percent)
        place.store.retention.disk.step()
        taken[percent] = place.store.is_writeable
    assert taken == {91: False, back + 1: False, back: True}
    place.use(90)
    place.store.retention.disk.step()
    assert place.store.is_writeable, "it is full above the level only"
    place.store.close()


@pytest.mark.parametrize(("share", "left"), [(1.25, 5), (1.2, 4)])
def test_of_a_shared_partition_the_part_of_this_store_counts(share, left):
    """Two brokers: above 0.8 of its half a store deletes its oldest files, though the disk has room."""
    place = Place(hour=12, replicas_per_disk_partition=2, clean_resource_interval=1000)
    place.fill(4)
    size = place.store.retention.store_bytes()
    usage = place.files.usage
    usage.total = round(2 * size * share)
    usage.free = usage.usable = usage.total * 9 // 10
    place.run(62_000)
    assert len(place.names()) == left
    assert place.store.stats()["forcedDeletedFiles"] == 5 - left
    place.store.close()
