"""A recovery that is ended at one of its reports, as by a signal, leaves a store that recovers."""

from __future__ import annotations

import shutil

import pytest

from tailrace import Message, MessageStore, StoreConfig
from tailrace.errors import StoreError
from tailrace.node.store_opening import StoreParts
from tailrace.store.recovery import passes

CONFIG = StoreConfig(
    mapped_file_size_commit_log=16384, mapped_file_size_consume_queue=400, max_hash_slot_num=50,
    max_index_num=200, commit_log_allocate_step=4096)


class StopError(StoreError):
    pass


def test_an_open_that_is_stopped_at_any_report_loses_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(passes, "_REPORT_NS", 0)
    killed = tmp_path / "killed"
    with MessageStore.open(tmp_path / "s", config=CONFIG, parts=StoreParts(services=False)) as store:
        for n in range(300):
            store.put(Message(topic="t", body=b"%d" % n * 50, keys=[f"k{n}"]))
        shutil.copytree(tmp_path / "s", killed)  # as a kill leaves it
    stopped = 0
    while True:
        here = tmp_path / "here"
        shutil.rmtree(here, ignore_errors=True)
        shutil.copytree(killed, here)
        left = [stopped]

        def report(done, left=left):
            left[0] -= 1
            if left[0] < 0:
                raise StopError("stopped")

        try:
            MessageStore.open(here, config=CONFIG,
                parts=StoreParts(services=False, on_recovery=report, rebuild=True)).close()
        except StopError:
            stopped += 1
        else:
            break
        assert (here / "abort").exists()
        with MessageStore.open(here, config=CONFIG, parts=StoreParts(services=False)) as again:
            assert [m.body for m in again.read("t", 0, 0)] == [
                b"%d" % n * 50 for n in range(300)]
    assert stopped > 0


def test_the_lock_is_given_back(tmp_path, monkeypatch):
    def refuse():
        raise StopError("stopped")

    with pytest.raises(StopError):
        MessageStore.open(tmp_path / "s", config=CONFIG, parts=StoreParts(on_lock=refuse))
    assert {p.name for p in (tmp_path / "s").iterdir()} == {"lock"}
    MessageStore.open(tmp_path / "s", config=CONFIG).close()
