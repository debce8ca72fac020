"""Recovery whose log is read by tasks: the report, the queues and the index of the local way."""

import json
import shutil

import pytest
from typer.testing import CliRunner

from tailrace import Message, MessageStore, StoreConfig
from tailrace.cli.app import app
from tailrace.model import MessageExtBrokerInner
from tailrace.store.directory import StoreDirectory

pytestmark = [pytest.mark.spark, pytest.mark.slow]
SEGMENT = 16384
CONFIG = StoreConfig(
    mapped_file_size_commit_log=SEGMENT, mapped_file_size_consume_queue=400, max_hash_slot_num=50,
    max_index_num=200, commit_log_allocate_step=4096)
QUIET = ("tailrace", "checkpoint", "config", "lock", "abort")  # times and numbers of processes


def files(path):
    """Every file that a recovery derives from the log, and the log."""
    return {
        str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*"))
        if file.is_file() and file.relative_to(path).parts[0] not in QUIET
    }


def both(spark, path, tmp_path, **given):
    """The report, after a comparison of all files with those of a local recovery."""
    from tailrace.spark.pipeline.recover import recover

    local, here = tmp_path / "local", tmp_path / "spark"
    for copy in (local, here):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(path, copy, copy_function=shutil.copy2)
    with MessageStore.open(local, services=False, create=False, **given) as store:
        wanted = store.recovery_report
    report = recover(spark, str(here), **given)
    told = [
        {**json.loads(json.dumps(one).replace(str(root), "ROOT")), "ms": 0}
        for one, root in ((report, here), (wanted, local))
    ]
    assert told[0] == told[1]
    assert files(here) == files(local)
    assert sorted(f.name for f in (here / "tailrace" / "quarantine").glob("*.bin")) == sorted(
        f.name for f in (local / "tailrace" / "quarantine").glob("*.bin"))
    assert not (here / "tailrace" / "staging").exists()
    return report


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A store of several segments after a kill, without what recovery would go on from."""
    path = tmp_path_factory.mktemp("recover") / "store"
    with MessageStore.open(path, config=CONFIG, services=False) as store:
        put = [
            store.put(Message(topic=f"T{n % 2}", body=b"%d" % n * 90, tags="t" if n % 3 else None,
                              keys=[f"k{n}", "same"] if n % 5 else []), queue_id=n % 3)
            for n in range(150)
        ]
        store.put_inner(MessageExtBrokerInner("T0", 0, b"half", b"UNIQ_KEY\x01u\x02", sys_flag=4))
        store.put_inner(MessageExtBrokerInner(
            "SCHEDULE_TOPIC_XXXX", 2, b"late", b"DELAY\x013\x02"))
    (path / "abort").write_text("1")
    shutil.rmtree(path / "tailrace")
    return path, [result.phy_offset for result in put]


def test_a_killed_store_without_derived_state(spark, killed, tmp_path):
    path = tmp_path / "store"
    shutil.copytree(killed[0], path)
    for name in ("consumequeue", "index"):
        shutil.rmtree(path / name)
    (path / "checkpoint").unlink()
    report = both(spark, path, tmp_path)
    assert (report["from"], report["scanned"]) == (0, 152)


def test_the_commands(spark, killed, tmp_path):
    _ = spark  # the commands run in its session
    path = tmp_path / "store"
    shutil.copytree(killed[0], path)
    done = CliRunner().invoke(app, ["recover", str(path), "--spark"])
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["mode"] == "abnormal"
    done = CliRunner().invoke(
        app, ["pipeline", "rebuild", str(path), "--staging", str(tmp_path / "staging")])
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["mode"] == "rebuild"
    assert "segments from 0 on are scanned" in done.stderr
    assert not (tmp_path / "staging").exists()
    assert [q.max_offset for q in StoreDirectory(str(path)).queues() if q.topic == "T1"] == [25] * 3
    (tmp_path / "staging").mkdir()
    (tmp_path / "staging" / "mine").touch()
    done = CliRunner().invoke(
        app, ["pipeline", "rebuild", str(path), "--staging", str(tmp_path / "staging")])
    assert (done.exit_code, "is not empty" in done.stderr) == (1, True)
