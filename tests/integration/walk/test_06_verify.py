"""Damage, verify, seal, verify: the number first, what to do, then green; pending and overdue timers."""

from __future__ import annotations

import pytest

from tailrace import Message, MessageStore
from tailrace.store.directory import StoreDirectory

pytestmark = [pytest.mark.slow, pytest.mark.integration]


@pytest.fixture(autouse=True)
def damaged_store(tmp_path):
    with MessageStore.open(tmp_path / "store") as store:
        put = [store.put(Message(topic="orders", body=b"%d" % n * 50, keys=[f"k{n}"]), queue_id=n % 2)
               for n in range(200)]
        store.put(Message(topic="later", body=b"x", delay=3600))
        store.put(Message(topic="later", body=b"x", delay=1.0))
    [segment] = [file.path for file in StoreDirectory(str(tmp_path / "store")).log_files][:1]
    with open(segment, "r+b") as file:
        file.seek(put[70].phy_offset + 100)
        file.write(b"\xff\xee")


def test_damage_is_counted_explained_sealed_and_then_a_note(shell, tmp_path):
    shell.run("rm -r store/consumequeue/orders/1")
    lines = shell.run("tailrace verify store; echo rc=$?").splitlines()
    assert lines[0] == "101 findings" or lines[0].endswith(" findings")
    text = " ".join(" ".join(lines).split())
    assert lines[-1] == "rc=1"
    assert len(lines) < 30
    assert "100 missing-unit consumequeue/orders/1" in text
    assert "1 damaged-record commitlog/" in text
    assert "Run tailrace repair store." in text
    assert "tailrace repair --seal-damage store" in text
    assert "Each finding: tailrace verify store --all" in text
    assert "CqUnit" not in shell.run("tailrace verify store --all")
    assert lines[0].removesuffix(" findings") in shell.run("tailrace verify store | tail -1")
    shell.run("tailrace repair --seal-damage store")
    shell.run("tailrace repair store")
    lines = shell.run("tailrace verify store; echo rc=$?").splitlines()
    assert lines[0] == "0 findings"
    assert "sealed-record" in "\n".join(lines)
    assert lines[-1] == "rc=0"


def test_a_timer_whose_time_has_passed_is_overdue_everywhere(shell, tmp_path):
    shell.run("while tailrace timers store | grep -c overdue | grep -q 0; do :; done")
    shown = shell.run("tailrace timers store --wide")
    assert sorted(line.split()[-1] for line in shown.splitlines() if "later" in line) == ["overdue", "pending"]
    [line] = [line for line in shell.run("tailrace timers store --summary").splitlines() if "later" in line]
    assert line.split()[1:3] == ["2", "1"]
    assert "pending=2 overdue=1 delivered=0" in shell.run("tailrace verify store")
