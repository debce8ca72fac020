"""`tailrace verify` and `repair`: an undamaged store gives no findings, and each damage gives one."""

from __future__ import annotations

import json
import shutil

import commands
import pytest

from tailrace import Message, MessageStore, StoreConfig
from tailrace.doctor.verify import verify
from tailrace.model import MessageExtBrokerInner
from tailrace.node.store_opening import StoreParts

pytestmark = pytest.mark.integration
CONFIG = StoreConfig(
    mapped_file_size_commit_log=16384, mapped_file_size_consume_queue=400, max_hash_slot_num=50,
    max_index_num=200, commit_log_allocate_step=4096)


def run(*arguments):
    done = commands.run(*arguments)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path = tmp_path_factory.mktemp("verify") / "store"
    with MessageStore.open(path, config=CONFIG, parts=StoreParts(services=False)) as store:
        put = [
            store.put(Message(topic=f"T{n % 2}", body=b"%d" % n * 90, tags="t" if n % 3 else None,
                              keys=[f"k{n}"]), queue_id=n % 3)
            for n in range(150)
        ]
        store.put_inner(MessageExtBrokerInner("T0", 0, b"half", b"UNIQ_KEY\x01u\x02", sys_flag=4))
    return path, put


@pytest.fixture
def store_path(made, tmp_path):
    path = tmp_path / "store"
    shutil.copytree(made[0], path)
    return path


def poke(path, at, data):
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def kinds(path):
    *lines, summary = verify(str(path))
    findings = [line for line in lines if "finding" in line]
    assert summary["summary"]["findings"] == len(findings)
    return {line["finding"]["kind"] for line in findings}


def segment_of(path, phy_offset):
    return path / "commitlog" / f"{phy_offset // 16384 * 16384:020d}"


def test_a_sound_directory_has_no_finding(store_path):
    code, lines, _ = run("verify", store_path)
    assert (code, len(lines)) == (0, 1)
    summary = lines[0]["summary"]
    assert (summary["records"], summary["units"], summary["findings"]) == (151, 150, 0)
    assert summary["indexEntries"] == 150 * 2 + 100 + 1


def test_each_kind_of_damage_is_named(made, store_path):
    _, put = made
    queue = store_path / "consumequeue" / "T0" / "0" / "0".zfill(20)
    index = min((store_path / "index").iterdir())
    cases = {
        "damaged-record": lambda: poke(segment_of(store_path, put[40].phy_offset),
                                       put[40].phy_offset % 16384 + 100, b"\xff"),
        "wrong-unit": lambda: poke(queue, 20 * 3 + 19, b"\x7f"),
        "missing-unit": lambda: poke(queue, 20 * 4, bytes(16 * 20)),
        "index-chain": lambda: poke(index, 40 + 200 + 20 * 9 + 4, b"\x01"),
        "missing-key": lambda: index.unlink(),
        "checkpoint-ahead": lambda: poke(store_path / "checkpoint", 40, b"\x7f"),
        "config-unreadable": lambda: (store_path / "config" / "topics.json").write_text("{"),
        "segment-length": lambda: poke(segment_of(store_path, 0), 16384, b"more"),
    }
    for kind, spoil in cases.items():
        shutil.rmtree(store_path)
        shutil.copytree(made[0], store_path)
        spoil()
        assert kind in kinds(store_path), kind
    code, lines, _ = run("verify", store_path)
    assert code == 1
    assert lines[-1]["summary"]["findings"] == len(lines) - 1


def test_a_torn_end_is_named_and_repaired(made, store_path):
    _, put = made
    last = put[-1]
    poke(segment_of(store_path, last.phy_offset), last.phy_offset % 16384 + 30, bytes(900))
    (store_path / "abort").write_text("1")
    assert {"torn-end", "foreign-unit"} & kinds(store_path)
    assert run("recover", store_path)[0] == 0
    assert kinds(store_path) == set()


def test_repair_builds_anew_and_seals_so_that_the_log_is_whole(made, store_path):
    _, put = made
    bad = put[70]
    poke(segment_of(store_path, bad.phy_offset), bad.phy_offset % 16384 + 120, b"\xee\xee")
    shutil.rmtree(store_path / "consumequeue" / "T1")
    before = {p: p.read_bytes() for p in sorted(store_path.rglob("*")) if p.is_file()}
    code, plan, _ = run("repair", store_path, "--plan", "--seal-damage")
    assert code == 0
    assert [line["plan"]["do"] for line in plan] == ["seal", "rebuild queues and index"]
    assert plan[0]["plan"]["physicalOffset"] == bad.phy_offset
    assert before == {p: p.read_bytes() for p in sorted(store_path.rglob("*")) if p.is_file()}
    code, (report,), _ = run("repair", store_path, "--seal-damage")
    assert (code, report["mode"]) == (0, "rebuild")
    assert [seal["physicalOffset"] for seal in report["sealed"]] == [bad.phy_offset]
    assert list((store_path / "tailrace" / "quarantine").glob("*.bin"))
    assert kinds(store_path) == set(), "the log is whole"
    units = []
    for _ in range(2):
        with MessageStore.open(store_path, config=CONFIG, parts=StoreParts(services=False)) as store:
            bodies = {
                (topic, queue_id): [m.body for m in store.read(topic, queue_id)]
                for topic, queue_id, _, _ in store.queues()
            }
            assert store.max_offset_in_queue("T0", 1) == 25
        wanted = {}
        for n in range(150):
            if n != 70:
                wanted.setdefault((f"T{n % 2}", n % 3), []).append(b"%d" % n * 90)
        assert bodies == wanted
        units.append({p: p.read_bytes() for p in sorted((store_path / "consumequeue").rglob("0*")) if p.is_file()})
        (store_path / "abort").write_text("1")
        shutil.rmtree(store_path / "tailrace", ignore_errors=True)
        shutil.rmtree(store_path / "consumequeue")
    assert units[0] == units[1], "a placeholder tells as much as the damage that it covers"
