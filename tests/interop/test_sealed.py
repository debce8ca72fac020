"""Placeholders over damage, read by the reference, which builds the queues from the log."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from tailrace import Message, MessageStore, StoreConfig
from tailrace.formats.commitlog import MIN_RECORD_LENGTH
from tailrace.node.store_opening import StoreParts
from tailrace.store.sealing import SEALED_TOPIC, placeholder
from tailrace.store.walk.log_walk import Damage

pytestmark = [pytest.mark.slow, pytest.mark.interop]
FILE = 1 << 20
SIZES = [*range(MIN_RECORD_LENGTH + 1, MIN_RECORD_LENGTH + len(SEALED_TOPIC) + 2), 400]
CONFIG = StoreConfig(
    mapped_file_size_commit_log=FILE, mapped_file_size_consume_queue=6000, max_hash_slot_num=1000, max_index_num=4000)
CONF = "mappedFileSizeCommitLog=1048576\nmappedFileSizeConsumeQueue=6000\nmaxHashSlotNum=1000\nmaxIndexNum=4000\n"


class File:
    file_from_offset = 0
    size = FILE


def test_the_reference_reads_over_placeholders_of_every_size(reference, tmp_path):
    store = tmp_path / "store"
    with MessageStore.open(store, config=CONFIG, parts=StoreParts(services=False)) as opened:
        for body in (b"before", b"-" * sum(SIZES), b"after", b"last"):
            put = opened.put(Message(topic="T", body=body, keys=["k"]), queue_id=0)
            if body[:1] == b"-":
                start = put.phy_offset
            elif body == b"after":
                end = put.phy_offset
        opened.wait_dispatched()
    sizes = [*SIZES, end - start - sum(SIZES)]
    assert sizes[-1] > MIN_RECORD_LENGTH
    with (store / "commitlog" / f"{0:020d}").open("r+b") as log:
        at = start
        for size in sizes:
            log.seek(at)
            log.write(placeholder(Damage(at, at + size, "", ""), File, 1_700_000_000_000))
            at += size
    shutil.rmtree(store / "consumequeue")
    shutil.rmtree(store / "index")
    (store / "checkpoint").unlink()
    (store / "abort").touch()
    (store / "lock").unlink(missing_ok=True)
    conf, out = tmp_path / "store.properties", tmp_path / "seen.jsonl"
    conf.write_text(CONF)
    done = subprocess.run(
        [reference, "store-dump", store, conf, out], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert not [row for row in rows if "missing" in row]
    assert [row["queue"]["topic"] for row in rows if "queue" in row] == ["T"]
    # The unit of the message whose place the placeholders take is missing, so the next one is the third of its queue.
    assert [row["message"]["physicalOffset"] for row in rows if "message" in row][-2:] == [end, put.phy_offset]
