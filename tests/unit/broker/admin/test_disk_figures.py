"""All figures of free space are those of a process without privileges, from one function, in one unit."""

from __future__ import annotations

import pathlib
from types import SimpleNamespace

import pytest
from broker_kit import wired

from tailrace import MessageStore, StoreConfig
from tailrace.broker.admin.admin import RuntimeInfo
from tailrace.console.elements import h
from tailrace.console.storage import disk_page, retention_page
from tailrace.console.viewer import Viewer
from tailrace.doctor.retention import explain_directory
from tailrace.doctor.retention_report import answer_lines, json_lines
from tailrace.env.clock import SystemClock
from tailrace.env.filesystem import OsFileSystem

SRC = pathlib.Path(__file__).parents[4] / "src" / "tailrace"
GIB = 1 << 30
USAGE = SimpleNamespace(total=1000 * GIB, free=230 * GIB, usable=69 * GIB)


@pytest.fixture
def embedded(tmp_path, monkeypatch):
    monkeypatch.setattr(OsFileSystem, "disk_usage", lambda _, path: USAGE)
    config = StoreConfig(disk_free_bytes_warning_level=100 * GIB, mapped_file_size_commit_log=1 << 20)
    with MessageStore.open(tmp_path / "s", config=config) as store:
        yield store


def text_of(children):
    return "".join(h("div", *children).itertext())


def test_they_agree(embedded, broker):
    embedded.retention.disk.check()
    broker.store = embedded
    view = explain_directory(embedded.path, embedded.config, SystemClock(), OsFileSystem())
    table = wired(RuntimeInfo, broker).table()
    [disk, *_] = json_lines(view)
    found = {
        "broker status": table["commitLogDirCapacity"],
        "retention": "\n".join(answer_lines(view, "s", embedded.config)),
        "/ready": embedded.not_writeable_reason,
        "console disk": text_of(disk_page(embedded)),
        "console retention": text_of(retention_page(embedded, SystemClock(), Viewer(lambda access: True, "c"))),
    }
    assert table["commitLogDirCapacity"] == "Total : 1000.0 GiB, Free : 69.0 GiB."
    for place, text in found.items():
        assert "69.0 GiB" in text, place
        assert "230" not in text, place
    assert disk["availableBytes"] == USAGE.usable
    percent = -(-(1000 - 230) * 100 // (1000 - 230 + 69))  # as df
    assert disk["usedPercent"] == percent
    assert float(table["commitLogDiskRatio"]) == float(table["consumeQueueDiskRatio"]) == percent / 100
    assert set(embedded.stats()["diskUsedPercent"].values()) == {percent}


def test_disks_are_measured_in_one_place_only():
    """A figure of a disk that another module measures on its own would disagree."""
    found = {str(path.relative_to(SRC)) for path in SRC.rglob("*.py") if ".disk_usage(" in path.read_text()}
    assert found == {"env/forwarding.py", "testing/contracts.py", "store/retention/disk_check.py"}
    assert not [path for path in SRC.rglob("*.py") if "statvfs" in path.read_text() and path.name != "filesystem.py"]
