"""A store keeps its limits even if each of its lives is shorter than the period of its services."""

import pytest

from tailrace import Message, MessageStore, StoreConfig
from tailrace.env.entropy import SeededEntropy
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.store_opening import StoreParts
from tailrace.testing import SimClock, SimScheduler

HOUR_MS = 3_600_000
LIFE_MS = 1500
"""Shorter than cleanResourceInterval, and than the minute that a Java broker waits."""


def config(**more):
    return StoreConfig(**{
        "mapped_file_size_commit_log": 65_536, "mapped_file_size_consume_queue": 400,
        "max_hash_slot_num": 50, "max_index_num": 200, "commit_log_allocate_step": 4096,
        "disk_max_used_space_ratio": 99, "disk_space_clean_forcibly_ratio": 99,
        "disk_space_warning_level_ratio": 99, **more})


class Life:
    """One run of a store under a simulated clock."""

    def __init__(self, path, clock, settings, seed=1):
        self.scheduler = SimScheduler(clock, SeededEntropy(seed))
        self.store = MessageStore.open(
            path, config=settings, parts=StoreParts(clock=clock, scheduler=self.scheduler, entropy=SeededEntropy(seed)))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.store.close()

    def run(self, ms=LIFE_MS):
        self.scheduler.run(ms)

    def put(self, count, topic="T"):
        for _ in range(count):
            self.store.put(Message(topic=topic, body=b"x" * 6000))
        self.store.flush()


def segments(path):
    return sorted(file.name for file in (path / "commitlog").iterdir())


def test_max_store_bytes_holds_in_lives_of_a_second(tmp_path):
    path, clock, settings = tmp_path / "s", SimClock(), config(max_store_bytes=400_000)
    for seed in range(12):
        with Life(path, clock, settings, seed) as life:
            life.put(20)
            life.run()
            assert life.store.retention.store_bytes() <= 400_000 + 2 * 65_536
    assert segments(path)[0] > "0" * 20


def test_expired_segments_and_their_queue_and_index_files_go_in_short_lives(tmp_path):
    path, clock = tmp_path / "s", SimClock()
    hours = ";".join(map(str, range(24)))
    settings = config(file_reserved_time=1.0, delete_when=hours)
    with Life(path, clock, settings) as life:
        life.put(100)
    before = segments(path)
    clock.advance(2 * HOUR_MS)
    with Life(path, clock, settings) as life:
        life.put(1)
        life.run()
    assert segments(path)[0] == before[-1], "all but the last are older than an hour"
    with Life(path, clock, settings) as life:
        life.run()
    units = sorted(file.name for file in (path / "consumequeue" / "T" / "0").iterdir())
    assert int(units[0]) > 0


@pytest.mark.parametrize(("pinned", "lmq"), [(True, False), (False, False), (True, True)])
def test_the_first_pass_knows_what_groups_have_not_consumed(tmp_path, pinned, lmq):
    """It is made before anybody hands over consumer offsets: they are on the disk."""
    path, clock = tmp_path / "s", SimClock()
    settings = config(
        enable_lmq=lmq, file_reserved_time=1.0, delete_when=";".join(map(str, range(24))),
        pin_groups="G" if pinned else "other")
    with Life(path, clock, settings) as life:
        life.put(60)
        files, place = life.store.file_system, life.store.config_dir
        if lmq:  # offsets of the time before enableLmq
            ConsumerOffsetManager(files, place, clock).persist()
        offsets = ConsumerOffsetManager(files, place, clock, lmq=lmq)
        offsets.commit("G", "T", 0, 0)
        offsets.persist()
    before = segments(path)
    clock.advance(2 * HOUR_MS)
    with Life(path, clock, settings) as life:
        life.put(1)
        life.run()
    assert (segments(path)[0] == before[0]) is pinned


def test_services_with_long_periods_run_once_at_the_start(tmp_path):
    """Delivered timer log files are deleted, and pending timers counted again, also by processes that end soon."""
    seen = []
    path, clock = tmp_path / "s", SimClock()
    with Life(path, clock, config()) as life:
        for name in ("clean_step", "check_metrics_step"):
            seen += [service for service in life.scheduler._services
                     if getattr(service._step, "__name__", "") == name]
        assert [service.name for service in seen] == ["TimerLogCleanService", "TimerMetricsCheck"]
        assert all(service.is_ready(clock.monotonic_ns() // 1_000_000) for service in seen)
        life.run(1)
        assert not any(service.is_ready(clock.monotonic_ns() // 1_000_000) for service in seen)
