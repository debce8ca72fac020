"""A directory keeps the settings that are needed to read it, so later commands need no file of settings."""

import contextlib
import dataclasses
import errno
import itertools
import json
import pickle
import shutil
import subprocess
import sys

import pytest
from flat_open import flat_open

from tailrace import Message, MessageStore, StoreConfig
from tailrace.config import MESSAGE_DELAY_LEVEL
from tailrace.doctor.verify import verify
from tailrace.env.entropy import SeededEntropy
from tailrace.env.filesystem import OsFileSystem
from tailrace.env.whole_files import replace_file
from tailrace.errors import ConfigError, NotAStoreError, UnsupportedVersionError
from tailrace.formats.consumequeue import CQ_UNIT
from tailrace.node import store_opening
from tailrace.node.store_opening import StoreParts
from tailrace.store import directory
from tailrace.store.directory import StoreDirectory
from tailrace.store.directory_format import TimerFormat, read_format, remembered, write_format
from tailrace.testing import (
    CrashFileSystem,
    Fault,
    FaultyFileSystem,
    SimClock,
    SimScheduler,
    SimulatedCrash,
)

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
    kept = json.loads((path / "tailrace" / "format.json").read_bytes())["settings"]
    assert (kept["messageDelayLevel"], kept["storePathCommitLog"]) == ("7s 70s", str(log))
    assert (kept["messageIndexEnable"], kept["timerPrecisionMs"]) == ("true", "1000")


def test_the_places_of_the_log_are_given_together(tmp_path):
    path = tmp_path / "s"
    opened(path, config=StoreConfig(
        **SMALL, store_path_commit_log=f"{tmp_path}/a:{tmp_path}/b", multi_path_splitter=":")).close()
    one = StoreConfig(store_path_commit_log=f"{tmp_path}/a,{tmp_path}/b")
    now = remembered(read_format(OsFileSystem(), str(path)), str(path), one)
    assert (now.store_path_commit_log, now.multi_path_splitter) == (one.store_path_commit_log, ",")


def test_settings_that_cannot_be_read_are_left_out(tmp_path, caplog):
    path = tmp_path / "s"
    with opened(path, config=StoreConfig(**SMALL, message_delay_level="7s 70s")) as store:
        fill(store, "A", range(3))
    state = path / "tailrace" / "format.json"
    written = state.read_bytes()
    for text in (b"{", b"[1]", b'{"settings": 7}', written[:-9], written[1:], written.replace(b"7s 70s", b"8s 70s")):
        state.write_bytes(text)
        caplog.clear()
        with opened(path, config=None) as store:
            assert store.config.message_delay_level == MESSAGE_DELAY_LEVEL
            assert store.config.mapped_file_size_commit_log == 16_384, "the files show it"
        named = [one for one in caplog.messages if one.startswith("settings of the directory cannot be read")]
        assert len(named) == 1, "it is read again under the lock"
        with opened(path, config=StoreConfig(message_delay_level="7s 70s")):
            assert state.read_bytes() == written, "the next open replaces a damaged file"


def test_a_setting_that_is_not_valid_is_left_out_and_the_others_stay(tmp_path, caplog):
    path = tmp_path / "s"
    opened(path, config=StoreConfig(**SMALL, message_delay_level="7s 70s", timer_precision_ms=100)).close()
    state = path / "tailrace" / "format.json"
    state.write_text(json.dumps({"version": 1, "settings": {"messageDelayLevel": "never", "timerPrecisionMs": "100"}}))
    with opened(path, config=None) as store:
        assert (store.config.message_delay_level, store.config.timer_precision_ms) == (MESSAGE_DELAY_LEVEL, 100)
    assert "settings of the directory cannot be read" in caplog.text
    assert "messageDelayLevel=never" in caplog.text


def test_a_directory_of_a_later_release_is_refused_and_stays_as_it_is(tmp_path):
    path = tmp_path / "s"
    opened(path, config=StoreConfig(**SMALL)).close()
    state = path / "tailrace" / "format.json"
    state.write_text('{"version": 2, "settings": {}, "more": 1}')
    for open_it in (lambda: opened(path), lambda: opened(path, read_only=True), lambda: StoreDirectory(str(path))):
        with pytest.raises(UnsupportedVersionError, match="a later release"):
            open_it()
    assert state.read_text() == '{"version": 2, "settings": {}, "more": 1}'


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
    assert remembered(read_format(OsFileSystem(), str(copy)), str(copy), StoreConfig()).store_path_commit_log == ""


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


def test_the_file_is_written_at_creation_and_at_a_change_only(tmp_path):
    path = tmp_path / "s"
    state = path / "tailrace" / "format.json"
    opened(path).close()
    first, made = state.read_bytes(), state.stat().st_ino
    opened(path).close()
    assert (state.read_bytes(), state.stat().st_ino) == (first, made)
    opened(path, config=StoreConfig(**SMALL, message_delay_level="7s")).close()
    kept = json.loads(state.read_bytes())
    assert (kept["root"], kept["settings"]["messageDelayLevel"]) == (str(path), "7s")
    opened(path, config=StoreConfig(message_delay_level=MESSAGE_DELAY_LEVEL)).close()
    assert json.loads(state.read_bytes())["settings"]["messageDelayLevel"] == MESSAGE_DELAY_LEVEL


# -- a directory before its first files


def test_a_store_without_files_keeps_its_sizes_unless_others_are_given(tmp_path):
    path = tmp_path / "s"
    opened(path).close()
    with opened(path, config=StoreConfig(max_index_num=300, mapped_file_size_commit_log=32_768)) as store:
        kept = {name: getattr(store.config, name) for name in SMALL if name != "commit_log_allocate_step"}
    assert kept == {
        "mapped_file_size_commit_log": 32_768, "mapped_file_size_consume_queue": 400, "max_hash_slot_num": 50,
        "max_index_num": 300}


def fill_while(monkeypatch, store, module, function):
    """Let the first call of a function, by its module's name, come after two files of the log and of two queues."""
    real = getattr(module, function)

    def later(*values, **more):
        if not store.max_phy_offset:
            fill(store, "A", range(200))
            store.flush()
        return real(*values, **more)

    monkeypatch.setattr(module, function, later)


@pytest.mark.parametrize("config", [None, StoreConfig(mapped_file_size_commit_log=65_536, max_index_num=300)])
def test_a_reader_takes_the_sizes_of_files_that_are_made_after_it_has_looked(tmp_path, monkeypatch, caplog, config):
    path = tmp_path / "s"
    with opened(path) as store:
        fill_while(monkeypatch, store, store_opening, "read_batch_topics")
        with flat_open(path, config=config, services=False, read_only=True) as beside:
            assert beside.config.mapped_file_size_commit_log == 16_384
        assert len(list((path / "commitlog").glob("0*"))) > 1
    with opened(tmp_path / "other") as store:
        fill_while(monkeypatch, store, directory, "read_ended")
        assert not StoreDirectory(str(tmp_path / "other"), config=config).odd_files
        assert len(list((tmp_path / "other" / "commitlog").glob("0*"))) > 1
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_new_directory_has_its_sizes_before_it_has_a_log(tmp_path, monkeypatch):
    path, seen = tmp_path / "s", []
    real = store_opening.make_log_directories

    def later(*values):
        seen.append(json.loads((path / "tailrace" / "format.json").read_bytes())["settings"])
        assert not (path / "commitlog").exists()
        real(*values)

    monkeypatch.setattr(store_opening, "make_log_directories", later)
    opened(path).close()
    assert seen[0]["mappedFileSizeCommitLog"] == "16384"


# -- directories of earlier releases


def as_earlier_release(path, logs):
    """Replace ``format.json`` by the three files that an earlier release has written for the same settings."""
    own = path / "tailrace"
    (own / "format.json").unlink()
    (own / "geometry.json").write_text(json.dumps({
        "mappedFileSizeCommitLog": 16_384, "mappedFileSizeConsumeQueue": 400, "mapperFileSizeBatchConsumeQueue": 460,
        "maxHashSlotNum": 50, "maxIndexNum": 200, "commitLogPaths": [*map(str, logs)]}))
    (own / "settings.json").write_text(json.dumps({"root": str(path), "settings": {
        "messageDelayLevel": "7s 70s", "timerPrecisionMs": "100", "messageIndexEnable": "false",
        "storePathCommitLog": ",".join(map(str, logs))}}))
    (own / "timer.json").write_text(
        '{"precisionMs":100,"slotsTotal":1209600,"grainMs":500,"suspiciousUntilMs":1700000000000}')


OLD = ("geometry.json", "settings.json", "timer.json")


@pytest.fixture
def earlier(tmp_path):
    path, logs = tmp_path / "s", [tmp_path / "log1", tmp_path / "log2"]
    settings = StoreConfig(
        **SMALL, mapper_file_size_batch_consume_queue=460, store_path_commit_log=",".join(map(str, logs)),
        message_delay_level="7s 70s", timer_precision_ms=100, message_index_enable=False)
    with opened(path, config=settings) as store:
        fill(store, "A", range(300))
    as_earlier_release(path, logs)
    return path


def test_a_directory_of_an_earlier_release_is_read_and_moved_on(earlier):
    own = earlier / "tailrace"
    before = {name: (own / name).read_bytes() for name in OLD}
    wanted = {
        "mapped_file_size_commit_log": 16_384, "mapper_file_size_batch_consume_queue": 460,
        "message_delay_level": "7s 70s", "timer_precision_ms": 100, "message_index_enable": False}

    def check(config):
        assert {name: getattr(config, name) for name in wanted if "batch" not in name} == {
            name: value for name, value in wanted.items() if "batch" not in name}

    check(StoreDirectory(str(earlier)).config)
    with opened(earlier, config=None, read_only=True) as store:
        check(store.config)
        assert len(list(store.read("A", 0))) == 150
    assert {name: (own / name).read_bytes() for name in OLD} == before, "a read-only open writes nothing"
    assert not (own / "format.json").exists()
    with opened(earlier, config=None) as store:
        check(store.config)
    assert not [name for name in OLD if (own / name).exists()]
    kept = json.loads((own / "format.json").read_bytes())
    assert kept["timer"] == {
        "precisionMs": 100, "slotsTotal": 1_209_600, "grainMs": 500, "suspiciousUntilMs": 1_700_000_000_000}
    assert kept["settings"]["timerPrecisionMs"] == "100"
    check(StoreDirectory(str(earlier)).config)


def test_a_part_of_the_log_that_only_the_sizes_of_an_earlier_release_name_is_not_left_out(earlier, tmp_path):
    (earlier / "tailrace" / "settings.json").write_text("{")
    with pytest.raises(ConfigError, match=r"the CommitLog is also in .*log2"):
        opened(earlier, config=StoreConfig(store_path_commit_log=str(tmp_path / "log1")))


def a_directory_of_an_earlier_release():
    files = CrashFileSystem()
    files.makedirs("/s/tailrace")
    for name, text in (
        ("geometry.json", b'{"mappedFileSizeCommitLog":16384,"commitLogPaths":["."]}'),
        ("settings.json", b'{"root":"/s","settings":{"messageDelayLevel":"7s 70s"}}'),
        ("timer.json", b'{"precisionMs":100,"slotsTotal":60,"grainMs":500,"suspiciousUntilMs":7}'),
    ):
        replace_file(files, f"/s/tailrace/{name}", text)
    for parent in ("/", "/s"):
        files.sync_dir(parent)
    return files


WANTED = TimerFormat(precision_ms=100, slots_total=60, grain_ms=500, suspicious_until_ms=7)


def check_format(files, where):
    found = read_format(files, "/s")
    assert (found.root, found.timer) == ("/s", WANTED), where
    assert found.of(["message_delay_level", "mapped_file_size_commit_log"]) == {
        "messageDelayLevel": "7s 70s", "mappedFileSizeCommitLog": "16384"}, where


def test_a_crash_at_any_operation_of_the_move_leaves_the_same_format():
    """A kill or a power loss may happen before any file operation; unsynced bytes and names may be lost then."""
    for crash_at in itertools.count():
        files = a_directory_of_an_earlier_release()
        config = StoreConfig(message_delay_level="7s 70s", mapped_file_size_commit_log=16_384)
        first = files.operations

        def crash(number, _name, _path, at=first + crash_at):
            if number == at:
                raise SimulatedCrash

        files.before = crash
        try:
            write_format(files, "/s", read_format(files, "/s"), config)
            finished = True
        except SimulatedCrash:
            finished = False
        check_format(files.killed(), crash_at)
        for keep_percent in (0, 50, 100):
            for seed in range(4):
                left = files.power_lost(SeededEntropy(seed), keep_percent)
                check_format(left, (crash_at, keep_percent, seed))
                write_format(left, "/s", read_format(left, "/s"), config)
                check_format(left, (crash_at, keep_percent, seed))
                assert left.list("/s/tailrace") == ["format.json"]
        if finished:
            break
    assert crash_at >= 6


@pytest.mark.parametrize("error_number", [errno.EIO, errno.ENOSPC])
def test_an_error_at_any_operation_of_the_move_leaves_the_same_format(error_number):
    for number in itertools.count():
        files = a_directory_of_an_earlier_release()
        faulty = FaultyFileSystem.failing(files, Fault(number, error_number))
        config = StoreConfig(message_delay_level="7s 70s", mapped_file_size_commit_log=16_384)
        with contextlib.suppress(OSError):  # the first read raises it
            write_format(faulty, "/s", read_format(faulty, "/s"), config)
        check_format(files, number)
        if faulty.operations <= number:
            break
    assert number >= 6
