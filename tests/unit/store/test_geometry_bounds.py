"""A file with an impossible size has no influence on the file size that an open recognises."""

from __future__ import annotations

import pytest

from tailrace import Message, MessageStore, StoreConfig
from tailrace.node.store_opening import StoreParts

CONFIG = StoreConfig(mapped_file_size_commit_log=1 << 16, max_hash_slot_num=100, max_index_num=400)


@pytest.mark.parametrize("length", [1, 100, 4095])
def test_a_store_whose_only_file_was_cut_short_is_opened_and_takes_messages(tmp_path, caplog, length):
    path = tmp_path / "store"
    with MessageStore.open(path, config=CONFIG, parts=StoreParts(services=False)) as store:
        store.put(Message(topic="t", body=b"x"))
    (file,) = (path / "commitlog").glob("0*")
    with file.open("r+b") as opened:
        opened.truncate(length)
    (path / "tailrace" / "format.json").unlink(missing_ok=True)
    with MessageStore.open(path, config=CONFIG, parts=StoreParts(services=False)) as store:
        assert store.config.mapped_file_size_commit_log == 1 << 16
        store.put(Message(topic="t", body=b"after"))
        assert [m.body for m in store.read("t")][-1] == b"after"
    assert "a size of the directory is ignored" in caplog.text
