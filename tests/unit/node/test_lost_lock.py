"""A store whose lock file was replaced changes nothing in the directory any more."""

import os

import pytest

from tailrace import Message, MessageStore
from tailrace.config import StoreConfig
from tailrace.errors import LockLostError, StoreNotWritableError
from tailrace.node.store_opening import StoreParts


def state(root):
    return {
        path: (path.stat().st_size, path.stat().st_mtime_ns) for path in root.rglob("*") if path.is_file()}


def grow(store):
    for _ in range(100):
        store.put(Message(topic="T", body=b"x" * 1000))


CHANGES = {
    "put": (StoreNotWritableError, lambda store: store.put(Message(topic="T", body=b"x"))),
    "topic": (LockLostError, lambda store: store.topics.create_if_missing("Z", 4)),
    "delete a topic": (LockLostError, lambda store: store.delete_topics({"T"})),
    "purge": (LockLostError, lambda store: store.purge_topic("T")),
    "flush": (LockLostError, lambda store: store.flush()),
    "retention": (LockLostError, lambda store: store.retention.delete_now()),
    "offsets of delay levels": (LockLostError, lambda store: store.timer_services.delay_offsets.persist_if_changed()),
    "file": (LockLostError, lambda store: store.file_system.open(f"{store.path}/new", writable=True, create=True)),
    "remove": (LockLostError, lambda store: store.file_system.remove(f"{store.path}/abort")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_after_the_lock_is_lost_nothing_is_changed(tmp_path, change):
    root = tmp_path / "s"
    store = MessageStore.open(root,
        parts=StoreParts(services=False), config=StoreConfig(mapped_file_size_commit_log=65_536))
    grow(store)
    store.timer_services.delay_offsets.update(1, 1)
    store.wait_dispatched()
    store.put(Message(topic="T", body=b"not flushed"))
    os.rename(root / "lock", root / "old")
    (root / "lock").write_bytes(b"lock")
    store._lock_watch.step()
    assert store.lost_lock
    before = state(root)
    error, act = CHANGES[change]
    with pytest.raises(error, match="was replaced while the store was open"):
        act(store)
    assert state(root) == before
    store.close()
    assert state(root) == before
