"""A directory keeps the settings that are needed to read it, so later commands need no file of settings."""

import contextlib
import dataclasses
import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from flat_open import flat_open

from tailrace import Message, MessageStore, StoreConfig
from tailrace.config import MESSAGE_DELAY_LEVEL
from tailrace.doctor.verify import verify
from tailrace.env.entropy import SeededEntropy
from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import NotAStoreError
from tailrace.formats.consumequeue import CQ_UNIT
from tailrace.node.store_opening import StoreParts
from tailrace.store.directory import StoreDirectory
from tailrace.store.own_settings import remembered
from tailrace.testing import SimClock, SimScheduler

SMALL = {
    "mapped_file_size_commit_log": 16_384, "mapped_file_size_consume_queue": 400,
    "max_hash_slot_num": 50, "max_index_num": 200, "commit_log_allocate_step": 4096}


def fill(store, topic, numbers):
    for number in numbers:
        store.put(Message(topic=topic, body=b"%d" % number * 60, keys=[f"k{number}"]), queue_id=number % 2)
    store.wait_dispatched()


def findings(path, config=None):
    lines = list(verify(str(path), config))
    return lines[-1]["summary"]["kinds"], lines[:3]


def opened(path, **given):
    given.setdefault("config", StoreConfig(**SMALL))
    return flat_open(path, services=False, **given)


# -- deleted topics


@pytest.fixture
def deleted(tmp_path):
    path = tmp_path / "s"
    with opened(path) as store:
        fill(store, "A", range(60))
        fill(store, "B", range(60))
        store.delete_topics({"A"})
        store.topics.delete("A")
        fill(store, "B", range(60, 70))
    return path


@contextlib.contextmanager
def as_was_left(path, how):
    """The directory after that; ``repaired`` and ``recovered`` build queues from the log."""
    if how == "repaired":
        opened(path, rebuild=True).close()
    elif how == "recovered":
        (path / "abort").write_text("1")
        shutil.rmtree(path / "tailrace")
        shutil.rmtree(path / "consumequeue")
        opened(path).close()
    yield path


@pytest.mark.parametrize("how", ["closed", "repaired", "recovered"])
def test_a_store_with_a_deleted_topic_is_sound(deleted, how):
    with as_was_left(deleted, how) as path:
        assert findings(path) == ({}, [findings(path)[1][0]])
        assert {queue.topic for queue in StoreDirectory(str(path)).queues()} == {"B"}


@pytest.mark.parametrize("how", ["closed", "repaired", "recovered"])
def test_a_store_with_a_topic_that_was_made_again_is_sound(deleted, how):
    with opened(deleted) as store:
        fill(store, "A", range(100, 120, 2))  # queue 1 gets none
    with as_was_left(deleted, how) as path:
        assert findings(path)[0] == {}
        with opened(path) as store:
            assert [m.queue_offset for m in store.read("A", 0)] == list(range(40, 50)), "from the next queue file on"
            assert [m.body[:3] for m in store.read("A", 0)] == [b"%d" % n for n in range(100, 120, 2)]
            assert list(store.read("A", 1)) == [], "messages from before the deletion came back"


def test_a_lost_unit_of_a_topic_that_was_made_again_is_found(deleted):
    with opened(deleted) as store:
        fill(store, "A", range(100, 120, 2))
    (unit,) = (deleted / "consumequeue" / "A" / "0").iterdir()
    data = bytearray(unit.read_bytes())
    data[40:60] = CQ_UNIT.pack(0, 202, 0)  # it names a message from before the deletion
    unit.write_bytes(data)
    assert findings(deleted)[0] == {"wrong-unit": 1}


def test_an_unclean_directory_is_shown_without_the_deleted_topic(deleted):
    (deleted / "abort").write_text("1")
    assert {queue.topic for queue in StoreDirectory(str(deleted)).queues()} == {"B"}


# -- settings


def timer_store(path, config):
    clock = SimClock()
    scheduler = SimScheduler(clock, SeededEntropy(1))
    with MessageStore.open(path, config=config, parts=StoreParts(clock=clock, scheduler=scheduler)) as store:
        for number in range(40):
            store.put(Message(topic="later", body=b"%d" % number, delay=1 + number * 0.43))
            scheduler.run(70)
    return path


@pytest.mark.parametrize("config", [None, StoreConfig(), StoreConfig(timer_precision_ms=500)])
def test_verify_knows_the_precision_of_the_timer_files(tmp_path, config):
    path = timer_store(tmp_path / "s", StoreConfig(**SMALL, timer_precision_ms=100))
    assert findings(path, config)[0] == {}
    lines = list(verify(str(path), config))
    assert lines[-1]["summary"]["timers"]["units"] > 30


def test_a_rebuild_without_the_file_of_settings_keeps_delay_levels_and_precision(tmp_path):
    settings = StoreConfig(
        **SMALL, message_delay_level="7s 70s", timer_precision_ms=100, message_index_enable=False)
    path = tmp_path / "s"
    with opened(path, config=settings) as store:
        store.put(Message(topic="later", body=b"x", delay_level=2))
        store.wait_dispatched()

    def due():
        (queue,) = [q for q in StoreDirectory(str(path)).queues() if q.topic.startswith("SCHEDULE")]
        return queue.unit(queue.min_offset).tags_code

    wanted = due()
    done = subprocess.run(
        [sys.executable, "-m", "tailrace.cli", "repair", str(path)], capture_output=True,
        text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert due() == wanted
    assert not (path / "index").exists()
    with opened(path, config=None) as store:
        assert store.config.message_delay_level == "7s 70s"
        assert store.config.timer_precision_ms == 100
    with opened(path, config=StoreConfig(message_delay_level="9s")) as store:
        assert store.config.message_delay_level == "9s", "what a caller says wins"
        assert store.config.timer_precision_ms == 100, "what a caller does not say stays"


def test_a_setting_overrides_only_itself(tmp_path, caplog):
    path, log = tmp_path / "s", tmp_path / "log"
    settings = StoreConfig(
        **SMALL, message_delay_level="7s 70s", timer_precision_ms=100, message_index_enable=False,
        store_path_commit_log=str(log))
    opened(path, config=settings).close()
    for given in (
        StoreConfig(flush_disk_type="SYNC_FLUSH"), StoreConfig.from_properties({"flushDiskType": "SYNC_FLUSH"}),
        StoreConfig.from_properties({"maxMessageSize": "4194304"}), dataclasses.replace(StoreConfig(), **SMALL),
        pickle.loads(pickle.dumps(StoreConfig(**SMALL))),
    ):
        with opened(path, config=given) as store:
            now = store.config
            assert now.flush_disk_type == given.flush_disk_type
            assert (now.message_delay_level, now.timer_precision_ms, now.message_index_enable) == (
                "7s 70s", 100, False)
            assert now.store_path_commit_log == str(log)
        assert StoreDirectory(str(path), config=given).config.timer_precision_ms == 100
    with opened(path, config=pickle.loads(pickle.dumps(StoreConfig(timer_precision_ms=500)))) as store:
        assert store.config.timer_precision_ms == 500
    with opened(path, config=StoreConfig.from_properties({"timerPrecisionMs": "1000"})) as store:
        assert (store.config.timer_precision_ms, store.config.message_delay_level) == (1000, "7s 70s")
    with opened(path, config=StoreConfig(message_index_enable=True)) as store:
        assert store.config.message_index_enable, "a default value can be given"
        assert store.config.timer_precision_ms == 1000, "it was given the last time"
    kept = json.loads((path / "tailrace" / "settings.json").read_bytes())["settings"]
    assert kept == {"messageDelayLevel": "7s 70s", "storePathCommitLog": str(log)}


def test_the_places_of_the_log_are_given_together(tmp_path):
    path = tmp_path / "s"
    opened(path, config=StoreConfig(
        **SMALL, store_path_commit_log=f"{tmp_path}/a:{tmp_path}/b", multi_path_splitter=":")).close()
    one = StoreConfig(store_path_commit_log=f"{tmp_path}/a,{tmp_path}/b")
    now = remembered(OsFileSystem(), str(path), one)
    assert (now.store_path_commit_log, now.multi_path_splitter) == (one.store_path_commit_log, ",")


def test_settings_that_cannot_be_read_are_left_out(tmp_path, caplog):
    path = tmp_path / "s"
    opened(path, config=StoreConfig(**SMALL, message_delay_level="7s 70s")).close()
    state = path / "tailrace" / "settings.json"
    for text in (b"{", b"[1]", b'{"settings": 7}', b'{"settings": {"messageDelayLevel": "never"}}'):
        state.write_bytes(text)
        with opened(path, config=None) as store:
            assert store.config.message_delay_level == MESSAGE_DELAY_LEVEL
    assert "settings of the directory cannot be read" in caplog.text


def test_a_log_in_other_places_is_found_again_unless_the_store_was_copied(tmp_path):
    path, logs = tmp_path / "s", [tmp_path / "log1", tmp_path / "log2"]
    settings = StoreConfig(**SMALL, store_path_commit_log=",".join(map(str, logs)))
    with opened(path, config=settings) as store:
        fill(store, "A", range(300))
    assert all(list(log.iterdir()) for log in logs)
    assert findings(path)[0] == {}
    with opened(path, config=None) as store:
        assert len(list(store.read("A", 0))) == 150
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    with pytest.raises(NotAStoreError, match="here or where storePathCommitLog says"):
        opened(copy, config=None)
    assert remembered(OsFileSystem(), str(copy), StoreConfig()).store_path_commit_log == ""


@pytest.mark.parametrize("killed", [False, True])
def test_a_store_whose_log_is_elsewhere_opens_again_before_its_first_message(tmp_path, killed):
    path, log = tmp_path / "s", tmp_path / "log"
    settings = StoreConfig(**SMALL, store_path_commit_log=str(log))
    opened(path, config=settings).close()
    if killed:
        (path / "abort").write_bytes(b"1")
    assert not (path / "commitlog").exists()
    assert not list(log.iterdir())
    for config in (settings, None):
        opened(path, config=config).close()
    with opened(path, config=None) as store:
        fill(store, "A", range(3))
    assert list(log.iterdir())
    assert not (path / "commitlog").exists()
    log.rename(tmp_path / "not mounted")
    for config in (settings, None):
        with pytest.raises(NotAStoreError, match="here or where storePathCommitLog says"):
            opened(path, config=config)
    shutil.rmtree(path / "consumequeue")  # it would be rebuilt from the log
    (path / "checkpoint").unlink()
    shutil.rmtree(path / "index")
    with pytest.raises(NotAStoreError, match="here or where storePathCommitLog says"):
        opened(path, config=None)


def test_nothing_is_kept_of_a_store_with_default_settings(tmp_path):
    opened(tmp_path / "s").close()
    assert not (tmp_path / "s" / "tailrace" / "settings.json").exists()
    opened(tmp_path / "s", config=StoreConfig(**SMALL, message_delay_level="7s")).close()
    kept = json.loads(Path(tmp_path / "s" / "tailrace" / "settings.json").read_bytes())
    assert kept == {"root": str(tmp_path / "s"), "settings": {"messageDelayLevel": "7s"}}
    opened(tmp_path / "s", config=StoreConfig(message_delay_level=MESSAGE_DELAY_LEVEL)).close()
    kept = json.loads(Path(tmp_path / "s" / "tailrace" / "settings.json").read_bytes())
    assert kept["settings"] == {}
