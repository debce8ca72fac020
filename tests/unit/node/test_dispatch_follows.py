"""A fast writer waits for a slow dispatch, but not for a dispatch that makes no progress."""

import time

from patience import until

from tailrace.model import Message
from tailrace.node.message_store import MessageStore
from tailrace.store import default_message_store

BODY = bytes(8192)
FAR = 32 << 20


def test_dispatch_keeps_up_with_a_busy_writer(tmp_path):
    with MessageStore.open(tmp_path / "s") as store:
        behind = 0
        for number in range(16_000):  # 131 MB
            store.put(Message(topic="t", body=BODY, keys=[f"k{number}"]), queue_id=number % 4)
            behind = max(behind, store.dispatch_behind_bytes)
        assert behind <= 2 * FAR, behind
        store.put_many([Message(topic="t", body=BODY) for _ in range(2000)])
        assert store.dispatch_behind_bytes <= 2 * FAR


def test_a_writer_waits_for_a_step_that_takes_long(tmp_path, monkeypatch):
    with MessageStore.open(tmp_path / "s") as store:
        step = store.inner.reput._step
        monkeypatch.setattr(store.inner.reput, "_step", lambda: time.sleep(0.2) or step())
        behind = 0
        for _ in range(3200):  # 105 MB
            store.put(Message(topic="t", body=4 * BODY))
            behind = max(behind, store.dispatch_behind_bytes)
        assert behind <= 2 * FAR, behind


def test_a_dispatch_that_stands_holds_no_writer_up(tmp_path, monkeypatch):
    with MessageStore.open(tmp_path / "s") as store:
        reput, waits = store.inner.reput, []
        monkeypatch.setattr(reput, "_step", lambda: False)
        follow = reput.wait
        monkeypatch.setattr(reput, "wait", lambda *a: waits.append(a) or follow(*a))
        for _ in range(5000):  # 41 MB
            store.put(Message(topic="t", body=BODY))
        assert len(waits) == 1
        monkeypatch.undo()
    with MessageStore.open(tmp_path / "s") as store:
        assert len(list(store.read("t"))) == 5000


def test_what_was_put_counts_before_it_can_be_read(tmp_path, monkeypatch):
    with MessageStore.open(tmp_path / "s") as store:
        monkeypatch.setattr(store.inner.reput, "_step", lambda: False)
        store.put_many([Message(topic="t", body=b"b") for _ in range(3)], queue_id=1)
        assert store.max_offset_in_queue("t", 1) == 0
        assert store.max_offset_in_queue("t", 1, committed=False) == 3
        assert store.max_offset_in_queue("t", 0, committed=False) == 0
        monkeypatch.undo()
        store.wait_dispatched()
        assert store.max_offset_in_queue("t", 1) == store.max_offset_in_queue("t", 1, committed=False) == 3


def test_dispatch_rests_while_no_reader_waits_until_one_does(tmp_path, monkeypatch):
    monkeypatch.setattr(default_message_store, "_UNAWAITED_MS", 60_000)
    awaited = []
    with MessageStore.open(tmp_path / "s") as store:
        store.set_message_arriving_listener(None, lambda: bool(awaited))

        def put():
            store.put(Message(topic="t", body=BODY))

        def rests():
            put()
            time.sleep(0.1)
            return store.dispatch_behind_bytes

        until(rests)  # the first steps may have no rest before them
        awaited.append(1)
        store.inner.hurry_reput()
        until(lambda: not store.dispatch_behind_bytes)
        put()
        until(lambda: not store.dispatch_behind_bytes)  # it rests for 1 ms
        awaited.clear()
        put()
        assert store.wait_dispatched(20_000), "who waits for the dispatch does not wait for its rest"
