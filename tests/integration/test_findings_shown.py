"""What `tailrace verify` shows on a terminal, and that it is green after repairs."""

from __future__ import annotations

import json
import re
import shutil

import commands
import pytest

from tailrace import Message, MessageStore, StoreConfig
from tailrace.cli import findings_output
from tailrace.cli.findings_output import FILES_SHOWN, print_findings
from tailrace.cli.output import print_table
from tailrace.doctor.verify import verify

pytestmark = pytest.mark.integration
SEGMENT = 16384
CONFIG = StoreConfig(
    mapped_file_size_commit_log=SEGMENT, mapped_file_size_consume_queue=400, max_hash_slot_num=50, max_index_num=200)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path = tmp_path_factory.mktemp("shown") / "store"
    with MessageStore.open(path, config=CONFIG) as store:
        put = [store.put(Message(topic=f"T{n % 2}", body=b"%d" % n * 90, keys=[f"k{n}"]), queue_id=n % 3)
               for n in range(150)]
    return path, put


@pytest.fixture
def path(made, tmp_path):
    return shutil.copytree(made[0], tmp_path / "store")


def spoil(path, *put):
    for one in put:
        place = one.phy_offset + 100
        with (path / "commitlog" / f"{place // SEGMENT * SEGMENT:020d}").open("r+b") as file:
            file.seek(place % SEGMENT)
            file.write(b"\xff\xee\xdd")


def run(*arguments):
    done = commands.run(*arguments)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def found(path):
    lines = [*verify(str(path))]
    assert lines[-1]["summary"]["findings"] == sum("finding" in line for line in lines)
    return tuple([line[what] for line in lines if what in line] for what in ("finding", "note"))


def test_a_store_is_green_after_its_damage_is_sealed_and_the_next_damage_is_found(made, path):
    put = made[1]
    spoil(path, put[40], put[41], put[42], put[90])  # three neighbours are one range of damage
    code, lines, _ = run("verify", path)
    assert code == 1
    assert {line["finding"]["kind"] for line in lines[:-1]} >= {"damaged-record"}
    assert run("repair", "--seal-damage", path)[0] == 0
    for _ in range(2):
        code, lines, _ = run("verify", path)
        assert (code, lines[-1]["summary"]["findings"]) == (0, 0)
        notes = [line["note"] for line in lines[:-1]]
        assert {note["kind"] for note in notes} == {"sealed-record"}
        assert {put[40].phy_offset, put[90].phy_offset} <= {note["position"] for note in notes}
        assert run("repair", path)[0] == 0
    spoil(path, put[120])
    findings, notes = found(path)
    assert {one["position"] for one in findings if one["kind"] == "damaged-record"} == {put[120].phy_offset}
    assert notes


def test_a_unit_that_names_no_record_is_found_beside_sealed_ones(made, path):
    put = made[1]
    spoil(path, put[40])
    run("repair", "--seal-damage", path)
    queue = path / "consumequeue" / "T0" / "0" / "0".zfill(20)
    with queue.open("r+b") as file:
        file.seek(20 * 5)
        file.write((put[2].phy_offset + 9).to_bytes(8, "big"))
    kinds = {one["kind"] for one in found(path)[0]}
    assert kinds & {"foreign-unit", "wrong-unit"}


def test_no_detail_is_a_form_of_python(made, path):
    queue = path / "consumequeue" / "T0" / "0" / "0".zfill(20)
    with queue.open("r+b") as file:
        file.seek(20 * 3 + 19)
        file.write(b"\x7f")
    [one] = found(path)[0]
    assert one["kind"] == "wrong-unit"
    assert re.fullmatch(r"the unit has phy_offset \d+, size \d+, tags_code \d+, for the record at \d+", one["detail"])


@pytest.mark.parametrize("lost_queues", [False, True])
def test_the_progress_grows_from_nothing_to_nearly_all(made, path, lost_queues):
    if lost_queues:
        shutil.rmtree(path / "consumequeue")
        spoil(path, made[1][20])  # the end of the log is not found from here
    seen = []
    [*verify(str(path), progress=seen.append)]
    assert seen == sorted(seen)
    assert seen[0] < 0.5
    assert 0.8 < seen[-1] <= 1


def findings_of(files):
    return [{"kind": "missing-unit", "file": f"/x/store/consumequeue/T/{n}", "position": at, "detail": "d"}
            for n in range(files) for at in range(n + 1)]


def shown(capsys, **changes):
    findings, each = findings_of(8), changes.pop("each", False)
    summary = {"state": "clean", "records": 7, "timers": {"pending": 1}, "findings": len(findings), "kinds": {}}
    print_findings("./store", "/x/store", findings, [], summary | changes, each=each)
    return capsys.readouterr().out.splitlines()


def test_findings_are_counted_by_kind_and_file_before_the_state(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = shown(capsys)
    assert lines[0] == "36 findings"
    assert [line.split() for line in lines[1:8]] == [
        ["findings", "kind", "file"],
        *([str(n + 1), "missing-unit", f"consumequeue/T/{n}"] for n in range(FILES_SHOWN)),
        ["21", "missing-unit", "3", "other", "files"]]
    text = "\n".join(lines)
    assert "missing-unit: A message has no unit in its queue, so consumers do not get it. Run tailrace repair" in text
    assert "Each finding: tailrace verify ./store --all" in text
    assert lines[-1].split() == ["state", "clean"]
    assert "was not closed cleanly" in "\n".join(shown(capsys, state="unclean"))


def test_all_shows_each_finding(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    lines = shown(capsys, each=True)
    assert sum("missing-unit  consumequeue" in line for line in lines) == 36
    assert not [line for line in lines if "--all" in line]


def test_every_kind_has_advice():
    for kind in findings_output._KINDS:
        text = findings_output._advice(kind, "./store")
        assert text.endswith(".")
        assert "{" not in text


def test_the_report_of_a_repair_has_no_form_of_python(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    print_table([{"what": "sealed", "value": [{"physicalOffset": 7, "length": 3}, {"physicalOffset": 9, "length": 4}]}])
    assert capsys.readouterr().out.splitlines()[1].split() == [
        "sealed", "physicalOffset=7", "length=3", "physicalOffset=9", "length=4"]
