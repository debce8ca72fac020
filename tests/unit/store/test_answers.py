"""Answers to waiting puts: an answer that fails costs no other put its answer."""

from __future__ import annotations

import errno

import pytest

from tailrace import FlushDiskType, MessageStore, StoreConfig
from tailrace.env.entropy import SeededEntropy
from tailrace.errors import FatalStorageError
from tailrace.model import MessageExtBrokerInner, PutMessageStatus
from tailrace.node.store_opening import StoreParts
from tailrace.testing import CrashFileSystem, ManualScheduler, SimClock


def opened():
    files, clock, scheduler = CrashFileSystem(), SimClock(), ManualScheduler()
    store = MessageStore.open(
        "/s", config=StoreConfig(
            flush_disk_type=FlushDiskType.SYNC_FLUSH, mapped_file_size_commit_log=16384,
            mapped_file_size_consume_queue=400, max_hash_slot_num=16, max_index_num=64),
        parts=StoreParts(clock=clock, file_system=files, scheduler=scheduler, entropy=SeededEntropy(1)))
    return store, files, clock, scheduler.steps


def wait(store, answers):
    """Three puts wait; the answer to the second one raises."""
    def broken(_status):
        raise ValueError("the program has a bug")

    for number in range(3):
        result = store.put_inner(MessageExtBrokerInner("t", 0, b"x"))
        store.inner.when_durable(result.until, broken if number == 1 else answers.append)


def test_durable_puts_are_answered_although_one_answer_fails(caplog):
    store, _, _, steps = opened()
    answers = []
    wait(store, answers)
    steps["GroupCommitService"]()
    assert answers == [PutMessageStatus.PUT_OK] * 2
    assert sum("an answer to a put failed" in record.getMessage() for record in caplog.records) == 1
    store.close()


def test_late_puts_are_answered_although_one_answer_fails():
    store, _, clock, _ = opened()
    answers = []
    wait(store, answers)
    clock.advance(60_000)
    store.inner.flush_commit_log.answer()
    assert answers == [PutMessageStatus.FLUSH_DISK_TIMEOUT] * 2
    store.close()


def test_after_a_failed_sync_puts_are_answered_although_one_answer_fails():
    store, files, _, steps = opened()
    answers = []
    wait(store, answers)

    def before(_number, name, path):
        if name == "sync_data":
            raise OSError(errno.EIO, "injected", path)

    files.before = before
    with pytest.raises(FatalStorageError):
        steps["GroupCommitService"]()
    assert answers == [PutMessageStatus.SERVICE_NOT_AVAILABLE] * 2
    files.before = None
    store.close()
