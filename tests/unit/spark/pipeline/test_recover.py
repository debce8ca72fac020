"""Recovery from staged rows, the tasks in one process: the report and the files of the local way."""

import pathlib
import random
import shutil
import tarfile

import pytest
from releases import CRASHED
from segmented_store import killed_store, poke_log, same_recovery

from tailrace import MessageStore, StoreConfig
from tailrace.config import RecoveryMode
from tailrace.doctor.verify import verify
from tailrace.errors import CorruptionError
from tailrace.node.store_opening import StoreParts

pytest.importorskip("pyspark")
FIXTURES = pathlib.Path(__file__).parents[3] / "interop" / "fixtures"


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    return killed_store(tmp_path_factory.mktemp("recover") / "store")


def test_damage_in_the_middle_and_a_torn_end(one_process, stopped, tmp_path):
    path = tmp_path / "store"
    shutil.copytree(stopped[0], path)
    (path / "checkpoint").unlink()
    places = stopped[1]
    poke_log(path, places[20] + 100, b"\xff")
    poke_log(path, places[60], bytes(500))
    poke_log(path, places[-1] + 10, random.Random(3).randbytes(900))
    report = same_recovery(one_process, path, tmp_path)
    assert [found["physicalOffset"] for found in report["steppedOver"]] == [places[20], places[60]]
    assert report["to"] == places[-1]
    assert report["cut"]
    assert [line for line in verify(str(tmp_path / "spark")) if "damaged" not in str(line)] == []


def test_a_rebuild_of_spoiled_queues_and_index(one_process, stopped, tmp_path):
    path = tmp_path / "store"
    shutil.copytree(stopped[0], path)
    queue = path / "consumequeue" / "T0" / "0" / "0".zfill(20)
    queue.write_bytes(random.Random(4).randbytes(400))
    min((path / "index").iterdir()).write_bytes(b"")
    report = same_recovery(one_process, path, tmp_path, rebuild=True)
    assert report["mode"] == "rebuild"
    assert [line for line in verify(str(tmp_path / "spark")) if "finding" in line] == []


def test_the_reference_s_crashed_directory(one_process, tmp_path):
    with tarfile.open(FIXTURES / f"{CRASHED}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    path = tmp_path / CRASHED
    shutil.rmtree(path / "consumequeue")
    shutil.rmtree(path / "index")
    report = same_recovery(one_process, path, tmp_path)
    assert report["scanned"] > 4000


def test_rows_that_are_not_what_the_task_wrote_are_not_used(one_process, stopped, tmp_path):
    """The walk scans such a segment itself."""
    from tailrace.spark.pipeline.recover import SparkScan

    path = tmp_path / "store"
    shutil.copytree(stopped[0], path)
    told = []
    scan = SparkScan(one_process, str(tmp_path / "staging"), told.append)

    def spoiled(*given):
        source = scan(*given)
        first, second, *_ = sorted((tmp_path / "staging").iterdir())
        first.write_bytes(first.read_bytes()[:-30] + bytes(30))
        second.unlink()
        return source

    with MessageStore.open(path, parts=StoreParts(services=False, rebuild=True, walk=spoiled)) as store:
        assert store.recovery_report["scanned"] == 152
    assert sum("scanned here" in line for line in told) == 2
    assert [line for line in verify(str(path)) if "finding" in line] == []


def test_a_strict_mode_refuses_what_it_refuses_locally(one_process, stopped, tmp_path):
    from tailrace.spark.pipeline.recover import recover

    path = tmp_path / "store"
    shutil.copytree(stopped[0], path)
    (path / "checkpoint").unlink()
    poke_log(path, stopped[1][20] + 100, b"\xff")
    config = StoreConfig(recovery_mode=RecoveryMode.TOLERATE_TAIL)
    with pytest.raises(CorruptionError) as local:
        MessageStore.open(path, config=config, parts=StoreParts(services=False))
    with pytest.raises(CorruptionError) as apart:
        recover(one_process, str(path), config=config)
    assert str(apart.value) == str(local.value)
    assert not (path / "tailrace" / "staging").exists()


def test_a_scan_that_fails_has_changed_nothing(stopped, tmp_path):
    path = tmp_path / "store"
    shutil.copytree(stopped[0], path)
    poke_log(path, stopped[1][-1] + 10, bytes(200))
    before = {str(file): file.read_bytes() for file in path.rglob("*") if file.is_file()}

    def scan(*_):
        raise OSError("no executor is left")

    with pytest.raises(OSError, match="no executor"):
        MessageStore.open(path, parts=StoreParts(services=False, walk=scan))
    after = {str(file): file.read_bytes() for file in path.rglob("*") if file.is_file()}
    changed = {name for name in before | after if before.get(name) != after.get(name)}
    assert {pathlib.Path(name).name for name in changed} <= {"abort", "lock", "format.json"}
