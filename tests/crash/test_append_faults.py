"""A fault in every step of an append: what was acknowledged is there, what was not leaves no trace.

The one append takes writers of five kinds. Each is run with a fault at every operation on a file that
the append makes (blocks, next file, their syncs), and with a writer that fails at every record.
"""

from __future__ import annotations

import contextlib
import errno
import os

import pytest
from long_runs import some
from read_there import read_there

from tailrace import Message, MessageStore, StoreConfig
from tailrace.env.entropy import SeededEntropy
from tailrace.errors import StoreError
from tailrace.formats.commitlog import encode_batch
from tailrace.model import MessageExtBrokerInner
from tailrace.node.store_opening import StoreParts
from tailrace.store import commit_log
from tailrace.testing import CrashFileSystem, SimClock

CONFIG = StoreConfig(
    mapped_file_size_commit_log=8192, mapped_file_size_consume_queue=400, max_hash_slot_num=16,
    max_index_num=64, commit_log_allocate_step=4096, max_message_size=6000)
BODIES = [b"%02d" % n * 450 for n in range(20)]


def one_by_one(store):
    done = 0
    for body in BODIES:
        result = store.put_inner(MessageExtBrokerInner("T", 0, body))
        if not result.status.appended:
            return done
        done += 1
    return done


def batches(store):
    done = 0
    for at in range(0, len(BODIES), 4):
        part = BODIES[at : at + 4]
        result = store.inner.put_batch(
            MessageExtBrokerInner("T", 0, b""), encode_batch([(0, body, b"") for body in part]))
        assert result.msg_num in (0, len(part))  # all or none
        done += result.msg_num
        if not result.status.appended:
            break
    return done


def many(store):
    store.put_many([Message(topic="T", body=body) for body in BODIES])
    return len(BODIES)


def table(store):
    store.put_table({"body": BODIES}, topic="T")
    return len(BODIES)


def multi_dispatch(store):
    done = 0
    for body in BODIES:
        result = store.put_inner(MessageExtBrokerInner(
            "T", 0, body, b"INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%b\x02"))
        if not result.status.appended:
            break
        done += 1
    return done


@pytest.fixture(autouse=True, params=["mapped", "calls", "many calls"])
def way(request, monkeypatch):
    """How records come into the file: stored in the mapping, written by one system call or by several."""
    limits = {"mapped": (1 << 20, 1), "calls": (2000, 1 << 20), "many calls": (500, 2200)}[request.param]
    monkeypatch.setattr(commit_log, "long_put_limits", lambda _: limits)
    return request.param


ERRORS = [errno.ENOSPC, errno.EMFILE, errno.EIO]
KINDS = [one_by_one, batches, many, table, multi_dispatch]


def opened(files):
    store = MessageStore.open(
        "/s", config=CONFIG, parts=StoreParts(services=False, file_system=files, clock=SimClock()))
    store.topics.create_if_missing("T", 4)
    return store


def operations_of(kind):
    """How many operations on files an append of this kind makes."""
    files = CrashFileSystem()
    with opened(files) as store:
        first = files.operations
        kind(store)
        return files.operations - first


def check(store, acknowledged, *, exact):
    """Read all messages; the acknowledged ones are among them, in order, and it ends with whole records."""
    store.wait_dispatched()
    found = [message.body for message in read_there(store, "T")]
    assert found == BODIES[: len(found)]
    assert len(found) == acknowledged if exact else len(found) >= acknowledged
    assert [m.queue_offset for m in read_there(store, "T")] == list(range(len(found)))
    until = store.max_phy_offset
    start = until - until % 8192
    file = store.inner.commit_log.queue.find(until)
    if file is not None:  # a failed record leaves no bytes after the end
        rest = bytes(file.buffer[until - start :])
        assert rest.count(0) == len(rest)
    return len(found)


@pytest.mark.parametrize("failing", ERRORS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_in_each_operation_of_an_append(kind, failing):
    steps = operations_of(kind)
    assert steps >= 8
    failed = 0
    for step in some(range(steps), len(ERRORS), ERRORS.index(failing)):
        files = CrashFileSystem()
        store = opened(files)
        first, struck = files.operations, []

        def fault(number, name, path, at=first + step, struck=struck):
            if number == at:
                struck.append(name)
                raise OSError(failing, os.strerror(failing), path)

        files.before = fault
        acknowledged, exact = 0, True
        try:
            acknowledged = kind(store)
        except (StoreError, OSError):
            exact = False  # some of them may be there, as the error says
            failed += 1
        failed += exact and acknowledged < len(BODIES)
        files.before = None
        there = check(store, acknowledged, exact=exact)
        if store.is_writeable:
            result = store.put_inner(MessageExtBrokerInner("T", 0, b"next"))
            assert result.status.appended
            assert result.queue_offset == there
        else:
            assert struck[0].startswith("sync"), "only a failed sync ends the writes (F6)"
        store.close()
        with opened(files) as again:
            bodies = [message.body for message in read_there(again, "T")]
            assert bodies[:there] == BODIES[:there]
            assert bodies[there:] in ([], [b"next"])
    assert failed >= 2, "no fault was felt"


@pytest.mark.parametrize("bad", range(len(BODIES)))
def test_a_writer_that_fails_at_a_record_leaves_the_whole_ones_before_its_part(bad):
    files = CrashFileSystem()
    with opened(files) as store:
        store.put(Message(topic="T", body=BODIES[0]))
        log = store.inner.commit_log
        items = [(0, body, b"" if n != bad else "no bytes") for n, body in enumerate(BODIES[1:], 1)]
        writer = log.items_writer(MessageExtBrokerInner("T", 0, b""), items)
        if bad:
            try:
                result = store.inner.append(writer)
                assert result.msg_num == writer.done > 0
            except TypeError:
                assert writer.done == 0
        else:
            assert store.inner.append(writer).msg_num == len(items)
        check(store, 1 + writer.done, exact=True)
        assert store.put(Message(topic="T", body=b"next")).queue_offset == 1 + writer.done


@pytest.mark.parametrize("kind", KINDS)
def test_a_stop_at_each_operation_of_an_append(kind):
    """After a kill there is a run of whole records, after a power loss what was flushed, and no other record."""
    for step in some(range(operations_of(kind)), 2):
        files = CrashFileSystem()
        store = opened(files)
        store.put(Message(topic="T", body=b"flushed"))
        store.flush()
        first = files.operations

        def stop(number, name, path, at=first + step):
            if number == at:
                raise SystemExit  # nothing after it happens

        files.before = stop
        with contextlib.suppress(SystemExit):
            kind(store)
        with opened(files.killed()) as again:
            bodies = [message.body for message in read_there(again, "T")]
            assert bodies == [b"flushed", *BODIES[: len(bodies) - 1]]
        for keep in (0, 50):
            with opened(files.power_lost(SeededEntropy(step), keep)) as again:
                found = [message.body for message in read_there(again, "T")]
                assert found[0] == b"flushed"
                assert found[1:] == [body for body in BODIES if body in found]
                assert keep or len(found) == 1
