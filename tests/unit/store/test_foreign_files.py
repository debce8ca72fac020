"""Foreign files beside segments: each is named and left alone, and the store opens."""

from __future__ import annotations

import shutil

import pytest

from tailrace import Message, MessageStore, StoreConfig
from tailrace.doctor.dump import dump
from tailrace.doctor.verify import repair_plan, verify
from tailrace.node.store_opening import StoreParts
from tailrace.store.directory import StoreDirectory

SEGMENT = 16384
CONFIG = StoreConfig(
    mapped_file_size_commit_log=SEGMENT, mapped_file_size_consume_queue=400, max_hash_slot_num=50,
    max_index_num=200, commit_log_allocate_step=4096)
PLACES = {
    "commitlog": SEGMENT, "consumequeue/T/0": 400, "index": 0, "timerlog": 0,
}
NAMES = ["notes.txt", "zz.tar", ".swp", "00readme", "20240101", "123456789012345678901"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path = tmp_path_factory.mktemp("foreign") / "store"
    with MessageStore.open(path, config=CONFIG, parts=StoreParts(services=False)) as store:
        for n in range(30):
            store.put(Message(topic="T", body=b"%d" % n, keys=["k"]), queue_id=0)
        store.put(Message(topic="T", body=b"later", delay=86_400), queue_id=0)
        store.wait_dispatched()
        while store.timer_services.messages.enqueue_step():
            pass
    return path


def copy(made, tmp_path, *, killed):
    path = tmp_path / "store"
    shutil.copytree(made, path)
    if killed:
        (path / "abort").touch()
    return path


CASES = [
    *(("commitlog", name, 1, True) for name in NAMES),
    ("commitlog", "zz.tar", 2, True), ("commitlog", "zz.tar", 0, False),
    *((place, name, empties, True) for place in ("consumequeue/T/0", "timerlog", "index")
      for name, empties in (("notes.txt", 0), ("20240101", 2))),
]


@pytest.mark.parametrize(("place", "name", "empties", "killed"), CASES)
def test_a_foreign_file_is_named_and_left_alone(made, tmp_path, caplog, place, name, empties, killed):
    path = copy(made, tmp_path, killed=killed)
    foreign = path / place / name
    foreign.parent.mkdir(parents=True, exist_ok=True)
    foreign.write_bytes(b"x\n")
    made_empty = []
    if size := PLACES[place]:
        last = max(int(file.name) for file in foreign.parent.iterdir() if len(file.name) == 20)
        made_empty = [foreign.parent / f"{last + (n + 1) * size:020d}" for n in range(empties)]
        for file in made_empty:
            file.touch()
    lines = [*verify(str(path), CONFIG)]
    assert lines[-1]["summary"]["findings"] == 0, lines
    notes = [line["note"] for line in lines if "note" in line]
    assert [note["file"] for note in notes if note["kind"] == "foreign-file"] == [str(foreign)]
    assert [note["file"] for note in notes if note["kind"] == "empty-file"] == [str(file) for file in made_empty]
    assert [*repair_plan(str(path), CONFIG, seal_damage=False)][-1]["plan"]["findings"] == 0
    assert len([*dump(StoreDirectory(str(path), config=CONFIG))]) > 30
    for _ in range(2):
        caplog.clear()
        with MessageStore.open(path, config=CONFIG, parts=StoreParts(services=False)) as store:
            assert store.max_offset_in_queue("T", 0) == 30
            assert len(store.query_message("T", "k")) == 30
            report = store.recovery_report
            assert (report["cut"], report["quarantinedBytes"], report["readOnly"]) == ([], 0, None)
        assert str(foreign) in caplog.text
        assert foreign.read_bytes() == b"x\n"
        assert not any(file.exists() for file in made_empty)


def test_a_topic_is_deleted_although_its_directory_has_a_foreign_file(made, tmp_path, caplog):
    path = copy(made, tmp_path, killed=False)
    foreign = path / "consumequeue" / "T" / "0" / "notes.txt"
    foreign.write_bytes(b"x\n")
    with MessageStore.open(path, config=CONFIG, parts=StoreParts(services=False)) as store:
        store.delete_topics({"T"})
    assert [file.name for file in foreign.parent.iterdir()] == ["notes.txt"]
    assert str(foreign) in caplog.text
    with MessageStore.open(path, config=CONFIG, parts=StoreParts(services=False)) as store:
        assert "T" not in {topic for topic, *_ in store.queues()}


def test_a_link_to_nothing_beside_topics_is_left_alone(made, tmp_path):
    path = copy(made, tmp_path, killed=True)
    (path / "consumequeue" / "old").symlink_to(tmp_path / "gone")
    with MessageStore.open(path, config=CONFIG, parts=StoreParts(services=False)) as store:
        assert store.max_offset_in_queue("T", 0) == 30
    assert (path / "consumequeue" / "old").is_symlink()
