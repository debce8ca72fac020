"""The audit in one process: every damage of the reference's list, equal to verify on each."""

import pathlib
import shutil
import subprocess
import sys
import tarfile

import pytest
from releases import CRASHED
from segmented_store import SEGMENT, poke_log, sound_store

from tailrace import Message, MessageStore
from tailrace.doctor.verify import verify

pytest.importorskip("pyspark")

from tailrace.node.store_opening import StoreParts
from tailrace.spark.pipeline.audit import audit

INTEROP = pathlib.Path(__file__).parents[3] / "interop"

WANTED = {
    "as-is": set(),
    "cq-garbage-tail": {"foreign-unit"},
    "cq-short": {"missing-unit", "timercheck-ahead"},
    "empty-next-file": set(),
    "flip-last-body": {"foreign-key", "foreign-unit", "torn-end"},
    "flip-mid-last-file": {"damaged-record", "foreign-key"},
    "garbage-after-tail": {"torn-end"},
    "lost-first-files": set(),
    "no-checkpoint": set(),
    "no-consumequeue": {"missing-unit"},
    "no-derived": {"missing-key", "missing-unit"},
    "no-index": {"missing-key"},
    "normal-but-torn": {"foreign-key", "foreign-unit", "torn-end"},
    "torn-header": {"foreign-key", "foreign-unit", "torn-end"},
    "torn-tail": {"foreign-key", "foreign-unit", "torn-end"},
    "zero-length-files": set(),
}


def both(spark, path):
    """Kinds of what is found, after a comparison of the two ways."""
    *wanted, summary = verify(str(path))
    done = audit(spark, str(path))
    assert done.findings == [line["finding"] for line in wanted if "finding" in line]
    assert done.summary == summary["summary"]
    return set(done.summary["kinds"])


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    where = tmp_path_factory.mktemp("damaged")
    with tarfile.open(INTEROP / "fixtures" / f"{CRASHED}.tar.xz") as archive:
        archive.extractall(where, filter="data")
    subprocess.run(
        [sys.executable, INTEROP / "reference" / "damage.py", where / CRASHED,
         where / "copies", "1"], check=True)
    return where / "copies"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return sound_store(tmp_path_factory.mktemp("audit") / "store")


def test_where_the_scan_of_a_segment_guessed_wrong_it_is_verified_again(one_process, made, tmp_path):
    """A segment is gone; after a gap the next record is older than what was before it."""
    path = tmp_path / "store"
    shutil.copytree(made[0], path)
    (path / "commitlog" / f"{SEGMENT:020d}").unlink()
    places = [place for place in made[1] if place // SEGMENT == 2]
    for place in places[:3]:
        poke_log(path, place, bytes(40))
    poke_log(path, places[3] + 56, bytes(8))  # its store time
    assert both(one_process, path) == {"segment-missing", "damaged-record", "foreign-key"}
    told = []
    audit(one_process, str(path), tell=told.append)
    assert told == ["3 segments, 2 index files", "1 segments are cut by damage and are verified again"]


def test_a_store_without_a_log(one_process, made, tmp_path):
    path = tmp_path / "store"
    shutil.copytree(made[0], path)
    for file in (path / "commitlog").iterdir():
        file.unlink()
    assert both(one_process, path) == {"checkpoint-ahead", "foreign-key", "foreign-unit"}


def test_damage_in_a_compaction_log_is_found(one_process, tmp_path):
    path = tmp_path / "store"
    with MessageStore.open(path, parts=StoreParts(services=False)) as store:
        store.create_topic("C", 1, {"cleanup.policy": "COMPACTION"})
        for n in range(20):
            store.put(Message(topic="C", body=b"value %d" % n, keys=[f"k{n}"]))
        store.flush()
        store.wait_dispatched()
        store.inner.flush()
    assert both(one_process, path) == set()
    [file] = (path / "compaction" / "compactionLog" / "C" / "0").iterdir()
    data = bytearray(file.read_bytes())
    data[data.index(b"value 7")] ^= 1
    file.write_bytes(data)
    assert both(one_process, path) == {"compaction-record"}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(WANTED))
def test_each_damage_is_found_as_verify_finds_it(one_process, damaged, name):
    assert both(one_process, damaged / name) == WANTED[name]


def test_the_list_is_whole(damaged):
    assert {path.name for path in damaged.iterdir()} == set(WANTED)
